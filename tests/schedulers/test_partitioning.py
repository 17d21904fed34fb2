"""METIS, the graph that it cuts, and what it shares with the chain split: memory and options."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from partitioning_problems import make_problem, rng, two_braids

from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology
from doppler.errors import ConfigurationError
from doppler.hardware import make_topology
from doppler.schedulers import ChainSplit, Metis
from doppler.schedulers.partitioning.arrangements import ARRANGEMENTS
from doppler.schedulers.partitioning.metis import device_speeds, match_parts
from doppler.schedulers.partitioning.vertices import contract
from doppler.simulator import Simulator
from doppler.workloads.random_dags import layered_dag


def test_contraction() -> None:
    #  0 --> 1 --> 3      0 and 3 pinned to device 1, 1 and 4 together,
    #  0 --> 2 --> 4      5 stands for an input and is free; its first consumer is 2
    #        5 --> 2
    problem = make_problem(
        [(0, 1), (0, 2), (1, 3), (2, 4), (5, 2)],
        [1.0, 2.0, 4.0, 8.0, 16.0, 0.0],
        [10.0, 20.0, 40.0, 0.0, 0.0, 70.0],
        pinned=[1, -1, -1, 1, -1, -1],
        colocation=[-1, 6, -1, -1, 6, -1],
        input_ops=[False] * 5 + [True],
    )
    graph = contract(problem)
    # vertices: 0 = {0, 3}, 1 = {1, 4}, 2 = {2, 5}
    assert graph.of_op.tolist() == [0, 1, 2, 0, 1, 2]
    assert graph.device.tolist() == [1, -1, -1]
    assert graph.seconds.tolist() == [[9.0, 9.0], [18.0, 18.0], [4.0, 4.0]]
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert graph.edge_seconds.tolist() == [30.0, 10.0, 40.0]  # 0 -> 1 and 1 -> 3 add up
    assert graph.output_bytes is None


def test_a_tensor_goes_to_a_vertex_once() -> None:
    problem = make_problem([(0, 1), (0, 2), (0, 3)], [1.0] * 4, [5.0] * 4, colocation=[-1, 2, 2, 3])
    graph = contract(problem)
    pairs = {tuple(graph.of_op[[0, op]]): op for op in (1, 2, 3)}
    assert len(pairs) == 2 and graph.edge_seconds.tolist() == [5.0, 5.0]


def test_slots_share_the_work() -> None:
    problem = make_problem([], [4.0, 4.0], [0.0, 0.0])
    devices = (Device("a", compute_slots=4), Device("b"))
    problem = replace(problem, topology=replace(problem.topology, devices=devices))
    assert contract(problem).seconds.tolist() == [[1.0, 4.0]] * 2


@pytest.mark.parametrize("method", ["kway", "recursive", "both"])
def test_metis_cuts_where_it_is_cheap(method: str) -> None:
    problem = two_braids()
    placement = Metis(method=method).schedule(problem, Simulator(problem), rng())
    even, odd = placement.devices[0:16:2], placement.devices[1:16:2]
    assert len(set(even)) == len(set(odd)) == 1 and even[0] != odd[0]
    assert placement.info["cut_seconds"] <= 2 * 1.0
    assert placement.info["evaluations"] == 64
    assert placement.order.tolist() == ARRANGEMENTS["b_level"](problem).tolist()


def test_metis_counts_edges_where_transfers_are_free() -> None:
    # Two cliques of six and one edge between them
    cliques = [
        (a + side, b + side)
        for side in (0, 6)
        for a, b in itertools.combinations(range(6), 2)
    ]  # fmt: skip
    problem = make_problem([*cliques, (2, 8)], [1.0] * 12, [0.0] * 12)
    devices = Metis(restarts=8).schedule(problem, Simulator(problem), rng()).devices
    assert len(set(devices[:6])) == len(set(devices[6:])) == 1 and devices[0] != devices[6]


def test_metis_balances_by_speed() -> None:
    # 200 equal ops without edges, device 1 three times as fast: 50 to 150, 3 % imbalance
    problem = make_problem([], np.tile([3.0, 1.0], (200, 1)), np.zeros(200))
    placement = Metis(restarts=4).schedule(problem, Simulator(problem), rng())
    counts = np.bincount(placement.devices, minlength=2)
    assert 50 - 8 <= counts[0] <= 50 + 8
    np.testing.assert_allclose(device_speeds(contract(problem).seconds), [0.5, 1.5])
    assert device_speeds(np.array([[0.0, 2.0]])).tolist() == [1.0, 1.0]


def test_parts_go_where_they_are_done_soonest() -> None:
    # Parts {0}, {1}: part 0 takes 1 s on device 1, part 1 on device 0
    problem = make_problem([], [[9.0, 1.0], [1.0, 9.0]], [0.0, 0.0])
    graph = contract(problem)
    assert match_parts(graph, np.array([0, 1]), graph.seconds).tolist() == [1, 0]


def test_parts_are_pulled_to_pinned_ops() -> None:
    # 0 is pinned to device 1 and reads op 1. 0 was put into a part with 2, and the pull decides
    problem = make_problem([(1, 0)], [1.0] * 3, [4.0] * 3, pinned=[1, -1, -1])
    graph = contract(problem)
    assert graph.of_op.tolist() == [0, 1, 2]
    assert match_parts(graph, np.array([0, 1, 0]), graph.seconds).tolist() == [1, 1, 0]
    # 5 s more on device 1 outweigh a pull of 4 s, unless the load is not in seconds
    load = graph.seconds + np.array([[0.0, 0.0], [0.0, 5.0], [0.0, 0.0]])
    assert match_parts(graph, np.array([0, 1, 0]), load).tolist() == [1, 0, 1]
    load[1, 1] = load[1, 0] = 1.0
    load[2] = [2.0, 1.0]
    assert match_parts(graph, np.array([0, 1, 0]), load).tolist() == [1, 1, 0]
    assert match_parts(graph, np.array([0, 1, 0]), load, pulls=False).tolist() == [1, 0, 1]


def test_metis_takes_restarts_and_seeds() -> None:
    problem = layered_dag(300, 4, seed=3)
    simulator = Simulator(problem)
    few = [Metis(restarts=1).schedule(problem, simulator, rng(seed)) for seed in range(4)]
    many = Metis(restarts=40).schedule(problem, simulator, rng())
    assert many.info["evaluations"] == 40
    assert many.info["simulated_makespan"] < min(p.info["simulated_makespan"] for p in few)
    assert many.info["simulated_makespan"] == simulator.makespan(many)
    assert len({p.info["simulated_makespan"] for p in few}) > 1
    again = Metis(restarts=40).schedule(problem, simulator, rng())
    np.testing.assert_array_equal(again.devices, many.devices)
    cut = many.devices[problem.graph.edges]
    producers = problem.graph.edges[cut[:, 0] != cut[:, 1], 0]
    assert many.info["cut_seconds"] == pytest.approx(problem.mean_transfer_seconds[producers].sum())


@pytest.mark.parametrize("scheduler", [Metis(restarts=3), ChainSplit()])
@pytest.mark.parametrize(("num_ops", "num_devices"), [(1, 1), (1, 3), (2, 3), (5, 1)])
def test_tiny_problems(scheduler: Metis | ChainSplit, num_ops: int, num_devices: int) -> None:
    problem = make_problem([], [1.0] * num_ops, [1.0] * num_ops, num_devices)
    placement = scheduler.schedule(problem, Simulator(problem), rng())
    assert placement.info["simulated_makespan"] == -(-num_ops // num_devices)


@pytest.mark.parametrize("scheduler", [Metis(restarts=3), ChainSplit()])
def test_everything_may_be_pinned(scheduler: Metis | ChainSplit) -> None:
    problem = make_problem([(0, 1), (1, 2)], [1.0] * 3, [1.0] * 3, pinned=[1, 0, 1])
    assert scheduler.schedule(problem, Simulator(problem), rng()).devices.tolist() == [1, 0, 1]


def streams(capacity: float) -> PlacementProblem:
    """One light op of 60 B and six heavy ones of 10 B that stay until the end, two devices."""
    graph = DataflowGraph.from_edges("fat", 7, [], output_bytes=[60.0, *[10.0] * 6])
    devices = tuple(Device(name, memory_bytes=capacity) for name in "ab")
    topology = Topology("small", devices, make_topology("ideal", 2).links)
    seconds = np.repeat([[0.1], *[[10.0]] * 6], 2, axis=1)
    return PlacementProblem(
        graph, topology, CostModel(seconds, np.zeros(7), np.zeros(2), np.ones(2), "test")
    )


@pytest.mark.parametrize(
    "scheduler", [Metis(restarts=4), ChainSplit(), ChainSplit(criterion="bottleneck")]
)
def test_memory_decides_where_balance_does_not_fit(scheduler: Metis | ChainSplit) -> None:
    # Three heavy ops each: one device holds 60 + 30 B. With 65 B the light op must be alone.
    problem = streams(65.0)
    placement = scheduler.schedule(problem, Simulator(problem), rng())
    assert (placement.devices[1:] != placement.devices[0]).all()
    assert "repaired" not in placement.info
    roomy = streams(90.0)
    balanced = scheduler.schedule(roomy, Simulator(roomy), rng())
    assert np.bincount(balanced.devices[1:]).tolist() == [3, 3]
    if scheduler.name == "metis":
        assert placement.info["evaluations"] == 2 * balanced.info["evaluations"] == 8


def test_metis_balances_bytes_by_capacity() -> None:
    # Forty outputs of 10 B on devices of 115 and 345 B: a quarter on the first
    graph = DataflowGraph.from_edges("even", 40, [], output_bytes=[10.0] * 40)
    devices = (Device("a", memory_bytes=115.0), Device("b", memory_bytes=345.0))
    topology = Topology("uneven", devices, make_topology("ideal", 2).links)
    costs = CostModel(np.ones((40, 2)), np.zeros(40), np.zeros(2), np.ones(2), "test")
    problem = PlacementProblem(graph, topology, costs)
    placement = Metis(restarts=4).schedule(problem, Simulator(problem), rng())
    assert "repaired" not in placement.info
    assert 9 <= np.bincount(placement.devices)[0] <= 11


def test_metis_forgets_pulls_where_bytes_decide() -> None:
    # Ops 1 to 5 (10 B each) are tied, and 1 feeds op 0 on device 0, which holds 25 B; 6 is alone.
    # Seconds alone would pull them all to device 0.
    edges = [(a, b) for a, b in itertools.combinations(range(1, 6), 2)] + [(1, 0)]
    sizes = [1.0, *[10.0] * 6]
    graph = DataflowGraph.from_edges("pulled", 7, edges, output_bytes=sizes)
    devices = (Device("a", memory_bytes=25.0), Device("b", memory_bytes=80.0))
    topology = Topology("uneven", devices, make_topology("ideal", 2).links)
    seconds = np.repeat([[1.0], *[[2.0]] * 5, [10.0]], 2, axis=1)
    costs = CostModel(seconds, np.array(sizes), np.zeros(2), np.ones(2), "test")
    problem = PlacementProblem(graph, topology, costs, pinned=np.array([0, *[-1] * 6]))
    placement = Metis(restarts=4).schedule(problem, Simulator(problem), rng())
    assert "repaired" not in placement.info and placement.info["evaluations"] == 8
    assert placement.devices.tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_metis_methods_differ() -> None:
    problem = layered_dag(300, 4, seed=3)
    found = {
        method: Metis(restarts=2, method=method).schedule(problem, Simulator(problem), rng())
        for method in ("kway", "recursive", "both")
    }
    seconds = {method: placement.info["cut_seconds"] for method, placement in found.items()}
    assert seconds["kway"] != seconds["recursive"]
    assert found["both"].info["simulated_makespan"] != found["recursive"].info["simulated_makespan"]


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (Metis, {"restarts": 0}, "'metis', restarts: 0 is below 1"),
        (Metis, {"method": "spectral"}, "method: 'spectral' is not one of both, kway, recursive"),
        (Metis, {"imbalance": 0.0}, "imbalance: 0.0 is not a number above 0 and at most 10"),
        (Metis, {"imbalance": True}, "imbalance: True"),
        (Metis, {"imbalance": float("nan")}, "imbalance: nan"),
        (ChainSplit, {"max_positions": 0}, "max_positions: 0 is below 1"),
        (ChainSplit, {"arrangements": []}, "arrangements: name at least one of level"),
        (ChainSplit, {"arrangements": "level"}, "arrangements: 'level' is not a list"),
        (ChainSplit, {"arrangements": ["deep"]}, "arrangements: 'deep' is not one of level"),
        (ChainSplit, {"arrangements": ["level"] * 2}, "arrangements: 'level' is named twice"),
        (ChainSplit, {"criterion": "mean"}, "criterion: 'mean' is not one of makespan, bottleneck"),
    ],
)
def test_wrong_options_are_refused(cls: type, options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        cls(**options)
