"""Dispatching ahead, driven by a fake clock: devices are queues that run in order."""

from __future__ import annotations

from dataclasses import replace

import executor_fakes
import numpy as np
import pytest
from executor_fakes import random_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.errors import CapacityError
from doppler.executor.cuda.ahead import AheadDispatcher
from doppler.executor.plan import DispatchPlan
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule
from doppler.simulator import CHOOSE_RULES, NETWORKS, Simulator


def drive(plan: DispatchPlan, depth: int) -> tuple[Schedule, AheadDispatcher]:
    """Runs a plan on queues that lose no time, with the cost model's durations."""
    dispatcher = AheadDispatcher(plan, depth)
    ops, hops = executor_fakes.drive(dispatcher, depth)
    assert dispatcher.done
    start, finish = np.array([ops[op] for op in range(plan.num_ops)]).T
    return plan.schedule(start, finish, hops, "simulated", dispatcher.peak_bytes), dispatcher


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("choose", CHOOSE_RULES)
@pytest.mark.parametrize("execution", ["work_conserving", "bulk_synchronous"])
def test_depth_one_makes_the_schedule_of_the_simulator(
    network: str, choose: str, execution: str
) -> None:
    for seed in range(6):
        problem = random_problem(seed, ("v100", "host_staged")[seed % 2], 2 + seed % 3)
        rng = np.random.default_rng(100 + seed)
        devices = rng.integers(0, problem.num_devices, problem.num_ops)
        order = rng.permutation(problem.num_ops)
        options = {"network": network, "choose": choose, "seed": seed, "execution": execution}
        expected = Simulator(problem, **options).run(devices, order)
        schedule, dispatcher = drive(DispatchPlan(problem, devices, order, **options), depth=1)
        assert schedule.start.tolist() == expected.start.tolist()
        assert schedule.finish.tolist() == expected.finish.tolist()
        assert schedule.transfer_finish.sum() == expected.transfer_finish.sum()
        np.testing.assert_array_equal(dispatcher.peak_bytes, expected.peak_bytes)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    depth=st.integers(2, 5),
    choose=st.sampled_from(CHOOSE_RULES),
    topology=st.sampled_from(["v100", "host_staged"]),
    execution=st.sampled_from(["work_conserving", "bulk_synchronous"]),
)
def test_at_any_depth_no_device_idles_beside_a_ready_op(
    seed: int, depth: int, choose: str, topology: str, execution: str
) -> None:
    problem = random_problem(seed, topology, 3)
    rng = np.random.default_rng(seed)
    plan = DispatchPlan(
        problem,
        rng.integers(0, 3, problem.num_ops),
        rng.permutation(problem.num_ops),
        choose=choose,
        execution=execution,
    )
    schedule, dispatcher = drive(plan, depth)
    schedule.validate()  # among the rest: an op handed out early is never in the way of another
    assert sorted(dispatcher.released) == sorted(
        copy for copy, uses in enumerate(plan.uses) if uses
    )


def fork(nbytes: float = 1.0, capacity: float | None = None) -> PlacementProblem:
    """Device 0 computes ops 0, 1, 4 and 3; op 2 on device 1 sends to op 3 at time 5, within 1 s.

    0 (10 s) ─┬─> 1 (10 s)
              └─> 4 (10 s)
    2 (5 s, device 1) ──> 3 (10 s)
    """
    graph = DataflowGraph.from_edges(
        "fork", 5, [(0, 1), (0, 4), (2, 3)], flops=np.ones(5), output_bytes=np.full(5, nbytes)
    )
    topology = make_topology("ideal", 2)
    if capacity is not None:
        devices = tuple(replace(device, memory_bytes=capacity) for device in topology.devices)
        topology = replace(topology, devices=devices)
    seconds = np.array([10.0, 10.0, 5.0, 10.0, 10.0])
    costs = CostModel(
        op_seconds=np.stack([seconds, seconds], axis=1),
        transfer_volume=np.ones(5),
        link_latency=np.zeros(2),
        link_seconds_per_unit=np.ones(2),
        source="test",
    )
    return PlacementProblem(graph, topology, costs)


@pytest.mark.parametrize(
    ("depth", "order"),
    [
        (1, [0, 3, 1, 4]),  # op 3 is ready at 6 s, ops 1 and 4 at 10 s
        (2, [0, 1, 3, 4]),  # op 1 is queued at 0 s; then one that is ready goes first
        (3, [0, 1, 4, 3]),
    ],
)
def test_ready_ops_go_before_those_that_count_on_others(depth: int, order: list[int]) -> None:
    plan = DispatchPlan(fork(), [0, 0, 1, 0, 0])
    schedule, _ = drive(plan, depth)
    on_first = np.array([0, 1, 3, 4])
    assert on_first[np.argsort(schedule.start[on_first])].tolist() == order
    assert schedule.makespan == 40.0


def uniform(edges: list[tuple[int, int]], seconds: list[float]) -> PlacementProblem:
    """Two devices and transfers of 1 s."""
    graph = DataflowGraph.from_edges("uniform", len(seconds), edges)
    costs = CostModel(
        op_seconds=np.stack([seconds, seconds], axis=1),
        transfer_volume=np.ones(len(seconds)),
        link_latency=np.zeros(2),
        link_seconds_per_unit=np.ones(2),
        source="test",
    )
    return PlacementProblem(graph, make_topology("ideal", 2), costs)


def test_those_that_count_on_others_go_in_the_order_of_these() -> None:
    # Device 0: ops 0 and 1 are ready; op 2 needs op 1 (at 20 s), op 3 needs op 0 (at 10 s).
    problem = uniform([(1, 2), (0, 3)], [10.0] * 4)
    schedule, _ = drive(DispatchPlan(problem, [0] * 4), 3)
    assert schedule.start.tolist() == [0.0, 10.0, 30.0, 20.0]


def test_an_arrival_does_not_make_ready_what_still_counts_on_others() -> None:
    # Device 0: op 0 runs to 10 s, op 1 is queued. Op 2 sends to op 4 (6 s), which also needs op 0;
    # op 3 sends to op 5 (7 s). So op 5 is ready at 7 s and op 4 at 10 s.
    problem = uniform([(0, 4), (2, 4), (3, 5)], [10.0, 10.0, 5.0, 1.0, 10.0, 10.0])
    schedule, _ = drive(DispatchPlan(problem, [0, 0, 1, 1, 0, 0]), 2)
    assert schedule.start.tolist() == [0.0, 10.0, 0.0, 5.0, 30.0, 20.0]


def test_a_more_urgent_op_goes_first_although_it_counts_on_others() -> None:
    order = np.array([2, 0, 4, 1, 3])
    schedule, _ = drive(DispatchPlan(fork(), [0, 0, 1, 0, 0], order, choose="given"), 2)
    assert schedule.start[[0, 4, 1, 3]].tolist() == [0.0, 10.0, 20.0, 30.0]


def test_what_would_not_fit_waits_until_its_device_is_idle() -> None:
    chain = DataflowGraph.from_edges(
        "chain", 4, [(0, 1), (1, 2), (2, 3)], flops=np.ones(4), output_bytes=np.full(4, 10.0)
    )
    topology = make_topology("ideal", 1)
    tight = replace(topology, devices=(replace(topology.devices[0], memory_bytes=20.0),))
    costs = CostModel(
        op_seconds=np.ones((4, 1)),
        transfer_volume=np.ones(4),
        link_latency=np.zeros(0),
        link_seconds_per_unit=np.zeros(0),
        source="test",
    )
    plan = DispatchPlan(PlacementProblem(chain, tight, costs), [0] * 4)
    assert [task.op for task in AheadDispatcher(plan, 3).begin(0.0)] == [0, 1]  # just fit
    schedule, dispatcher = drive(plan, 3)
    assert schedule.makespan == 4.0
    assert dispatcher.peak_bytes.tolist() == [20.0]
    roomy = DispatchPlan(PlacementProblem(chain, topology, costs), [0] * 4)
    assert drive(roomy, 3)[1].peak_bytes.tolist() == [40.0]  # at 1 s, when op 3 joins
    small = replace(topology, devices=(replace(topology.devices[0], memory_bytes=19.0),))
    with pytest.raises(CapacityError, match=r"op 1 \(op_1\)"):
        drive(DispatchPlan(PlacementProblem(chain, small, costs), [0] * 4), 3)
