"""The simulator's face: published makespans, checked inputs, determinism, threads, noise."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, Placement, PlacementProblem, load_problem
from doppler.errors import ConfigurationError, InvalidPlacementError
from doppler.hardware import make_topology, roofline_cost_model
from doppler.simulator import (
    CHOOSE_RULES,
    NETWORKS,
    EmpiricalNoise,
    LognormalNoise,
    NoiseFactors,
    NoiseModel,
    Simulator,
)
from doppler.simulator import threads as simulator_threads
from doppler.simulator.oracle import OracleSimulator


def random_problem(
    num_ops: int = 60, preset: str = "v100", num_devices: int = 4, seed: int = 0
) -> PlacementProblem:
    """A random DAG with FLOPs and bytes on a preset topology."""
    rng = np.random.default_rng(seed)
    consumers = np.arange(1, num_ops)
    producers = rng.integers(0, consumers)
    more = np.sort(rng.integers(0, num_ops, (num_ops, 2)), axis=1)
    edges = np.concatenate([np.stack([producers, consumers], 1), more[more[:, 0] != more[:, 1]]])
    graph = DataflowGraph.from_edges(
        "random",
        num_ops,
        np.unique(edges, axis=0),
        flops=rng.uniform(1e8, 1e10, num_ops),
        output_bytes=rng.uniform(1e4, 1e7, num_ops),
    )
    topology = make_topology(preset, num_devices)
    return PlacementProblem(graph, topology, roofline_cost_model(graph, topology))


def published_problem(shared_data: Path, record: dict, num_devices: int) -> PlacementProblem:
    """The published graph with the seconds that its makespans were computed from."""
    problem = load_problem(shared_data / "doppler" / record["file"], num_devices=num_devices)
    costs = CostModel(
        op_seconds=np.repeat(np.array(record["compute_seconds"])[:, None], num_devices, axis=1),
        transfer_volume=record["transfer_seconds"],
        link_latency=problem.cost_model.link_latency,
        link_seconds_per_unit=problem.cost_model.link_seconds_per_unit,
        source="published_simulator_makespans.json",
    )
    return PlacementProblem(problem.graph, problem.topology, costs)


# --- published values ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chain_mm", "ffnn", "transformer_block"])
def test_every_published_makespan(shared_data, name):
    path = shared_data / "doppler" / "published_simulator_makespans.json"
    record = json.loads(path.read_text())[name]
    assert len(record["runs"]) >= 18
    for num_devices in (2, 4, 8):
        runs = [run for run in record["runs"] if run["num_devices"] == num_devices]
        placements = np.array([run["placement"] for run in runs])
        expected = np.array([run["makespan"] for run in runs])
        problem = published_problem(shared_data, record, num_devices)
        simulator = Simulator(problem, network="contention_free", choose="fifo")
        single = [simulator.makespan(placement) for placement in placements]
        traced = [simulator.run(placement).makespan for placement in placements]
        np.testing.assert_allclose(single, expected, rtol=1e-9)
        np.testing.assert_array_equal(simulator.makespans(placements), single)
        np.testing.assert_array_equal(traced, single)
        oracle = OracleSimulator(problem, network="contention_free", choose="fifo")
        assert oracle.makespan(placements[0]) == single[0]


# --- determinism, threads, pickling --------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("choose", CHOOSE_RULES)
@pytest.mark.parametrize("preset", ["v100", "host_staged"])
def test_batch_equals_single_calls_for_any_number_of_threads(monkeypatch, network, choose, preset):
    monkeypatch.setattr(simulator_threads, "_SMALLEST_SHARE", 1)
    problem = random_problem(preset=preset)
    rng = np.random.default_rng(1)
    placements = rng.integers(0, 4, (37, problem.num_ops))
    orders = rng.permuted(np.tile(np.arange(problem.num_ops), (37, 1)), axis=1)
    noise = LognormalNoise(0.1)
    single = Simulator(problem, network, choose, noise, seed=5, num_threads=1)
    expected = [single.makespan(d, o, 9) for d, o in zip(placements, orders, strict=True)]
    for num_threads in (1, 2, 3, None):
        simulator = Simulator(problem, network, choose, noise, seed=5, num_threads=num_threads)
        np.testing.assert_array_equal(simulator.makespans(placements, orders, 9), expected)
    assert len(set(expected)) > 30


def test_pieces_cover_the_batch_on_several_threads(monkeypatch):
    monkeypatch.setattr(simulator_threads, "_SMALLEST_SHARE", 1)
    covered = np.zeros(101, int)

    def count(first: int, last: int) -> None:
        covered[first:last] += 1

    simulator_threads.map_chunks(count, 101, row_work=1, num_threads=3)
    assert (covered == 1).all()


def test_an_error_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(simulator_threads, "_SMALLEST_SHARE", 1)

    def fail(first: int, last: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        simulator_threads.map_chunks(fail, 10, row_work=1, num_threads=2)


def test_two_threads_share_a_simulator():
    problem = random_problem()
    simulator = Simulator(problem, noise=LognormalNoise(0.3))
    placements = np.random.default_rng(2).integers(0, 4, (50, problem.num_ops))
    expected = [simulator.makespan(d, noise_seed=i % 2) for i, d in enumerate(placements)]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(
            lambda i: simulator.makespan(placements[i], noise_seed=i % 2), list(range(50)) * 4
        )
        assert list(found) == expected * 4


def test_pickled_simulator_gives_equal_results():
    problem = random_problem()
    simulator = Simulator(problem, "one_port", "random", LognormalNoise(0.2), seed=4)
    devices = np.random.default_rng(3).integers(0, 4, problem.num_ops)
    copy = pickle.loads(pickle.dumps(simulator))
    assert copy.makespan(devices, noise_seed=8) == simulator.makespan(devices, noise_seed=8)
    assert (copy.network, copy.choose) == ("one_port", "random")


def _makespans_in_child(simulator: Simulator, placements: np.ndarray, queue) -> None:
    queue.put(simulator.makespans(placements))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_batches_work_in_a_forked_child(monkeypatch):
    monkeypatch.setattr(simulator_threads, "_SMALLEST_SHARE", 1)
    problem = random_problem()
    simulator = Simulator(problem, num_threads=2)
    placements = np.random.default_rng(4).integers(0, 4, (16, problem.num_ops))
    expected = simulator.makespans(placements)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_makespans_in_child, args=(simulator, placements, queue))
    child.start()
    np.testing.assert_array_equal(queue.get(timeout=30), expected)
    child.join(timeout=30)
    assert child.exitcode == 0


# --- noise ---------------------------------------------------------------------------------------


def test_noise_is_seeded_and_has_mean_one():
    problem = random_problem(num_ops=4000)
    factors = LognormalNoise(0.3, 0.1).draw(problem, np.random.default_rng(0))
    assert factors.ops.shape == (4000,)
    assert factors.transfers.shape == (4000, 4)
    assert abs(factors.ops.mean() - 1) < 0.02
    assert abs(np.log(factors.ops).std() - 0.3) < 0.02
    assert abs(np.log(factors.transfers).std() - 0.1) < 0.005
    simulator = Simulator(problem, noise=LognormalNoise(0.3))
    devices = np.arange(problem.num_ops) % 4
    assert simulator.makespan(devices, noise_seed=1) == simulator.makespan(devices, noise_seed=1)
    assert simulator.makespan(devices, noise_seed=1) != simulator.makespan(devices, noise_seed=2)
    assert Simulator(problem, noise=LognormalNoise(0.0)).makespan(devices) == pytest.approx(
        Simulator(problem).makespan(devices), rel=1e-12
    )


def test_empirical_noise_draws_from_its_samples():
    problem = random_problem(num_ops=4000)
    draw = EmpiricalNoise([0.5, 1.0, 1.0, 1.5]).draw(problem, np.random.default_rng(0))
    values, counts = np.unique(draw.ops, return_counts=True)
    assert values.tolist() == [0.5, 1.0, 1.5]
    assert counts / 4000 == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    assert (draw.transfers == 1.0).all()
    again = EmpiricalNoise([0.5, 1.0, 1.0, 1.5]).draw(problem, np.random.default_rng(0))
    np.testing.assert_array_equal(draw.ops, again.ops)
    moved = EmpiricalNoise([1.0], transfer_samples=[2.0, 4.0]).draw(
        problem, np.random.default_rng(0)
    )
    assert (moved.ops == 1.0).all()
    assert set(moved.transfers.ravel().tolist()) == {2.0, 4.0}
    simulator = Simulator(problem, noise=EmpiricalNoise([0.5, 1.5]))
    devices = np.arange(4000) % 4
    assert simulator.makespan(devices, noise_seed=1) == simulator.makespan(devices, noise_seed=1)
    assert simulator.makespan(devices, noise_seed=1) != simulator.makespan(devices, noise_seed=2)
    doubled = Simulator(problem, noise=EmpiricalNoise([2.0], transfer_samples=[2.0]))
    assert doubled.makespan(devices) == 2 * Simulator(problem).makespan(devices)


def test_empirical_noise_has_samples_for_each_key():
    graph = DataflowGraph.from_edges("kinds", 6, [], kinds=["a", "b"] * 3)
    topology = make_topology("ideal", 1)
    costs = CostModel(np.ones((6, 1)), np.zeros(6), [], [], "by hand")
    problem = PlacementProblem(graph, topology, costs)
    rng = np.random.default_rng(0)
    by_kind = EmpiricalNoise({"a": [2.0], "b": [3.0], "c": [9.0]})
    assert by_kind.draw(problem, rng).ops.tolist() == [2.0, 3.0] * 3
    by_key = EmpiricalNoise({"x": [4.0], "y": [5.0]}, op_keys=["x"] * 5 + ["y"])
    assert by_key.draw(problem, rng).ops.tolist() == [4.0] * 5 + [5.0]
    assert Simulator(problem, noise=by_key).makespan(np.zeros(6, np.int64)) == 25.0
    with pytest.raises(
        ConfigurationError, match="none for 'b', the key of op 1 of problem 'kinds'"
    ):
        EmpiricalNoise({"a": [2.0]}).draw(problem, rng)
    with pytest.raises(ConfigurationError, match="5 keys for the 6 ops"):
        EmpiricalNoise({"x": [4.0]}, op_keys=["x"] * 5).draw(problem, rng)


@pytest.mark.parametrize("samples", [[], [-1.0], [np.nan], ["fast"], 3.0, [[1.0]], {"a": []}])
def test_impossible_samples_are_refused(samples):
    with pytest.raises(ConfigurationError, match=r"noise, samples"):
        EmpiricalNoise(samples)


def test_a_noise_factor_belongs_to_its_op():
    problem = random_problem()
    simulator = Simulator(problem, noise=LognormalNoise(0.3))
    devices = np.random.default_rng(5).integers(0, 4, problem.num_ops)
    moved = devices.copy()
    moved[0] = (moved[0] + 1) % 4
    one, other = simulator.run(devices, noise_seed=6), simulator.run(moved, noise_seed=6)
    np.testing.assert_allclose(
        (one.finish - one.start)[1:], (other.finish - other.start)[1:], rtol=1e-9
    )
    factors = LognormalNoise(0.3).draw(problem, np.random.default_rng(6))
    seconds = problem.cost_model.op_seconds[np.arange(problem.num_ops), devices]
    np.testing.assert_allclose(one.finish - one.start, seconds * factors.ops, rtol=1e-9)
    hop_seconds = [
        problem.transfer_seconds(op, devices[op], target) * factors.transfers[op, target]
        for op, target in zip(one.transfer_ops, one.transfer_targets, strict=True)
    ]
    np.testing.assert_allclose(one.transfer_finish - one.transfer_start, hop_seconds, rtol=1e-6)


def test_a_noise_model_must_return_sound_factors():
    class Negative(NoiseModel):
        def draw(self, problem, rng):
            return NoiseFactors(
                -np.ones(problem.num_ops), np.ones((problem.num_ops, problem.num_devices))
            )

    problem = random_problem()
    with pytest.raises(ConfigurationError, match="ops: factors must be finite"):
        Simulator(problem, noise=Negative()).makespan(np.zeros(problem.num_ops))


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": "token_ring"}, "network 'token_ring' is unknown; known: contention_free"),
        ({"choose": "lifo"}, "choose 'lifo' is unknown; known: fifo"),
        ({"execution": "lazy"}, "execution 'lazy' is unknown; known: work_conserving, bulk_sync"),
        ({"noise": 0.1}, "noise is 0.1, not a NoiseModel"),
        ({"num_threads": 0}, "num_threads: 0 is below 1"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Simulator(random_problem(), **options)


@pytest.mark.parametrize("sigma", [-0.1, float("nan"), float("inf")])
def test_impossible_noise_is_refused(sigma):
    with pytest.raises(ConfigurationError, match="sigma"):
        LognormalNoise(sigma)


@pytest.mark.parametrize("network", ["contention_free", "serial_links"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:-1], r"shape \(59,\), expected \(60,\)"),
        (lambda d: np.where(np.arange(60) == 17, 4, d), "placement, op 17: device 4"),
        (lambda d: np.where(np.arange(60) == 3, -1, d), "placement, op 3: device -1"),
        (lambda d: d + 0.5, "entry 0: .*5 is not a whole number"),
        (lambda d: d.astype(bool), "not a list of whole numbers"),
        (lambda d: ["here"] * 60, "not a list of whole numbers"),
    ],
)
def test_wrong_placements_are_refused(network, change, message):
    simulator = Simulator(random_problem(), network)
    devices = np.random.default_rng(6).integers(0, 4, 60)
    for call in (simulator.makespan, simulator.run):
        with pytest.raises(InvalidPlacementError, match=message):
            call(change(devices))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (None, "choose=given needs an order"),
        (np.zeros(60, np.int64), "op 0 appears 60 times"),
        (np.arange(60) + 1, "position 59: no op 60"),
        (np.arange(59), "shape"),
    ],
)
def test_wrong_orders_are_refused(order, message):
    simulator = Simulator(random_problem(), choose="given")
    for call in (simulator.makespan, simulator.run):
        with pytest.raises(InvalidPlacementError, match=message):
            call(np.zeros(60, np.int64), order)


@pytest.mark.parametrize(
    ("make_batch", "message"),
    [
        (lambda b: np.where(np.arange(60) == 5, 9, b), "row 0: .*op 5: device 9"),
        (lambda b: b[:, :-1], r"shape \(3, 59\), expected \(batch, 60\)"),
        (lambda b: b[0], r"shape \(60,\), expected \(batch, 60\)"),
        (lambda b: b + np.array([[0], [0], [0.5]]), "row 2, entry 0: .* is not a whole number"),
        (lambda b: b.astype(bool), "not a list of whole numbers"),
        (lambda b: [list(b[0]), [0]], "not a list of whole numbers"),
    ],
)
def test_wrong_batches_are_refused(make_batch, message):
    placements = np.random.default_rng(7).integers(0, 4, (3, 60))
    with pytest.raises(InvalidPlacementError, match=message):
        Simulator(random_problem()).makespans(make_batch(placements))


def test_wrong_rows_of_orders_are_refused():
    simulator = Simulator(random_problem(), choose="given")
    placements = np.zeros((2, 60), np.int64)
    orders = np.tile(np.arange(60), (2, 1))
    with pytest.raises(InvalidPlacementError, match="needs an order"):
        simulator.makespans(placements)
    with pytest.raises(InvalidPlacementError, match="1 orders for 2 placements"):
        simulator.makespans(placements, orders[:1])
    orders[1, 0] = 1
    with pytest.raises(InvalidPlacementError, match=r"row 1: .*op 0 appears 0 times"):
        simulator.makespans(placements, orders)


def test_array_likes_and_placements_are_accepted():
    problem = random_problem()
    simulator = Simulator(problem, choose="given")
    devices = np.random.default_rng(8).integers(0, 4, 60)
    order = np.random.default_rng(9).permutation(60)
    expected = simulator.makespan(devices, order)
    assert type(expected) is float
    frozen = devices.copy()
    frozen.setflags(write=False)
    for same in (devices.tolist(), devices.astype(np.int8), devices.astype(float), frozen):
        assert simulator.makespan(same, order.tolist()) == expected
    placement = Placement(devices, order)
    assert simulator.makespan(placement) == expected
    assert simulator.run(placement).makespan == expected
    assert simulator.makespans([placement, placement]).tolist() == [expected] * 2
    assert simulator.makespans([placement]).dtype == np.float64
    assert simulator.makespans([]).shape == (0,)
    with pytest.raises(InvalidPlacementError, match="needs an order"):
        simulator.makespans([placement, Placement(devices)])


def test_a_schedule_keeps_what_was_asked():
    problem = random_problem()
    devices = np.zeros(60, np.int64)
    schedule = Simulator(problem, "one_port", "given").run(devices, np.arange(60))
    devices[:] = 1
    assert (schedule.devices == 0).all()
    assert (schedule.network, schedule.choose, schedule.origin) == (
        "one_port",
        "given",
        "simulated",
    )
    assert schedule.order.tolist() == list(range(60))
    assert Simulator(problem).run(devices, np.arange(60)).order is None
