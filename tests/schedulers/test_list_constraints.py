"""Classical list schedulers on whole problems: validity, constraints, memory, the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology
from doppler.errors import CapacityError, InvalidProblemError
from doppler.hardware import make_topology
from doppler.problem import InputTensor
from doppler.schedule import lower_bounds
from doppler.schedulers import make_scheduler
from doppler.schedulers.lists import Etf, Heft, ListScheduler, Plan, planning_model
from doppler.schedulers.lists.ranks import optimistic_costs, upward_ranks
from doppler.schedulers.lists.timeline import KEPT, LIVE, UNLIMITED
from doppler.simulator import Simulator
from doppler.workloads.random_dags import layered_dag

NAMES = ("heft", "cpop", "peft", "etf", "dls")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def list_scheduler(name: str) -> ListScheduler:
    scheduler = make_scheduler(name)
    assert isinstance(scheduler, ListScheduler)
    return scheduler


def make_problem(
    edges: list[tuple[int, int]],
    seconds: list[list[float]] | np.ndarray,
    volumes: list[float],
    slots: tuple[int, ...] | None = None,
    memory: tuple[float, ...] | None = None,
) -> PlacementProblem:
    """A problem in seconds; with `memory`, volumes are bytes of resident memory, too."""
    size = np.shape(seconds)[1]
    devices = tuple(
        Device(
            f"d{d}",
            compute_slots=1 if slots is None else slots[d],
            memory_bytes=None if memory is None else memory[d],
        )
        for d in range(size)
    )
    links = make_topology("ideal", size).links
    known = None if memory is None else volumes
    graph = DataflowGraph.from_edges("drawn", len(seconds), edges, output_bytes=known)
    costs = CostModel(
        np.asarray(seconds, float), volumes, np.zeros(len(links)), np.ones(len(links)), "test"
    )
    return PlacementProblem(graph, Topology("drawn", devices, links), costs)


@st.composite
def problems(draw: st.DrawFn) -> PlacementProblem:
    """Unequal devices, slots and links; pins, groups and inputs."""
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    num_ops, num_devices = draw(st.integers(2, 25)), draw(st.integers(1, 4))
    edges = [(a, b) for b in range(num_ops) for a in range(b) if random.random() < 2.5 / num_ops]
    slots = tuple(int(k) for k in random.integers(1, draw(st.integers(1, 2)) + 1, num_devices))
    problem = make_problem(
        edges, random.random((num_ops, num_devices)), random.random(num_ops).tolist(), slots
    )
    links = problem.topology.num_links
    costs = replace(
        problem.cost_model,
        link_latency=random.random(links) / 4,
        link_seconds_per_unit=random.random(links) * 2,
    )
    problem = replace(problem, cost_model=costs)
    if not draw(st.booleans()):
        return problem
    colocation = np.where(random.random(num_ops) < 0.4, random.integers(0, 3, num_ops), -1)
    pinned = np.full(num_ops, -1)
    pinned[random.integers(num_ops)] = random.integers(num_devices)
    reader = int(random.integers(num_ops))
    inputs = (
        InputTensor("x", 0.5, (0, reader) if reader else (0,), int(random.integers(num_devices))),
        InputTensor("y", 0.5, (reader,), "first_consumer"),
    )
    problem = replace(problem, pinned=pinned, colocation=colocation, inputs=inputs)
    return problem.with_explicit_inputs()


def check_plan(problem: PlacementProblem, plan: Plan) -> None:
    """Precedence with communication, no more ops at a time than slots, constraints, order."""
    close = 1e-9
    problem.check_placement(plan.devices)
    seconds = problem.cost_model.op_seconds[np.arange(problem.num_ops), plan.devices]
    np.testing.assert_allclose(plan.finish, plan.start + seconds, atol=close)
    for a, b in problem.graph.edges.tolist():
        arrival = plan.finish[a] + problem.transfer_seconds(a, plan.devices[a], plan.devices[b])
        assert plan.start[b] >= arrival - close
    for device, slots in enumerate(problem.topology.compute_slots):
        ops = np.flatnonzero((plan.devices == device) & ~problem.is_input_op)
        for op in ops:
            at_once = (plan.start[ops] <= plan.start[op] + close) & (
                plan.finish[ops] > plan.start[op] + 2 * close
            )
            assert at_once.sum() <= slots
    assert (plan.start[problem.is_input_op] == 0).all()
    position = np.argsort(problem.check_order(plan.order))
    assert (position[problem.graph.edges[:, 0]] < position[problem.graph.edges[:, 1]]).all()
    assert (np.diff(plan.start[plan.order]) >= 0).all()
    assert plan.makespan >= lower_bounds(problem).best * (1 - close)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_plans_are_valid(name: str, problem: PlacementProblem) -> None:
    check_plan(problem, list_scheduler(name).plan(planning_model(problem)))


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_etf_plans_are_what_the_simulator_does(problem: PlacementProblem) -> None:
    # No device idles in such a plan while an op of its own could start, so a simulator that chooses
    # by the planned order repeats it. The others wait for urgent ops, and nothing is guaranteed.
    simulator = Simulator(problem, network="contention_free", choose="given")
    placement = Etf().schedule(problem, simulator, rng())
    assert placement.info["simulated_makespan"] == pytest.approx(placement.info["planned_makespan"])


@pytest.mark.parametrize("name", NAMES)
def test_proposals_report_the_planned_makespan(name: str) -> None:
    problem = layered_dag(300, 4, seed=2)
    simulator = Simulator(problem)
    placement = make_scheduler(name).schedule(problem, simulator, rng())
    plan = list_scheduler(name).plan(planning_model(problem))
    assert placement.info["planned_makespan"] == plan.makespan
    assert placement.info["evaluations"] == 1
    assert placement.info["simulated_makespan"] == simulator.makespan(placement)
    assert placement.devices.tolist() == plan.devices.tolist()
    assert placement.order.tolist() == plan.order.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_compute_slots_run_ops_side_by_side(name: str) -> None:
    # Three ops of a second; device 0 runs two of them at once, device 1 is slow
    problem = make_problem([], [[1.0, 9.0]] * 3, [0.0] * 3, (2, 1))
    plan = list_scheduler(name).plan(planning_model(problem))
    if name != "etf":  # which would rather start at once on the slow one
        assert plan.devices.tolist() == [0, 0, 0] and sorted(plan.start) == [0, 0, 1]
    else:
        assert plan.devices.tolist() == [0, 0, 1] and plan.start.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_op_of_a_group_decides_unless_one_is_pinned(name: str) -> None:
    # Device 0 is faster for all; 0 -> 1 -> 2; 0 and 2 are a group, 2 is pinned or not
    problem = make_problem([(0, 1), (1, 2)], [[1.0, 2.0]] * 3, [0.1] * 3)
    grouped = replace(problem, colocation=[5, -1, 5])
    plan = list_scheduler(name).plan(planning_model(grouped))
    assert plan.devices.tolist() == [0, 0, 0]
    pinned = replace(grouped, pinned=[-1, -1, 1])
    plan = list_scheduler(name).plan(planning_model(pinned))
    assert plan.devices[[0, 2]].tolist() == [1, 1]
    check_plan(pinned, plan)


def test_a_group_on_the_critical_path_is_decided_with_it() -> None:
    # 1 -> 2 is the critical path, faster on device 0; 2 needs 0, too, which is planned before it.
    # 0 alone would go to device 1, where it is faster; but it is of 2's group
    seconds = [[2.0, 1.0], [5.0, 6.0], [5.0, 6.0]]
    problem = make_problem([(0, 2), (1, 2)], seconds, [0.0] * 3)
    free = list_scheduler("cpop").plan(planning_model(problem))
    assert free.devices.tolist() == [1, 0, 0]
    grouped = replace(problem, colocation=[4, -1, 4])
    plan = list_scheduler("cpop").plan(planning_model(grouped))
    assert plan.devices.tolist() == [0, 0, 0]


def test_pins_count_in_levels() -> None:
    # 0 --1--> 1, which is pinned to device 0, where it takes 5 s
    problem = make_problem([(0, 1)], [[2.0, 4.0], [5.0, 1.0]], [1.0, 0.0])
    model = planning_model(replace(problem, pinned=[-1, 0]))
    assert upward_ranks(model).tolist() == [3 + 1 + 5, 5]
    assert optimistic_costs(model).tolist() == [[5, 6], [0, 0]]
    free = planning_model(problem)
    assert upward_ranks(free).tolist() == [3 + 1 + 3, 3]
    assert optimistic_costs(free).tolist() == [[2, 1], [0, 0]]


def test_an_input_that_a_later_consumer_takes_along_moves_its_group() -> None:
    # y is with 0, its first reader, but 1 is planned before 0, on device 1, and y with it. Then
    # 0 may not stay where it would have gone
    problem = replace(
        make_problem([], [[4.0, 5.0], [9.0, 6.0]], [0.0, 0.0]),
        inputs=(InputTensor("y", 3.0, (0, 1), "first_consumer"),),
    ).with_explicit_inputs()
    for name in ("heft", "cpop", "etf", "dls"):  # PEFT has no cost after them and plans 0 first
        plan = list_scheduler(name).plan(planning_model(problem))
        assert plan.devices.tolist() == [1, 1, 1], name
        check_plan(problem, plan)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_take_neither_time_nor_slot(name: str) -> None:
    # x lies on device 1 and takes 3 s to move; y follows its reader
    problem = replace(
        make_problem([], [[4.0, 5.0], [4.0, 5.0]], [0.0, 0.0]),
        inputs=(InputTensor("x", 3.0, (0,), 1), InputTensor("y", 3.0, (1,), "first_consumer")),
    ).with_explicit_inputs()
    plan = list_scheduler(name).plan(planning_model(problem))
    if name == "cpop":
        # x and 0 are the critical path, which is faster on device 0: from 3 to 7. 1 with y on 1
        assert plan.devices.tolist() == [0, 1, 1, 1] and plan.start.tolist() == [3, 0, 0, 0]
        return
    # 0 beside x: from 0 to 5 on device 1, not from 3 to 7; then 1 with y on device 0
    assert plan.devices.tolist() == [1, 0, 1, 0]
    assert plan.start.tolist() == [0, 0, 0, 0] and plan.makespan == 5


def test_implicit_inputs_are_refused() -> None:
    problem = replace(
        make_problem([], [[1.0, 1.0]], [0.0]), inputs=(InputTensor("x", 3.0, (0,), 1),)
    )
    with pytest.raises(InvalidProblemError, match="with_explicit_inputs"):
        planning_model(problem)


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_looked_at_where_the_plan_does_not_fit(name: str) -> None:
    # Three outputs of 4 B for ever; by time all go on device 0, which holds two of them
    problem = make_problem([], [[1.0, 9.0]] * 3, [4.0] * 3, memory=(10, 10))
    simulator = Simulator(problem)
    placement = make_scheduler(name).schedule(problem, simulator, rng())
    assert sorted(placement.devices.tolist()) == [0, 0, 1]
    assert placement.info["evaluations"] == (1 if name == "etf" else 2)
    ample = replace(problem, topology=replace_memory(problem.topology, 12.0))
    assert not planning_model(ample).memory_is_tight
    scarce = replace(problem, topology=replace_memory(problem.topology, 5.0))
    with pytest.raises(CapacityError, match="device"):
        make_scheduler(name).schedule(scarce, Simulator(scarce), rng())


def replace_memory(topology: Topology, capacity: float) -> Topology:
    devices = tuple(replace(device, memory_bytes=capacity) for device in topology.devices)
    return replace(topology, devices=devices)


def test_a_group_that_would_not_fit_later_goes_elsewhere_at_last() -> None:
    # Ops 0 and 1 are a group of 8 B; device 0 is faster and holds 7. Counting what is planned, op 0
    # fits there and op 1 must follow; only room for the whole group sends both to device 1.
    problem = make_problem([], [[1.0, 9.0]] * 2, [4.0] * 2, memory=(7, 20))
    problem = replace(problem, colocation=[0, 0])
    model = planning_model(problem)
    assert [Heft().plan(model, m).devices[0] for m in (UNLIMITED, LIVE, KEPT)] == [0, 0, 1]
    placement = Heft().schedule(problem, Simulator(problem), rng())
    assert placement.devices.tolist() == [1, 1] and placement.info["evaluations"] == 3


@pytest.mark.parametrize("name", NAMES)
def test_what_counts_as_resident(name: str) -> None:
    # 0 -> 1 -> 2 -> 3, 4 B each; device 0 is much faster and holds two outputs. Live: all there.
    # Kept: 0 and 1 there, then 2 with a copy of 1, and 3, on device 1.
    chain = [(0, 1), (1, 2), (2, 3)]
    problem = make_problem(chain, [[1.0, 9.0]] * 4, [4.0] * 4, memory=(9, 99))
    model = planning_model(problem)
    scheduler = list_scheduler(name)
    assert scheduler.plan(model, LIVE).devices.tolist() == [0, 0, 0, 0]
    assert scheduler.plan(model, KEPT).devices.tolist() == [0, 0, 1, 1]
    # Copies count: beside its copy of 0, op 1 fits on the much faster device 1 if that holds 8
    if name == "etf":  # which stays where it starts first
        return
    for capacity, device in ((8, 1), (7, 0)):
        pair = make_problem([(0, 1)], [[1.0, 9.0], [9.0, 1.0]], [4.0] * 2, memory=(9, capacity))
        model = planning_model(replace(pair, pinned=[0, -1]))
        for memory in (LIVE, KEPT):
            assert scheduler.plan(model, memory).devices.tolist() == [0, device]


@pytest.mark.parametrize("memory", [LIVE, KEPT])
def test_an_input_that_comes_along_needs_room(memory: int) -> None:
    # y and its reader, 4 B each: on the fast device 0 if that holds both
    for capacity, device in ((8, 0), (7, 1)):
        problem = replace(
            make_problem([], [[1.0, 9.0]], [4.0], memory=(capacity, 99)),
            inputs=(InputTensor("y", 4.0, (0,), "first_consumer"),),
        ).with_explicit_inputs()
        plan = Heft().plan(planning_model(problem), memory)
        assert plan.devices.tolist() == [device, device]
