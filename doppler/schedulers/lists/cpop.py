"""CPOP: the critical path goes on one device, every other op where it finishes earliest.

Source: Topcuoglu, Hariri and Wu (2002), "Performance-effective and low-complexity task scheduling
for heterogeneous computing", IEEE TPDS 13(3), section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.schedulers.lists.model import PlanningModel, pins
from doppler.schedulers.lists.planner import ListScheduler, Plan, priority_plan
from doppler.schedulers.lists.ranks import downward_ranks, longest_path, rounded, upward_ranks
from doppler.schedulers.lists.timeline import UNLIMITED


@dataclass(frozen=True)
class Cpop(ListScheduler):
    """Critical Path On a Processor.

    Among the ready ops the one on the longest mean path (upward plus downward rank) goes first. The
    ops of one longest path from an entry to an exit go on the device that runs them in the least
    time, as far as pins, groups and memory let them; the groups of these ops are decided with
    them. All others go where they finish first, gaps included. Links are planned without
    contention, as in the paper; see `ListScheduler`.
    """

    name: ClassVar[str] = "cpop"

    def plan(self, model: PlanningModel, memory: int = UNLIMITED) -> Plan:
        upward = upward_ranks(model)
        path = longest_path(model, upward)
        device = critical_device(model, path)
        wishes = np.full(model.num_ops, -1, np.int64)
        wishes[path] = device
        blocks = model.block[path][model.block[path] >= 0]
        block_device = model.block_device.copy()
        block_device[blocks] = np.where(block_device[blocks] < 0, device, block_device[blocks])
        return priority_plan(
            model._replace(block_device=block_device),
            memory,
            rounded(upward + downward_ranks(model)),
            wishes=wishes,
        )


def critical_device(model: PlanningModel, path: np.ndarray) -> int:
    """The device that runs the free ops of a path in the least time, ties to the lower id.

    Args:
        model: the problem.
        path: ops.
    """
    free = path[pins(model.block, model.block_device)[path] < 0]
    seconds = model.op_seconds[free].sum(axis=0)
    return int(np.flatnonzero(seconds <= seconds.min() + model.same)[0])
