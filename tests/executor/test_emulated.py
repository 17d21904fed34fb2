"""Emulated devices: on a virtual clock the simulator's schedules, in real time close to them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from executor_fakes import FakeWorkload, VirtualClock, random_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doppler.errors import (
    CapacityError,
    ConfigurationError,
    ExecutionError,
    InvalidProblemError,
)
from doppler.executor import EmulatedExecutor, Lateness
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Device, Link, Topology, fully_connected, make_topology
from doppler.problem import InputTensor, PlacementProblem
from doppler.schedule import Placement, Schedule
from doppler.schedule.networks import NETWORKS
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator import CHOOSE_RULES, LognormalNoise, Simulator
from doppler.simulator.engine import replication_seeds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simulator"))
from simulator_strategies import Case, cases


def chain_problem(seconds: list[float], num_devices: int = 2) -> PlacementProblem:
    """A chain of ops of given durations; a transfer takes 1 s."""
    n = len(seconds)
    graph = DataflowGraph.from_edges(
        "chain", n, [(op, op + 1) for op in range(n - 1)], output_bytes=np.full(n, 8.0)
    )
    topology = fully_connected(num_devices)
    costs = CostModel(
        op_seconds=np.tile(np.array(seconds)[:, None], num_devices),
        transfer_volume=np.ones(n),
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="by hand",
    )
    return PlacementProblem(graph, topology, costs)


def hops_of(schedule: Schedule) -> list[tuple]:
    columns = ("ops", "targets", "links", "start", "finish")
    return sorted(zip(*(getattr(schedule, f"transfer_{c}").tolist() for c in columns)))


def assert_equal_runs(case: Case, network: str, choose: str, execution: str) -> None:
    simulator = Simulator(case.problem, network, choose, case.noise, 7, execution=execution)
    executor = EmulatedExecutor(
        case.problem,
        network=network,
        choose=choose,
        seed=7,
        noise=case.noise,
        noise_seed=3,
        execution=execution,
        clock=VirtualClock(),
        timeout_s=1e6,
    )
    placement = Placement(case.devices, case.order)
    noise_seed = replication_seeds(3, 1)[0]
    try:
        expected = simulator.run(placement, noise_seed=noise_seed)
    except CapacityError as error:
        device = str(error).split("(")[1].split(")")[0]
        with pytest.raises(CapacityError, match=f"device '{device}'"):
            executor.run(placement)
        return
    found = executor.run(placement)
    np.testing.assert_array_equal(found.start, expected.start)
    np.testing.assert_array_equal(found.finish, expected.finish)
    assert hops_of(found) == hops_of(expected)
    np.testing.assert_array_equal(found.peak_bytes, expected.peak_bytes)
    assert (found.origin, found.execution) == ("emulated", execution)
    assert executor.lateness.max == 0.0
    found.validate()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("execution", EXECUTIONS)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases(), choose=st.sampled_from(CHOOSE_RULES))
def test_on_a_virtual_clock_it_is_the_simulator(
    case: Case, choose: str, network: str, execution: str
) -> None:
    assert_equal_runs(case, network, choose, execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases(capacities=True), choose=st.sampled_from(CHOOSE_RULES))
def test_memory_runs_out_where_it_does_in_the_simulator(
    case: Case, choose: str, execution: str
) -> None:
    assert_equal_runs(case, "serial_links", choose, execution)


def placed_inputs_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    plain = random_graph(12, seed, density=0.2)
    topology = make_topology("host_staged", 3)
    costs = CostModel(
        op_seconds=rng.integers(1, 5, (12, 3)),
        transfer_volume=rng.integers(1, 4, 12),
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="test",
    )
    inputs = tuple(
        InputTensor(f"x{i}", float(i + 1), (i, i + 4, i + 8), place)
        for i, place in enumerate((0, 2, "first_consumer"))
    )
    problem = PlacementProblem(plain, topology, costs, inputs=inputs).with_explicit_inputs()
    devices = problem.conform(rng.integers(0, 3, problem.num_ops))
    return Case(problem, devices, rng.permutation(problem.num_ops), LognormalNoise(0.3))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_placed_inputs_move_over_several_hops_as_in_the_simulator(execution: str) -> None:
    for seed in range(8):
        case = placed_inputs_case(seed)
        assert_equal_runs(case, "one_port", "fifo", execution)
        moved = Simulator(case.problem).run(case.devices)
        assert (moved.transfer_ops >= 12).any()  # else the case would say nothing about inputs


def test_a_chain_is_longer_by_the_lateness_of_its_steps() -> None:
    # 0 and 1 on device 0, then a transfer, then 2: the dispatcher is late three times in between.
    problem = chain_problem([0.02, 0.03, 0.04])
    executor = EmulatedExecutor(problem, time_scale=0.05)
    schedule = executor.run([0, 0, 1])
    late = executor._last[0]
    assert executor.lateness.completions == len(late) == 4
    assert schedule.makespan == pytest.approx(1.09 + sum(late[:-1]))
    durations = schedule.finish - schedule.start
    np.testing.assert_allclose(durations, [0.02, 0.03, 0.04])
    np.testing.assert_allclose(schedule.transfer_finish - schedule.transfer_start, [1.0])
    assert schedule.origin == "emulated"
    schedule.validate(tolerance=max(late) + 1e-9)


class StallingClock(VirtualClock):
    """Wakes up late: by `late` seconds each time."""

    def __init__(self, late: float) -> None:
        super().__init__()
        self.late = late

    def sleep_until(self, deadline: float) -> None:
        super().sleep_until(deadline)
        self.time += self.late


def test_small_delays_count_and_stalls_stop_the_clock() -> None:
    problem = chain_problem([1.0, 1.0, 1.0])
    late = EmulatedExecutor(problem, clock=StallingClock(0.0004))
    assert late.run([0, 0, 0]).makespan == pytest.approx(3.0008)
    assert late.lateness == Lateness(
        median=pytest.approx(0.0004), max=pytest.approx(0.0004), completions=3, stalls=0, stalled=0
    )
    stalled = EmulatedExecutor(problem, clock=StallingClock(0.5))
    assert stalled.run([0, 0, 0]).makespan == pytest.approx(3.0)
    assert stalled.lateness.max == pytest.approx(0.0)
    assert (stalled.lateness.stalls, stalled.lateness.stalled) == (3, pytest.approx(1.5))


def test_who_finished_first_is_served_first_though_both_are_taken_in_at_once() -> None:
    # 0 and 1 run side by side on device 0; 1 is done 0.2 ms before 0, both are seen 0.4 ms later.
    graph = DataflowGraph.from_edges("pair", 3, [(0, 2), (1, 2)])
    devices = tuple(Device(f"d{d}", compute_slots=2) for d in range(2))
    topology = Topology("two", devices, (Link(0, 1, 1.0), Link(1, 0, 1.0)))
    seconds = np.array([[1.0002], [1.0], [1.0]]).repeat(2, axis=1)
    costs = CostModel(seconds, np.ones(3), np.zeros(2), np.ones(2), "by hand")
    problem = PlacementProblem(graph, topology, costs)
    schedule = EmulatedExecutor(problem, clock=StallingClock(0.0004)).run([0, 0, 1])
    assert schedule.transfer_ops.tolist() == [1, 0]


class SlowClock(VirtualClock):
    """Every look at it takes some of its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def now(self) -> float:
        self.time += self.seconds
        return self.time


def test_an_overloaded_dispatcher_is_late_and_does_not_stop_the_clock() -> None:
    executor = EmulatedExecutor(chain_problem([0.0001] * 20), clock=SlowClock(0.0003))
    assert executor.run([0] * 20).makespan > 3 * 20 * 0.0001
    assert executor.lateness.stalls == 0 and executor.lateness.median > 0.0003


def test_a_dispatcher_without_a_processor_stops_the_clock() -> None:
    # The clock takes 1 s at every look, in which this thread does not compute.
    executor = EmulatedExecutor(chain_problem([0.5] * 4), clock=SlowClock(1.0))
    assert executor.run([0] * 4).makespan == pytest.approx(2.0, abs=0.1)
    assert executor.lateness.stalls == 8 and executor.lateness.max < 0.1


@pytest.mark.parametrize(("num_devices", "num_ops"), [(4, 40), (8, 60), (64, 128)])
def test_in_real_time_it_agrees_with_the_simulator(num_devices: int, num_ops: int) -> None:
    """The target is 2 %; a loaded machine is forgiven ten times that."""
    graph = random_graph(num_ops, seed=num_devices, density=0.05)
    topology = make_topology("v100", num_devices)
    rng = np.random.default_rng(0)
    costs = CostModel(
        op_seconds=rng.uniform(1.0, 3.0, (num_ops, num_devices)),
        transfer_volume=rng.uniform(0.2, 1.0, num_ops),
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="test",
    )
    problem = PlacementProblem(graph, topology, costs)
    devices = np.arange(num_ops) % num_devices
    expected = Simulator(problem).makespan(devices)
    executor = EmulatedExecutor(problem, time_scale=0.2 / expected)
    (measurement,) = executor.measure([devices], repeats=2, warmup=1)
    assert measurement.median == pytest.approx(expected, rel=0.2)
    environment = measurement.environment
    assert environment["backend"] == "emulated" and environment["time_scale"] == 0.2 / expected
    assert environment["lateness_completions"] == 2 * executor.lateness.completions
    assert environment["device_names"][0] == "v1000" and environment["costs"] == "test"


def test_noise_is_drawn_anew_for_each_run_and_reproducibly() -> None:
    problem = chain_problem([1.0, 2.0, 3.0])
    noise = LognormalNoise(0.5)
    expected = Simulator(problem, noise=noise).makespans([[0, 1, 0]], noise_seed=5, replications=3)
    for _ in range(2):
        executor = EmulatedExecutor(problem, noise=noise, noise_seed=5, clock=VirtualClock())
        found = []
        for _ in range(3):
            schedule = executor.run([0, 1, 0])
            hops = schedule.transfer_finish - schedule.transfer_start
            found.append((schedule.finish - schedule.start).sum() + hops.sum())
        np.testing.assert_allclose(found, expected[0])
    assert len(set(found)) == 3


def test_it_takes_a_workload_too_but_has_no_results() -> None:
    workload = FakeWorkload(random_graph(10, seed=1, density=0.5))
    workload.output_ops = tuple(range(10))
    with EmulatedExecutor(workload, 2, clock=VirtualClock()) as executor:
        expected = Simulator(executor.problem).run([0, 1] * 5)
        schedule = executor.run([0, 1] * 5)
        assert schedule.makespan == pytest.approx(expected.makespan)
        # Nobody reads results, so that nothing is kept beyond its last reader.
        np.testing.assert_array_equal(schedule.peak_bytes, expected.peak_bytes)
        with pytest.raises(ConfigurationError, match="sleep and compute nothing"):
            executor.check([0, 1] * 5)
    with pytest.raises(ExecutionError, match="closed"):
        executor.run([0, 1] * 5)


def test_a_run_that_would_take_too_long_is_given_up_at_once() -> None:
    problem = chain_problem([1.0, 1e6, 1.0])
    executor = EmulatedExecutor(problem, timeout_s=0.5, time_scale=1e-3)
    with pytest.raises(
        ExecutionError,
        match=r"not end within 0.5 s; 2 ops are unfinished, still running: op 1 \(op_1\) on "
        r"device 1 \(fully_connected1\)\. Lower time_scale",
    ):
        executor.run([1, 1, 1])
    short = EmulatedExecutor(chain_problem([1.0, 1.0]), timeout_s=0.5, time_scale=1e-3)
    assert short.run([0, 0]).makespan > 2.0


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), None, "2", True])
def test_impossible_time_scales(value: object) -> None:
    with pytest.raises(ConfigurationError, match="time_scale"):
        EmulatedExecutor(chain_problem([1.0]), time_scale=value)  # type: ignore[arg-type]


def test_wrong_uses_are_refused() -> None:
    problem = chain_problem([1.0, 1.0])
    with pytest.raises(InvalidProblemError, match="has 2 devices, but this executor has 3"):
        EmulatedExecutor(problem, 3)
    with pytest.raises(ConfigurationError, match="execution 'lazy' is unknown"):
        EmulatedExecutor(problem, execution="lazy")
    with pytest.raises(ConfigurationError, match="not a NoiseModel"):
        EmulatedExecutor(problem, noise=0.1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="noise_seed"):
        EmulatedExecutor(problem, noise_seed=-1)
    with pytest.raises(ConfigurationError, match="num_devices: give it, or a problem"):
        EmulatedExecutor(FakeWorkload(random_graph(4, seed=0)))
