"""Learning curves: makespans and losses of a run, stage by stage, from its metrics CSV."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import FileFormatError
from doppler.viz.figure import new_figure, save_figure, time_unit

STAGE_COLUMN, EPISODE_COLUMN = "stage", "episodes"
FEW_POINTS = 16


def read_metrics(path: str | Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """Reads a metrics CSV as training writes it.

    Args:
        path: the file; it has a column `stage` and, besides, only numbers.

    Returns:
        The stage of each row (num_rows,), and each other column as floats (num_rows,), NaN where a
        cell is empty.

    Raises:
        FileFormatError: a missing file, no `stage` or `episodes` column, or a cell that is no
            number; the message names file, line and column.
    """
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
            columns = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{path}: cannot be read as a metrics file: {error}") from error
    for column in (STAGE_COLUMN, EPISODE_COLUMN):
        if column not in columns:
            raise FileFormatError(f"{path}, line 1: the column {column!r} is missing")
    values = {name: np.full(len(rows), math.nan) for name in columns if name != STAGE_COLUMN}
    for index, row in enumerate(rows):
        for name, array in values.items():
            if row[name]:
                try:
                    array[index] = float(row[name])
                except ValueError as error:
                    raise FileFormatError(
                        f"{path}, line {index + 2}, {name}: {row[name]!r} is not a number"
                    ) from error
    return [row[STAGE_COLUMN] for row in rows], values


def plot_learning_curve(metrics: str | Path, path: str | Path, title: str = "") -> Path:
    """Draws makespans (above) and losses and entropies (below) against episodes.

    Each stage has a column with axes of its own, because a stage of measured episodes is short and
    noisy beside one of simulated episodes.

    Args:
        metrics: the CSV file of a run; columns of simulated or measured makespans go into the
            upper panel [s], those that hold "loss" or "entropy" into the lower one.
        path: where to write; the suffix chooses the format (png, pdf, svg).
        title: put on top.

    Returns:
        The path.

    Raises:
        FileFormatError: the metrics file cannot be read, or has no rows yet.
        ConfigurationError: an unknown picture format.
    """
    stages, values = read_metrics(metrics)
    if not stages:
        raise FileFormatError(f"{metrics}: no rows to draw yet")
    names = list(dict.fromkeys(stages))
    figure = new_figure(max(7.0, 5.0 * len(names)), 6.0)
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(2, len(names), sharex="col", height_ratios=(3, 2), squeeze=False)
    for column, stage in enumerate(names):
        rows = np.flatnonzero(np.array(stages) == stage)
        upper, lower = panels[:, column]
        shown = {name: array[rows] for name, array in values.items()}
        x = shown.pop(EPISODE_COLUMN)
        makespans = {n: y for n, y in shown.items() if "_makespan_" in n}
        largest = max((np.nanmax(y) for y in makespans.values() if np.isfinite(y).any()), default=1)
        scale, unit = time_unit(float(largest))
        _draw_curves(upper, x, {n: y / scale for n, y in makespans.items()})
        _draw_curves(lower, x, {n: y for n, y in shown.items() if "loss" in n or "entropy" in n})
        upper.set_title(f"stage {stage}", fontsize=9)
        upper.set_ylabel(f"makespan [{unit}]")
        lower.set_ylabel("loss, entropy")
        lower.set_xlabel("episodes of the run")
    return save_figure(figure, path)


def _draw_curves(panel: Any, x: np.ndarray, curves: dict[str, np.ndarray]) -> None:
    """A line per curve, without those that have no numbers in this stage."""
    for name, y in curves.items():
        rows = np.flatnonzero(np.isfinite(y))
        if rows.size:
            marker = "." if rows.size < FEW_POINTS else ""
            panel.plot(x[rows], y[rows], linewidth=1.2, marker=marker, label=name.replace("_", " "))
    if panel.get_lines():
        panel.legend(fontsize=7, framealpha=0.6)
        panel.grid(alpha=0.25)
    else:
        panel.text(0.5, 0.5, "not recorded in this stage", transform=panel.transAxes,
                   ha="center", va="center", fontsize=8, color="0.5")  # fmt: skip
        panel.set_axis_off()
