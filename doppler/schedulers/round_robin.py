"""Ops dealt to the devices in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler

if TYPE_CHECKING:
    from doppler.simulator import Simulator


@dataclass(frozen=True)
class RoundRobin(Scheduler):
    """The i-th op of the topological order (level by level, then by id) goes on device i mod D.

    Pinned ops keep their device, and colocation groups follow their first op.
    """

    name: ClassVar[str] = "round_robin"

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        order = np.array(problem.graph.topological_order)
        devices = np.empty(problem.num_ops, np.int64)
        devices[order] = np.arange(problem.num_ops) % problem.num_devices
        return Proposal(problem.conform(devices), order)
