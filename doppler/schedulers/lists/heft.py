"""HEFT: the op farthest from the end goes where it finishes earliest.

Source: Topcuoglu, Hariri and Wu (2002), "Performance-effective and low-complexity task scheduling
for heterogeneous computing", IEEE TPDS 13(3), section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from doppler.schedulers.lists.model import PlanningModel
from doppler.schedulers.lists.planner import ListScheduler, Plan, check_flag, priority_plan
from doppler.schedulers.lists.ranks import rounded, upward_ranks
from doppler.schedulers.lists.timeline import UNLIMITED


@dataclass(frozen=True)
class Heft(ListScheduler):
    """Heterogeneous Earliest Finish Time.

    Ops go by upward rank, the longest path to an exit with mean seconds of ops over the devices and
    of edges over the pairs of devices; each goes where it finishes first. Links are planned without
    contention, as in the paper; see `ListScheduler`.

    Args:
        insertion: whether an op may go into a gap before an op that was planned earlier.

    Raises:
        ConfigurationError: if `insertion` is not true or false.
    """

    insertion: bool = True
    name: ClassVar[str] = "heft"

    def __post_init__(self) -> None:
        check_flag("scheduler 'heft'", "insertion", self.insertion)

    def plan(self, model: PlanningModel, memory: int = UNLIMITED) -> Plan:
        ranks = rounded(upward_ranks(model))
        return priority_plan(model, memory, ranks, insertion=self.insertion)
