"""Two schedules of one placement laid over each other, usually simulated and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.schedule import Schedule
from doppler.viz.figure import format_seconds, new_figure, save_figure, time_unit
from doppler.viz.gantt import (
    DIGIT_WIDTH,
    OPS_PER_INCH,
    draw_legend,
    draw_schedule,
)
from doppler.viz.lanes import device_lanes

PICTURE_WIDTHS = (9.0, 15.0)
"""Least and greatest width. [inch]"""
DEVICE_HEIGHT, LINK_HEIGHT, GAP = 1.0, 0.3, 0.22
MOST_LINK_ROWS = 16
"""Where more links than this carried transfers, none are drawn."""
END_COLOURS = ("#1f3f66", "#b3261e")
"""Of the two makespans' lines and names."""


def plot_overlay(
    first: Schedule, second: Schedule, path: str | Path, *, title: str = "", shifts: bool = True
) -> Path:
    """Draws two schedules of one placement in one panel, both from time 0.

    Each device and each link that carried a transfer has a row cut in two, the first schedule's
    bars above and the second's below, so that every bar's counterpart lies right under it. Both
    have the colours of their meta-ops (of their kinds where meta-ops are unknown). A line links
    the finishes of each op, the steeper the less they differ; the makespans are marked, and their
    difference stands in the title.

    Args:
        first: for example simulated.
        second: of the same graph, devices and placement.
        path: where to write; the suffix chooses the format (png, pdf, svg).
        title: first line above the panel; the problem's name where empty.
        shifts: whether to link finishes.

    Returns:
        The path.

    Raises:
        ConfigurationError: the schedules differ in graph, devices or placement, or an unknown
            picture format.
    """
    _check_alike(first, second)
    pair = (first, second)
    topology = first.problem.topology
    links = sorted({int(link) for s in pair for link in np.unique(s.transfer_links)})
    links = links if len(links) <= MOST_LINK_ROWS else []
    labels = [device.name for device in topology.devices]
    for link in links:
        source, target = (topology.endpoint_name(end) for end in topology.link_ends[link])
        labels.append(f"{source} → {target}")
    heights = np.array([2 * DEVICE_HEIGHT] * topology.num_devices + [2 * LINK_HEIGHT] * len(links))
    tops = np.cumsum(heights + GAP) - heights - GAP
    width = float(np.clip(first.problem.num_ops / OPS_PER_INCH, *PICTURE_WIDTHS))
    figure = new_figure(width, min(2.0 + 0.5 * (tops[-1] + heights[-1]), 30.0))
    panel = figure.subplots(1, 1)
    end = max(schedule.makespan for schedule in pair)
    scale, unit = time_unit(end)
    link_rows = {link: topology.num_devices + i for i, link in enumerate(links)}
    for half, schedule in enumerate(pair):
        _draw(panel, schedule, half, tops, link_rows, scale, end * DIGIT_WIDTH / width)
    if shifts:
        _link_finishes(panel, pair, tops, scale)
    panel.set_yticks(tops + heights / 2, labels)
    panel.set_ylim(tops[-1] + heights[-1] + GAP, -GAP)
    panel.set_xlim(0, 1.01 * end / scale if end > 0 else 1.0)
    _mark_ends(panel, pair, scale)
    panel.set_xlabel(f"time [{unit}]")
    panel.tick_params(labelsize=8)
    panel.grid(axis="x", alpha=0.25)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title(f"{title or first.problem.name}\n{difference(first, second)}", fontsize=10)
    draw_legend(figure, first)
    figure.legend(
        handles=panel.get_legend_handles_labels()[0],
        loc="outside upper right",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    return save_figure(figure, path)


def difference(first: Schedule, second: Schedule) -> str:
    """Both makespans, and how far the first is from the second."""
    text = " and ".join(
        f"{_name(schedule, half, (first, second))} {format_seconds(schedule.makespan)}"
        for half, schedule in enumerate((first, second))
    )
    if second.makespan > 0:
        text += f": {first.makespan / second.makespan - 1:+.1%}"
    return f"makespan {text}"


def _name(schedule: Schedule, half: int, pair: tuple[Schedule, Schedule]) -> str:
    """Origin and place of a schedule's bars."""
    same = pair[0].origin == pair[1].origin
    number = f" {half + 1}" if same else ""
    return f"{schedule.origin}{number} ({('above', 'below')[half]})"


def _check_alike(first: Schedule, second: Schedule) -> None:
    names = [[d.name for d in s.problem.topology.devices] for s in (first, second)]
    if names[0] != names[1]:
        raise ConfigurationError(f"an overlay needs the same devices: {names}")
    if first.problem.num_ops != second.problem.num_ops or not np.array_equal(
        first.problem.graph.edges, second.problem.graph.edges
    ):
        raise ConfigurationError(
            f"an overlay needs schedules of one graph: {first.problem.name!r} and "
            f"{second.problem.name!r}"
        )
    for op in np.flatnonzero(first.devices != second.devices)[:1]:
        raise ConfigurationError(
            f"an overlay needs schedules of one placement: op {op} runs on device "
            f"{first.devices[op]} and on device {second.devices[op]}"
        )


def _draw(
    panel: Any,
    schedule: Schedule,
    half: int,
    tops: np.ndarray,
    link_rows: dict[int, int],
    scale: float,
    digit: float,
) -> None:
    """Draws the bars of one schedule, in the upper (0) or lower (1) half of each row."""
    lane, lanes = device_lanes(schedule)
    height = DEVICE_HEIGHT / lanes[schedule.devices]
    low = tops[schedule.devices] + half * DEVICE_HEIGHT + lane * height
    hop_boxes = None
    if link_rows:
        rows = np.array([link_rows[int(link)] for link in schedule.transfer_links], np.int64)
        hop_boxes = tops[rows] + half * LINK_HEIGHT, np.full(len(rows), LINK_HEIGHT)
    draw_schedule(panel, schedule, (low, height), hop_boxes, digit, scale)


def _link_finishes(
    panel: Any, pair: tuple[Schedule, Schedule], tops: np.ndarray, scale: float
) -> None:
    """A line per op from the middle of its upper bar's end to that of its lower bar's."""
    from matplotlib.collections import LineCollection

    top = tops[pair[0].devices]
    upper = np.stack([pair[0].finish / scale, top + 0.82 * DEVICE_HEIGHT], axis=1)
    lower = np.stack([pair[1].finish / scale, top + 1.18 * DEVICE_HEIGHT], axis=1)
    panel.add_collection(
        LineCollection(
            list(np.stack([upper, lower], axis=1)), colors="0.2", linewidths=0.6, alpha=0.7
        )
    )


def _mark_ends(panel: Any, pair: tuple[Schedule, Schedule], scale: float) -> None:
    for half, schedule in enumerate(pair):
        panel.axvline(
            schedule.makespan / scale,
            color=END_COLOURS[half],
            linewidth=1.2,
            linestyle=("--", "-")[half],
            label=f"makespan {_name(schedule, half, pair)}",
        )
