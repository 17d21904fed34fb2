"""Gantt charts: which device ran which op when, and which link moved what."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.schedule import Schedule
from doppler.viz.figure import format_seconds, new_figure, save_figure, time_unit
from doppler.viz.lanes import assign_lanes, device_lanes

DEVICE_HEIGHT, LINK_HEIGHT, SENDER_HEIGHT, GAP = 1.0, 0.34, 0.8, 0.16
PANEL_WIDTHS, OPS_PER_INCH = (7.0, 12.0), 18
"""Least and greatest width of a panel [inch], and what a panel of many ops grows by."""
DIGIT_WIDTH = 0.077
"""An op's id is written into its bar where each digit has at least this much of it. [inch]"""
LEGEND_ENTRIES = 24
LEGEND_ENTRY_WIDTH = 1.6
"""With the longest kinds' names. [inch]"""
MOST_LINK_ROWS = 16
"""Where more links than this carried transfers, those of one source share a row."""
CHAIN_COLOUR = (0.75, 0.0, 0.1)


@dataclass(frozen=True)
class _Rows:
    """The rows of a chart, devices first.

    Args:
        labels: of each row.
        tops, heights: of each row.
        row_of_link: row of each link that carried a transfer.
        lanes: lanes of each row of links.
    """

    labels: list[str]
    tops: np.ndarray
    heights: np.ndarray
    row_of_link: dict[int, int]
    lanes: dict[int, int]

    @property
    def bottom(self) -> float:
        return float(self.tops[-1] + self.heights[-1])


def plot_gantt(
    schedules: Sequence[tuple[str, Schedule]],
    path: str | Path,
    *,
    notes: Sequence[str] = (),
    critical_chain: bool = True,
) -> Path:
    """Draws schedules side by side on one time axis and writes them to a picture file.

    A panel has one row per device, with the device's utilisation, and below them one thin row per
    link that carried a transfer in any panel, or one row per sending endpoint where those would be
    too many to read. Ops have the colour of their meta-op, or of their kind where meta-ops are
    unknown; a transfer has the colour of the op whose output it moves. The steps of the critical
    chain are outlined.

    Args:
        schedules: (title, schedule) for each panel, at least one, all with equally many devices.
        path: where to write; the suffix chooses the format (png, pdf, svg).
        notes: one more title line for each panel, for example that its placement is sensitive to
            ties; none where empty.
        critical_chain: whether to outline it.

    Returns:
        The path.

    Raises:
        ConfigurationError: no schedules, differing devices, notes for other than all panels, or an
            unknown picture format.
    """
    if not schedules:
        raise ConfigurationError("a Gantt chart needs at least one schedule")
    if notes and len(notes) != len(schedules):
        raise ConfigurationError(f"{len(notes)} notes for {len(schedules)} panels")
    names = [_device_names(schedule) for _, schedule in schedules]
    if any(other != names[0] for other in names[1:]):
        raise ConfigurationError(f"panels of one Gantt chart need the same devices: {names}")
    rows = _rows([schedule for _, schedule in schedules])
    most_ops = max(schedule.problem.num_ops for _, schedule in schedules)
    width = float(np.clip(most_ops / OPS_PER_INCH, *PANEL_WIDTHS))
    height = 1.7 + 0.62 * rows.bottom
    figure = new_figure(max(8.0, width * len(schedules)), min(height, 30.0))
    panels = figure.subplots(1, len(schedules), sharex=True, sharey=True, squeeze=False)[0]
    end = max(schedule.makespan for _, schedule in schedules)
    scale, unit = time_unit(end)
    for panel, (title, schedule), note in zip(
        panels, schedules, notes or [""] * len(schedules), strict=True
    ):
        boxes = _op_boxes(schedule, rows), _hop_boxes(schedule, rows)
        draw_schedule(panel, schedule, *boxes, end * DIGIT_WIDTH / width, scale)
        if critical_chain:
            _outline_chain(panel, schedule, rows, scale)
        _label_panel(panel, title, schedule, unit, note)
    panels[0].set_yticks(rows.tops + rows.heights / 2, rows.labels)
    panels[0].set_ylim(rows.bottom + GAP, -GAP)
    panels[0].set_xlim(0, end / scale if end > 0 else 1.0)
    draw_legend(figure, schedules[0][1], critical_chain)
    return save_figure(figure, path)


def group_colours(count: int) -> list[tuple[float, float, float]]:
    """`count` colours in which neighbours differ: golden-angle hues, three lightnesses."""
    return [
        colorsys.hls_to_rgb((i * 0.618034) % 1.0, (0.72, 0.62, 0.80)[i % 3], 0.55)
        for i in range(count)
    ]


def _device_names(schedule: Schedule) -> tuple[str, ...]:
    return tuple(device.name for device in schedule.problem.topology.devices)


def _rows(schedules: Sequence[Schedule]) -> _Rows:
    topology = schedules[0].problem.topology
    used = sorted({int(link) for s in schedules for link in np.unique(s.transfer_links)})
    labels = [device.name for device in topology.devices]
    heights = [DEVICE_HEIGHT] * len(labels)
    gaps = [GAP] * len(labels)
    row_of_link: dict[int, int] = {}
    for link in used:
        source, target = (topology.endpoint_name(end) for end in topology.link_ends[link])
        label = f"{source} → {target}" if len(used) <= MOST_LINK_ROWS else f"out of {source}"
        if label not in labels[topology.num_devices :]:
            labels.append(label)
            heights.append(LINK_HEIGHT if len(used) <= MOST_LINK_ROWS else SENDER_HEIGHT)
            gaps.append(GAP / 2)
        row_of_link[link] = labels.index(label, topology.num_devices)
    lanes = dict.fromkeys(row_of_link.values(), 1)
    if len(used) > MOST_LINK_ROWS:
        for schedule in schedules:
            for row, hops in _hops_by_row(schedule, row_of_link).items():
                lane = assign_lanes(schedule.transfer_start[hops], schedule.transfer_finish[hops])
                lanes[row] = max(lanes[row], int(lane.max()) + 1)
    tops = np.cumsum(np.add(heights, gaps)) - np.add(heights, gaps)
    return _Rows(labels, tops, np.array(heights), row_of_link, lanes)


def _hops_by_row(schedule: Schedule, row_of_link: dict[int, int]) -> dict[int, np.ndarray]:
    rows = np.array([row_of_link[int(link)] for link in schedule.transfer_links], np.int64)
    return {int(row): np.flatnonzero(rows == row) for row in np.unique(rows)}


def _op_boxes(schedule: Schedule, rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """Lower edges and heights of the ops' bars. # (num_ops,)"""
    lane, lanes = device_lanes(schedule)
    height = DEVICE_HEIGHT / lanes[schedule.devices]
    return rows.tops[schedule.devices] + lane * height, height


def _hop_boxes(schedule: Schedule, rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """Lower edges and heights of the hops' bars. # (num_hops,)"""
    low, height = np.zeros(len(schedule.transfer_ops)), np.zeros(len(schedule.transfer_ops))
    for row, hops in _hops_by_row(schedule, rows.row_of_link).items():
        lane = np.zeros(len(hops), np.int64)
        if rows.lanes[row] > 1:
            lane = assign_lanes(schedule.transfer_start[hops], schedule.transfer_finish[hops])
        height[hops] = rows.heights[row] / rows.lanes[row]
        low[hops] = rows.tops[row] + lane * height[hops]
    return low, height


def groups(schedule: Schedule) -> tuple[np.ndarray, list[str]]:
    """The colour group of each op (num_ops,) and the name of each group."""
    graph = schedule.problem.graph
    if graph.meta_op is None:
        kinds, group = np.unique(np.array(graph.kinds), return_inverse=True)
        return group, [str(kind) for kind in kinds]
    ids, first, group = np.unique(graph.meta_op, return_index=True, return_inverse=True)
    return group, [f"{i}: {graph.kinds[op]}" for i, op in zip(ids, first, strict=True)]


def draw_schedule(
    panel: Any,
    schedule: Schedule,
    op_boxes: tuple[np.ndarray, np.ndarray],
    hop_boxes: tuple[np.ndarray, np.ndarray] | None,
    digit: float,
    scale: float,
) -> None:
    """Draws the bars, and the ids of ops whose bars have `digit` [s] for each of their digits.

    Args:
        panel: where to.
        schedule: what.
        op_boxes: lower edges and heights of the ops' bars. # (num_ops,)
        hop_boxes: those of the hops' bars; None for no hops. # (num_hops,)
        digit: see above. [s]
        scale: what the unit of the time axis is. [s]
    """
    group, names = groups(schedule)
    colours = np.array(group_colours(len(names)))
    low, height = op_boxes
    _draw_bars(panel, schedule.start, schedule.finish, op_boxes, scale, colours[group], 1.0)
    if hop_boxes is not None:
        _draw_bars(
            panel,
            schedule.transfer_start,
            schedule.transfer_finish,
            hop_boxes,
            scale,
            colours[group[schedule.transfer_ops]],
            0.7,  # under contention_free, transfers of one link overlap: let them shine through
        )
    digits = np.array([len(str(op)) for op in range(len(schedule.devices))])
    for op in np.flatnonzero(schedule.finish - schedule.start >= digit * digits):
        middle = (schedule.start[op] + schedule.finish[op]) / 2 / scale
        panel.text(middle, low[op] + height[op] / 2, str(op), ha="center", va="center", fontsize=7)


def _outline_chain(panel: Any, schedule: Schedule, rows: _Rows, scale: float) -> None:
    """Outlines the steps of the critical chain."""
    from matplotlib.collections import PolyCollection

    chain = schedule.critical_chain()
    outlines = []
    for kind, boxes in (("op", _op_boxes(schedule, rows)), ("hop", _hop_boxes(schedule, rows))):
        steps = [step for step in chain if step.kind == kind]
        which = np.array([step.index for step in steps], np.int64)
        start = np.array([step.start for step in steps])
        finish = np.array([step.finish for step in steps])
        outlines += _corners(start / scale, finish / scale, boxes[0][which], boxes[1][which])
    panel.add_collection(
        PolyCollection(outlines, facecolors="none", edgecolors=[CHAIN_COLOUR], linewidths=1.3)
    )


def _draw_bars(
    panel: Any,
    start: np.ndarray,
    finish: np.ndarray,
    boxes: tuple[np.ndarray, np.ndarray],
    scale: float,
    colours: np.ndarray,
    alpha: float,
) -> None:
    """Adds one rectangle per interval; one collection, so that thousands stay quick."""
    from matplotlib.collections import PolyCollection

    panel.add_collection(
        PolyCollection(
            _corners(start / scale, finish / scale, *boxes),
            facecolors=colours,
            edgecolors=colours * 0.55,
            linewidths=0.4,
            alpha=alpha,
        )
    )


def _corners(
    left: np.ndarray, right: np.ndarray, low: np.ndarray, heights: np.ndarray
) -> list[np.ndarray]:
    """The corners of each rectangle. # (4, 2)"""
    high = low + heights
    pairs = ((left, low), (left, high), (right, high), (right, low))
    return list(np.stack([np.stack(pair, axis=1) for pair in pairs], axis=1))


def _label_panel(panel: Any, title: str, schedule: Schedule, unit: str, note: str) -> None:
    panel.set_title(
        f"{title}\n{schedule.origin}: makespan {format_seconds(schedule.makespan)}, "
        f"utilisation {schedule.utilisation.mean():.0%}" + (f"\n{note}" if note else ""),
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


def draw_legend(figure: Any, schedule: Schedule, critical_chain: bool = False) -> None:
    """The colours of a schedule's meta-ops or kinds, below the picture."""
    from matplotlib.patches import Patch

    _, names = groups(schedule)
    colours = group_colours(len(names))
    shown = [Patch(color=c, label=n) for c, n in list(zip(colours, names))[:LEGEND_ENTRIES]]
    if len(names) > LEGEND_ENTRIES:
        shown.append(Patch(color="white", label=f"and {len(names) - LEGEND_ENTRIES} more"))
    if critical_chain:
        shown.append(Patch(fill=False, edgecolor=CHAIN_COLOUR, label="critical chain"))
    known = schedule.problem.graph.meta_op is not None
    figure.legend(
        handles=shown,
        title="meta-op" if known else "kind of op",
        loc="outside lower center",
        ncols=min(int(figure.get_figwidth() / LEGEND_ENTRY_WIDTH), len(shown)),
        fontsize=7,
        title_fontsize=8,
        frameon=False,
    )
