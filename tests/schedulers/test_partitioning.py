"""METIS and chain split: golden cuts, brute force over contiguous splits, constraints, memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology
from doppler.errors import ConfigurationError
from doppler.hardware import make_topology
from doppler.schedulers import ChainSplit, Metis
from doppler.schedulers.partitioning.arrangements import ARRANGEMENTS, depth_first
from doppler.schedulers.partitioning.chain import best_splits
from doppler.schedulers.partitioning.chain_split import device_sequences
from doppler.schedulers.partitioning.metis import device_speeds, match_parts
from doppler.schedulers.partitioning.vertices import contract
from doppler.simulator import Simulator
from doppler.workloads.random_dags import layered_dag


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


@pytest.mark.parametrize("scheduler", [Metis(restarts=4), ChainSplit()])
def test_memory_decides_where_balance_does_not_fit(scheduler: Metis | ChainSplit) -> None:
    # Three heavy ops each: one device holds 60 + 30 B. With 65 B the light op must be alone.
    problem = streams(65.0)
    placement = scheduler.schedule(problem, Simulator(problem), rng())
    assert (placement.devices[1:] != placement.devices[0]).all()
    roomy = streams(90.0)
    balanced = scheduler.schedule(roomy, Simulator(roomy), rng())
    assert np.bincount(balanced.devices[1:]).tolist() == [3, 3]
    if scheduler.name == "metis":
        assert placement.info["evaluations"] == 2 * balanced.info["evaluations"] == 8


def test_arrangements_are_topological() -> None:
    problem = layered_dag(400, 2, seed=1)
    for name, arrange in ARRANGEMENTS.items():
        position = np.argsort(problem.check_order(arrange(problem)))
        edges = problem.graph.edges
        assert (position[edges[:, 0]] < position[edges[:, 1]]).all(), name
    # equal levels, where ops take no time
    idle = make_problem([(3, 2), (2, 1), (1, 0)], [0.0] * 4, [0.0] * 4)
    fan = make_problem([(0, 1), (0, 2), (0, 3)], [1.0, 1, 3, 2], [0.0] * 4)
    assert ARRANGEMENTS["b_level"](fan).tolist() == [0, 2, 3, 1]
    join = make_problem([(0, 2), (1, 3)], [3.0, 1, 1, 1], [0.0] * 4)
    assert ARRANGEMENTS["t_level"](join).tolist() == [0, 1, 3, 2]
    assert ARRANGEMENTS["level"](join).tolist() == [0, 1, 2, 3]
    assert all(arrange(idle).tolist() == [3, 2, 1, 0] for arrange in ARRANGEMENTS.values())


def test_depth_first_lays_branches_side_by_side() -> None:
    #  0 --> 2 --> 4 --> 6      1 --> 3 --> 5 --> 6, the second branch with more work
    problem = make_problem(
        [(0, 2), (2, 4), (1, 3), (3, 5), (4, 6), (5, 6)], [1, 2, 1, 2, 1, 2, 1], [0.0] * 7
    )
    assert depth_first(problem).tolist() == [1, 3, 5, 0, 2, 4, 6]


def test_chain_split_golden() -> None:
    # 0 --> 1 --> 2 --> 3 --> 4    work 3 1 4 2 6 = 16, tensors 5 1 2 9 0
    # Cut before 2: 3 + 1 + 1 out = 5 and 1 in + 12 = 13. Before 3: 8 + 2 = 10 and 2 + 8 = 10.
    # Before 4: 10 + 9. So 10, on two devices; with three: 0 1 | 2 | 3 4: 5, 1 + 4 + 2 = 7, 10: no
    # better than 10 either, since 3 and 4 cannot be parted below 6 + 9.
    problem = make_problem(
        [(op, op + 1) for op in range(4)], [3.0, 1, 4, 2, 6], [5.0, 1, 2, 9, 0], 3
    )
    split = best_splits(problem, np.arange(5), np.arange(3))
    assert split.bottlenecks.tolist() == [16.0, 10.0, 10.0]
    assert split.placements[1].tolist() == [0, 0, 0, 1, 1]
    # As one sample, the chain is done soonest on one device
    placement = ChainSplit().schedule(problem, Simulator(problem), rng())
    assert placement.devices.tolist() == [0] * 5
    assert placement.info["bottleneck_seconds"] == 16.0
    piped = ChainSplit(criterion="bottleneck").schedule(problem, Simulator(problem), rng())
    assert piped.info["bottleneck_seconds"] == 10.0
    assert piped.info["simulated_makespan"] == 18.0  # 16 and one transfer
    assert piped.devices.tolist() == [0, 0, 0, 1, 1]


def test_chain_split_gives_branches_a_device_each() -> None:
    problem = two_braids()
    placement = ChainSplit().schedule(problem, Simulator(problem), rng())
    assert placement.info["arrangement"] == "depth_first"
    assert placement.info["simulated_makespan"] < 14
    assert placement.order.tolist() == depth_first(problem).tolist()


def busiest(problem: PlacementProblem, devices: np.ndarray) -> float:
    """The bottleneck as `best_splits` defines it, from sets."""
    costs, size = problem.cost_model, problem.num_devices
    pins = problem.constraints.required(np.zeros(problem.num_ops, np.int64))
    pinned = np.zeros(problem.num_ops, bool)
    members = pins[0]
    pinned[members] = problem.constraints.block_device[problem.constraints.block[members]] >= 0
    slots = problem.topology.compute_slots
    most = 0.0
    for device in range(size):
        others = [d for d in range(size) if d != device]
        here = np.flatnonzero(devices == device)
        seconds = costs.op_seconds[here, device].sum() / slots[device]
        comes, goes = set(), set()
        for producer, consumer in problem.graph.edges.tolist():
            if devices[producer] == devices[consumer]:
                continue
            if devices[consumer] == device and not pinned[consumer]:
                comes.add(producer)
            if devices[producer] == device and not pinned[producer]:
                goes.add(producer)
        seconds += sum(
            np.mean([problem.transfer_seconds(op, d, device) for d in others]) for op in comes
        ) + sum(np.mean([problem.transfer_seconds(op, device, d) for d in others]) for op in goes)
        most = max(most, seconds)
    return most


def contiguous(
    problem: PlacementProblem, arrangement: np.ndarray, sequence: np.ndarray, pieces: int
) -> list[np.ndarray]:
    """All placements that cut the arrangement, with pinned ops and groups where they belong."""
    found = []
    for cuts in itertools.combinations_with_replacement(
        range(problem.num_ops + 1), pieces - 1
    ):  # fmt: skip
        ends = [0, *cuts, problem.num_ops]
        devices = np.empty(problem.num_ops, np.int64)
        for k in range(pieces):
            devices[arrangement[ends[k] : ends[k + 1]]] = sequence[k]
        found.append(problem.conform(devices))
    return found


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 3), st.booleans(), st.booleans())
def test_chain_split_is_the_best_contiguous_split(
    seed: int, size: int, alike: bool, constrained: bool
) -> None:
    generator = np.random.default_rng(seed)
    count = 7
    pairs = list(itertools.combinations(range(count), 2))
    edges = [pair for pair in pairs if generator.random() < 0.4]
    seconds = generator.integers(1, 9, (count, 1 if alike else size)) * np.ones((1, size))
    rates = None if alike else generator.integers(0, 4, (size * (size - 1), 2)).astype(float)
    rest: dict = {}
    if constrained:
        pinned, groups = np.full(count, -1), np.full(count, -1)
        pinned[generator.choice(count, 2, replace=False)] = generator.integers(0, size, 2)
        together = generator.choice(np.flatnonzero(pinned < 0), 2, replace=False)
        groups[together] = 0
        rest = {"pinned": pinned, "colocation": groups}
    volumes = generator.integers(0, 6, count)
    problem = make_problem(edges, seconds, volumes, size, rates, **rest)
    for arrange in ARRANGEMENTS.values():
        arrangement = arrange(problem)
        for sequence in device_sequences(problem):
            split = best_splits(problem, arrangement, sequence)
            for pieces in range(1, size + 1):
                best = min(
                    busiest(problem, devices)
                    for devices in contiguous(problem, arrangement, sequence, pieces)
                )
                chosen = split.placements[pieces - 1]
                assert split.bottlenecks[pieces - 1] == pytest.approx(best)
                assert busiest(problem, problem.check_placement(chosen)) == pytest.approx(best)


def test_a_device_with_pinned_ops_only_may_be_the_busiest() -> None:
    # 20 s pinned to device 2; three ops of 3 s are free
    problem = make_problem([], [20.0, 3.0, 3.0, 3.0], [0.0] * 4, 3, pinned=[2, -1, -1, -1])
    split = best_splits(problem, np.arange(4), np.arange(3))
    assert split.bottlenecks.tolist() == [20.0, 20.0, 20.0]
    assert split.placements[2][0] == 2 and 2 not in split.placements[2][1:]


def test_a_free_input_follows_a_pinned_reader() -> None:
    # Op 1, pinned to device 1, reads the input 0 (volume 50) first, then 2 does, which stays by it
    problem = make_problem(
        [(0, 1), (0, 2)],
        [0.0, 1.0, 1.0, 1.0],
        [50.0, 0.0, 0.0, 0.0],
        pinned=[-1, 1, -1, -1],
        input_ops=[True, False, False, False],
    )
    devices = ChainSplit().schedule(problem, Simulator(problem), rng()).devices
    assert devices.tolist() == [1, 1, 1, 0]


def test_pinned_work_is_shared_by_slots() -> None:
    # 8 s pinned to device 0, which has four slots, are 2 s; six ops of 1 s: device 0 can take four
    problem = make_problem([], [8.0, *[1.0] * 6], [0.0] * 7, pinned=[0, *[-1] * 6])
    devices = (Device("a", compute_slots=4), Device("b"))
    problem = replace(problem, topology=replace(problem.topology, devices=devices))
    split = best_splits(problem, np.arange(7), np.arange(2))
    assert split.bottlenecks.tolist() == [3.5, 3.0]


def test_a_reader_before_its_tensor() -> None:
    # 0 and 3 are together, at the place of 0, and 3 reads 1, which 2 reads, too
    #   0,3 | 1 --> 2     1 --> 3
    # Parted before 1: 1 + 1 + 4 in, and 3 + 3 + 4 out = 10, though 1's other reader is inside
    problem = make_problem(
        [(1, 2), (1, 3)], [1.0, 3.0, 3.0, 1.0], [0.0, 4.0, 0.0, 0.0], colocation=[5, -1, -1, 5]
    )
    split = best_splits(problem, np.arange(4), np.arange(2))
    assert split.bottlenecks.tolist() == [8.0, 8.0]
    dear = replace(problem, colocation=np.array([5, -1, -1, 5]), pinned=np.array([-1, -1, -1, -1]))
    seconds = np.repeat([[5.0], [3.0], [3.0], [5.0]], 2, axis=1)
    dear = replace(dear, cost_model=replace(problem.cost_model, op_seconds=seconds))
    # 16 on one device; parted before 1: 10 + 4, 6 + 4; before 2: 10 + 3 + 4 out
    split = best_splits(dear, np.arange(4), np.arange(2))
    assert split.bottlenecks.tolist() == [16.0, 14.0]


def test_pinned_outputs_take_room() -> None:
    # 50 of 90 B on the fast device 0 are pinned: of six outputs of 10 B four fit beside them
    graph = DataflowGraph.from_edges("fat", 7, [], output_bytes=[50.0, *[10.0] * 6])
    devices = tuple(Device(name, memory_bytes=90.0) for name in "ab")
    topology = Topology("small", devices, make_topology("ideal", 2).links)
    costs = CostModel(np.tile([1.0, 9.0], (7, 1)), np.zeros(7), np.zeros(2), np.ones(2), "test")
    problem = PlacementProblem(graph, topology, costs, pinned=np.array([0, *[-1] * 6]))
    placement = ChainSplit().schedule(problem, Simulator(problem), rng())
    assert np.bincount(placement.devices[1:], minlength=2).tolist() == [4, 2]


def test_long_chains_are_cut_between_runs() -> None:
    # Forty ops of 1 s on three devices: 14 13 13, or in runs of ten 20 10 10
    problem = make_problem([], [1.0] * 40, [0.0] * 40, 3)
    for positions, bottleneck in ((None, 14.0), (40, 14.0), (4, 20.0)):
        split = best_splits(problem, np.arange(40), np.arange(3), max_positions=positions)
        assert split.bottlenecks[2] == bottleneck
        assert np.bincount(split.placements[2]).max() == bottleneck
    placement = ChainSplit(max_positions=4).schedule(problem, Simulator(problem), rng())
    assert placement.info["bottleneck_seconds"] == 20.0


def test_metis_methods_differ() -> None:
    problem = layered_dag(300, 4, seed=3)
    found = {
        method: Metis(restarts=2, method=method).schedule(problem, Simulator(problem), rng())
        for method in ("kway", "recursive", "both")
    }
    seconds = {method: placement.info["cut_seconds"] for method, placement in found.items()}
    assert seconds["kway"] != seconds["recursive"]
    assert found["both"].info["simulated_makespan"] != found["recursive"].info["simulated_makespan"]


def test_device_sequences() -> None:
    uneven = make_problem([], [[2.0, 3.0, 1.0]], [0.0], 3)
    assert [s.tolist() for s in device_sequences(uneven)] == [[0, 1, 2], [2, 0, 1], [1, 0, 2]]
    assert [s.tolist() for s in device_sequences(make_problem([], [1.0], [0.0], 3))] == [[0, 1, 2]]


def test_chain_split_sees_speed() -> None:
    # Twelve ops without edges, device 1 three times as fast: three and nine
    problem = make_problem([], np.tile([3.0, 1.0], (12, 1)), np.zeros(12))
    placement = ChainSplit().schedule(problem, Simulator(problem), rng())
    assert np.bincount(placement.devices).tolist() == [3, 9]
    assert placement.info["simulated_makespan"] == 9.0


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
