"""Partial placements as text and as pictures."""

from __future__ import annotations

import numpy as np

from doppler.construction import Construction
from doppler.errors import CapacityError
from doppler.simulator import Simulator

SHOWN_OPS = 24
WIDTH, HEIGHT = 8.0, 4.0
"""Size of a picture. [inch]"""


def render_text(c: Construction, episode: int = 0) -> str:
    """Counts, candidates, and a line per device: its ops in the order of their placing."""
    placed = c.order[episode, : c.placed_counts[episode]]
    candidates = np.flatnonzero(c.candidates[episode])
    lines = [
        f"{c.problem.name}: {len(placed)} of {c.problem.num_ops} ops placed",
        f"candidates: {_listed(candidates)}",
    ]
    for d, device in enumerate(c.problem.topology.devices):
        ops = placed[c.devices[episode, placed] == d]
        lines.append(
            f"device {d} ({device.name}), free at {c.device_free[episode, d]:.6g} s: {_listed(ops)}"
        )
    return "\n".join(lines) + "\n"


def render_picture(c: Construction, simulator: Simulator, episode: int = 0) -> np.ndarray:
    """A Gantt chart of the estimated schedule, of the simulated one once all ops are placed.

    Returns:
        # (height, width, 3) uint8

    Raises:
        ConfigurationError: if matplotlib is not installed.
    """
    from doppler.viz.figure import new_figure
    from doppler.viz.gantt import group_colours

    start, finish, title = c.start[episode], c.finish[episode], "estimated"
    if c.placed_counts[episode] == c.problem.num_ops:
        try:
            schedule = simulator.run(c.devices[episode], c.order[episode])
            start, finish, title = schedule.start, schedule.finish, "simulated"
        except CapacityError:
            title = "estimated; over capacity"
    ops = np.flatnonzero(c.devices[episode] >= 0)
    groups = c.problem.graph.meta_op
    kinds = np.unique(c.problem.graph.kinds, return_inverse=True)[1] if groups is None else groups
    group = np.unique(kinds, return_inverse=True)[1]
    colours = np.array(group_colours(int(group.max()) + 1))
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.subplots()
    axes.barh(
        c.devices[episode, ops],
        finish[ops] - start[ops],
        left=start[ops],
        color=colours[group[ops]],
        edgecolor="black",
        linewidth=0.3,
    )
    names = [device.name for device in c.problem.topology.devices]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("time [s]")
    axes.set_title(f"{c.problem.name}: {len(ops)} of {c.problem.num_ops} ops, {title}")
    figure.canvas.draw()
    return np.array(figure.canvas.buffer_rgba())[..., :3]


def _listed(ops: np.ndarray) -> str:
    if not len(ops):
        return "none"
    more = f" and {len(ops) - SHOWN_OPS} more" if len(ops) > SHOWN_OPS else ""
    return " ".join(str(op) for op in ops[:SHOWN_OPS]) + more
