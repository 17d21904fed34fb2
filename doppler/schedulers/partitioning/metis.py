"""METIS: multilevel k-way partitioning of the op graph, parts then matched to devices.

Source: Karypis and Kumar (1998), "A fast and high quality multilevel scheme for partitioning
irregular graphs", SIAM Journal on Scientific Computing 20(1), through the pymetis package. Its use
as a rival of learned placement goes back to Mirhoseini et al. (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler, best_of, check_count
from doppler.schedulers.partitioning.arrangements import by_b_level
from doppler.schedulers.partitioning.vertices import VertexGraph, contract

if TYPE_CHECKING:
    from doppler.simulator import Simulator

METHODS = ("both", "kway", "recursive")
WEIGHT_SUM = 1e9
"""METIS takes whole numbers: all work, and all edges together, are scaled to this sum."""
MOST_IMBALANCE = 10.0


@dataclass(frozen=True)
class Metis(Scheduler):
    """Cuts the undirected op graph into a part per device, in proportion to the devices' speeds.

    A vertex weighs its mean seconds over the devices, an edge the mean uncontended seconds of the
    tensors that would cross it; where every transfer is free, the number of cut edges counts.
    Parts go to devices by the linear assignment of least seconds, to which a part adds what it
    exchanges with ops that are pinned elsewhere. METIS knows neither time nor precedence: parts
    are balanced in total, not level by level, so devices may wait for one another.

    Ops that must be together are one vertex. METIS cannot hold vertices apart: ops pinned to two
    devices may come out in one part, and then the pins win over the balance.

    Where memory is known and no partition fits, bytes are balanced, by capacity, instead of
    seconds.

    The order is by falling b-level. With fewer free vertices than devices every vertex is a part.

    Args:
        restarts: seeds tried, at least 1; the best in the simulator is kept.
        method: "kway", "recursive" (bisection), or "both" in turn.
        imbalance: how much more than its share a part may weigh, above 0 and at most 10.

    Raises:
        ConfigurationError: an option out of range.
    """

    restarts: int = 64
    method: str = "both"
    imbalance: float = 0.03
    name: ClassVar[str] = "metis"

    def __post_init__(self) -> None:
        check_count("scheduler 'metis'", "restarts", self.restarts)
        if self.method not in METHODS:
            raise ConfigurationError(
                f"scheduler 'metis', method: {self.method!r} is not one of {', '.join(METHODS)}"
            )
        value = self.imbalance
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not numeric or not 0 < value <= MOST_IMBALANCE:
            raise ConfigurationError(
                f"scheduler 'metis', imbalance: {value!r} is not a number above 0 and at most "
                f"{MOST_IMBALANCE:g}"
            )

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        graph = contract(problem)
        order = by_b_level(problem)
        speeds = device_speeds(graph.seconds)
        proposal = self._best(problem, simulator, rng, graph, order, (graph.seconds, speeds), True)
        capacity = problem.topology.memory_bytes
        if not np.isfinite(proposal.makespan or 0.0) and graph.output_bytes is not None:
            evaluations = proposal.evaluations
            load = graph.output_bytes[:, None] / capacity
            shares = np.minimum(capacity, graph.output_bytes.sum())
            proposal = self._best(problem, simulator, rng, graph, order, (load, shares), False)
            proposal.evaluations += evaluations
        return proposal

    def _best(
        self,
        problem: PlacementProblem,
        simulator: Simulator,
        rng: np.random.Generator,
        graph: VertexGraph,
        order: np.ndarray,
        balance: tuple[np.ndarray, np.ndarray],
        pulls: bool,
    ) -> Proposal:
        """Best of all restarts; `balance` is what is balanced (V, D), and shares (D,)."""
        load, shares = balance
        weighted = _weighted(graph, load.mean(axis=1), shares)
        placements = np.empty((self.restarts, problem.num_ops), np.int64)
        cuts = np.empty(self.restarts)
        for row, seed in enumerate(rng.integers(0, 2**31 - 1, self.restarts).tolist()):
            recursive = self.method == "recursive" or (self.method == "both" and row % 2 == 0)
            part = self._partition(weighted, seed, recursive)
            devices = match_parts(graph, part, load, pulls)
            placements[row] = devices[graph.of_op]
            cuts[row] = graph.edge_seconds[np.diff(devices[graph.edges], axis=1)[:, 0] != 0].sum()
        orders = np.repeat(order[None], self.restarts, axis=0)
        makespans = simulator.makespans(placements, orders)
        best = best_of(makespans)
        info = {"cut_seconds": float(cuts[best])}
        return Proposal(placements[best], order, self.restarts, float(makespans[best]), info)

    def _partition(self, weighted: dict[str, Any], seed: int, recursive: bool) -> np.ndarray:
        """Part of each vertex of `_weighted`. # (V,)"""
        num_vertices = len(weighted["vweights"])
        if num_vertices <= weighted["nparts"]:
            return np.arange(num_vertices)
        import pymetis

        options = pymetis.Options(seed=seed, ufactor=max(1, round(1000 * self.imbalance)))
        _, part = pymetis.part_graph(**weighted, recursive=recursive, options=options)
        return np.array(part, np.int64)


def _weighted(graph: VertexGraph, work: np.ndarray, shares: np.ndarray) -> dict[str, Any]:
    """What METIS partitions; part k is meant to weigh as `shares[k]` is to their sum."""
    import pymetis

    ends = np.concatenate([graph.edges, graph.edges[:, ::-1]])
    by_start = np.lexsort((ends[:, 1], ends[:, 0]))
    starts = np.searchsorted(ends[by_start, 0], np.arange(graph.num_vertices + 1))
    return {
        "nparts": len(shares),
        "adjacency": pymetis.CSRAdjacency(starts, ends[by_start, 1]),
        "vweights": _whole(work),
        "eweights": _whole(np.tile(graph.edge_seconds, 2)[by_start]),
        "tpwgts": (shares / shares.sum()).tolist(),
    }


def device_speeds(seconds: np.ndarray) -> np.ndarray:
    """Speed of each device on the whole graph, compute slots counted: the mean device has 1.

    Args:
        seconds: work per vertex and device. # (V, D) [s]

    Returns:
        # (D,); all 1 where some device takes no time at all.
    """
    total = seconds.sum(axis=0)
    if not (total > 0).all():
        return np.ones(len(total))
    speeds: np.ndarray = 1.0 / total
    return speeds / speeds.mean()


def match_parts(
    graph: VertexGraph, part: np.ndarray, load: np.ndarray, pulls: bool = True
) -> np.ndarray:
    """Gives every part a device of its own, with the least total load and pulls from anchors.

    Args:
        graph: the vertices, of which anchors keep to their device.
        part: # (V,)
        load: what a vertex puts on each device. # (V, D)
        pulls: whether the load is in seconds, to which those of transfers can be added.

    Returns:
        device of each vertex. # (V,)
    """
    num_devices = load.shape[1]
    free = graph.device < 0
    cost = np.zeros((max(num_devices, int(part.max()) + 1), num_devices))
    np.add.at(cost, part[free], load[free])
    pull = np.zeros_like(cost)  # seconds of what a part exchanges with the ops pinned to a device
    for near, far in (graph.edges.T, graph.edges[:, ::-1].T) if pulls else ():
        tied = free[near] & ~free[far]
        place = (part[near[tied]], graph.device[far[tied]])
        np.add.at(pull, place, graph.edge_seconds[tied])
    parts = np.unique(part[free])
    cost = (cost + pull.sum(axis=1, keepdims=True) - pull)[parts]
    rows, columns = linear_sum_assignment(cost)
    device_of_part = np.zeros(len(pull), np.int64)
    device_of_part[parts[rows]] = columns
    return np.where(free, device_of_part[part], graph.device)


def _whole(weights: np.ndarray) -> list[int]:
    """Weights as whole numbers of at least 1; all 1 where they are all 0."""
    total = weights.sum()
    scaled = weights / total * WEIGHT_SUM if total > 0 else np.ones(len(weights))
    return np.maximum(np.rint(scaled), 1).astype(np.int64).tolist()
