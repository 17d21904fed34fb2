"""The CUDA executor on a pretence of CUDA: order, life-times, clocks, copies, faults."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from cuda_fakes import FakeCuda
from executor_fakes import FakeWorkload, random_graph

from doppler.errors import (
    CapacityError,
    ConfigurationError,
    ExecutionError,
    InvalidProblemError,
)
from doppler.executor import cuda as cuda_module
from doppler.executor.cuda import CudaExecutor
from doppler.executor.cuda_devices import CudaDevices
from doppler.graph import DataflowGraph
from doppler.hardware import Device, Link, Topology, make_topology
from doppler.schedule import Placement
from doppler.workloads import make_workload

POLLING = 80e-6
"""What the fake host needs to notice ends and to launch, at most. [s]"""


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("doppler-cuda")] == []


def random_devices(num_ops: int, num_devices: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, num_devices, num_ops)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("network", ["serial_links", "contention_free", "one_port"])
def test_random_placements_compute_the_reference(
    num_devices: int, depth: int, network: str
) -> None:
    workload, cuda = FakeWorkload(random_graph(40, seed=3)), FakeCuda()
    with CudaExecutor(
        workload, num_devices, streams=cuda, depth=depth, network=network
    ) as executor:
        for seed in range(3):
            devices = random_devices(40, num_devices, seed)
            check = executor.check(devices)
            assert check.passed and check.max_relative_error < 1e-6
            schedule = executor.run(devices)
            schedule.validate(tolerance=POLLING)
            assert schedule.origin == "measured" and schedule.network == network
        left = cuda.num_tensors
        assert left == 2 * num_devices  # input tiles
    assert cuda.most_queued == depth
    assert cuda.violations == []


@pytest.mark.parametrize("choose", ["fifo", "b_level", "random", "given"])
@pytest.mark.parametrize("execution", ["work_conserving", "bulk_synchronous"])
def test_every_rule_runs(choose: str, execution: str) -> None:
    workload, cuda = FakeWorkload(random_graph(30, seed=4)), FakeCuda()
    placement = Placement(np.arange(30) % 2, order=workload.graph.topological_order[::-1])
    with CudaExecutor(workload, 2, streams=cuda, choose=choose, execution=execution) as executor:
        assert executor.check(placement).passed
        schedule = executor.run(placement)
    assert (schedule.choose, schedule.execution) == (choose, execution)
    schedule.validate(tolerance=POLLING)
    assert cuda.violations == []


def chain(num_ops: int) -> FakeWorkload:
    edges = [(op, op + 1) for op in range(num_ops - 1)]
    return FakeWorkload(
        DataflowGraph.from_edges(
            "chain", num_ops, edges, flops=np.ones(num_ops), output_bytes=np.full(num_ops, 256.0)
        )
    )


def test_a_queue_keeps_the_device_at_work() -> None:
    gaps = {}
    for depth in (1, 2):
        with CudaExecutor(chain(10), 1, streams=FakeCuda(), depth=depth) as executor:
            schedule = executor.run([0] * 10)
        gaps[depth] = schedule.start[1:] - schedule.finish[:-1]
    assert (gaps[1] > 1e-6).all()
    assert gaps[2] == pytest.approx(0.0, abs=1e-9)


def test_times_are_those_of_the_host() -> None:
    workload, cuda = FakeWorkload(random_graph(12, seed=5, density=0.3)), FakeCuda(2)
    with CudaExecutor(workload, 3, streams=cuda) as executor:
        schedule = executor.run(np.arange(12) % 3)
        error = executor.environment()["clock_error"]
    spans = np.array([cuda.spans[kernel.run] for kernel in workload.kernels])
    zero = (spans[:, 1] - schedule.finish).mean()
    assert 0 < error < 1e-5
    np.testing.assert_allclose(schedule.finish, spans[:, 1] - zero, atol=2 * error)
    assert (schedule.start <= spans[:, 0] - zero + 2 * error).all()
    assert 0 <= schedule.start.min() < 50e-6


def between(cuda: FakeCuda, first: int, last: int, kind: str) -> list:
    return [details for what, details in cuda.log[first:last] if what == kind]


def test_copies_wait_for_producers_and_consumers_for_copies() -> None:
    workload, cuda = chain(2), FakeCuda()
    with CudaExecutor(workload, 2, streams=cuda) as executor:
        executor.run([0, 1])
    at = {details[0]: i for i, (what, details) in enumerate(cuda.log) if what == "launch"}
    producer, consumer = (at[kernel.run] for kernel in workload.kernels)
    (copy,) = (i for i, (what, _) in enumerate(cuda.log) if what == "copy")
    link = cuda.log[copy][1][0]
    first, second = cuda.log[producer][1][1], cuda.log[consumer][1][1]
    assert len({link, first, second}) == 3
    assert producer < copy < consumer
    produced = between(cuda, producer, copy, "record")[0]
    assert produced[1] == first
    assert (link, produced[0]) in between(cuda, producer, copy, "wait")
    copied = between(cuda, copy, consumer, "record")[0]
    assert copied[1] == link
    assert (second, copied[0]) in between(cuda, copy, consumer, "wait")


def test_the_fake_notices_what_it_is_for() -> None:
    cuda = FakeCuda()
    here, there = cuda.make_stream(0), cuda.make_stream(0)
    tile = cuda.upload(torch.ones(3), 0)
    made = cuda.launch(lambda operands: operands[0] + 1, [tile], here)
    cuda.launch(lambda operands: operands[0] + 1, [made], there)
    assert len(cuda.violations) == 2  # the second output was dropped while it is being written
    assert "read at" in cuda.violations[0] and "freed at" in cuda.violations[1]
    cuda.violations.clear()
    del made
    assert "freed at" in cuda.violations[0]


@pytest.mark.parametrize(
    ("reachable", "harmed", "copies", "peers"),
    [
        ([(0, 1), (1, 0)], [], "auto", {(0, 1), (1, 0)}),
        ([(0, 1), (1, 0)], [(1, 0)], "auto", {(0, 1)}),
        ([], [], "auto", set()),
        ([(0, 1), (1, 0)], [], "staged", set()),
    ],
)
def test_direct_copies_only_where_they_passed_the_test(
    reachable: list, harmed: list, copies: str, peers: set
) -> None:
    workload, cuda = FakeWorkload(random_graph(40, seed=6)), FakeCuda(2, reachable)
    cuda.harmed = set(harmed)
    with CudaExecutor(workload, 2, streams=cuda, copies=copies) as executor:
        assert executor.peers == peers
        assert executor.environment()["peer_copies"] == {
            "cuda0->cuda1": (0, 1) in peers,
            "cuda1->cuda0": (1, 0) in peers,
        }
        cuda.log.clear()
        devices = random_devices(40, 2, 1)
        assert executor.check(devices).passed
        pinned = cuda.num_pinned
        executor.run(devices).validate(tolerance=2 * cuda.copy_seconds + POLLING)
        assert cuda.num_pinned == pinned <= 2  # a buffer per link, used again
    ends = {details[1] for what, details in cuda.log if what == "copy"}
    staged = {(0, 1), (1, 0)} - peers
    assert ends == peers | {p for s, t in staged for p in ((s, "host"), ("host", t))}
    assert cuda.violations == []


def test_a_hang_in_the_self_test_means_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doppler.executor.cuda_devices.PEER_TEST_SECONDS", 0.01)
    cuda = FakeCuda(2, [(0, 1), (1, 0)])
    cuda.copy_seconds = float("inf")
    with CudaExecutor(chain(2), 2, streams=cuda) as executor:
        assert executor.peers == set()


def test_a_route_over_a_host_takes_two_hops() -> None:
    workload, cuda = FakeWorkload(random_graph(20, seed=6)), FakeCuda(2)
    problem = workload.problem(make_topology("host_staged", 3))
    with CudaExecutor(workload, 3, streams=cuda, problem=problem) as executor:
        assert executor.check(np.arange(20) % 3).passed
        schedule = executor.run(np.arange(20) % 3)
    assert len(schedule.transfer_ops) == 2 * schedule.num_transfers > 0
    schedule.validate(tolerance=POLLING)
    assert cuda.violations == []


def test_events_are_used_again() -> None:
    workload, cuda = FakeWorkload(random_graph(30, seed=7)), FakeCuda()
    with CudaExecutor(workload, 2, streams=cuda) as executor:
        executor.run(np.arange(30) % 2)
        made = cuda.num_events
        executor.run(np.arange(30) % 2)
        assert cuda.num_events - made == 5  # to read the clocks


def test_devices_that_share_a_gpu_are_called_logical() -> None:
    cuda = FakeCuda(2)
    with CudaExecutor(chain(3), 3, streams=cuda) as executor:
        environment = executor.environment()
        names = [device.name for device in executor.problem.topology.devices]
        (measurement,) = executor.measure([[0, 1, 2]], repeats=2, warmup=0)
    assert names == ["cuda0.logical0", "cuda1", "cuda0.logical1"]
    assert environment["devices"] == names
    assert environment["device_names"] == [
        "Pretence 9000, logical device 0 of 2",
        "Pretence 9000",
        "Pretence 9000, logical device 1 of 2",
    ]
    assert environment["logical_devices"] is True and "share" in environment["note"]
    assert measurement.environment["logical_devices"] is True
    assert measurement.schedule.problem.topology.name == "cudax3_logical"
    alone = CudaDevices.find(cuda, 2, [1, 0])
    assert alone.names == ("cuda1", "cuda0") and not alone.logical
    assert "note" not in alone.describe()


def test_tf32_is_off_and_restored() -> None:
    matmul = torch.backends.cuda.matmul
    before, seen = matmul.allow_tf32, []
    workload = chain(3)

    def watch(operands):
        seen.append(matmul.allow_tf32)
        return operands[0] + 1

    workload.kernels[1] = workload.kernel(1, watch)
    try:
        for current in (True, False):
            matmul.allow_tf32 = current
            for allowed in (False, True):
                with CudaExecutor(workload, 1, streams=FakeCuda(), allow_tf32=allowed) as executor:
                    executor.run([0] * 3)
                assert matmul.allow_tf32 is current
    finally:
        matmul.allow_tf32 = before
    assert seen == [False, True, False, True]


def test_out_of_memory_is_named_and_the_next_run_works() -> None:
    workload, cuda = FakeWorkload(random_graph(20, seed=8)), FakeCuda()
    devices = np.arange(20) % 2
    with CudaExecutor(workload, 2, streams=cuda) as executor:
        broken = workload.kernels[7].run
        cuda.failing[broken] = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried\nmuch")
        with pytest.raises(
            ExecutionError,
            match=r"op 7 \(op_7\), kernel 'add\d+', on device 1 \(cuda0.logical1, Pretence 9000\): "
            r"out of memory: CUDA out of memory. Tried$",
        ) as caught:
            executor.run(devices)
        assert isinstance(caught.value.__cause__, torch.cuda.OutOfMemoryError)
        assert cuda.num_tensors == 0  # although the error is still held
        cuda.failing.clear()
        assert executor.check(devices).passed
    assert cuda.violations == []


def test_out_of_memory_for_the_inputs_names_the_device() -> None:
    cuda = FakeCuda()
    upload, calls = cuda.upload, []

    def fail_late(tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        calls.append(gpu)
        if len(calls) == 4:
            raise torch.cuda.OutOfMemoryError("no room")
        return upload(tensor, gpu)

    cuda.upload = fail_late  # type: ignore[method-assign]
    with CudaExecutor(chain(4), 2, streams=cuda) as executor:
        with pytest.raises(ExecutionError, match=r"input tiles on device 1 \(cuda0.logical1.*room"):
            executor.run([0, 1, 0, 1])
        assert executor.check([0, 1, 0, 1]).passed


def test_a_failing_kernel_is_named_while_others_run() -> None:
    workload, cuda = FakeWorkload(random_graph(20, seed=8)), FakeCuda()
    with CudaExecutor(workload, 2, streams=cuda) as executor:
        cuda.failing[workload.kernels[6].run] = ValueError("no such luck")
        with pytest.raises(ExecutionError, match=r"op 6 .* failed: ValueError: no such luck"):
            executor.run(np.arange(20) % 2)
        cuda.failing.clear()
        assert executor.check(np.arange(20) % 2).passed
    assert cuda.violations == []  # also: nothing was freed while the other device worked


def test_a_hang_ends_at_the_time_out_and_its_tensors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_module, "JOIN_SECONDS", 0.1)
    workload, cuda = FakeWorkload(random_graph(20, seed=9)), FakeCuda()
    devices = np.arange(20) % 2
    with CudaExecutor(workload, 2, streams=cuda, timeout_s=0.3) as executor:
        cuda.seconds[workload.kernels[6].run] = float("inf")
        with pytest.raises(ExecutionError, match=r"within 0.3 s.*op 6 .*device 0 \(cuda0.logical0"):
            executor.run(devices)
        assert cuda.num_tensors >= 4
        cuda.seconds.clear()
        executor.timeout_s = 60.0
        assert executor.check(devices).passed
        assert cuda.violations == []


def test_a_poisoned_context_is_called_so() -> None:
    workload, cuda = FakeWorkload(random_graph(20, seed=10)), FakeCuda()
    with CudaExecutor(workload, 2, streams=cuda) as executor:
        cuda.harmful.add(workload.kernels[5].run)
        with pytest.raises(ExecutionError, match=r"illegal memory access.*start a new process.*op"):
            executor.run(np.arange(20) % 2)
        with pytest.raises(ExecutionError, match=r"^the CUDA context is unusable after 'CUDA err"):
            executor.run(np.arange(20) % 2)


def test_wrong_uses_are_refused() -> None:
    workload, cuda = chain(4), FakeCuda()
    for options, message in (
        ({"depth": 0}, "depth: 0"),
        ({"copies": "magic"}, "copies: 'magic' is unknown; known: auto, staged"),
        ({"gpus": [0, 1]}, "there is no GPU 1; they are numbered 0 to 0"),
        ({"gpus": []}, "gpus: names no GPU"),
        ({"network": "bus"}, "network 'bus'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            CudaExecutor(workload, 2, streams=cuda, **options)
    slots = workload.problem(Topology("two_at_a_time", (Device("d", compute_slots=2),)))
    with pytest.raises(InvalidProblemError, match="compute slots"):
        CudaExecutor(workload, 1, streams=cuda, problem=slots)
    hosts = Topology(
        "two_hosts",
        (Device("a"), Device("b")),
        tuple(Link(s, t, 1.0) for s, t in ((0, 2), (2, 3), (3, 1), (1, 3), (3, 2), (2, 0))),
        hosts=("left", "right"),
    )
    with pytest.raises(InvalidProblemError, match="two hosts"):
        CudaExecutor(workload, 2, streams=cuda, problem=workload.problem(hosts))
    executor = CudaExecutor(workload, 2, streams=cuda)
    executor.close()
    with pytest.raises(ExecutionError, match="closed"):
        executor.run([0] * 4)


def test_too_little_memory_is_a_capacity_error() -> None:
    workload, cuda = chain(4), FakeCuda()
    small = Topology("small", (Device("d", memory_bytes=300.0),))
    with CudaExecutor(workload, 1, streams=cuda, problem=workload.problem(small)) as executor:
        with pytest.raises(CapacityError, match="op 1"):
            executor.run([0] * 4)
        assert cuda.num_tensors == 0
    assert cuda.violations == []


def test_without_cuda_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="needs a CUDA device") as caught:
        CudaExecutor(chain(2), 1)
    assert "\n" not in str(caught.value)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("copies", ["auto", "staged"])
def test_a_gpu_computes_the_reference(depth: int, copies: str) -> None:
    workload = make_workload("ffnn", num_shards=4)
    devices = random_devices(workload.graph.num_ops, 3, 0)
    with CudaExecutor(workload, 3, depth=depth, copies=copies) as executor:
        for _ in range(3):
            assert executor.check(devices).passed
        executor.run(devices).validate(tolerance=10.0)


@pytest.mark.cuda
@needs_cuda
def test_a_gpu_sends_tensors_over_the_host() -> None:
    workload = make_workload("chainmm", num_shards=4)
    problem = workload.problem(make_topology("host_staged", 2))
    with CudaExecutor(workload, 2, problem=problem) as executor:
        assert executor.check(random_devices(workload.graph.num_ops, 2, 1)).passed


@pytest.mark.cuda
@needs_cuda
def test_a_gpu_without_memory_left_is_named() -> None:
    workload = chain(4)
    workload.kernels[2] = workload.kernel(
        2, lambda operands: torch.empty(1 << 50, dtype=torch.uint8, device=operands[0].device)
    )
    with CudaExecutor(workload, 1) as executor:
        with pytest.raises(ExecutionError, match=r"op 2 .*out of memory"):
            executor.run([0] * 4)
        workload.kernels[2] = workload.kernels[1]
        executor.runners[2] = workload.kernels[1].run
        executor.run([0] * 4)
