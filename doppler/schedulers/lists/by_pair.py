"""One kernel for ETF and DLS: of all ready ops and devices, the pair that comes first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.schedulers.lists.model import PlanningModel
from doppler.schedulers.lists.timeline import (
    UNLIMITED,
    PlanState,
    begin,
    commit,
    end,
    roomiest,
    usable,
)
from doppler.simulator.jit import compiled, entry, inlined


class ReadyOps(NamedTuple):
    """The ready ops and where each of them would go."""

    ops: np.ndarray  # (N,) the first `count` of them, in any order
    key: np.ndarray  # (N,) least start minus gain of an op over the devices [s]
    device: np.ndarray  # (N,) where that is
    free: np.ndarray  # (D,) when the first lane of each device has run what is planned [s]


@inlined
def _start(s: PlanState, r: ReadyOps, op: int, device: int) -> float:
    """Earliest start after all that is planned on a device."""
    return max(s.arrival[op, device], r.free[device])


@inlined
def _note_free(s: PlanState, r: ReadyOps, device: int) -> None:
    free = np.inf
    for lane in range(s.lane_ptr[device], s.lane_ptr[device + 1]):
        free = min(free, 0.0 if s.tail[lane] < 0 else s.finish[s.tail[lane]])
    r.free[device] = free


@compiled
def _refresh(m: PlanningModel, s: PlanState, r: ReadyOps, op: int, gain: np.ndarray) -> None:
    """Finds an op's best device: least key, then least finish, then lowest id."""
    least = np.inf
    for device in range(len(m.capacity)):
        if usable(m, s, op, device):
            least = min(least, _start(s, r, op, device) - gain[op, device])
    if least == np.inf:
        device = roomiest(m, s, op)
        r.device[op] = device
        r.key[op] = _start(s, r, op, device) - gain[op, device]
        return
    best, finish = -1, np.inf
    for device in range(len(m.capacity)):
        if not usable(m, s, op, device):
            continue
        start = _start(s, r, op, device)
        if start - gain[op, device] > least + m.same:
            continue
        if best < 0 or start + m.op_seconds[op, device] < finish - m.same:
            best, finish = device, start + m.op_seconds[op, device]
    r.key[op] = least
    r.device[op] = best


@compiled
def _first(m: PlanningModel, r: ReadyOps, count: int, levels: np.ndarray) -> int:
    """Index of the ready op of least key, ties to the higher level, then the topological order."""
    least = np.inf
    for i in range(count):
        least = min(least, r.key[r.ops[i]])
    best = -1
    for i in range(count):
        op = r.ops[i]
        if r.key[op] > least + m.same:
            continue
        if best >= 0:
            other = r.ops[best]
            if levels[op] < levels[other]:
                continue
            if levels[op] == levels[other] and m.position[op] > m.position[other]:
                continue
        best = i
    return best


@compiled
def _plan(
    m: PlanningModel, s: PlanState, r: ReadyOps, gain: np.ndarray, levels: np.ndarray
) -> None:
    begin(m, s)
    count = 0
    for op in range(len(levels)):
        if s.missing[op] == 0 and not m.is_input[op]:
            r.ops[count] = op
            count += 1
            _refresh(m, s, r, op, gain)
    while count > 0:
        chosen = _first(m, r, count, levels)
        op = r.ops[chosen]
        count -= 1
        r.ops[chosen] = r.ops[count]
        device = r.device[op]
        # Starts on one device become later, no others change, unless a block was decided.
        for i in range(count):
            other = r.ops[i]
            key = _start(s, r, other, device) - gain[other, device]
            if key <= r.key[other] + m.same:
                r.device[other] = -1
        everything = commit(m, s, op, device, False) or s.memory != UNLIMITED
        _note_free(s, r, device)
        for i in range(count):
            if everything or r.device[r.ops[i]] < 0:
                _refresh(m, s, r, r.ops[i], gain)
        for edge in range(m.succ_ptr[op], m.succ_ptr[op + 1]):
            consumer = m.succ_ops[edge]
            if s.missing[consumer] == 0:
                r.ops[count] = consumer
                count += 1
                _refresh(m, s, r, consumer, gain)
    end(m, s)


@entry
def plan_by_pair(
    m: PlanningModel, s: PlanState, r: ReadyOps, gain: np.ndarray, levels: np.ndarray
) -> None:
    """Plans all ops: of all ready ops and devices always the pair of least start minus gain.

    Ties go to the op of the higher level, then of the lower topological position; among an op's
    devices to the earlier finish, then the lower id. One step costs O(ready ops), and O(D) more for
    those that the step delays.

    Args:
        m, s: the problem and an empty plan.
        r: scratch.
        gain: # (N, D) [s]
        levels: # (N,)
    """
    _plan(m, s, r, gain, levels)
