"""Scatter pictures of simulated against measured makespans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.viz.figure import new_figure, save_figure, time_unit

MARKS = (("#c96a4a", "s"), ("#4878a8", "o"), ("#6a9f58", "^"), ("#8b6bb1", "D"), ("#7a7a7a", "v"))
"""Colour and shape of each kind of placement, in order of first appearance."""

WIDE = 2.0
"""Axes are logarithmic where the greatest makespan is more than this many times the least."""


@dataclass(frozen=True, eq=False)
class ScatterPanel:
    """Placements of one problem.

    Args:
        title: of the panel.
        simulated: # (placements,) [s]
        measured: # (placements,) [s]
        kinds: what made each placement, at most 5 different. # (placements,)
        low, high: ends of each measured makespan's error bar; None for none. # (placements,) [s]
    """

    title: str
    simulated: np.ndarray
    measured: np.ndarray
    kinds: Sequence[str]
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def plot_scatter(
    panels: Sequence[ScatterPanel], path: str | Path, *, band: float = 0.0, title: str = ""
) -> Path:
    """Draws a panel per problem, measured to the right and simulated upwards on equal axes,
    logarithmic ones where makespans differ much.

    On the diagonal the simulator is right, above it says too much. The placement that it likes
    best has a ring.

    Args:
        panels: at least one.
        path: where to write; the suffix chooses the format (png, pdf, svg).
        band: relative error that is shaded about the diagonal; 0 for none.
        title: over all panels.

    Returns:
        The path.

    Raises:
        ConfigurationError: no panels, an empty one, arrays of different lengths, too many kinds,
            or an unknown picture format.
    """
    if not panels:
        raise ConfigurationError("a scatter picture needs at least one panel")
    for panel in panels:
        lengths = {len(panel.simulated), len(panel.measured), len(panel.kinds)}
        if len(lengths) > 1 or not len(panel.simulated):
            raise ConfigurationError(f"{panel.title}: {sorted(lengths)} values to draw")
    kinds = list(dict.fromkeys(kind for panel in panels for kind in panel.kinds))
    if len(kinds) > len(MARKS):
        raise ConfigurationError(f"{len(kinds)} kinds; up to {len(MARKS)} can be drawn")
    marks = dict(zip(kinds, MARKS, strict=False))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(5.0 * columns, 4.7 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[len(panels) :]:
        unused.remove()
    for ax, panel in zip(axes, panels, strict=False):
        _draw(ax, panel, marks, band)
    _legend(figure, marks, band, ncols=3 * columns)
    if title:
        figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def _draw(ax: Any, panel: ScatterPanel, marks: Mapping[str, tuple[str, str]], band: float) -> None:
    everything = np.concatenate([panel.simulated, panel.measured])
    scale, unit = time_unit(float(everything.max()))
    low, high = everything.min() / scale, everything.max() / scale
    wide = low > 0 and high / low > WIDE
    margin = 0.06 * (high - low) or 0.06 * high or 1.0
    ends = np.array([low / 1.08, high * 1.08] if wide else [max(0.0, low - margin), high + margin])
    if band:
        ax.fill_between(ends, ends * (1 - band), ends * (1 + band), color="0.92", linewidth=0)
    ax.plot(ends, ends, color="0.45", linewidth=1.0)
    for kind, (colour, mark) in marks.items():
        which = np.array([k == kind for k in panel.kinds])
        x, y = panel.measured[which] / scale, panel.simulated[which] / scale
        if panel.low is not None and panel.high is not None:
            bar = [x - panel.low[which] / scale, panel.high[which] / scale - x]
            ax.errorbar(x, y, xerr=np.maximum(bar, 0), fmt="none", ecolor=colour, alpha=0.45)
        ax.scatter(x, y, 26, colour, marker=mark, edgecolors="white", linewidths=0.5, zorder=3)
    favourite = int(np.argmin(panel.simulated))
    ax.scatter(
        panel.measured[favourite] / scale,
        panel.simulated[favourite] / scale,
        130,
        facecolors="none",
        edgecolors="black",
        linewidths=1.2,
        zorder=4,
    )
    if wide:
        _logarithmic(ax)
    ax.set_xlim(ends)
    ax.set_ylim(ends)
    ax.set_aspect("equal")
    ax.set_title(panel.title, fontsize=10)
    ax.set_xlabel(f"measured makespan [{unit}]", fontsize=9)
    ax.set_ylabel(f"simulated makespan [{unit}]", fontsize=9)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _logarithmic(ax: Any) -> None:
    """Axes whose ticks are plain numbers, since most panels span less than a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, marks: Mapping[str, tuple[str, str]], band: float, ncols: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown: list[Any] = [
        Line2D([], [], color=colour, marker=mark, linestyle="none", label=kind)
        for kind, (colour, mark) in marks.items()
    ]
    ring = Line2D([], [], color="black", marker="o", fillstyle="none", markersize=11)
    ring.set(linestyle="none", label="simulator's favourite")
    shown.append(ring)
    if band:
        shown.append(Patch(color="0.9", label=f"within {band:.0%}"))
    figure.legend(handles=shown, loc="outside lower center", ncols=ncols, frameon=False, fontsize=8)
