"""The classical list schedulers for unequal devices, one per file, each citing its paper."""

from doppler.schedulers.lists.cpop import Cpop
from doppler.schedulers.lists.dls import Dls
from doppler.schedulers.lists.etf import Etf
from doppler.schedulers.lists.heft import Heft
from doppler.schedulers.lists.model import PlanningModel, edge_model, planning_model
from doppler.schedulers.lists.peft import Peft
from doppler.schedulers.lists.planner import ListScheduler, Plan

__all__ = [
    "Cpop",
    "Dls",
    "Etf",
    "Heft",
    "ListScheduler",
    "Peft",
    "Plan",
    "PlanningModel",
    "edge_model",
    "planning_model",
]
