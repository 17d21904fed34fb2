"""DLS: the ready op and the device of the highest dynamic level.

Source: Sih and Lee (1993), "A compile-time scheduling heuristic for interconnection-constrained
heterogeneous processor architectures", IEEE TPDS 4(2), the dynamic level DL2 with its term for
unequal devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.schedulers.lists.model import PlanningModel
from doppler.schedulers.lists.planner import ListScheduler, Plan, pair_plan
from doppler.schedulers.lists.ranks import rounded, upward_ranks
from doppler.schedulers.lists.timeline import UNLIMITED


@dataclass(frozen=True)
class Dls(ListScheduler):
    """Dynamic Level Scheduling.

    The dynamic level of a ready op on a device is its static level, minus its earliest start there,
    plus Delta: its median seconds over the devices minus its seconds there. Static levels are
    longest paths to an exit of the medians, without communication. Ties go to the op of the higher
    static level.

    The paper's further terms, for descendants and for scarce devices, are left out, and links are
    planned without contention, where the paper reserves them; see `ListScheduler`.
    """

    name: ClassVar[str] = "dls"

    def plan(self, model: PlanningModel, memory: int = UNLIMITED) -> Plan:
        usual = np.median(model.op_seconds, axis=1)
        levels = upward_ranks(model, seconds=usual, communication=False)
        gain = (levels + usual)[:, None] - model.op_seconds
        return pair_plan(model, memory, gain, rounded(levels))
