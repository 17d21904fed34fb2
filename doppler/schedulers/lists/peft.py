"""PEFT: as HEFT, but looking ahead through a table of optimistic costs.

Source: Arabnejad and Barbosa (2014), "List scheduling algorithm for heterogeneous systems by an
optimistic cost table", IEEE TPDS 25(3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from doppler.schedulers.lists.model import PlanningModel
from doppler.schedulers.lists.planner import ListScheduler, Plan, priority_plan
from doppler.schedulers.lists.ranks import optimistic_costs, rounded
from doppler.schedulers.lists.timeline import UNLIMITED


@dataclass(frozen=True)
class Peft(ListScheduler):
    """Predict Earliest Finish Time.

    The ready op of the highest optimistic cost, averaged over the devices, goes first, to the
    device where its finish (gaps included) plus the optimistic cost from there to the end is least.
    Links are planned without contention, as in the paper; see `ListScheduler`.
    """

    name: ClassVar[str] = "peft"

    def plan(self, model: PlanningModel, memory: int = UNLIMITED) -> Plan:
        costs = optimistic_costs(model)
        return priority_plan(model, memory, rounded(costs.mean(axis=1)), onward=costs)
