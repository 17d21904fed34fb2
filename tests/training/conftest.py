"""A tiny problem whose optimum is known by trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem import PlacementProblem
from doppler.simulator import Simulator


@pytest.fixture(scope="session")
def six_ops() -> PlacementProblem:
    r"""Two chains that meet: 0 -> 2 -> 4 -> 5 and 1 -> 3 -> 5; moving a tensor takes 2 s.

    Seconds 3, 2, 3, 4, 1, 1 on either of two devices. A chain per device: the first one, with op 5,
    runs 3 + 3 + 1, waits until 8 for op 3's output and ends at 9.
    """
    graph = DataflowGraph.from_edges("six", 6, [(0, 2), (2, 4), (4, 5), (1, 3), (3, 5)])
    topology = make_topology("ideal", 2)
    seconds = np.array([3.0, 2.0, 3.0, 4.0, 1.0, 1.0])
    costs = CostModel(
        np.repeat(seconds[:, None], 2, axis=1), np.full(6, 2.0), np.zeros(2), np.ones(2), "test"
    )
    return PlacementProblem(graph, topology, costs)


@pytest.fixture(scope="session")
def six_ops_simulator(six_ops: PlacementProblem) -> Simulator:
    return Simulator(six_ops, network="contention_free")


@pytest.fixture(scope="session")
def six_ops_optimum(six_ops: PlacementProblem, six_ops_simulator: Simulator) -> float:
    every = np.array(list(itertools.product(range(2), repeat=6)))
    best = float(six_ops_simulator.makespans(every).min())
    # By hand: op 5 cannot start before min over where its inputs are of 7 (+2) and 6 (+2): with
    # the chains apart it starts at 8; on one device everything takes 14.
    assert best == 9.0
    return best
