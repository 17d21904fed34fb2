"""ETF: always the ready op that can start first.

Source: Hwang, Chow, Anger and Lee (1989), "Scheduling precedence graphs in systems with
interprocessor communication times", SIAM Journal on Computing 18(2).
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
class Etf(ListScheduler):
    """Earliest Task First.

    Of all ready ops and devices the pair of the earliest start is planned, after what the device
    runs already. Ties go to the op of the higher static level (mean seconds over the devices). The
    paper's devices are equal; among unequal ones on which an op starts equally early, it takes the
    one where it finishes first. Links are planned without contention, as in the paper; see
    `ListScheduler`.

    Plans are work-conserving for their placement: with positive durations, a `contention_free`
    simulator that chooses by the given order reproduces them.
    """

    name: ClassVar[str] = "etf"

    def plan(self, model: PlanningModel, memory: int = UNLIMITED) -> Plan:
        levels = rounded(upward_ranks(model, communication=False))
        return pair_plan(model, memory, np.zeros_like(model.op_seconds), levels)
