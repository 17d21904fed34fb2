"""Gantt charts: which device ran which op when, and which link moved what."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.schedule import Schedule
from doppler.viz.figure import format_seconds, new_figure, save_figure, time_unit
from doppler.viz.lanes import device_lanes

DEVICE_HEIGHT, LINK_HEIGHT, GAP = 1.0, 0.34, 0.16
DIGIT_WIDTH = 0.011
"""An op's id is written into its bar where each digit has at least this share of the time axis."""
LEGEND_ENTRIES = 24


def plot_gantt(schedules: Sequence[tuple[str, Schedule]], path: str | Path) -> Path:
    """Draws schedules side by side on one time axis and writes them to a picture file.

    A panel has one row per device, with the device's utilisation, and below them one thin row per
    link that carried a transfer in any panel. Ops have the colour of their meta-op, or of their
    kind where meta-ops are unknown; a transfer has the colour of the op whose output it moves.

    Args:
        schedules: (title, schedule) for each panel, at least one, all with equally many devices.
        path: where to write; the suffix chooses the format (png, pdf, svg).

    Returns:
        The path.

    Raises:
        ConfigurationError: no schedules, differing devices, or an unknown picture format.
    """
    if not schedules:
        raise ConfigurationError("a Gantt chart needs at least one schedule")
    names = [_device_names(schedule) for _, schedule in schedules]
    if any(other != names[0] for other in names[1:]):
        raise ConfigurationError(f"panels of one Gantt chart need the same devices: {names}")
    links = sorted({int(link) for _, s in schedules for link in np.unique(s.transfer_links)})
    rows = _rows(schedules[0][1], links)
    height = 1.7 + 0.62 * (rows[-1][1] + rows[-1][2])
    figure = new_figure(max(8.0, 7.0 * len(schedules)), min(height, 30.0))
    panels = figure.subplots(1, len(schedules), sharex=True, sharey=True, squeeze=False)[0]
    end = max(schedule.makespan for _, schedule in schedules)
    scale, unit = time_unit(end)
    for panel, (title, schedule) in zip(panels, schedules, strict=True):
        _draw_panel(panel, schedule, rows, end, scale)
        _label_panel(panel, title, schedule, unit)
    panels[0].set_yticks([top + h / 2 for _, top, h in rows], [label for label, _, _ in rows])
    panels[0].set_ylim(rows[-1][1] + rows[-1][2] + GAP, -GAP)
    panels[0].set_xlim(0, end / scale if end > 0 else 1.0)
    _legend(figure, schedules[0][1])
    return save_figure(figure, path)


def group_colours(count: int) -> list[tuple[float, float, float]]:
    """`count` colours in which neighbours differ: golden-angle hues, three lightnesses."""
    return [
        colorsys.hls_to_rgb((i * 0.618034) % 1.0, (0.72, 0.62, 0.80)[i % 3], 0.55)
        for i in range(count)
    ]


def _device_names(schedule: Schedule) -> tuple[str, ...]:
    return tuple(device.name for device in schedule.problem.topology.devices)


def _rows(schedule: Schedule, links: list[int]) -> list[tuple[str, float, float]]:
    """(label, top, height) of each device's row, then of each listed link's."""
    topology = schedule.problem.topology
    rows: list[tuple[str, float, float]] = []
    top = 0.0
    for device in topology.devices:
        rows.append((device.name, top, DEVICE_HEIGHT))
        top += DEVICE_HEIGHT + GAP
    for link in links:
        source, target = topology.link_ends[link]
        label = f"{topology.endpoint_name(source)} → {topology.endpoint_name(target)}"
        rows.append((label, top, LINK_HEIGHT))
        top += LINK_HEIGHT + GAP / 2
    return rows


def _groups(schedule: Schedule) -> tuple[np.ndarray, list[str]]:
    """The colour group of each op (num_ops,) and the name of each group."""
    graph = schedule.problem.graph
    if graph.meta_op is None:
        kinds, group = np.unique(np.array(graph.kinds), return_inverse=True)
        return group, [str(kind) for kind in kinds]
    ids, first, group = np.unique(graph.meta_op, return_index=True, return_inverse=True)
    return group, [f"{i}: {graph.kinds[op]}" for i, op in zip(ids, first, strict=True)]


def _draw_panel(
    panel: Any, schedule: Schedule, rows: list[tuple[str, float, float]], end: float, scale: float
) -> None:
    group, names = _groups(schedule)
    colours = np.array(group_colours(len(names)))
    tops = np.array([top for _, top, _ in rows])
    lane, lanes = device_lanes(schedule)
    height = DEVICE_HEIGHT / lanes[schedule.devices]
    bottoms = tops[schedule.devices] + lane * height
    _bars(panel, schedule.start, schedule.finish, bottoms, height, colours[group], scale, 1.0)
    num_devices = schedule.problem.num_devices
    row_of = {label: index for index, (label, _, _) in enumerate(rows)}
    topology = schedule.problem.topology
    hop_rows = np.array(
        [
            row_of[f"{topology.endpoint_name(s)} → {topology.endpoint_name(d)}"]
            for s, d in topology.link_ends[schedule.transfer_links]
        ],
        dtype=np.int64,
    )
    assert (hop_rows >= num_devices).all()
    _bars(
        panel,
        schedule.transfer_start,
        schedule.transfer_finish,
        tops[hop_rows],
        np.full(len(hop_rows), LINK_HEIGHT),
        colours[group[schedule.transfer_ops]],
        scale,
        0.7,  # under contention_free, transfers of one link overlap: let them shine through
    )
    digits = np.array([len(str(op)) for op in range(len(schedule.devices))])
    for op in np.flatnonzero(schedule.finish - schedule.start >= DIGIT_WIDTH * digits * end):
        middle = (schedule.start[op] + schedule.finish[op]) / 2 / scale
        panel.text(
            middle, bottoms[op] + height[op] / 2, str(op), ha="center", va="center", fontsize=7
        )


def _bars(
    panel: Any,
    start: np.ndarray,
    finish: np.ndarray,
    bottoms: np.ndarray,
    heights: np.ndarray,
    colours: np.ndarray,
    scale: float,
    alpha: float,
) -> None:
    """Adds one rectangle per interval; one collection, so that thousands stay quick."""
    from matplotlib.collections import PolyCollection

    left, right = start / scale, finish / scale
    low, high = bottoms, bottoms + heights
    corners = np.stack(
        [
            np.stack([left, low], 1),
            np.stack([left, high], 1),
            np.stack([right, high], 1),
            np.stack([right, low], 1),
        ],
        axis=1,
    )  # (bars, 4, 2)
    panel.add_collection(
        PolyCollection(
            list(corners),
            facecolors=colours,
            edgecolors=colours * 0.55,
            linewidths=0.4,
            alpha=alpha,
        )
    )


def _label_panel(panel: Any, title: str, schedule: Schedule, unit: str) -> None:
    panel.set_title(
        f"{title}\n{schedule.origin}: makespan {format_seconds(schedule.makespan)}, "
        f"utilisation {schedule.utilisation.mean():.0%}",
        fontsize=10,
    )
    panel.set_xlabel(f"time [{unit}]")
    panel.grid(axis="x", alpha=0.25)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8)
    for device, share in enumerate(schedule.utilisation):
        panel.annotate(
            f"{share:.0%}",
            (1.0, device * (DEVICE_HEIGHT + GAP) + DEVICE_HEIGHT / 2),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="0.35",
        )


def _legend(figure: Any, schedule: Schedule) -> None:
    from matplotlib.patches import Patch

    _, names = _groups(schedule)
    colours = group_colours(len(names))
    shown = [Patch(color=c, label=n) for c, n in list(zip(colours, names))[:LEGEND_ENTRIES]]
    if len(names) > LEGEND_ENTRIES:
        shown.append(Patch(color="white", label=f"and {len(names) - LEGEND_ENTRIES} more"))
    known = schedule.problem.graph.meta_op is not None
    figure.legend(
        handles=shown,
        title="meta-op" if known else "kind of op",
        loc="outside lower center",
        ncols=min(8, len(shown)),
        fontsize=7,
        title_fontsize=8,
        frameon=False,
    )
