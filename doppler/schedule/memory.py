"""Resident bytes of each device over the time of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from doppler.schedule.schedule import Schedule


def memory_over_time(schedule: Schedule) -> list[tuple[np.ndarray, np.ndarray]]:
    """Resident bytes as a step function per device, as the simulator counts them.

    An output is allocated on its own device when its op starts and on another one when the last
    hop to it starts. It is freed once its last consumer there has finished and, at home, its
    transfers have arrived; final outputs stay.

    Args:
        schedule: of a problem that knows `output_bytes`.

    Returns:
        For each device (times [s], bytes [B]): ascending times without repeats, and what is
        resident from each of them on.

    Raises:
        UnknownQuantityError: if the problem's source does not say bytes.
    """
    graph = schedule.problem.graph
    size = graph.require("output_bytes")
    changes: list[list[tuple[float, float]]] = [[] for _ in range(schedule.problem.num_devices)]
    arrivals: dict[tuple[int, int], float] = {}
    last_hop_start: dict[tuple[int, int], float] = {}
    for hop in np.argsort(schedule.transfer_start, kind="stable"):
        pair = (int(schedule.transfer_ops[hop]), int(schedule.transfer_targets[hop]))
        arrivals[pair] = float(schedule.transfer_finish[hop])
        last_hop_start[pair] = float(schedule.transfer_start[hop])
    sent: dict[int, float] = {}
    for (op, _), time in arrivals.items():
        sent[op] = max(sent.get(op, 0.0), time)
    for op in range(graph.num_ops):
        home = int(schedule.devices[op])
        consumers = graph.successors(op)
        where = schedule.devices[consumers]
        begins = {home: float(schedule.start[op])}
        begins |= {d: last_hop_start[op, d] for d in map(int, np.unique(where)) if d != home}
        for device, begin in begins.items():
            ends = schedule.finish[consumers[where == device]]
            end = float(ends.max()) if ends.size else -np.inf
            if device == home:
                end = max(end, sent.get(op, -np.inf))
            changes[device].append((begin, size[op]))
            if np.isfinite(end):
                changes[device].append((end, -size[op]))
    return [_steps(rows) for rows in changes]


def _steps(changes: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Sums changes at equal times and accumulates them."""
    if not changes:
        return np.zeros(1), np.zeros(1)
    rows = np.array(changes)
    times, index = np.unique(rows[:, 0], return_inverse=True)
    return times, np.cumsum(np.bincount(index, weights=rows[:, 1]))
