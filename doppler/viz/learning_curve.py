"""Learning curves: makespans and losses of a training run, stage by stage, from its metrics CSV."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import FileFormatError
from doppler.viz.figure import new_figure, save_figure, time_unit

STAGE_COLUMN, EPISODE_COLUMN = "stage", "episodes"
STAGE_COLOURS = ("#dde7f3", "#e4f1df", "#f8ead8")


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
    """Draws a run's makespans (above) and its losses and entropy (below) against episodes.

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
    x = values[EPISODE_COLUMN]
    spans = _spans(stages, x)
    upper = [n for n in values if "_makespan_" in n]
    lower = [n for n in values if "loss" in n or "entropy" in n]
    figure = new_figure(10.0, 6.0)
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    finite = [values[n][np.isfinite(values[n])] for n in upper]
    largest = max((v.max() for v in finite if v.size), default=1.0)
    scale, unit = time_unit(largest)
    for name in upper:
        _curve(panels[0], x, values[name] / scale, stages, name)
    for name in lower:
        _curve(panels[1], x, values[name], stages, name)
    panels[0].set_ylabel(f"makespan [{unit}]")
    panels[0].set_title(title, fontsize=10)
    panels[1].set_ylabel("loss, entropy")
    panels[1].set_xlabel("episodes, all stages")
    for panel in panels:
        _shade_stages(panel, spans)
        panel.grid(alpha=0.25)
        panel.set_xlim(0, max(spans[-1][2], 1.0))
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    for name, left, right in spans:
        panels[0].text(
            (left + right) / 2, 1.0, name, transform=panels[0].get_xaxis_transform(),
            ha="center", va="top", fontsize=8, color="0.35",
        )  # fmt: skip
    return save_figure(figure, path)


def _spans(stages: list[str], episodes: np.ndarray) -> list[tuple[str, float, float]]:
    """(stage, episodes before it, episodes at its last row) of each stage."""
    spans: list[tuple[str, float, float]] = []
    for index, stage in enumerate(stages):
        if not spans or spans[-1][0] != stage:
            before = spans[-1][2] if spans else 0.0
            spans.append((stage, before, before))
        spans[-1] = (stage, spans[-1][1], float(episodes[index]))
    return spans


def _curve(panel: Any, x: np.ndarray, y: np.ndarray, stages: list[str], name: str) -> None:
    """One line per stage in one colour: a stage's numbers do not continue the one before."""
    colour, labelled = None, False
    names = np.array(stages)
    for stage in dict.fromkeys(stages):
        rows = np.flatnonzero((names == stage) & np.isfinite(y))
        if not rows.size:
            continue
        (line,) = panel.plot(
            x[rows], y[rows], color=colour, linewidth=1.2, marker="." if rows.size < 3 else "",
            label=None if labelled else name.replace("_", " "),
        )  # fmt: skip
        colour, labelled = line.get_color(), True


def _shade_stages(panel: Any, spans: list[tuple[str, float, float]]) -> None:
    for index, (_, left, right) in enumerate(spans):
        panel.axvspan(left, right, color=STAGE_COLOURS[index % len(STAGE_COLOURS)], zorder=0)
