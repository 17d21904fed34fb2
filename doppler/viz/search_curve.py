"""Curves of searches: the best makespan so far over seconds and over evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.viz.figure import format_seconds, new_figure, save_figure, time_unit

Curve = Sequence[Sequence[float]]
"""Improvements as (seconds, evaluations, makespan [s])."""

BOUND_COLOUR = "0.35"
FEW_POINTS = 40
"""A curve of fewer improvements has a dot at each."""


def plot_search_curve(
    curves: Sequence[tuple[str, Curve]],
    path: str | Path,
    *,
    lower_bound: float = 0.0,
    title: str = "",
    ends: Sequence[tuple[float, float]] = (),
) -> Path:
    """Draws the best simulated makespan so far over seconds (left) and evaluations (right).

    Both axes of effort are logarithmic, because a search gains most at its beginning.

    Args:
        curves: (label, improvements) for each search, at least one point in each.
        path: where to write; the suffix chooses the format (png, pdf, svg).
        lower_bound: a dashed line that no curve can cross; none where 0. [s]
        title: put on top.
        ends: seconds and evaluations at which each search stopped; empty: at its last improvement.

    Returns:
        The path.

    Raises:
        ConfigurationError: no curve, an empty or malformed one, ends for other than all of them,
            or an unknown picture format.
    """
    if not curves:
        raise ConfigurationError("a picture of searches needs at least one curve")
    if ends and len(ends) != len(curves):
        raise ConfigurationError(f"{len(ends)} ends for {len(curves)} curves")
    tables = [_table(label, curve) for label, curve in curves]
    stops = [tuple(end) for end in ends] or [(t[-1, 0], t[-1, 1]) for t in tables]
    scale, unit = time_unit(max(float(table[0, 2]) for table in tables))
    figure = new_figure(9.0, 4.2)
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(1, 2, sharey=True)
    for axis, (panel, name) in enumerate(zip(panels, ("seconds", "evaluations"), strict=True)):
        least = min(_first_positive(table[:, axis]) for table in tables)
        for (label, _), table, stop in zip(curves, tables, stops, strict=True):
            _draw_curve(panel, label, table, axis, max(float(stop[axis]), least), least, scale)
        if lower_bound > 0:
            panel.axhline(lower_bound / scale, color=BOUND_COLOUR, linestyle="--", linewidth=1.0,
                          label=f"lower bound {format_seconds(lower_bound)}")  # fmt: skip
        _scale_effort(panel)
        panel.set_xlabel(name)
        panel.grid(alpha=0.25, which="major")
        panel.tick_params(labelsize=8)
    panels[0].set_ylabel(f"best simulated makespan [{unit}]")
    if lower_bound > 0:
        unit_bound = lower_bound / scale
        gap = panels[1].secondary_yaxis(
            "right",
            functions=(lambda y: 100 * (y / unit_bound - 1), lambda p: unit_bound * (1 + p / 100)),
        )
        gap.set_ylabel("above the lower bound [%]")
        gap.tick_params(labelsize=8)
    panels[1].legend(fontsize=8, framealpha=0.8, loc="upper right")
    return save_figure(figure, path)


def _table(label: str, curve: Curve) -> np.ndarray:
    """The improvements of a search. # (num_points, 3)"""
    try:
        table = np.array([list(point) for point in curve], np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"curve {label!r}: not triples of numbers") from error
    if table.ndim != 2 or table.shape[1] != 3 or not np.isfinite(table).all():
        raise ConfigurationError(
            f"curve {label!r}: one point (seconds, evaluations, makespan) or more is needed, all "
            "of them finite"
        )
    return table


def _first_positive(values: np.ndarray) -> float:
    """Where a logarithmic axis can begin."""
    return float(values[values > 0].min(initial=np.inf)) if (values > 0).any() else 1.0


def _scale_effort(panel: Any) -> None:
    """Makes a logarithmic axis whose few labels are plain numbers: powers would need formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    low, high = panel.get_xlim()
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_effort(value)))
    panel.xaxis.set_minor_formatter(NullFormatter())


def format_effort(value: float) -> str:
    """A tick's label, for example "0.01", "5", "10 k", "2 M"."""
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= scale * (1 - 1e-9):
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def _draw_curve(
    panel: Any, label: str, table: np.ndarray, axis: int, stop: float, least: float, scale: float
) -> None:
    """Draws one search as steps that go on to where it stopped."""
    x = np.append(np.maximum(table[:, axis], least), stop)
    y = np.append(table[:, 2], table[-1, 2]) / scale
    (line,) = panel.plot(
        x, y, drawstyle="steps-post", linewidth=1.4,
        label=f"{label}: {format_seconds(float(table[-1, 2]))}",
    )  # fmt: skip
    marker = "." if len(table) < FEW_POINTS else ""
    panel.plot(x[:-1], y[:-1], linestyle="", marker=marker, color=line.get_color())
    panel.plot(x[-1:], y[-1:], linestyle="", marker="|", color=line.get_color())
