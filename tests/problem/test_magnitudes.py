"""Costs whose sums would overflow are refused before anything is simulated."""

from __future__ import annotations

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.errors import InvalidProblemError
from doppler.hardware import make_topology
from doppler.simulator import NETWORKS, Simulator


def chain(
    op_seconds: list[float], volume: list[float], latency: float = 0.0, rate: float = 1.0
) -> PlacementProblem:
    """Three ops in a row on two devices."""
    return PlacementProblem(
        DataflowGraph.from_edges("chain", 3, [(0, 1), (1, 2)]),
        make_topology("ideal", 2),
        CostModel(
            np.repeat(np.array(op_seconds)[:, None], 2, axis=1),
            np.array(volume),
            np.full(2, latency),
            np.full(2, rate),
            "by hand",
        ),
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (([1, 1e308, 1], [0, 0, 0]), "op 1, op_seconds: 1e\\+308 s on its slowest"),
        (([1e308, 1e308, 1e308], [0, 0, 0]), "op 0, op_seconds: .* together take inf s"),
        (([1, 1, 1], [0, 0, 1e300], 0, 1e300), "op 2, transfer_volume: 1e\\+300 over link 0"),
        (([1, 1, 1], [1, 1, 1], 1e308, 1e308), "op 0, transfer_volume: 1 over link 0"),
        (([1, 1, 1], [0, 0, 0], 1e305), "op 0, transfer_volume: 0; .*add up to 2e\\+305 s"),
        (([1, 1, 1], [1e300, 0, 0]), "op 0, transfer_volume: 1e\\+300; all transfers"),
        (([1, 1, 1], [1, 1, 1], 0, 1.7e308), "op 0, transfer_volume: 1; .*to inf"),
    ],
)
def test_costs_that_overflow_are_refused(costs: tuple, message: str) -> None:
    with pytest.raises(InvalidProblemError, match="problem 'chain', " + message):
        chain(*costs)


def test_large_costs_that_do_not_overflow_are_simulated_right() -> None:
    problem = chain([1e190, 2e190, 3e190], [1e189, 1e189, 0])
    for network in NETWORKS:
        # two transfers of 1e189 s between the three ops
        assert Simulator(problem, network).makespan([0, 1, 0]) == pytest.approx(6.2e190)


def test_output_bytes_that_overflow_are_refused() -> None:
    graph = DataflowGraph.from_edges("pair", 2, [(0, 1)], output_bytes=[1e308, 1.1e308])
    costs = CostModel(np.ones((2, 1)), np.zeros(2), np.zeros(0), np.zeros(0), "by hand")
    with pytest.raises(InvalidProblemError, match=r"op 1, output_bytes: 1.1e\+308 B"):
        PlacementProblem(graph, make_topology("ideal", 1), costs)


def test_links_without_volume_cost_nothing() -> None:
    assert Simulator(chain([0, 0, 0], [0, 0, 0])).makespan([0, 1, 0]) == 0.0
