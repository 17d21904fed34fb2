"""Grouped bar charts of makespans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from doppler.errors import ConfigurationError
from doppler.viz.figure import format_seconds, new_figure, save_figure, time_unit

COLOURS = ("#4878a8", "#c96a4a", "#6a9f58", "#8b6bb1", "#a08a3c", "#7a7a7a")
BAR_WIDTH = 0.38


def plot_bars(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    series: Sequence[str],
    path: str | Path,
    title: str = "",
) -> Path:
    """Draws a panel of grouped bars for each workload, each with a time axis of its own.

    Every bar carries its makespan, and every group with two or more bars the ratio of the last to
    the first.

    Args:
        panels: panel title -> group label -> a makespan per series. [s]
        series: names of the bars of a group, at most 6.
        path: where to write; the suffix chooses the format (png, pdf, svg).
        title: over all panels.

    Returns:
        The path.

    Raises:
        ConfigurationError: nothing to draw, too many series, a group with another number of
            makespans than series, or an unknown picture format.
    """
    if not panels or not all(panels.values()):
        raise ConfigurationError("a bar chart needs at least one panel and one group in each")
    if not 1 <= len(series) <= len(COLOURS):
        raise ConfigurationError(f"{len(series)} series; 1 to {len(COLOURS)} can be drawn")
    for name, groups in panels.items():
        for label, values in groups.items():
            if len(values) != len(series):
                raise ConfigurationError(
                    f"{name}, {label}: {len(values)} makespans for {len(series)} series"
                )
    most = max(len(groups) for groups in panels.values())
    bar_inches = 0.55 * len(series) * most + 0.9
    figure = new_figure(max(4.0, bar_inches * len(panels)), 4.2)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (name, groups) in zip(axes, panels.items(), strict=True):
        seconds = np.array(list(groups.values()), dtype=np.float64)  # (groups, series)
        scale, unit = time_unit(float(seconds.max()))
        centres = np.arange(len(groups)) * (BAR_WIDTH * len(series) + 0.4)
        for index, label in enumerate(series):
            left = centres + (index - (len(series) - 1) / 2) * BAR_WIDTH
            heights = seconds[:, index] / scale
            bars = panel.bar(left, heights, BAR_WIDTH, color=COLOURS[index], label=label)
            texts = [f"{height:#.3g}".rstrip(".") for height in heights]
            panel.bar_label(bars, texts, fontsize=7, padding=1)
        ticks = list(groups)
        if len(series) > 1:
            ratios = seconds[:, -1] / seconds[:, 0]
            ticks = [
                f"{tick}\nratio {ratio:.2f}" for tick, ratio in zip(ticks, ratios, strict=True)
            ]
        panel.set_xticks(centres, ticks, fontsize=8)
        panel.set_ylim(0, 1.12 * seconds.max() / scale)
        panel.set_ylabel(f"makespan [{unit}]", fontsize=8)
        panel.set_title(f"{name}\nbest {format_seconds(float(seconds.min()))}", fontsize=10)
        panel.tick_params(axis="y", labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(series), frameon=False, fontsize=9
    )
    if title:
        figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)
