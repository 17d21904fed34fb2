"""Real runs on CPU threads: results, semantics, faults, threads. No assertion on speed."""

from __future__ import annotations

import gc
import signal
import threading
import time

import numpy as np
import pytest
import torch
from executor_fakes import FakeWorkload, adder, random_graph

from doppler.errors import (
    ConfigurationError,
    ExecutionError,
    InvalidPlacementError,
    InvalidProblemError,
)
from doppler.executor import CpuExecutor
from doppler.executor.calibration.traces import ready_times
from doppler.executor.cpu import executor as cpu_module
from doppler.executor.cpu.lanes import Lane
from doppler.executor.result_check import compare_results
from doppler.executor.synthetic import empty_workload
from doppler.graph import DataflowGraph
from doppler.hardware import make_topology
from doppler.schedule import Placement, Schedule, validate_schedule
from doppler.workloads import make_workload

LOADED_MACHINE = 10.0
"""Idle seconds that a validation forgives: other processes may hold the CPUs. [s]"""


def assert_valid(schedule: Schedule) -> None:
    """Forgives idling, but no task that starts before its inputs or beside another one."""
    validate_schedule(schedule, tolerance=LOADED_MACHINE)
    assert (schedule.start >= ready_times(schedule)).all()
    first_hop = schedule.problem.topology.link_ends[schedule.transfer_links, 0]
    first_hop = first_hop == schedule.devices[schedule.transfer_ops]
    produced = schedule.finish[schedule.transfer_ops]
    assert (schedule.transfer_start >= produced)[first_hop].all()
    lanes = [(schedule.devices, schedule.start, schedule.finish)]
    if schedule.network == "serial_links":
        lanes.append((schedule.transfer_links, schedule.transfer_start, schedule.transfer_finish))
    for resource, start, finish in lanes:
        order = np.lexsort((start, resource))
        same = resource[order][1:] == resource[order][:-1]
        assert (start[order][1:] >= finish[order][:-1])[same].all()


def our_threads() -> list[str]:
    ours = ("doppler-device-", "doppler-link-")
    return [t.name for t in threading.enumerate() if t.name.startswith(ours)]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert our_threads() == []


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4])
@pytest.mark.parametrize("network", ["serial_links", "contention_free", "one_port", "shared_bus"])
def test_random_placements_compute_the_reference(num_devices: int, network: str) -> None:
    workload = FakeWorkload(random_graph(40, seed=3))
    rng = np.random.default_rng(num_devices)
    with CpuExecutor(workload, num_devices, network=network) as executor:
        for _ in range(4):
            devices = rng.integers(0, num_devices, 40)
            check = executor.check(devices)
            assert check.passed and check.max_relative_error < 1e-6
            assert_valid(executor.run(devices))


@pytest.mark.parametrize("choose", ["fifo", "b_level", "random", "given"])
def test_every_choose_rule_runs(choose: str) -> None:
    workload = FakeWorkload(random_graph(30, seed=4))
    order = workload.graph.topological_order[::-1]
    placement = Placement(np.arange(30) % 2, order=order)
    with CpuExecutor(workload, 2, choose=choose) as executor:
        assert executor.check(placement).passed
        schedule = executor.run(placement)
    assert schedule.choose == choose
    assert schedule.origin == "measured"
    np.testing.assert_array_equal(schedule.order, order)


def test_given_order_decides_among_ready_ops() -> None:
    graph = DataflowGraph.from_edges(
        "wide", 6, np.empty((0, 2)), flops=np.ones(6), output_bytes=np.ones(6)
    )
    order = [4, 0, 5, 2, 1, 3]
    with CpuExecutor(FakeWorkload(graph), 1, choose="given") as executor:
        schedule = executor.run(Placement(np.zeros(6), order=np.array(order)))
    assert np.argsort(schedule.start).tolist() == order


def test_a_tensor_is_copied_once_per_device_and_dead_ones_are_dropped() -> None:
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]
    graph = DataflowGraph.from_edges(
        "fan", 5, edges, flops=np.ones(5), output_bytes=np.full(5, 256.0)
    )
    with CpuExecutor(FakeWorkload(graph), 3) as executor:
        schedule = executor.run([0, 1, 1, 2, 0])
        moved = list(zip(schedule.transfer_ops.tolist(), schedule.transfer_targets.tolist()))
        assert sorted(moved) == [(0, 1), (0, 2), (1, 0), (2, 0), (3, 0)]
        # Afterwards devices hold their input tiles only; arrived tensors gave their buffers back.
        held = [sorted(memory.tensors) for memory in executor._memories]
        assert held == [[-2, -1]] * 3
        idle = [sum(map(len, memory._buffers.values())) for memory in executor._memories]
        assert idle[0] >= 1 and idle[1:] == [1, 1]
        kind = (torch.Size((8, 8)), torch.float32)
        first = executor._memories[1]._buffers[kind][0].data_ptr()
        executor.run([0, 1, 1, 2, 0])
        assert executor._memories[1]._buffers[kind][0].data_ptr() == first


def test_devices_do_not_share_memory() -> None:
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    graph = random_graph(12, seed=5, density=0.3)
    workload = FakeWorkload(graph, num_tiles=3)
    devices = np.arange(12) % 2

    def spy(op: int):
        def run(operands):
            seen[op % 2].update(operand.data_ptr() for operand in operands)
            return adder(op + 1.0)(operands)

        return run

    workload.kernels = [workload.kernel(op, spy(op)) for op in range(12)]
    with CpuExecutor(workload, 2) as executor:
        assert executor.check(devices).passed
        inputs = [
            {memory.tensors[~tile].data_ptr() for tile in range(3)} for memory in executor._memories
        ]
    assert inputs[0].isdisjoint(inputs[1])
    assert inputs[0] <= seen[0] and inputs[1] <= seen[1]
    assert seen[0].isdisjoint(inputs[1]) and seen[1].isdisjoint(inputs[0])


def test_a_route_over_a_host_takes_two_hops() -> None:
    workload = FakeWorkload(random_graph(20, seed=6))
    problem = workload.problem(make_topology("host_staged", 3))
    with CpuExecutor(workload, 3, problem=problem) as executor:
        assert executor.check(np.arange(20) % 3).passed
        schedule = executor.run(np.arange(20) % 3)
        host = executor._memories[3]
        assert host.tensors == {} and sum(map(len, host._buffers.values())) >= 1
    assert len(schedule.transfer_ops) == 2 * schedule.num_transfers > 0
    assert_valid(schedule)


def test_an_output_that_is_a_view_of_an_operand_survives_its_buffer() -> None:
    # Op 1 (device 1) returns the arrived tensor itself; its buffer serves the next arrival (op 3).
    graph = DataflowGraph.from_edges(
        "view", 5, [(0, 1), (1, 3), (1, 4), (0, 2), (2, 3), (3, 4)],
        flops=np.ones(5), output_bytes=np.full(5, 256.0),
    )  # fmt: skip
    workload = FakeWorkload(graph)
    workload.kernels[1] = workload.kernel(1, lambda operands: operands[1])
    reference = workload.reference(workload.make_inputs(0))
    with CpuExecutor(workload, 2) as executor:
        for _ in range(3):
            outputs: dict[int, torch.Tensor] = {}
            executor._execute(executor._plan([0, 1, 0, 0, 1], None), outputs)
    tiles = workload.make_inputs(0)
    op0 = tiles[0] + 1
    op2 = tiles[0] + 3 + op0
    op3 = tiles[1] + 4 + op0 + op2
    torch.testing.assert_close(outputs[4], tiles[0] + 5 + op0 + op3)
    assert not torch.equal(outputs[4], reference["out4"])  # the reference's op 1 adds


def test_a_wrong_result_fails_the_check() -> None:
    workload = FakeWorkload(random_graph(10, seed=7))
    right = workload.kernels[4]
    workload.kernels[4] = workload.kernel(4, lambda operands: right.run(operands) * 1.01)
    with CpuExecutor(workload, 2) as executor:
        check = executor.check(np.arange(10) % 2)
    assert not check.passed
    assert check.max_relative_error > check.tolerance == 1e-4


def test_result_check_counts_missing_misshapen_and_nan_results_as_wrong() -> None:
    reference = {"a": torch.ones(3), "b": torch.full((2, 2), 10.0)}
    good = {"a": torch.ones(3), "b": torch.full((2, 2), 10.0)}
    assert compare_results(good, reference, "float32").max_relative_error == 0.0
    off = compare_results({**good, "b": torch.full((2, 2), 11.0)}, reference, "float32")
    assert not off.passed and off.worst == "b"
    assert off.max_relative_error == pytest.approx(0.1)
    for wrong in (
        {"a": good["a"]},
        {**good, "b": torch.ones(4)},
        {**good, "b": torch.full((2, 2), float("nan"))},
    ):
        bad = compare_results(wrong, reference, "float32")
        assert (bad.passed, bad.max_relative_error, bad.worst) == (False, float("inf"), "b")
    with pytest.raises(ConfigurationError, match="int8"):
        compare_results(good, reference, "int8")


def test_a_failing_kernel_is_named_and_the_next_run_works() -> None:
    workload = FakeWorkload(random_graph(20, seed=8))
    broken = True
    right = workload.kernels[7]

    def fail(operands):
        if broken:
            raise ValueError("no such luck")
        return right.run(operands)

    workload.kernels[7] = workload.kernel(7, fail)
    with CpuExecutor(workload, 2) as executor:
        devices = np.arange(20) % 2
        with pytest.raises(
            ExecutionError, match=r"op 7 \(op_7\).*kernel 'add.*device 1 \(cpu1\).*no such luck"
        ) as caught:
            executor.run(devices)
        assert isinstance(caught.value.__cause__, ValueError)
        assert our_threads() == []
        broken = False
        assert executor.check(devices).passed


def test_a_hang_ends_at_the_time_out_and_the_next_run_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_module, "JOIN_SECONDS", 0.1)
    workload = FakeWorkload(random_graph(20, seed=9))
    release = threading.Event()
    hang = True
    right = workload.kernels[6]

    def stuck(operands):
        if hang:
            release.wait()
        return right.run(operands)

    workload.kernels[6] = workload.kernel(6, stuck)
    devices = np.arange(20) % 2
    try:
        with CpuExecutor(workload, 2, timeout_s=0.5) as executor:
            with pytest.raises(ExecutionError, match=r"within 0.5 s.*op 6 .*device 0 \(cpu0\)"):
                executor.run(devices)
            hang = False
            executor.timeout_s = 60.0
            assert executor.check(devices).passed
    finally:
        release.set()  # the stuck thread ends with its kernel
    wait_for_threads_to_end()


def wait_for_threads_to_end() -> None:
    deadline = time.monotonic() + 10.0
    while our_threads() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_ctrl_c_leaves_no_thread_running() -> None:
    workload = FakeWorkload(random_graph(20, seed=10))
    interrupting = True
    right = workload.kernels[5]

    def press(operands):
        if interrupting:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.2)
        return right.run(operands)

    workload.kernels[5] = workload.kernel(5, press)
    with CpuExecutor(workload, 2) as executor:
        with pytest.raises(KeyboardInterrupt):
            executor.run(np.arange(20) % 2)
        assert our_threads() == [] and gc.isenabled()
        interrupting = False
        assert executor.check(np.arange(20) % 2).passed


def test_torch_threads_are_one_in_workers_and_untouched_elsewhere() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen: list[int] = []
    try:
        lane = Lane("doppler-test")
        lane.wait_until_ready()
        lane.put((lambda task, _: seen.append(torch.get_num_threads()), None))
        lane.stop()
        assert lane.join(30.0)
        assert torch.get_num_threads() == 2
        fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert seen == [1, 2]
    finally:
        torch.set_num_threads(before)


def test_garbage_collection_is_paused_during_runs_only() -> None:
    workload = FakeWorkload(random_graph(4, seed=11))
    seen = []
    right = workload.kernels[2]

    def watch(operands):
        seen.append(gc.isenabled())
        return right.run(operands)

    workload.kernels[2] = workload.kernel(2, watch)
    with CpuExecutor(workload, 1) as executor:
        executor.measure([np.zeros(4, int)], repeats=1, warmup=1)
    assert seen == [False, False] and gc.isenabled()


def test_measurements_are_interleaved_and_summarised() -> None:
    workload = FakeWorkload(random_graph(6, seed=12, density=0.0))
    steps = []
    with CpuExecutor(workload, 2) as executor:
        placements = [np.zeros(6, int), np.ones(6, int), np.arange(6) % 2]
        order: list[int] = []
        execute = executor._execute

        def watch(plan, outputs):
            order.append(int(plan.devices.sum()))  # 0, 6 or 3: tells the placements apart
            return execute(plan, outputs)

        executor._execute = watch  # type: ignore[method-assign]
        measurements = executor.measure(
            placements,
            repeats=4,
            warmup=1,
            progress=lambda done, total: steps.append((done, total)),
        )
    assert steps == [(i, 15) for i in range(1, 16)]
    assert order == [0, 6, 3, 6, 3, 0, 3, 0, 6, 0, 6, 3, 6, 3, 0]
    for measurement, devices in zip(measurements, placements, strict=True):
        assert measurement.makespans.shape == (4,) and measurement.repeats == 4
        np.testing.assert_array_equal(measurement.schedule.devices, devices)
        ordered = np.sort(measurement.makespans)
        assert measurement.schedule.makespan == ordered[1]  # the lower median of four
        assert measurement.median == pytest.approx((ordered[1] + ordered[2]) / 2)
        assert measurement.min == ordered[0]
        assert measurement.iqr == pytest.approx(measurement.q3 - measurement.q1)
        assert measurement.environment["backend"] == "cpu"
        assert measurement.environment["torch_version"] == torch.__version__


def test_wrong_uses_are_refused() -> None:
    workload = FakeWorkload(random_graph(6, seed=13))
    with pytest.raises(ConfigurationError, match="num_devices: 0"):
        CpuExecutor(workload, 0)
    with pytest.raises(ConfigurationError, match="timeout_s"):
        CpuExecutor(workload, 1, timeout_s=0)
    with pytest.raises(ConfigurationError, match="network 'bus' is unknown"):
        CpuExecutor(workload, 1, network="bus")
    with pytest.raises(ConfigurationError, match="choose 'lifo' is unknown"):
        CpuExecutor(workload, 1, choose="lifo")
    other = FakeWorkload(random_graph(7, seed=13))
    with CpuExecutor(workload, 2) as executor:
        with pytest.raises(InvalidPlacementError, match="op 3: device 2"):
            executor.run([0, 1, 0, 2, 0, 0])
        with pytest.raises(InvalidProblemError, match="not about the graph"):
            executor.run([0] * 6, other.problem(make_topology("cpu", 2)))
        with pytest.raises(InvalidProblemError, match="has 3 devices"):
            executor.run([0] * 6, workload.problem(make_topology("cpu", 3)))
        with pytest.raises(ConfigurationError, match="repeats: 0"):
            executor.measure([[0] * 6], repeats=0)
    with pytest.raises(ExecutionError, match="closed"):
        executor.run([0] * 6)


def test_empty_kernels_cost_little_dispatch() -> None:
    """The target is 60 us per op; a loaded machine is forgiven ten times that."""
    workload = empty_workload(400, num_chains=2)
    with CpuExecutor(workload, 2) as executor:
        (measurement,) = executor.measure([np.arange(400) % 2], repeats=5, warmup=1)
    assert measurement.min / 400 < 600e-6


def test_a_real_workload_agrees_with_its_reference() -> None:
    workload = make_workload("ffnn", num_shards=2)
    rng = np.random.default_rng(0)
    devices = rng.integers(0, 3, workload.graph.num_ops)
    with CpuExecutor(workload, 3) as executor:
        assert executor.check(devices).passed
        schedule = executor.run(devices)
    assert_valid(schedule)
    assert schedule.peak_bytes is not None and (schedule.peak_bytes > 0).all()
    assert schedule.makespan >= (schedule.finish - schedule.start).max()


def test_buffers_serve_arrivals_of_their_dtype_only() -> None:
    # 0 -> 1 -> 2 -> 3, every other op on device 1: op 2's fractions arrive after op 0's integers.
    graph = DataflowGraph.from_edges(
        "kinds", 4, [(0, 1), (1, 2), (2, 3)], flops=np.ones(4), output_bytes=np.full(4, 256.0)
    )
    workload = FakeWorkload(graph)
    fractions = torch.full((8, 8), 0.25)
    for op, output in enumerate([fractions.long(), fractions, fractions]):
        workload.kernels[op].run = lambda operands, output=output: output.clone()
    workload.kernels[3].run = lambda operands: operands[1].clone()
    with CpuExecutor(workload, 2) as executor:
        outputs: dict[int, torch.Tensor] = {}
        executor._execute(executor._plan([0, 1, 0, 1], None), outputs)
    assert torch.equal(outputs[3], fractions)
