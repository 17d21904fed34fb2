"""Search in the loop of training: a short annealing improves what the policy found."""

from __future__ import annotations

from typing import Any

import numpy as np

from doppler.errors import CapacityError
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.schedulers.search.annealing import SimulatedAnnealing
from doppler.simulator import Simulator

FULL_OPS = 250
"""On graphs of more ops a polish makes fewer evaluations, in inverse proportion: the time of one
grows with the graph, and a polish should stay a part of the training beside it."""
_LEAST = 2


class Polisher:
    """Anneals placements with a fixed number of evaluations each.

    Two chains, on two threads where there are two cores, begin at the placement; one keeps most of
    it, the other little. What is found does not depend on threads or time.

    Args:
        problem: what is placed.
        simulator: judges; see `searchable`.
        evaluations: placements simulated for each that is improved, at least 2; on graphs of more
            than `FULL_OPS` ops proportionally fewer.
    """

    def __init__(self, problem: PlacementProblem, simulator: Any, evaluations: int) -> None:
        self._problem, self._simulator = problem, simulator
        fewer = evaluations * FULL_OPS // max(problem.num_ops, FULL_OPS)
        self._annealing = SimulatedAnnealing(budget_s=None, budget_evals=max(fewer, _LEAST))

    def improve(
        self, devices: np.ndarray, order: np.ndarray, rng: np.random.Generator
    ) -> tuple[Placement, int]:
        """A placement at least as good, and the number of evaluations made.

        Args:
            devices: # (num_ops,)
            order: # (num_ops,)
            rng: seeds the chains.

        Returns:
            The placement with the order in which its ops start: what a policy can follow, and under
            `choose=given` priorities as good as those that were found, unless transfers wait for
            one another.

        Raises:
            KeyboardInterrupt: it was interrupted; an unfinished search would depend on when.
        """
        start = Placement(devices, order)
        try:
            found = self._annealing.schedule(self._problem, self._simulator, rng, start)
        except CapacityError:
            return start, self._annealing.budget_evals or 0
        if found.info.get("interrupted"):
            raise KeyboardInterrupt
        return self._followable(found), int(found.info["evaluations"])

    def _followable(self, found: Placement) -> Placement:
        """The placement itself, or in the order of its starts where an op is before its input."""
        assert found.order is not None
        graph = self._problem.graph
        place = np.argsort(found.order)
        producers, consumers = graph.edges.T
        if (place[producers] < place[consumers]).all():
            return found
        nominal = getattr(self._simulator, "simulator", self._simulator)
        starts = nominal.run(found.devices, found.order).start
        topological = np.argsort(graph.topological_order)
        return Placement(found.devices, np.lexsort((topological, starts)), found.info)


def searchable(objective: Any) -> Any | None:
    """The simulator that an objective asks, if a search can ask it too, else None.

    It can ask a work-conserving `Simulator`, and a statistic of one's samples: then the nominal
    makespan is searched, and the statistic picks among what was found. Noise that is drawn anew for
    every batch it cannot search.
    """
    simulator = getattr(objective, "simulator", None)
    nominal = simulator
    if hasattr(simulator, "statistic"):
        nominal = getattr(simulator, "simulator", None)
    if not isinstance(nominal, Simulator) or nominal.execution != "work_conserving":
        return None
    return simulator
