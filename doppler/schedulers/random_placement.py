"""A device drawn at random for every op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler, best_of, check_count

if TYPE_CHECKING:
    from doppler.simulator import Simulator

CHUNK = 1024


@dataclass(frozen=True)
class RandomPlacement(Scheduler):
    """Devices drawn uniformly and independently; the best of `samples` placements.

    Pinned ops keep their device, and a colocation group is drawn as one op.

    Args:
        samples: how many placements are drawn and simulated.

    Raises:
        ConfigurationError: if `samples` is below 1.
    """

    samples: int = 1
    name: ClassVar[str] = "random"

    def __post_init__(self) -> None:
        check_count("scheduler 'random'", "samples", self.samples)

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        order = np.array(problem.graph.topological_order)
        best = Proposal(np.zeros(0, np.int64), order, self.samples, None)
        for first in range(0, self.samples, CHUNK):
            count = min(CHUNK, self.samples - first)
            placements = rng.integers(problem.num_devices, size=(count, problem.num_ops))
            placements = problem.conform(placements)
            makespans = simulator.makespans(placements, np.tile(order, (count, 1)))
            winner = best_of(makespans)
            if best.makespan is None or makespans[winner] < best.makespan:
                best.devices = placements[winner].copy()
                best.makespan = float(makespans[winner])
        return best
