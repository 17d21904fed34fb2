"""All ops on one device: the placement that every speed-up is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler, best_of

if TYPE_CHECKING:
    from doppler.simulator import Simulator


@dataclass(frozen=True)
class SingleDevice(Scheduler):
    """All ops on one device, except those that constraints keep elsewhere.

    Args:
        device: which one, or None for the fastest in the simulator.

    Raises:
        ConfigurationError: on `schedule`, if the problem has no such device.
    """

    device: int | None = None
    name: ClassVar[str] = "single_device"
    may_repair: ClassVar[bool] = False

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        order = np.array(problem.graph.topological_order)
        if self.device is not None:
            if not 0 <= self.device < problem.num_devices:
                raise ConfigurationError(
                    f"scheduler 'single_device', device: {self.device}, but problem "
                    f"{problem.name!r} has devices 0 to {problem.num_devices - 1}"
                )
            return Proposal(problem.conform(np.full(problem.num_ops, self.device)), order)
        size = problem.num_devices
        placements = problem.conform(np.repeat(np.arange(size)[:, None], problem.num_ops, axis=1))
        makespans = simulator.makespans(placements, np.tile(order, (size, 1)))
        best = best_of(makespans)
        return Proposal(placements[best], order, size, float(makespans[best]))
