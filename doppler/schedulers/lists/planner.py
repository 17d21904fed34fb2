"""What the classical list schedulers share: a plan, and what is proposed of it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler
from doppler.schedulers.lists.by_pair import ReadyOps, plan_by_pair
from doppler.schedulers.lists.by_priority import plan_by_priority
from doppler.schedulers.lists.model import PlanningModel, planning_model
from doppler.schedulers.lists.timeline import KEPT, LIVE, UNLIMITED, PlanState, make_state

if TYPE_CHECKING:
    from doppler.simulator import Simulator


@dataclass(frozen=True, eq=False)
class Plan:
    """Who should run where and when, with links that carry everything at once.

    Args:
        devices: # (num_ops,)
        start, finish: # (num_ops,) [s]
        order: by start, ties by topological position; a topological order. # (num_ops,)
    """

    devices: np.ndarray
    start: np.ndarray
    finish: np.ndarray
    order: np.ndarray

    @property
    def makespan(self) -> float:
        """Planned makespan. [s]"""
        return float(self.finish.max())


@dataclass(frozen=True)
class ListScheduler(Scheduler):
    """Plans without contention on the links, whatever network the simulator has.

    The simulator then runs the placement its own way: it chooses among ready ops and links may be
    busy, so that `simulated_makespan` may lie above or below `planned_makespan`.

    Pins and colocation groups are kept: the first planned op of a group decides for the rest, and
    a group with a pinned op is decided from the start. An input that could be anywhere goes where
    its first planned consumer goes.

    Where the plan does not fit in the devices' memory, it is made anew with an estimate of what is
    resident (every output until its last consumer is planned), then with all outputs kept for
    ever; an op then only goes where it fits, or, if nowhere, where most room is left.

    The proposal's info has `planned_makespan` [s].
    """

    @abstractmethod
    def plan(self, model: PlanningModel, memory: int = UNLIMITED) -> Plan:
        """Plans all ops.

        Args:
            model: what is planned.
            memory: what counts as resident, see `doppler.schedulers.lists.timeline`.
        """

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        model = planning_model(problem)
        limits = (UNLIMITED, LIVE, KEPT) if model.memory_is_tight else (UNLIMITED,)
        proposal = Proposal(np.zeros(0, np.int64), np.zeros(0, np.int64))
        for tries, memory in enumerate(limits, 1):
            plan = self.plan(model, memory)
            makespan = float(simulator.makespans(plan.devices[None], plan.order[None])[0])
            proposal = Proposal(
                plan.devices, plan.order, tries, makespan, {"planned_makespan": plan.makespan}
            )
            if np.isfinite(makespan):
                break
        return proposal


def priority_plan(
    model: PlanningModel,
    memory: int,
    priorities: np.ndarray,
    *,
    wishes: np.ndarray | None = None,
    onward: np.ndarray | None = None,
    insertion: bool = True,
) -> Plan:
    """Plans by priority; arguments as of `plan_by_priority`, None for no wishes, nothing added."""
    state = make_state(model, memory)
    n, d = model.num_ops, model.num_devices
    plan_by_priority(
        model,
        state,
        np.ascontiguousarray(priorities, np.float64),
        np.full(n, -1, np.int64) if wishes is None else wishes,
        np.zeros((n, d)) if onward is None else onward,
        insertion,
        np.empty(n),
        np.empty(n, np.int64),
    )
    return _finished(model, state)


def pair_plan(model: PlanningModel, memory: int, gain: np.ndarray, levels: np.ndarray) -> Plan:
    """Plans by pairs; arguments as of `plan_by_pair`."""
    state = make_state(model, memory)
    n = model.num_ops
    ready = ReadyOps(
        ops=np.empty(n, np.int64),
        key=np.empty(n),
        device=np.empty(n, np.int64),
        free=np.zeros(model.num_devices),
    )
    plan_by_pair(model, state, ready, np.ascontiguousarray(gain, np.float64), levels)
    return _finished(model, state)


def check_flag(owner: str, field_name: str, value: object) -> None:
    """Raises `ConfigurationError` unless an option is true or false."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{owner}, {field_name}: {value!r} is not true or false")


def _finished(model: PlanningModel, state: PlanState) -> Plan:
    order = np.lexsort((model.position, state.start))
    return Plan(state.devices, state.start, state.finish, order)
