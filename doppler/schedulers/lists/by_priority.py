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
from doppler.simulator.heaps import heap_pop, heap_push
from doppler.simulator.jit import compiled, entry


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
    heap_key: np.ndarray,
    heap_item: np.ndarray,
) -> None:
    begin(m, s)
    size = 0
    for op in range(len(priorities)):
        if s.missing[op] == 0 and not m.is_input[op]:
            heap_push(heap_key, heap_item, 0, size, -priorities[op], m.position[op])
            size += 1
    while size > 0:
        op = m.topological_order[heap_pop(heap_key, heap_item, 0, size)]
        size -= 1
        commit(m, s, op, _cheapest(m, s, op, wishes[op], onward, insertion), insertion)
        for edge in range(m.succ_ptr[op], m.succ_ptr[op + 1]):
            consumer = m.succ_ops[edge]
            if s.missing[consumer] == 0:
                heap_push(heap_key, heap_item, 0, size, -priorities[consumer], m.position[consumer])
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
    heap_key: np.ndarray,
    heap_item: np.ndarray,
) -> None:
    """Plans all ops: the ready op of highest priority first, ties by topological position.

    Args:
        m, s: the problem and an empty plan.
        priorities: # (N,)
        wishes: device that an op takes if it may and if it fits, or -1. # (N,)
        onward: added to an op's finish on each device when these are compared. # (N, D) [s]
        insertion: whether an op may go into a gap between planned ones.
        heap_key, heap_item: scratch. # (N,) float64, (N,) int64
    """
    _plan(m, s, priorities, wishes, onward, insertion, heap_key, heap_item)
