"""The enumerative optimizer against brute force over all balanced assignments of a layer."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology
from doppler.errors import CapacityError, ConfigurationError
from doppler.hardware import make_topology
from doppler.schedulers import EnumerativeOptimizer, SingleDevice
from doppler.schedulers.balanced import balanced_assignment, balanced_counts
from doppler.simulator import Simulator


def layer_problem(
    seconds: np.ndarray,
    reads: list[list[int]],
    homes: list[int],
    volumes: list[float],
    rates: np.ndarray | None = None,
) -> PlacementProblem:
    """Pinned producers, each a meta-op of its own, and one layer of ops that read them.

    Args:
        seconds: of the layer's ops on each device. # (k, D)
        reads: producers of each op of the layer.
        homes: device of each producer.
        volumes: of the producers.
        rates: latency and seconds per unit of each link. # (links, 2)
    """
    count, size = seconds.shape
    made = len(homes)
    edges = [(p, made + op) for op, row in enumerate(reads) for p in row]
    graph = DataflowGraph.from_edges(
        "layer", made + count, edges, meta_op=[*range(made), *[made] * count]
    )
    topology = make_topology("ideal", size)
    links = np.tile([0.0, 1.0], (topology.num_links, 1)) if rates is None else rates
    costs = CostModel(
        np.concatenate([np.zeros((made, size)), seconds]),
        [*volumes, *[0.0] * count],
        links[:, 0],
        links[:, 1],
        "test",
    )
    return PlacementProblem(graph, topology, costs, pinned=[*homes, *[-1] * count])


def place(problem: PlacementProblem, **options: object) -> np.ndarray:
    simulator = Simulator(problem)
    scheduler = EnumerativeOptimizer(**options)  # type: ignore[arg-type]
    return scheduler.schedule(problem, simulator, np.random.default_rng(0)).devices


def layer_cost(problem: PlacementProblem, devices: tuple[int, ...], made: int) -> float:
    """Seconds of the layer, and of every transfer once per (tensor, device)."""
    sent = set()
    total = 0.0
    for op, device in enumerate(devices, made):
        total += problem.cost_model.op_seconds[op, device]
        for producer in problem.graph.predecessors(op).tolist():
            home = problem.pinned[producer]  # type: ignore[index]
            if home != device:
                sent.add((producer, int(home), device))
    return total + sum(problem.transfer_seconds(p, a, b) for p, a, b in sent)


def balanced(devices: tuple[int, ...], pace: np.ndarray) -> bool:
    """Whether the counts are those of ops dealt one by one to the device that would be done first.

    Any dealing is one, whichever of equal devices was taken: no device is done later than the last
    must be, and none could have done one more before.
    """
    counts = np.bincount(devices, minlength=len(pace))
    end = min(
        max(n * s for n, s in zip(each, pace))
        for each in itertools.product(range(len(devices) + 1), repeat=len(pace))
        if sum(each) == len(devices)
    )
    return bool(
        (counts * pace <= end * (1 + 1e-9)).all()
        and ((counts + 1) * pace >= end * (1 - 1e-9)).all()
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 3), st.integers(1, 6))
def test_a_layer_is_placed_as_brute_force_would(seed: int, size: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    made = 4
    reads = [
        sorted(generator.choice(made, generator.integers(0, 4), replace=False).tolist())
        for _ in range(count)
    ]
    seconds = generator.integers(1, 9, (count, size)).astype(float)
    problem = layer_problem(
        seconds,
        reads,
        generator.integers(0, size, made).tolist(),
        generator.integers(0, 9, made).astype(float).tolist(),
        generator.random((size * (size - 1), 2)),
    )
    chosen = tuple(place(problem)[made:].tolist())
    pace = seconds.mean(axis=0)
    assert balanced(chosen, pace)
    best = min(
        layer_cost(problem, devices, made)
        for devices in itertools.product(range(size), repeat=count)
        if balanced(devices, pace)
    )
    assert layer_cost(problem, chosen, made) == pytest.approx(best, rel=1e-4)


def test_a_fast_device_gets_more_ops() -> None:
    # One op in 1 s on device 0, in 3 s on device 1: after 3 s four ops are done, three of them on 0
    problem = layer_problem(np.tile([1.0, 3.0], (4, 1)), [[]] * 4, [], [])
    assert np.bincount(place(problem)).tolist() == [3, 1]
    assert np.bincount(place(problem, cost="communication")).tolist() == [2, 2]


def test_slots_count_as_speed() -> None:
    problem = layer_problem(np.ones((6, 2)), [[]] * 6, [], [])
    devices = (Device("a", compute_slots=2), Device("b"))
    problem = replace(problem, topology=replace(problem.topology, devices=devices))
    assert np.bincount(place(problem)).tolist() == [4, 2]


def test_an_op_goes_where_it_is_fast() -> None:
    # Each device is fast at one of the two ops: 1 + 1 s instead of 5 + 5 s. Moving the inputs costs
    # 2 s each, and staying with them 8 s more; the published cost sees the moves only.
    problem = layer_problem(np.array([[5.0, 1.0], [1.0, 5.0]]), [[0], [1]], [0, 1], [2.0, 2.0])
    assert place(problem)[2:].tolist() == [1, 0]
    assert place(problem, cost="communication")[2:].tolist() == [0, 1]


def test_a_shared_tensor_is_paid_for_once() -> None:
    # Ops 0, 1 read the tensor of 5 on device 0; 2, 3 a tensor of 3 on device 0 each. On device 1,
    # 0 and 1 together pay 5, 2 and 3 together 6, mixed pairs 8; paid for by each reader 0 and 1
    # would seem to pay 10.
    problem = layer_problem(
        np.ones((4, 2)), [[0], [0], [1], [2]], [0, 0, 0], [5.0, 3.0, 3.0]
    )  # fmt: skip
    assert place(problem)[3:].tolist() == [1, 1, 0, 0]
    assert place(problem, enumerate_up_to=5)[3:].tolist() == [0, 0, 1, 1]  # there are six
    assert place(problem, enumerate_up_to=6)[3:].tolist() == [1, 1, 0, 0]


def test_enumerated_ties_go_to_the_less_loaded_devices() -> None:
    # Three ops read one tensor that costs nothing to send, so all ways cost the same; device 0 has
    # 9 s of work from before.
    problem = layer_problem(np.ones((3, 2)), [[0]] * 3, [0, 0], [0.0, 0.0])
    seconds = problem.cost_model.op_seconds.copy()
    seconds[1] = 9.0
    devices = place(replace(problem, cost_model=replace(problem.cost_model, op_seconds=seconds)))
    assert np.bincount(devices[2:]).tolist() == [1, 2]


def test_on_equal_devices_only_communication_counts() -> None:
    generator = np.random.default_rng(3)
    seconds = np.repeat(generator.random((6, 1)) * 100, 3, axis=1)
    reads = [[op % 4, (op + 1) % 4] for op in range(6)]
    problem = layer_problem(seconds, reads, [0, 1, 2, 2], generator.random(4).tolist())
    assert place(problem).tolist() == place(problem, cost="communication").tolist()


@pytest.mark.parametrize(
    ("count", "pace", "least", "most"),
    [
        (5, [1, 1, 1], [1, 1, 1], [2, 2, 2]),  # all end at 2, five of six are needed
        (6, [1, 1, 1], [1, 1, 1], [2, 2, 2]),
        (4, [1, 3], [2, 0], [3, 1]),  # ends 1 2 3 4, 3 6: the fourth is 3
        (2, [1, 9], [1, 0], [2, 0]),  # the slow device is no help
        (3, [0, 2], [1, 1], [2, 2]),  # an op that takes no time: as if equal
        (3, [0.1, 0.3], [2, 0], [3, 1]),  # 3 * 0.1 is not quite 0.3, and the same all the same
    ],
)
def test_balanced_counts(count: int, pace: list, least: list, most: list) -> None:
    found = balanced_counts(count, np.array(pace, float))
    assert [side.tolist() for side in found] == [least, most]


def test_balanced_assignment_keeps_to_unequal_counts() -> None:
    cost = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    chosen = balanced_assignment(cost, np.zeros(2), balanced_counts(4, np.array([1.0, 3.0])))
    assert chosen.tolist() == [1, 0, 0, 0]


def test_where_nothing_fits_balanced_it_takes_room() -> None:
    # Four outputs of 4 B that stay until the end; device 0 holds one of them, device 1 all.
    # Balanced, two would be on 0.
    graph = DataflowGraph.from_edges("fat", 4, [], output_bytes=[4.0] * 4, meta_op=[0] * 4)
    links = make_topology("ideal", 2).links
    topology = Topology(
        "uneven", (Device("a", memory_bytes=7), Device("b", memory_bytes=99)), links
    )
    costs = CostModel(np.ones((4, 2)), [4.0] * 4, np.zeros(2), np.ones(2), "test")
    problem = PlacementProblem(graph, topology, costs)
    placement = EnumerativeOptimizer().schedule(
        problem, Simulator(problem), np.random.default_rng(0)
    )
    assert sorted(placement.devices.tolist()) == [0, 1, 1, 1]
    assert placement.info["evaluations"] == 2
    tight = replace(topology, devices=tuple(Device(n, memory_bytes=7) for n in "ab"))
    with pytest.raises(CapacityError, match="device"):
        place(replace(problem, topology=tight))
    with pytest.raises(CapacityError):
        SingleDevice(device=0).schedule(problem, Simulator(problem), np.random.default_rng(0))


def test_room_is_sought_for_a_whole_group() -> None:
    # Ops 0 (4 B) and 1 (40 B) are a group. Device 0 is faster and holds the first, not both
    graph = DataflowGraph.from_edges("group", 2, [], output_bytes=[4.0, 40.0], meta_op=[0, 1])
    devices = (Device("a", memory_bytes=20), Device("b", memory_bytes=99))
    topology = Topology("uneven", devices, make_topology("ideal", 2).links)
    costs = CostModel(np.tile([1.0, 9.0], (2, 1)), np.zeros(2), np.zeros(2), np.ones(2), "test")
    problem = PlacementProblem(graph, topology, costs, colocation=[0, 0])
    placement = EnumerativeOptimizer().schedule(
        problem, Simulator(problem), np.random.default_rng(0)
    )
    assert placement.devices.tolist() == [1, 1] and "repaired" not in placement.info


def test_a_free_input_is_where_its_reader_is() -> None:
    # x stands for an input and may be anywhere; 2 is pinned to device 1 and reads it
    #   x --> 2      3 alone, y is read by none
    graph = DataflowGraph.from_edges("loose", 4, [(0, 2)], meta_op=[0, 1, 2, 3])
    costs = CostModel(
        np.array([[0.0] * 2] * 2 + [[1.0] * 2] * 2), np.ones(4), np.zeros(2), np.ones(2), "test"
    )
    problem = PlacementProblem(
        graph,
        make_topology("ideal", 2),
        costs,
        pinned=[-1, -1, 1, -1],
        input_ops=[True, True, False, False],
    )
    assert place(problem).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": "money"}, "enumerative', cost: 'money' is not one of seconds, communication"),
        ({"enumerate_up_to": 0}, "enumerative', enumerate_up_to: 0 is below 1"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EnumerativeOptimizer(**options)
