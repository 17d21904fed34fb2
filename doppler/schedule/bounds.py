"""Lower bounds on the makespan of any placement under any executor."""

from __future__ import annotations

from dataclasses import dataclass

from doppler.graph import b_levels
from doppler.problem import PlacementProblem


@dataclass(frozen=True)
class LowerBounds:
    """Two bounds [s]; `best` is the larger.

    Args:
        critical_path: longest chain of ops, each on its fastest device, communication free. [s]
        work: all ops on their fastest device, spread perfectly over all compute slots. [s]
    """

    critical_path: float
    work: float

    @property
    def best(self) -> float:
        return max(self.critical_path, self.work)


def lower_bounds(problem: PlacementProblem) -> LowerBounds:
    """Computes the bounds of a problem; without noise no simulated makespan is below them."""
    fastest = problem.cost_model.op_seconds.min(axis=1)
    slots = int(problem.topology.compute_slots.sum())
    return LowerBounds(
        critical_path=float(b_levels(problem.graph, fastest).max()),
        work=float(fastest.sum() / slots),
    )
