"""One kernel for HEFT, CPOP and PEFT: the first ready op goes where it costs least."""

from __future__ import annotations

import numpy as np

from doppler.schedulers.lists.model import PlanningModel
from doppler.schedulers.lists.timeline import (
    PlanState,
    begin,
    commit,
    end,
    roomiest,
    start_on,
    usable,
)
from doppler.simulator.jit import compiled, entry, inlined


@inlined
def _before(m: PlanningModel, priorities: np.ndarray, a: int, b: int) -> bool:
    if priorities[a] != priorities[b]:
        return priorities[a] > priorities[b]
    return m.position[a] < m.position[b]


@inlined
def _push(m: PlanningModel, heap: np.ndarray, size: int, op: int, priorities: np.ndarray) -> None:
    i = size
    while i > 0 and _before(m, priorities, op, heap[(i - 1) // 2]):
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = op


@inlined
def _pop(m: PlanningModel, heap: np.ndarray, size: int, priorities: np.ndarray) -> int:
    """Returns the first op; the heap is one shorter afterwards."""
    top = heap[0]
    op = heap[size - 1]
    i = 0
    while 2 * i + 1 < size - 1:
        child = 2 * i + 1
        if child + 1 < size - 1 and _before(m, priorities, heap[child + 1], heap[child]):
            child += 1
        if not _before(m, priorities, heap[child], op):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = op
    return top


@compiled
def _cheapest(
    m: PlanningModel, s: PlanState, op: int, wish: int, onward: np.ndarray, insertion: bool
) -> int:
    """The wished device if it may be, else where finish plus `onward` is least, ties to lower."""
    if wish >= 0 and usable(m, s, op, wish):
        return wish
    best, least = -1, np.inf
    for device in range(len(m.capacity)):
        if not usable(m, s, op, device):
            continue
        finish = start_on(m, s, op, device, insertion) + m.op_seconds[op, device]
        cost = finish + onward[op, device]
        if best < 0 or cost < least - m.same:
            best, least = device, cost
    return best if best >= 0 else roomiest(m, s, op)


@compiled
def _plan(
    m: PlanningModel,
    s: PlanState,
    priorities: np.ndarray,
    wishes: np.ndarray,
    onward: np.ndarray,
    insertion: bool,
    heap: np.ndarray,
) -> None:
    begin(m, s)
    size = 0
    for op in range(len(heap)):
        if s.missing[op] == 0 and not m.is_input[op]:
            _push(m, heap, size, op, priorities)
            size += 1
    while size > 0:
        op = _pop(m, heap, size, priorities)
        size -= 1
        commit(m, s, op, _cheapest(m, s, op, wishes[op], onward, insertion), insertion)
        for edge in range(m.succ_ptr[op], m.succ_ptr[op + 1]):
            if s.missing[m.succ_ops[edge]] == 0:
                _push(m, heap, size, m.succ_ops[edge], priorities)
                size += 1
    end(m, s)


@entry
def plan_by_priority(
    m: PlanningModel,
    s: PlanState,
    priorities: np.ndarray,
    wishes: np.ndarray,
    onward: np.ndarray,
    insertion: bool,
    heap: np.ndarray,
) -> None:
    """Plans all ops: the ready op of highest priority first, ties by topological position.

    Args:
        m, s: the problem and an empty plan.
        priorities: # (N,)
        wishes: device that an op takes if it may and if it fits, or -1. # (N,)
        onward: added to an op's finish on each device when these are compared. # (N, D) [s]
        insertion: whether an op may go into a gap between planned ones.
        heap: scratch. # (N,) int64
    """
    _plan(m, s, priorities, wishes, onward, insertion, heap)
