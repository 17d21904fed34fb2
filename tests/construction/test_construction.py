"""The construction kernel against hand-computed values and a plain Python reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Topology
from doppler.construction import Construction
from doppler.errors import ConfigurationError, InvalidPlacementError, InvalidProblemError
from doppler.hardware import fully_connected, make_topology
from doppler.problem import InputTensor
from doppler.simulator import NETWORKS

# 0 (2 s, volume 3) --> 2 (4 s, volume 1) --> 4 (1 s)
#      \                 /                    /
#       \--> 3 (5 s, volume 2) -------------/
#                 /
# 1 (1 s, volume 2) -------> 2 as well
EDGES = [(0, 2), (1, 2), (0, 3), (1, 3), (2, 4), (3, 4)]
SECONDS = [2.0, 1.0, 4.0, 5.0, 1.0]
VOLUMES = [3.0, 2.0, 1.0, 2.0, 1.0]


def make_problem(
    edges: list[tuple[int, int]],
    seconds: list[float] | np.ndarray,
    volumes: list[float] | np.ndarray,
    topology: Topology,
    latency: float = 0.0,
) -> PlacementProblem:
    """A problem whose volumes are seconds per hop; `seconds` per op, or per op and device."""
    per_op = np.asarray(seconds, float)
    if per_op.ndim == 1:
        per_op = np.repeat(per_op[:, None], topology.num_devices, axis=1)
    graph = DataflowGraph.from_edges("drawn", len(per_op), edges)
    links = topology.num_links
    costs = CostModel(per_op, np.asarray(volumes), np.full(links, latency), np.ones(links), "test")
    return PlacementProblem(graph, topology, costs)


def two_devices() -> PlacementProblem:
    return make_problem(EDGES, SECONDS, VOLUMES, make_topology("ideal", 2))


def place(c: Construction, *pairs: tuple[int, int]) -> None:
    for op, device in pairs:
        c.step(np.array([op]), np.array([device]))


class Reference:
    """The same estimate in plain Python, dictionaries and recomputation from the step list."""

    def __init__(self, problem: PlacementProblem, network: str, steps: list[tuple[int, int]]):
        self.problem, self.network = problem, network
        self.finish: dict[int, float] = {}
        self.begin: dict[int, float] = {}
        self.where: dict[int, int] = {}
        self.slots = [[0.0] * int(k) for k in problem.topology.compute_slots]
        self.busy: dict[object, float] = {}
        self.arrived: dict[tuple[int, int], float] = {}
        for op, device in steps:
            inputs = self.inputs(op, device, self.busy, self.arrived)
            slot = int(np.argmin(self.slots[device]))
            self.begin[op] = max(inputs, self.slots[device][slot])
            self.finish[op] = self.begin[op] + problem.cost_model.op_seconds[op, device]
            self.slots[device][slot] = self.finish[op]
            self.where[op] = device

    def resources(self, link: int) -> list[object]:
        source, target = self.problem.topology.link_ends[link]
        if self.network == "serial_links":
            return [int(link)]
        if self.network == "shared_bus":
            return [self.problem.topology.links[link].bus]
        return [("send", int(source)), ("receive", int(target))]

    def inputs(self, op: int, device: int, busy: dict, arrived: dict) -> float:
        last = 0.0
        costs = self.problem.cost_model
        for pred in sorted(
            self.problem.graph.predecessors(op).tolist(), key=lambda v: (self.finish[v], v)
        ):
            source, time = self.where[pred], self.finish[pred]
            if source != device and self.network == "contention_free":
                time += self.problem.transfer_seconds(pred, source, device)
            elif source != device:
                if (pred, device) not in arrived:
                    for link in self.problem.topology.routes[source][device]:
                        used = self.resources(link)
                        time = max([time, *[busy.get(r, 0.0) for r in used]])
                        time += (
                            costs.link_latency[link]
                            + costs.transfer_volume[pred] * costs.link_seconds_per_unit[link]
                        )
                        busy.update(dict.fromkeys(used, time))
                    arrived[pred, device] = time
                time = arrived[pred, device]
            last = max(last, time)
        return last

    def starts(self, op: int) -> list[float]:
        return [
            max(self.inputs(op, d, dict(self.busy), dict(self.arrived)), min(self.slots[d]))
            for d in range(self.problem.num_devices)
        ]

    def features(self, op: int) -> np.ndarray:
        rows = []
        for d, start in enumerate(self.starts(op)):
            preds = [v for v in self.problem.graph.predecessors(op) if self.where[v] == d]
            seconds = self.problem.cost_model.op_seconds[:, d]
            rows.append([
                sum(seconds[v] for v, w in self.where.items() if w == d),
                sum(seconds[v] for v in preds),
                min([self.begin[v] for v in preds], default=0.0),
                max([self.finish[v] for v in preds], default=0.0),
                start,
            ])  # fmt: skip
        return np.array(rows)


def random_problem(seed: int, num_devices: int, hosted: bool) -> PlacementProblem:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 14))
    edges = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.35]
    if hosted:
        up = tuple(Link(d, num_devices, 1.0, bus=[None, "b"][d % 2]) for d in range(num_devices))
        down = tuple(Link(num_devices, d, 1.0) for d in range(num_devices))
        devices = tuple(Device(f"d{d}", compute_slots=1 + d % 2) for d in range(num_devices))
        topology = Topology("hosted", devices, up + down, ("host",))
    else:
        topology = fully_connected(num_devices)
    return make_problem(
        edges, rng.random((n, num_devices)), rng.random(n), topology, latency=float(rng.random())
    )


def test_golden_serial_links() -> None:
    c = Construction(two_devices(), "serial_links")
    assert c.candidates[0].tolist() == [True, True, False, False, False]
    place(c, (0, 0), (1, 1))
    # op 0 runs 0..2 on device 0, op 1 runs 0..1 on device 1
    assert c.candidates[0].tolist() == [False, False, True, True, False]
    # op 2 on 0 waits for op 1's tensor: 1 + 2 = 3; on 1 for op 0's: 2 + 3 = 5
    assert c.earliest_starts(np.array([2])).tolist() == [[3.0, 5.0]]
    place(c, (2, 1))  # runs 5..9; link 0->1 is busy until 5
    # op 3 on 1: both inputs are there, device 1 is free at 9; on 0: op 1's tensor at 3
    assert c.device_features(np.array([3]))[0].tolist() == [
        [2.0, 2.0, 0.0, 2.0, 3.0],
        [5.0, 1.0, 0.0, 1.0, 9.0],
    ]
    place(c, (3, 0))  # runs 3..8
    # op 4 on 0: op 2's tensor leaves at 9, arrives at 10; on 1: op 3's at 8 + 2 = 10
    assert c.device_features(np.array([4]))[0].tolist() == [
        [7.0, 5.0, 3.0, 8.0, 10.0],
        [5.0, 4.0, 5.0, 9.0, 10.0],
    ]
    assert c.candidate_earliest_starts()[0].tolist() == [np.inf] * 4 + [10.0]
    place(c, (4, 1))
    assert c.done and c.num_placed == 5
    assert c.start[0].tolist() == [0.0, 0.0, 5.0, 3.0, 10.0]
    assert c.finish[0].tolist() == [2.0, 1.0, 9.0, 8.0, 11.0]
    assert c.order[0].tolist() == [0, 1, 2, 3, 4]
    assert c.devices[0].tolist() == [0, 1, 1, 0, 1]
    assert c.device_free[0].tolist() == [8.0, 11.0]
    assert c.compute_placed[0].tolist() == [7.0, 6.0]


@pytest.mark.parametrize(
    ("network", "starts"),
    [
        ("contention_free", [3.0, 5.0]),  # both tensors travel at once: 0's at 2 + 3, 1's at 1 + 2
        ("serial_links", [3.0, 6.0]),  # 1's tensor uses link 0->1 until 3, then 0's until 6
        ("one_port", [3.0, 6.0]),
        ("shared_bus", [3.0, 6.0]),
    ],
)
def test_two_tensors_share_a_link(network: str, starts: list[float]) -> None:
    # 0 (2 s, volume 3) and 1 (1 s, volume 2) both sit on device 0 and feed 2
    problem = make_problem(
        [(0, 2), (1, 2)], [2.0, 1.0, 1.0], [3.0, 2.0, 1.0], make_topology("ideal", 2)
    )
    topology = Topology(
        "slots", (Device("a", compute_slots=2), Device("b")), problem.topology.links
    )
    problem = PlacementProblem(problem.graph, topology, problem.cost_model)
    c = Construction(problem, network)
    place(c, (0, 0), (1, 0))
    assert c.start[0].tolist() == [0.0, 0.0, 0.0]  # two compute slots
    assert c.earliest_starts(np.array([2])).tolist() == [[2.0, starts[1]]]
    place(c, (2, 1))
    assert c.start[0, 2] == starts[1]


def test_one_port_blocks_a_second_receiver() -> None:
    # op 0 on device 0 feeds 1 and 2: sending to devices 1 and 2 takes the one send port twice
    problem = make_problem([(0, 1), (0, 2)], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0],
                           make_topology("ideal", 3))  # fmt: skip
    starts = {}
    for network in NETWORKS:
        c = Construction(problem, network)
        place(c, (0, 0), (1, 1), (2, 2))
        starts[network] = c.start[0].tolist()
    assert starts["serial_links"] == starts["contention_free"] == [0.0, 3.0, 3.0]
    assert starts["one_port"] == starts["shared_bus"] == [0.0, 3.0, 5.0]


def test_a_tensor_moves_once_per_device() -> None:
    # 0 feeds 1 and 2; the second consumer on device 1 finds the tensor there
    problem = make_problem([(0, 1), (0, 2)], [1.0, 1.0, 1.0], [5.0, 1.0, 1.0],
                           make_topology("ideal", 2))  # fmt: skip
    c = Construction(problem, "serial_links")
    place(c, (0, 0), (1, 1))
    assert c.earliest_starts(np.array([2])).tolist() == [[1.0, 7.0]]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    network=st.sampled_from(NETWORKS),
    num_devices=st.integers(1, 4),
    hosted=st.booleans(),
)
def test_equals_reference(seed: int, network: str, num_devices: int, hosted: bool) -> None:
    problem = random_problem(seed, num_devices, hosted)
    rng = np.random.default_rng(seed + 1)
    c = Construction(problem, network, batch_size=2)
    steps: list[list[tuple[int, int]]] = [[], []]
    for _ in range(problem.num_ops):
        ops = np.array([rng.choice(np.flatnonzero(row)) for row in c.candidates])
        references = [Reference(problem, network, done) for done in steps]
        features = c.device_features(ops)
        best = c.candidate_earliest_starts()
        for b, reference in enumerate(references):
            np.testing.assert_allclose(features[b], reference.features(ops[b]), rtol=1e-12)
            assert best[b, ops[b]] == pytest.approx(min(reference.starts(ops[b])), rel=1e-12)
        np.testing.assert_array_equal(features[:, :, 4], c.earliest_starts(ops))
        everywhere = c.candidate_device_starts()
        np.testing.assert_array_equal(everywhere[[0, 1], ops], features[:, :, 4])
        assert (everywhere[~c.candidates] == 0).all()
        devices = rng.integers(num_devices, size=2)
        c.step(ops, devices)
        for b in range(2):
            assert c.start[b, ops[b]] == features[b, devices[b], 4]
            steps[b].append((int(ops[b]), int(devices[b])))
    assert c.done
    for b, done in enumerate(steps):
        last = Reference(problem, network, done)
        np.testing.assert_allclose(
            c.finish[b], [last.finish[v] for v in range(problem.num_ops)], rtol=1e-12
        )
        assert c.order[b].tolist() == [op for op, _ in done]


def test_many_predecessors_queue_by_finish_then_id() -> None:
    # 40 producers on device 0 feed op 40: more than the insertion sort takes
    n = 40
    seconds = np.r_[np.linspace(2.0, 1.0, n), 1.0]
    topology = Topology(
        "wide", (Device("a", compute_slots=n), Device("b")), make_topology("ideal", 2).links
    )
    problem = make_problem([(v, n) for v in range(n)], seconds, np.full(n + 1, 0.5), topology)
    c = Construction(problem, "serial_links")
    place(c, *[(v, 0) for v in range(n)])
    reference = Reference(problem, "serial_links", [(v, 0) for v in range(n)])
    assert c.earliest_starts(np.array([n]))[0].tolist() == pytest.approx(reference.starts(n))
    assert c.earliest_starts(np.array([n]))[0, 1] == pytest.approx(1.0 + n * 0.5)


def test_batch_equals_singles() -> None:
    problem = random_problem(7, 3, False)
    rng = np.random.default_rng(0)
    batch = Construction(problem, "serial_links", batch_size=5)
    singles = [Construction(problem, "serial_links") for _ in range(5)]
    while not batch.done:
        ops = np.array([rng.choice(np.flatnonzero(row)) for row in batch.candidates])
        devices = rng.integers(3, size=5)
        batch.step(ops, devices)
        for b, single in enumerate(singles):
            single.step(ops[b : b + 1], devices[b : b + 1])
            for name in ("devices", "start", "finish", "candidates", "order", "device_free"):
                np.testing.assert_array_equal(getattr(batch, name)[b], getattr(single, name)[0])


def test_skipped_and_reset_episodes() -> None:
    c = Construction(two_devices(), "serial_links", batch_size=2)
    c.step(np.array([0, -1]), np.array([1, 0]))
    assert c.placed_counts.tolist() == [1, 0] and c.num_placed == 0
    c.step(np.array([1, 1]), np.array([0, 0]))
    c.step(np.array([2, 0]), np.array([0, 1]))
    c.reset(np.array([True, False]))
    fresh = Construction(two_devices(), "serial_links")
    assert c.placed_counts.tolist() == [0, 2]
    for name in ("devices", "start", "finish", "candidates", "order", "device_free"):
        np.testing.assert_array_equal(getattr(c, name)[0], getattr(fresh, name)[0])
    np.testing.assert_array_equal(
        c.earliest_starts(np.array([0, 2]))[0], fresh.earliest_starts(np.array([0]))[0]
    )
    c.step(np.array([0, -1]), np.array([0, 0]))
    c.step(np.array([1, -1]), np.array([1, 0]))
    c.step(np.array([2, -1]), np.array([1, 0]))
    assert c.start[0].tolist() == [0.0, 0.0, 5.0, 0.0, 0.0]  # no transfer of the past is left


@pytest.mark.parametrize(
    ("ops", "devices", "message"),
    [
        ([0, 2], [0, 0], r"episode 1: op 2 is not a candidate, its predecessor op 0"),
        ([0, 1], [0, 2], r"episode 1: op 1: device 2 does not exist"),
        ([7, 1], [0, 0], r"episode 0: op 7 does not exist"),
        ([0, 1, 1], [0, 0, 0], r"ops: .* expected whole numbers of shape \(2,\)"),
        ([0.0, 1.0], [0, 0], r"ops: float64"),
    ],
)
def test_illegal_steps_change_nothing(ops: list, devices: list, message: str) -> None:
    c = Construction(two_devices(), batch_size=2)
    with pytest.raises(InvalidPlacementError, match=message):
        c.step(np.array(ops), np.array(devices))
    assert c.num_placed == 0 and (c.devices == -1).all()


def test_placing_twice_and_wrong_options_are_refused() -> None:
    c = Construction(two_devices())
    place(c, (0, 1))
    with pytest.raises(InvalidPlacementError, match="episode 0: op 0 is already placed, on dev"):
        place(c, (0, 0))
    with pytest.raises(InvalidPlacementError, match="op 3 is not a candidate"):
        c.earliest_starts(np.array([3]))
    with pytest.raises(ConfigurationError, match="'token_ring' is unknown"):
        Construction(two_devices(), "token_ring")
    with pytest.raises(ConfigurationError, match="batch_size"):
        Construction(two_devices(), batch_size=0)
    with pytest.raises(ConfigurationError, match="reset mask"):
        c.reset(np.array([True, False]))


def test_list_schedule_takes_the_highest_priority_and_the_earliest_device() -> None:
    c = Construction(two_devices(), "contention_free", batch_size=2)
    c.list_schedule(np.array([5.0, 4.0, 2.0, 3.0, 1.0]))
    # 0 on 0 (0..2), 1 on 1 (0..1), 3 on 0 at max(2, 1 + 2) = 3, 2 on 1 at max(1, 2 + 3) = 5,
    # 4 on 0 at max(8, 9 + 1) = 10 or on 1 at max(9, 8 + 2) = 10: a tie, which the lower id wins
    for b in range(2):
        assert c.order[b].tolist() == [0, 1, 3, 2, 4]
        assert c.devices[b].tolist() == [0, 1, 1, 0, 0]
        assert c.start[b].tolist() == [0.0, 0.0, 5.0, 3.0, 10.0]


def test_list_schedule_ties_are_random_and_repeatable() -> None:
    problem = make_problem([], np.ones(6), np.ones(6), make_topology("ideal", 2))
    c = Construction(problem, "contention_free", batch_size=40)
    seeds = np.random.default_rng(3).integers(1, 2**63, 40, dtype=np.uint64)
    c.list_schedule(np.ones(6), seeds)
    orders, devices = c.order.copy(), c.devices.copy()
    assert len({tuple(row) for row in orders}) > 30
    assert len({tuple(row) for row in devices}) > 5
    assert {tuple(row) for row in np.sort(devices, axis=1)} == {(0, 0, 0, 1, 1, 1)}
    first = np.bincount(orders[:, 0], minlength=6)
    assert first.max() < 20  # no op is favoured
    c.reset()
    c.list_schedule(np.ones(6), seeds)
    np.testing.assert_array_equal(c.order, orders)
    np.testing.assert_array_equal(c.devices, devices)


def constrained() -> PlacementProblem:
    """
    x --(3)--> 1 (2 s) --(1)--> 2 (1 s)      x lies on device 1; ops 0 and 2 share a device;
    0 (1 s) --(2)--------------/             op 3 (1 s) is pinned to device 2
    """
    problem = make_problem([(1, 2), (0, 2)], [1.0, 2.0, 1.0, 1.0], [2.0, 1.0, 0.0, 0.0],
                           make_topology("ideal", 3))  # fmt: skip
    return replace(
        problem,
        colocation=[0, -1, 0, -1],
        pinned=[-1, -1, -1, 2],
        inputs=(InputTensor("x", 3.0, (1,), 1),),
    ).with_explicit_inputs()


def test_pins_and_groups_rule_the_devices() -> None:
    c = Construction(constrained(), "serial_links", batch_size=2)
    every, none = [True] * 3, [False] * 3
    assert c.candidates.tolist() == [[True, False, False, True, True]] * 2  # op 4 is x
    assert c.allowed_devices(np.array([0, 3])).tolist() == [every, [False, False, True]]
    assert c.allowed_devices(np.array([4, -1])).tolist() == [[False, True, False], none]
    c.step(np.array([4, 4]), np.array([1, 1]))
    assert c.finish[:, 4].tolist() == [0.0, 0.0] and c.device_free.tolist() == [[0.0] * 3] * 2
    # x is on device 1 at 0 and elsewhere at 3
    assert c.earliest_starts(np.array([1, 1])).tolist() == [[3.0, 0.0, 3.0]] * 2
    c.step(np.array([1, 1]), np.array([1, 0]))
    c.step(np.array([0, 0]), np.array([0, 2]))
    assert c.allowed_devices(np.array([2, 2])).tolist() == [
        [True, False, False], [False, False, True]
    ]  # fmt: skip
    assert c.legal_pairs()[0].tolist() == [none, none, [True, False, False], [False, False, True],
                                           none]  # fmt: skip
    # op 1 finishes on device 1 at 2 and its tensor is on device 0 at 3
    assert c.candidate_earliest_starts()[0].tolist() == [np.inf, np.inf, 3.0, 0.0, np.inf]
    with pytest.raises(InvalidPlacementError, match="episode 1: op 2 may not go on device 0, the"):
        c.step(np.array([2, 2]), np.array([0, 0]))
    with pytest.raises(InvalidPlacementError, match="op 3 may not go on device 0, it is pinned to"):
        c.step(np.array([3, 3]), np.array([0, 2]))
    assert c.num_placed == 3
    c.step(np.array([2, 2]), np.array([0, 2]))
    c.step(np.array([3, 3]), np.array([2, 2]))
    assert c.done
    c.reset(np.array([True, False]))
    assert c.allowed_devices(np.array([0, -1])).tolist() == [every, none]


def test_inputs_must_be_ops() -> None:
    problem = replace(two_devices(), inputs=(InputTensor("x", 1.0, (0,), 1),))
    with pytest.raises(InvalidProblemError, match="with_explicit_inputs"):
        Construction(problem)
    free = Construction(two_devices())
    assert free.allowed_devices(np.array([0])).tolist() == [[True, True]]
    assert free.legal_pairs()[0].tolist() == [[True] * 2, [True] * 2] + [[False] * 2] * 3


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), network=st.sampled_from(NETWORKS), ties=st.booleans())
def test_list_schedules_respect_constraints(seed: int, network: str, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, 3, seed % 2 == 0)
    n = problem.num_ops
    colocation = np.where(rng.random(n) < 0.5, rng.integers(0, 3, n), -1)
    consumers = tuple(rng.permutation(n)[:3].tolist())
    problem = replace(
        problem,
        colocation=colocation,
        pinned=np.where((rng.random(n) < 0.3) & (colocation < 0), rng.integers(0, 3, n), -1),
        inputs=(
            InputTensor("x", 1.0, consumers, 2), InputTensor("y", 1.0, consumers, "first_consumer")
        ),
    ).with_explicit_inputs()  # fmt: skip
    c = Construction(problem, network, batch_size=3)
    c.list_schedule(rng.random(problem.num_ops), np.arange(1, 4, dtype=np.uint64) * int(ties))
    assert c.done
    for b in range(3):
        problem.check_placement(c.devices[b])
        again = Construction(problem, network)
        for op in c.order[b]:
            again.step(np.array([op]), c.devices[b, [op]])
        np.testing.assert_array_equal(again.start[0], c.start[b])
