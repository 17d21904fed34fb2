"""Idle time by cause and the critical chain: worked out by hand, then on random runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Schedule, Topology
from doppler.errors import ScheduleError
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator import CHOOSE_RULES, NETWORKS, Simulator
from tests.simulator.simulator_strategies import Case, cases


def problem_of(
    seconds: list[float],
    edges: list[tuple[int, int]],
    volumes: list[float],
    slots: tuple[int, ...] = (1, 1),
    host: bool = False,
) -> PlacementProblem:
    """Equal devices, one second per unit of volume and link, direct or through a host."""
    num_devices = len(slots)
    if host:
        ends = [(d, num_devices) for d in range(num_devices)]
        ends += [(num_devices, d) for d in range(num_devices)]
    else:
        ends = [(s, d) for s in range(num_devices) for d in range(num_devices) if s != d]
    topology = Topology(
        "by hand",
        tuple(Device(f"d{d}", compute_slots=slots[d]) for d in range(num_devices)),
        tuple(Link(s, d, 1.0) for s, d in ends),
        ("host",) if host else (),
    )
    costs = CostModel(
        np.repeat(np.array(seconds, float)[:, None], num_devices, axis=1),
        np.array(volumes, float),
        np.zeros(len(ends)),
        np.ones(len(ends)),
        "by hand",
    )
    graph = DataflowGraph.from_edges("by hand", len(seconds), edges)
    return PlacementProblem(graph, topology, costs)


def queueing_run() -> Schedule:
    """
    0:d0(2) --(2)--> 2:d1(1)         d0 makes two tensors, which queue for the link to d1; op 3
    1:d0(1) --(3)--> 3:d1(2)         finishes last; then d0 has nothing left.

    d0      [0 0 | 1 ]. . . . . . .          0-2, 2-3, nothing left 3-9
    d1       . . . . [2 ]. . [3 3 ]          input 0-2, transfer 2-4, op 2 4-5, transfer 5-7, 3 7-9
    link         [0 0 |1 1 1 ]               2-4, queued from 3: 4-7
    """
    problem = problem_of([2, 1, 1, 2], [(0, 2), (1, 3)], [2, 3, 0, 0])
    schedule = Simulator(problem).run([0, 0, 1, 1])
    assert schedule.start.tolist() == [0, 2, 4, 7]
    assert schedule.transfer_start.tolist() == [2, 4]
    return schedule


def test_idle_time_by_cause_by_hand() -> None:
    idle = queueing_run().idle_time()
    assert idle.busy.tolist() == [3, 3]
    assert idle.waiting_for_input.tolist() == [0, 2]
    assert idle.waiting_for_transfer.tolist() == [0, 4]
    assert idle.held_back.tolist() == [0, 0]
    assert idle.nothing_left.tolist() == [6, 0]
    assert idle.idle.tolist() == [6, 6]
    assert idle.total.tolist() == [9, 9]


def test_slots_wait_one_op_each() -> None:
    """
    0:d0(3) ----> 1:d1(1)     d1 has three slots and two ops: op 2 runs 0-1, one slot waits for op
                  2:d1(1)     0 until 3 and for its tensor until 4, one has never anything to do.

    Makespan 5; d1: busy 2, input 3, transfer 1; nothing left 5, and 4 after op 2: 15 in all.
    """
    problem = problem_of([3, 1, 1], [(0, 1)], [1, 0, 0], slots=(1, 3))
    schedule = Simulator(problem).run([0, 1, 1])
    assert schedule.finish.tolist() == [3, 5, 1]
    idle = schedule.idle_time()
    assert idle.busy.tolist() == [3, 2]
    assert idle.waiting_for_input.tolist() == [0, 3]
    assert idle.waiting_for_transfer.tolist() == [0, 1]
    assert idle.nothing_left.tolist() == [2, 9]
    assert idle.total.tolist() == [5, 15]


def test_time_beside_a_ready_op_is_held_back() -> None:
    """Op 2 could have run from 4 and op 3 from 7; both start half a second late."""
    schedule = queueing_run()
    late = np.array([0, 0, 0.5, 0.5])
    held = replace(
        schedule, start=schedule.start + late, finish=schedule.finish + late, origin="measured"
    )
    idle = held.idle_time()
    assert idle.held_back.tolist() == [0, 1]
    assert idle.waiting_for_transfer.tolist() == [0, 3.5]
    assert idle.total.tolist() == [9.5, 9.5]
    chain = held.critical_chain()
    assert [step.delay for step in chain] == [0, 0, 0, 0.5]


def named(schedule: Schedule) -> list[tuple[str, int, str]]:
    return [(step.kind, step.index, step.reason) for step in schedule.critical_chain()]


def test_a_chain_through_a_link_by_hand() -> None:
    """Op 3 waits for its tensor, that waited for the link, that waited for op 0."""
    assert named(queueing_run()) == [
        ("op", 0, "begin"), ("hop", 0, "input"), ("hop", 1, "link"), ("op", 3, "input"),
    ]  # fmt: skip


def test_a_chain_through_a_device_and_a_host_by_hand() -> None:
    """
    0:d0(1) --(1)--> 2:d1(1)     Tensors go up to the host and down. 1 waits for d0 until 1.
    1:d0(3) --(1)--> 2

    d0 [0 |1 1 1 ]   tensor 0 up 1-2, down 2-3; tensor 1 up 4-5, down 5-6; op 2 6-7.
    """
    problem = problem_of([1, 3, 1], [(0, 2), (1, 2)], [1, 1, 0], host=True)
    schedule = Simulator(problem).run([0, 0, 1])
    assert schedule.makespan == 7
    assert named(schedule) == [
        ("op", 0, "begin"), ("op", 1, "device"), ("hop", 2, "input"), ("hop", 3, "input"),
        ("op", 2, "input"),
    ]  # fmt: skip


def test_ports_are_waited_for_under_one_port() -> None:
    """
    0:d0(1) --(2)--> 1:d1(1)     d0 sends to d1 1-3, then to d2 3-5; under serial_links both 1-3.
            --(2)--> 2:d2(1)
    """
    problem = problem_of([1, 1, 1], [(0, 1), (0, 2)], [2, 0, 0], slots=(1, 1, 1))
    ported = Simulator(problem, "one_port").run([0, 1, 2])
    assert named(ported) == [
        ("op", 0, "begin"), ("hop", 0, "input"), ("hop", 1, "link"), ("op", 2, "input"),
    ]  # fmt: skip
    serial = Simulator(problem).run([0, 1, 2])
    assert named(serial) == [("op", 0, "begin"), ("hop", 0, "input"), ("op", 1, "input")]


def test_an_input_counts_before_a_device_that_is_free_at_the_same_instant() -> None:
    """
    0:d0(2) --(1)--> 2:d1(1)     d1 runs op 1 until 3, when the tensor arrives.
    1:d1(3)
    """
    problem = problem_of([2, 3, 1], [(0, 2)], [1, 0, 0])
    schedule = Simulator(problem).run([0, 1, 1])
    assert schedule.start.tolist() == [0, 0, 3]
    assert named(schedule) == [("op", 0, "begin"), ("hop", 0, "input"), ("op", 2, "input")]


def test_measured_clocks_may_disagree() -> None:
    """
    0:d0(2) ----> 1:d1(1)     The tensor is said to be sent at 2 and to arrive at 2; op 1 started at
                              1.75 by its own clock: d1 waits 1.75 s for an input, for nothing else.
    """
    problem = problem_of([2, 1], [(0, 1)], [0, 0])
    exact = Simulator(problem).run([0, 1])
    early = np.array([0, 0.25])
    schedule = replace(exact, start=exact.start - early, finish=exact.finish - early)
    idle = schedule.idle_time()
    assert idle.waiting_for_input.tolist() == [0, 1.75]
    assert idle.total.tolist() == [2.75, 2.75]
    assert [step.delay for step in schedule.critical_chain()] == [0, 0, -0.25]
    # Two ops of no length on one device, the producer after its consumer by some nanoseconds.
    local = problem_of([1, 0, 0], [(0, 1), (1, 2)], [0, 0, 0])
    swapped = replace(
        Simulator(local).run([0, 0, 0]),
        start=np.array([0, 1 + 2e-9, 1 + 1e-9]),
        finish=np.array([1, 1 + 2e-9, 1 + 1e-9]),
        origin="measured",
    )
    assert [(step.kind, step.index) for step in swapped.critical_chain()] == [("op", 2), ("op", 1)]


def test_barriers_hold_back_and_are_on_the_chain() -> None:
    """
    0:d0(1) ----> 2:d0(1)     level 0 ends when op 1 does, at 3; its tensor is on d0 at 5; then 2
    1:d1(3) --(2)--> 3:d0(1)  and 3 run. d0 is held back by op 2 from 1 to 5.
    """
    problem = problem_of([1, 3, 1, 1], [(0, 2), (1, 3)], [0, 2, 0, 0])
    schedule = Simulator(problem, execution="bulk_synchronous").run([0, 1, 0, 0])
    assert schedule.start.tolist() == [0, 0, 5, 6]
    idle = schedule.idle_time()
    assert idle.busy.tolist() == [3, 3]
    assert idle.held_back.tolist() == [4, 0]
    assert idle.nothing_left.tolist() == [0, 4]
    assert named(schedule) == [
        ("op", 1, "begin"), ("hop", 0, "input"), ("op", 2, "barrier"), ("op", 3, "device"),
    ]  # fmt: skip


def test_validate_is_the_checker() -> None:
    schedule = queueing_run()
    schedule.validate()
    late = replace(schedule, start=schedule.start + 0.5, finish=schedule.finish + 0.5)
    late.validate(tolerance=0.6)
    with pytest.raises(ScheduleError, match="before the tensor is there"):
        late.validate()


@given(
    case=cases(max_ops=14),
    network=st.sampled_from(NETWORKS),
    choose=st.sampled_from(CHOOSE_RULES),
    execution=st.sampled_from(EXECUTIONS),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_causes_add_up_and_chains_have_no_gap(
    case: Case, network: str, choose: str, execution: str
) -> None:
    simulator = Simulator(case.problem, network, choose, noise=case.noise, execution=execution)
    schedule = simulator.run(case.devices, case.order)
    makespan, slots = schedule.makespan, case.problem.topology.compute_slots
    idle = schedule.idle_time()
    busy = np.bincount(case.devices, weights=schedule.finish - schedule.start, minlength=len(slots))
    assert np.allclose(idle.busy, busy, rtol=1e-12, atol=1e-12)
    assert np.allclose(idle.total, makespan * slots, rtol=1e-12, atol=1e-12)
    assert (np.array([idle.waiting_for_input, idle.waiting_for_transfer]) >= 0).all()
    if execution == "work_conserving":
        assert (idle.held_back <= 1e-12).all()

    chain = schedule.critical_chain()
    assert chain[0].reason == "begin"
    assert chain[0].start == 0
    assert chain[-1].kind == "op"
    assert chain[-1].finish == makespan
    assert all(step.delay == 0 for step in chain)
    assert sum(s.finish - s.start for s in chain) == pytest.approx(makespan, rel=1e-12)
    assert len({(step.kind, step.index) for step in chain}) == len(chain)
