"""The CUDA executor on a pretence of CUDA: order, life-times, clocks, copies, faults."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from cuda_fakes import FakeCuda, chain
from executor_fakes import FakeWorkload, random_graph

from doppler.errors import (
    ConfigurationError,
    ExecutionError,
    InvalidProblemError,
)
from doppler.executor.cuda.devices import CudaDevices
from doppler.executor.cuda.executor import CudaExecutor
from doppler.executor.cuda.run import CudaRun
from doppler.hardware import CostModel, Device, Link, Topology, make_topology
from doppler.schedule import Placement
from doppler.simulator import Simulator

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


def test_a_queue_keeps_the_device_at_work() -> None:
    gaps = {}
    for depth in (1, 2):
        with CudaExecutor(chain(10), 1, streams=FakeCuda(), depth=depth) as executor:
            schedule = executor.run([0] * 10)
        gaps[depth] = schedule.start[1:] - schedule.finish[:-1]
    assert (gaps[1] > 1e-6).all()
    assert gaps[2] == pytest.approx(0.0, abs=1e-9)


def test_tensors_are_dropped_after_their_last_reader() -> None:
    cuda = FakeCuda()
    with CudaExecutor(chain(30), 2, streams=cuda) as executor:
        executor.run(np.arange(30) // 3 % 2)
    # Input tiles of two devices; op, consumer and the one queued behind; the one under way.
    assert cuda.most_tensors <= 4 + 4
    assert cuda.violations == []


@pytest.mark.parametrize("stalls", [[], [3e-3, 0.0, 2e-3, 1e-3, 1e-3]])
def test_times_are_those_of_the_host(stalls: list[float]) -> None:
    workload, cuda = FakeWorkload(random_graph(12, seed=5, density=0.3)), FakeCuda(2)
    cuda.stalls = stalls * 2  # while the clocks of two GPUs are read, five times each
    with CudaExecutor(workload, 3, streams=cuda) as executor:
        schedule = executor.run(np.arange(12) % 3)
        error = executor.environment()["clock_error"]
    spans = np.array([cuda.spans[kernel.run] for kernel in workload.kernels])
    zero = (spans[:, 1] - schedule.finish).mean()
    assert 0 < error < 1e-5
    np.testing.assert_allclose(schedule.finish, spans[:, 1] - zero, atol=2 * error)
    assert (schedule.start <= spans[:, 0] - zero + 2 * error).all()
    assert 0 <= schedule.start.min() < 50e-6


def test_nothing_starts_before_zero_though_clocks_disagree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = CudaRun._read_clocks

    def early(self: CudaRun, gpu: int) -> tuple:
        event, seconds = read(self, gpu)
        return event, seconds - 5e-3

    monkeypatch.setattr(CudaRun, "_read_clocks", early)
    with CudaExecutor(chain(3), 1, streams=FakeCuda()) as executor:
        schedule = executor.run([0] * 3)
    assert schedule.start[0] == 0.0
    schedule.validate(tolerance=POLLING)


@pytest.mark.parametrize("network", ["serial_links", "contention_free"])
def test_without_queues_ops_run_in_the_order_of_the_simulator(network: str) -> None:
    graph = random_graph(40, seed=11, density=0.1)
    workload, cuda = FakeWorkload(graph), FakeCuda()
    rng = np.random.default_rng(11)
    seconds = rng.uniform(0.5e-3, 5e-3, 40)
    cuda.seconds = {k.run: s for k, s in zip(workload.kernels, seconds.tolist(), strict=True)}
    topology = make_topology("v100", 3)
    costs = CostModel(
        op_seconds=np.repeat(seconds[:, None], 3, axis=1),
        transfer_volume=np.zeros(40),
        link_latency=np.full(topology.num_links, cuda.copy_seconds),
        link_seconds_per_unit=np.zeros(topology.num_links),
        source="test",
    )
    problem = workload.problem(topology, costs)
    devices = random_devices(40, 3, 11)
    simulated = Simulator(problem, network=network).run(devices)
    with CudaExecutor(
        workload, 3, streams=cuda, depth=1, problem=problem, network=network
    ) as executor:
        measured = executor.run(devices)
    for device in range(3):
        ops = np.flatnonzero(devices == device)
        np.testing.assert_array_equal(
            ops[np.argsort(measured.start[ops])], ops[np.argsort(simulated.start[ops])]
        )
    assert measured.makespan == pytest.approx(simulated.makespan, rel=0.03)
    np.testing.assert_array_equal(measured.peak_bytes, simulated.peak_bytes)


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


def test_the_second_hop_of_a_route_waits_for_the_first() -> None:
    workload, cuda = chain(2), FakeCuda(2)
    problem = workload.problem(make_topology("host_staged", 2))
    with CudaExecutor(workload, 2, streams=cuda, problem=problem) as executor:
        executor.run([0, 1])
    up, down = (i for i, (what, _) in enumerate(cuda.log) if what == "copy")
    assert [cuda.log[i][1][1] for i in (up, down)] == [(0, "host"), ("host", 1)]
    copied = between(cuda, up, down, "record")[0]
    assert copied[1] == cuda.log[up][1][0]
    assert (cuda.log[down][1][0], copied[0]) in between(cuda, up, down, "wait")


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
    monkeypatch.setattr("doppler.executor.cuda.devices.PEER_TEST_SECONDS", 0.01)
    cuda = FakeCuda(2, [(0, 1), (1, 0)])
    cuda.copy_seconds = float("inf")
    with CudaExecutor(chain(2), 2, streams=cuda) as executor:
        assert executor.peers == set()


def test_a_route_over_a_host_takes_two_hops() -> None:
    workload, cuda = FakeWorkload(random_graph(20, seed=6)), FakeCuda(2)
    problem = workload.problem(make_topology("host_staged", 3))
    with CudaExecutor(workload, 3, streams=cuda, problem=problem) as executor:
        assert executor.check(np.arange(20) % 3).passed
        pinned = cuda.num_pinned
        schedule = executor.run(np.arange(20) % 3)
        assert cuda.num_pinned == pinned > 0  # the host's buffers are used again
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
    assert cuda.make_stream(0).number == 4  # after those of two devices and two links


def test_a_run_may_have_another_topology_than_the_one_before() -> None:
    workload, cuda = FakeWorkload(random_graph(30, seed=8)), FakeCuda(2, [(0, 1)])
    devices = random_devices(30, 3, 2)
    with CudaExecutor(workload, 3, streams=cuda) as executor:
        for topology in ("v100", "host_staged", "v100"):
            problem = workload.problem(make_topology(topology, 3))
            executor.run(devices, problem).validate(tolerance=2 * cuda.copy_seconds + POLLING)
        assert executor.check(devices).passed
    assert cuda.violations == []


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


def test_without_cuda_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="needs a CUDA device") as caught:
        CudaExecutor(chain(2), 1)
    assert "\n" not in str(caught.value)
