"""Chain split: arrangements, golden cuts, brute force over contiguous splits, constraints."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioning_problems import make_problem, rng, two_braids

from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology
from doppler.hardware import make_topology
from doppler.schedulers import ChainSplit
from doppler.schedulers.partitioning.arrangements import ARRANGEMENTS, depth_first
from doppler.schedulers.partitioning.chain import best_splits
from doppler.schedulers.partitioning.chain_split import device_sequences
from doppler.simulator import Simulator
from doppler.workloads.random_dags import layered_dag


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
