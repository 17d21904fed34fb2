"""Curves of several learners: makespans over seconds of training and over episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.viz.figure import new_figure, save_figure
from doppler.viz.search_curve import format_effort

COLOURS = (
    "#1f5fa8", "#d1622b", "#3f8f4f", "#8b5fb0", "#b8292f",
    "#7a5230", "#d178b4", "#8f9a2a", "#2aa3ad", "#e0a52a",
)  # fmt: skip
"""Of learners, in order of appearance."""
COMPARED = (("0.45", "--"), ("0.0", ":"), ("0.45", "-."), ("0.0", "--"))
"""Grey level and dashes of what is no learner."""

SECONDS, EPISODES, BEST, MEAN = range(4)
"""Columns of a run."""
_AXES = ((SECONDS, "seconds of training"), (EPISODES, "episodes"))
_GRID = 400
_TICKS = (0.8, 0.9, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
_MOST = 5.0
"""Ratios above are not shown: what happens near the best known would be flat beside them."""
_LEAST_SECONDS = 0.05
"""The axis of seconds begins here at the earliest."""


@dataclass(frozen=True, eq=False)
class TrainingCurve:
    """A learner's runs on one problem.

    Args:
        label: of the learner.
        runs: one per seed; the columns are seconds, episodes, the best makespan so far [s], and the
            mean makespan of the batch [s], NaN where there is none. # (points, 4) each
        compared: a search or a scheduler that the learners are compared with, drawn grey.
    """

    label: str
    runs: Sequence[np.ndarray]
    compared: bool = False


@dataclass(frozen=True, eq=False)
class CurvePanel:
    """One problem.

    Args:
        title: of its panels.
        reference: the makespan that ratios refer to. [s]
        curves: at least one.
    """

    title: str
    reference: float
    curves: Sequence[TrainingCurve]


def plot_training_curves(panels: Sequence[CurvePanel], path: str | Path, title: str = "") -> Path:
    """Draws ratios to a reference makespan, two rows per problem: best so far, mean of the batch.

    The left column is over seconds, the right one over episodes, both logarithmic: a learner gains
    most at its beginning, and learners differ in speed by orders of magnitude. A line is the median
    over a learner's runs, the band their quartiles; both end with the shortest run. The second row
    is left out where no run has batches.

    Args:
        panels: at least one.
        path: where to write; the suffix chooses the format (png, pdf, svg).
        title: over all panels.

    Returns:
        The path.

    Raises:
        ConfigurationError: nothing to draw, runs of another shape, too many learners, or an unknown
            picture format.
    """
    if not panels:
        raise ConfigurationError("a picture of learners needs at least one panel")
    for panel in panels:
        _check(panel)
    styles = _styles([curve for panel in panels for curve in panel.curves])
    rows = [(panel, BEST) for panel in panels]
    if any(np.isfinite(run[:, MEAN]).any() for p in panels for c in p.curves for run in c.runs):
        rows = [(panel, column) for panel in panels for column in (BEST, MEAN)]
    figure = new_figure(10.5, 3.3 * len(rows) + 1.0)
    axes = figure.subplots(len(rows), 2, squeeze=False, sharex="col", sharey="row")
    for pair, (panel, column) in zip(axes, rows, strict=True):
        for ax, (axis, _) in zip(pair, _AXES, strict=True):
            for curve in panel.curves:
                _draw(ax, curve, panel.reference, axis, column, styles[curve.label])
        for ax, (_, name) in zip(pair, _AXES, strict=True):  # after all that the row shares
            _finish(ax, name)
        what = "best found" if column == BEST else "mean of the batch"
        pair[0].set_ylabel(f"{what} / best known", fontsize=9)
        pair[0].set_title(f"{panel.title}: {what}", fontsize=10, loc="left")
    _legend(figure, styles)
    if title:
        figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def _check(panel: CurvePanel) -> None:
    if not panel.curves or not all(curve.runs for curve in panel.curves):
        raise ConfigurationError(f"{panel.title}: a panel needs a curve, a curve needs a run")
    if not 0 < panel.reference < np.inf:
        raise ConfigurationError(f"{panel.title}: the reference {panel.reference} is not above 0")
    for curve in panel.curves:
        for run in curve.runs:
            if run.ndim != 2 or run.shape[1] != 4 or not len(run):
                raise ConfigurationError(
                    f"{panel.title}, {curve.label}: a run of shape {run.shape}; (points, 4) is "
                    "needed"
                )


def _styles(curves: Sequence[TrainingCurve]) -> dict[str, dict[str, Any]]:
    """How each learner is drawn, in all panels alike."""
    compared = list(dict.fromkeys(curve.label for curve in curves if curve.compared))
    learners = [label for label in dict.fromkeys(c.label for c in curves) if label not in compared]
    for labels, styles in ((learners, COLOURS), (compared, COMPARED)):
        if len(labels) > len(styles):
            raise ConfigurationError(f"{len(labels)} curves; up to {len(styles)} can be drawn")
    # The first is the one that the others are compared with, and lies on top.
    found: dict[str, dict[str, Any]] = {
        label: {"color": colour, "linewidth": 1.4 if rank else 2.4, "zorder": 4 - 0.1 * rank}
        for rank, (label, colour) in enumerate(zip(learners, COLOURS, strict=False))
    }
    for label, (grey, dashes) in zip(compared, COMPARED, strict=False):
        found[label] = {"color": grey, "linestyle": dashes, "linewidth": 1.5, "zorder": 3}
    return found


def _draw(
    ax: Any, curve: TrainingCurve, reference: float, axis: int, column: int, style: dict[str, Any]
) -> None:
    """A learner's median and quartiles in one panel."""
    x, values = common_grid(curve.runs, axis, column)
    if not len(x):
        return
    low, median, high = np.percentile(values / reference, [25, 50, 75], axis=0)
    ax.plot(x, median, label=curve.label, **style)
    ax.plot(x[-1:], median[-1:], marker="o", markersize=4, **style)
    if len(curve.runs) > 1:
        ax.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def common_grid(
    runs: Sequence[np.ndarray], axis: int, column: int
) -> tuple[np.ndarray, np.ndarray]:
    """Runs as steps on one logarithmic grid, from where all have begun to where the first ends.

    Args:
        runs: see `TrainingCurve`.
        axis: `SECONDS` or `EPISODES`.
        column: `BEST` or `MEAN`.

    Returns:
        The grid, empty where not every run has values # (points,), and a row per run
        # (runs, points).
    """
    kept = [run[np.isfinite(run[:, column])] for run in runs]
    if not all(len(run) for run in kept):
        return np.empty(0), np.empty((len(runs), 0))
    least = _LEAST_SECONDS if axis == SECONDS else 1.0
    first = max(least, *(float(run[0, axis]) for run in kept))
    last = max(first, min(float(run[-1, axis]) for run in kept))
    x = np.geomspace(first, last, _GRID)
    x[-1] = last  # rounding must not leave the last point out
    rows = []
    for run in kept:
        before = np.searchsorted(run[:, axis], x, side="right") - 1
        rows.append(run[np.maximum(before, 0), column])
    return x, np.array(rows)


def _finish(ax: Any, name: str) -> None:
    """Axes whose few labels are plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    ax.axhline(1.0, color="0.8", linewidth=1.0, zorder=1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 0.5), min(high, _MOST))
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if ax.get_xlim()[1] < 200 else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_effort(value)))
    ax.yaxis.set_major_locator(FixedLocator(_TICKS))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for side in (ax.xaxis, ax.yaxis):
        side.set_minor_formatter(NullFormatter())
    ax.set_xlabel(name, fontsize=9)
    ax.tick_params(labelsize=8, labelbottom=True, labelleft=True)
    ax.grid(alpha=0.25, which="major")
    ax.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, styles: dict[str, dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    shown = [Line2D([], [], label=label, **style) for label, style in styles.items()]
    figure.legend(handles=shown, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
