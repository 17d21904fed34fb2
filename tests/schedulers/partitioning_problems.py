"""Problems that the tests of METIS and of the chain split share."""

from __future__ import annotations

import numpy as np

from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.hardware import make_topology


def make_problem(
    edges: list[tuple[int, int]],
    seconds: list | np.ndarray,
    volumes: list | np.ndarray,
    num_devices: int = 2,
    rates: np.ndarray | None = None,
    **rest: object,
) -> PlacementProblem:
    """A problem in seconds; `rates` are latency and seconds per unit of each link. # (links, 2)"""
    per_op = np.asarray(seconds, float)
    if per_op.ndim == 1:
        per_op = np.repeat(per_op[:, None], num_devices, axis=1)
    topology = make_topology("ideal", num_devices)
    links = np.tile([0.0, 1.0], (topology.num_links, 1)) if rates is None else rates
    graph = DataflowGraph.from_edges("drawn", len(per_op), edges)
    costs = CostModel(per_op, np.asarray(volumes, float), links[:, 0], links[:, 1], "test")
    return PlacementProblem(graph, topology, costs, **rest)  # type: ignore[arg-type]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def two_braids(heavy: float = 9.0, light: float = 1.0) -> PlacementProblem:
    """Two chains of eight ops with heavy edges, tied by two light ones; ids alternate.

    0 = 2 = 4 = ... = 14
         \\         \\
    1 = 3 = 5 = ... = 15     2 -> 5 and 10 -> 13 are light
    """
    edges = [(op, op + 2) for op in range(14)] + [(16, 5), (17, 13), (2, 16), (10, 17)]
    volumes = [heavy] * 16 + [light] * 2
    # The light tensors are made by ops without work; they would cost `light` to cut.
    volumes[2] = volumes[10] = heavy
    return make_problem(edges, [1.0] * 16 + [0.0] * 2, volumes)
