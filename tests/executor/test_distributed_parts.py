"""The parts of the distributed executor without processes: dispatching, clocks, traces, threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from heapq import heappop, heappush
from queue import SimpleQueue

import numpy as np
import pytest
import torch
import torch.distributed as dist
from executor_fakes import FakeWorkload, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_fakes import rank_workload

from doppler.errors import CapacityError, ConfigurationError
from doppler.executor import DispatchPlan, DistributedExecutor, OpTask
from doppler.executor.distributed import rank_clock as clock_module
from doppler.executor.distributed import rank_run
from doppler.executor.distributed.executor import merge_traces
from doppler.executor.distributed.rank_clock import ClockOffset, align_clocks, estimate_offset
from doppler.executor.distributed.rank_dispatcher import RankDispatcher
from doppler.executor.distributed.rank_run import Rank, RankRun, RankTrace
from doppler.graph import DataflowGraph
from doppler.hardware import Device, Link, Topology, make_topology
from doppler.problem import InputTensor
from doppler.schedule import validate_schedule
from doppler.simulator import Simulator


def run_on_a_clock(plan: DispatchPlan) -> tuple[np.ndarray, np.ndarray, list[float | None]]:
    """Drives all ranks' dispatchers by the cost model: starts, finishes, peaks."""
    costs = plan.problem.cost_model
    ranks = [RankDispatcher(plan, rank) for rank in range(plan.problem.num_devices)]
    start, finish = np.zeros(plan.num_ops), np.zeros(plan.num_ops)
    events: list[tuple[float, int, object]] = []
    count = 0

    def hand_out(tasks, now: float) -> None:
        nonlocal count
        for task in tasks:
            if isinstance(task, OpTask):
                seconds = costs.op_seconds[task.op, task.device]
                start[task.op], finish[task.op] = now, now + seconds
            else:
                seconds = (
                    costs.link_latency[task.link]
                    + costs.transfer_volume[task.op] * costs.link_seconds_per_unit[task.link]
                )
                ranks[task.target].on_arrival_started(task.transfer)
            count += 1
            heappush(events, (now + seconds, count, task))

    for rank in ranks:
        hand_out(rank.begin(0.0), 0.0)
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            task = heappop(events)[2]
            if isinstance(task, OpTask):
                ranks[task.device].on_op_finished(task.op, now)
            else:
                ranks[task.source].on_sent(task)
                ranks[task.target].on_arrival(task.transfer, now)
        for rank in ranks:
            hand_out(rank.start_tasks(), now)
    assert all(rank.done and not rank.running for rank in ranks)
    return start, finish, [rank.peak_bytes for rank in ranks]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_devices=st.integers(1, 4),
    choose=st.sampled_from(["fifo", "b_level", "random", "given"]),
)
def test_all_ranks_together_do_what_the_simulator_does(seed, num_devices, choose) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(25, seed, nbytes=1e6)
    problem = FakeWorkload(graph).problem(make_topology("cpu", num_devices))
    costs = replace(
        problem.cost_model,
        op_seconds=rng.integers(1, 5, (25, num_devices)) * 1e-4,
        transfer_volume=rng.integers(1, 20, 25) * 1e6,
    )
    problem = replace(problem, cost_model=costs)
    devices, order = rng.integers(0, num_devices, 25), rng.permutation(25)
    plan = DispatchPlan(problem, devices, order, choose=choose, seed=7)
    start, finish, peaks = run_on_a_clock(plan)
    simulated = Simulator(problem, choose=choose, seed=7).run(
        devices, order if choose == "given" else None
    )
    np.testing.assert_allclose(start, simulated.start, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(finish, simulated.finish, rtol=1e-12)
    assert simulated.peak_bytes is not None
    np.testing.assert_allclose(peaks, simulated.peak_bytes)


def test_a_full_device_is_named() -> None:
    #  0 -> 1   each output 256 B, device 1 holds 400 B: its input and its output do not both fit
    graph = DataflowGraph.from_edges(
        "two", 2, [(0, 1)], flops=np.ones(2), output_bytes=np.full(2, 256.0)
    )
    topology = Topology(
        "small",
        (Device("a"), Device("b", memory_bytes=400.0)),
        (Link(0, 1, 1e9), Link(1, 0, 1e9)),
    )
    plan = DispatchPlan(FakeWorkload(graph).problem(topology), [0, 1])
    rank = RankDispatcher(plan, 1)
    assert rank.begin(0.0) == [] and rank.incoming == [1, 0]
    rank.on_arrival_started(plan.transfers[0])
    rank.on_arrival(plan.transfers[0], 1.0)
    with pytest.raises(CapacityError, match=r"'b' would hold 512 B of 400 B .* op 1 \(op_1\)"):
        rank.start_tasks()


def test_the_fastest_ping_pong_tells_the_offset() -> None:
    # The remote clock is 100 ahead. Fast trip: 2 there, 1 remote, 4 back, so that the estimate is
    # off by (2 - 4) / 2 = -1, within half the round trip of 6. The slow trip would be off by 20.
    fast = (10.0, 112.0, 113.0, 17.0)
    slow = (20.0, 160.0, 161.0, 61.0)
    offset = estimate_offset([slow, fast, slow])
    assert offset == ClockOffset(99.0, 3.0)
    assert offset.common() == offset
    assert ClockOffset(-2.0, 3.0).common() == ClockOffset(0.0, 3.0)
    assert ClockOffset(3.5, 3.0).common() == ClockOffset(3.5, 3.0)


def diamond_plan() -> DispatchPlan:
    #        0 (dev 0) -> 2 (dev 1)
    #        1 (dev 0) -> 2
    graph = DataflowGraph.from_edges(
        "join", 3, [(0, 2), (1, 2)], flops=np.ones(3), output_bytes=np.ones(3)
    )
    return DispatchPlan(FakeWorkload(graph).problem(make_topology("cpu", 2)), [0, 0, 1])


def test_traces_of_two_clocks_make_one_schedule() -> None:
    # Rank 1's clock is 1000 ahead and begins 0.5 later. The transport takes op 1's output at 4.5,
    # when op 0's is still under way until 5; it arrives at 7.
    plan = diamond_plan()
    first = RankTrace(0, 10.0, [0, 1], [11.0, 12.0], [12.0, 14.0], [], 2.0)
    second = RankTrace(
        1, 1010.5, [2], [1017.25], [1018.0], [(0, 12.25, 1015.0), (1, 14.5, 1017.0)], 3.0
    )
    schedule = merge_traces(plan, [first, second], [ClockOffset(0, 0), ClockOffset(1000.0, 0.1)])
    np.testing.assert_array_equal(schedule.start, [1.0, 2.0, 7.25])
    np.testing.assert_array_equal(schedule.finish, [2.0, 4.0, 8.0])
    np.testing.assert_array_equal(schedule.transfer_ops, [0, 1])
    np.testing.assert_array_equal(schedule.transfer_targets, [1, 1])
    np.testing.assert_array_equal(schedule.transfer_start, [2.25, 5.0])
    np.testing.assert_array_equal(schedule.transfer_finish, [5.0, 7.0])
    np.testing.assert_array_equal(schedule.peak_bytes, [2.0, 3.0])
    assert schedule.origin == "measured" and schedule.makespan == 8.0
    validate_schedule(schedule, tolerance=1.5)


def test_starts_of_transfers_are_times_of_their_sender() -> None:
    # 0 (dev 1) -> 1 (dev 0); rank 1's clock is 1000 ahead.
    graph = DataflowGraph.from_edges("back", 2, [(0, 1)], flops=np.ones(2), output_bytes=np.ones(2))
    plan = DispatchPlan(FakeWorkload(graph).problem(make_topology("cpu", 2)), [1, 0])
    first = RankTrace(0, 10.0, [1], [14.0], [15.0], [(0, 1012.5, 13.0)])
    second = RankTrace(1, 1010.0, [0], [1011.0], [1012.0])
    schedule = merge_traces(plan, [first, second], [ClockOffset(0, 0), ClockOffset(1000.0, 0.1)])
    assert (schedule.transfer_start, schedule.transfer_finish) == ([2.5], [3.0])
    assert schedule.start.tolist() == [1.0, 4.0]


def test_an_arrival_that_seems_to_be_before_its_start_is_put_there() -> None:
    plan = diamond_plan()
    first = RankTrace(0, 0.0, [0, 1], [0.0, 1.0], [1.0, 2.0])
    second = RankTrace(1, 0.0, [2], [2.5], [3.0], [(0, 1.1, 1.0), (1, 2.1, 2.25)])
    schedule = merge_traces(plan, [first, second], [ClockOffset(0, 0), ClockOffset(0, 0.2)])
    np.testing.assert_array_equal(schedule.transfer_start, [1.1, 2.1])
    np.testing.assert_array_equal(schedule.transfer_finish, [1.1, 2.25])
    assert schedule.peak_bytes is None


# Two ranks in this process, on a real gloo transport.


@pytest.fixture(scope="module")
def groups() -> list[dist.ProcessGroupGloo]:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("torch.distributed has no gloo")
    store, found = dist.HashStore(), {}
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=30)

    def join(rank: int) -> None:
        found[rank] = dist.ProcessGroupGloo(store, rank, 2, options)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[0], found[1]]


class TwoRanks:
    def __init__(self, workload: FakeWorkload, groups) -> None:
        self.workload = workload
        self.status = np.full(2, -1, np.int64)
        self.ranks = [Rank(workload, 0, group, self.status) for group in groups]
        self.problem = workload.problem(make_topology("cpu", 2))

    def run(self, devices, order=None, choose: str = "fifo"):
        plan = DispatchPlan(
            self.problem, devices, order, choose=choose, keep=self.workload.output_ops
        )
        results: SimpleQueue = SimpleQueue()
        runs = [RankRun(rank, plan, True, results.put) for rank in self.ranks]
        for run in runs:
            run.begin()
        found = [results.get(timeout=20.0)]
        if isinstance(found[0], RankTrace):
            found.append(results.get(timeout=20.0))
        return plan, sorted(found, key=lambda result: result.rank)


@pytest.fixture()
def two_ranks(groups) -> Iterator:
    made: list[TwoRanks] = []

    def make(workload: FakeWorkload) -> TwoRanks:
        made.append(TwoRanks(workload, groups))
        return made[-1]

    yield make
    for pair in made:
        for rank in pair.ranks:
            rank.stop(5.0)


def test_tensors_are_sent_once_and_dropped_after_their_last_reader(two_ranks) -> None:
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]
    graph = DataflowGraph.from_edges(
        "fan", 5, edges, flops=np.ones(5), output_bytes=np.full(5, 256.0)
    )
    pair = two_ranks(rank_workload(graph))
    plan, traces = pair.run([0, 1, 1, 0, 0])
    moved = [
        (plan.transfers[i].op, plan.transfers[i].target) for t in traces for i, _, _ in t.arrivals
    ]
    assert sorted(moved) == [(0, 1), (1, 0), (2, 0)]
    assert list(traces[0].outputs) == [4] and not traces[1].outputs
    for rank in pair.ranks:
        assert sorted(rank.memory.tensors) == [-2, -1]
    # Both tensors that rank 0 got were needed at once; rank 1's one buffer serves the next run.
    buffers = [sum(map(len, rank.memory._buffers.values())) for rank in pair.ranks]
    assert buffers == [2, 1]
    kind = (torch.Size((8, 8)), torch.float32)
    first = pair.ranks[1].memory._buffers[kind][0].data_ptr()
    pair.run([0, 1, 1, 0, 0])
    assert pair.ranks[1].memory._buffers[kind][0].data_ptr() == first
    assert pair.status.tolist() == [-1, -1]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64]
)
def test_any_shape_and_dtype_arrives_whole(two_ranks, dtype: torch.dtype) -> None:
    turned = torch.arange(9600).reshape(20, 30, 16).permute(2, 0, 1)
    edge = torch.arange(rank_run._INLINE_BYTES // dtype.itemsize)  # the largest in a header
    tensors = [turned, turned[:1, :1], torch.ones(0, 3), torch.tensor(5), edge]
    tensors.append(torch.cat([edge, torch.ones(1)]))
    tensors = [tensor.to(dtype) for tensor in tensors]
    graph = DataflowGraph.from_edges(
        "send", 12, [(op, op + 6) for op in range(6)], flops=np.ones(12), output_bytes=np.ones(12)
    )
    workload = rank_workload(graph)
    for op, tensor in enumerate(tensors):
        workload.kernels[op].run = lambda operands, tensor=tensor: tensor
        workload.kernels[op + 6].run = lambda operands: operands[1].clone()
    _, traces = two_ranks(workload).run([0] * 6 + [1] * 6)
    for op, tensor in enumerate(tensors):
        arrived = traces[1].outputs[op + 6]
        assert arrived.dtype == dtype and torch.equal(arrived, tensor)


def test_an_output_that_is_a_view_of_an_arrived_tensor_is_copied(two_ranks) -> None:
    # Op 1 (rank 1) returns what arrived from op 0; the buffer serves op 2's arrival afterwards.
    graph = DataflowGraph.from_edges(
        "view", 5, [(0, 1), (1, 3), (0, 2), (2, 3), (1, 4), (3, 4)],
        flops=np.ones(5), output_bytes=np.full(5, 256.0),
    )  # fmt: skip
    workload = rank_workload(graph)
    workload.kernels[1].run = lambda operands: operands[1]
    pair = two_ranks(workload)
    tiles = workload.make_inputs(0)
    op0 = tiles[0] + 1
    op3 = tiles[1] + 4 + op0 + (tiles[0] + 3 + op0)
    for _ in range(3):
        _, traces = pair.run([0, 1, 0, 1, 1])
        torch.testing.assert_close(traces[1].outputs[4], tiles[0] + 5 + op0 + op3)


def test_given_order_decides_among_ready_ops_and_waiting_sends(two_ranks) -> None:
    graph = DataflowGraph.from_edges(
        "wide", 12, [(op, op + 6) for op in range(6)], flops=np.ones(12), output_bytes=np.ones(12)
    )
    order = [4, 0, 5, 2, 1, 3]
    pair = two_ranks(rank_workload(graph))
    _, traces = pair.run([0] * 6 + [1] * 6, order + [o + 6 for o in order], "given")
    assert traces[0].ops == order
    assert sorted(traces[1].ops) == list(range(6, 12))


def test_a_tensor_that_cannot_be_sent_fails_with_its_op(two_ranks) -> None:
    #  0 (rank 0) -> 1 (rank 0): any shape is fine;  1 -> 2 (rank 1): 12 dimensions are too many
    graph = DataflowGraph.from_edges(
        "deep", 3, [(0, 1), (1, 2)], flops=np.ones(3), output_bytes=np.ones(3)
    )
    workload = rank_workload(graph)
    for op in (0, 1):
        workload.kernels[op].run = lambda operands: torch.ones((1,) * 12)
    pair = two_ranks(workload)
    plan = DispatchPlan(pair.problem, [0, 0, 1])
    results: SimpleQueue = SimpleQueue()
    RankRun(pair.ranks[0], plan, False, results.put).begin()
    failure = results.get(timeout=20.0)
    assert failure.kind == "transfer"
    assert (
        "rank 0), sending the output of op 1 (op_1) to device 1 (cpu1, rank 1)" in failure.message
    )
    assert "12 dimensions" in failure.message


def test_clocks_that_differ_are_aligned(groups, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = {"rank1": 1000.0}
    real = clock_module.now

    def now() -> float:
        return real() + ahead.get(threading.current_thread().name, 0.0)

    monkeypatch.setattr(clock_module, "now", now)
    other = threading.Thread(target=align_clocks, args=(groups[1],), name="rank1")
    other.start()
    offsets = align_clocks(groups[0])
    other.join()
    assert offsets is not None and offsets[0] == ClockOffset(0.0, 0.0)
    assert abs(offsets[1].seconds - 1000.0) <= offsets[1].uncertainty < 0.1
    assert offsets[1].uncertainty > 0
    ahead.clear()
    other = threading.Thread(target=align_clocks, args=(groups[1],), name="rank1")
    other.start()
    offsets = align_clocks(groups[0])
    other.join()
    assert offsets is not None and offsets[1].seconds == 0.0


# What is refused before any process starts.


def test_what_ranks_cannot_do_is_refused() -> None:
    workload = rank_workload(random_graph(6, seed=1))
    for network in ("contention_free", "one_port", "shared_bus"):
        with pytest.raises(ConfigurationError, match=f"{network} cannot be kept to.*serial_links"):
            DistributedExecutor(workload, 2, network=network)
    with pytest.raises(ConfigurationError, match="not bulk_synchronous"):
        DistributedExecutor(workload, 2, execution="bulk_synchronous")
    with pytest.raises(ConfigurationError, match="network 'bus' is unknown"):
        DistributedExecutor(workload, 2, network="bus")
    host = workload.problem(make_topology("host_staged", 2))
    with pytest.raises(ConfigurationError, match="no direct link from gpu0 to gpu1"):
        DistributedExecutor(workload, 2, problem=host)
    cpu = make_topology("cpu", 2)
    wide = replace(cpu, devices=tuple(replace(d, compute_slots=2) for d in cpu.devices))
    with pytest.raises(ConfigurationError, match="'cpu0' has 2 compute slots"):
        DistributedExecutor(workload, 2, problem=workload.problem(wide))
    with pytest.raises(ConfigurationError, match="201 processes"):
        DistributedExecutor(workload, 201)


def test_a_workload_that_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'random1' cannot be sent to other processes"):
        DistributedExecutor(FakeWorkload(random_graph(6, seed=1)), 2)


def test_a_fleet_of_another_size_is_refused() -> None:
    from doppler.executor.distributed.fleet import LocalFleet

    with pytest.raises(ConfigurationError, match="3 devices need as many processes, there are 2"):
        DistributedExecutor(rank_workload(random_graph(6, seed=1)), 3, fleet=LocalFleet(2))


def test_placed_inputs_are_refused() -> None:
    workload = rank_workload(random_graph(6, seed=1))
    plain = workload.problem(make_topology("cpu", 2))
    placed = replace(plain, inputs=(InputTensor("x", 8.0, (0, 3), 0),))
    with pytest.raises(ConfigurationError, match="place of their own run with executor=cpu"):
        DistributedExecutor(workload, 2, problem=placed)
