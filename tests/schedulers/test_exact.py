"""Exact schedulers against hand-computed cases, against each other and against known makespans."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from exact_problems import QUICK, drawn, host_staged, over, random_problem, rng, waiting_pays

from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology
from doppler.errors import CapacityError, ConfigurationError
from doppler.hardware import make_topology
from doppler.schedule import Placement, lower_bounds
from doppler.schedulers import make_scheduler
from doppler.schedulers.exact import (
    CpSat,
    Exhaustive,
    find_optima,
    solve,
)
from doppler.schedulers.exact.symmetry import identical_devices
from doppler.schedulers.exact.ticks import to_ticks
from doppler.schedulers.exact.windows import heads_and_tails, window_bound
from doppler.simulator import NETWORKS, Simulator


@pytest.mark.parametrize("network", NETWORKS)
def test_a_case_in_which_waiting_pays(network: str) -> None:
    problem = waiting_pays()
    optima = find_optima(problem, network)
    assert (optima.free_makespan, optima.makespan) == (12.0, 21.0)
    simulator = Simulator(problem, network, "given")
    found = CpSat().schedule(problem, simulator, rng()).info
    assert found["optimum"] == "optimal" and found["gap"] == 0
    assert found["free_makespan"] == found["bound"] == 12.0
    assert found["work_conserving_makespan"] == found["simulated_makespan"] == 21.0
    assert found["work_conserving_gap"] == pytest.approx(1 - 12 / 21)
    assert found["planned_start"] == [0, 2, 1, 2]
    listed = Exhaustive().schedule(problem, simulator, rng()).info
    assert listed["optimum"] == "optimal" and listed["free_makespan"] == 12.0
    assert listed["work_conserving_makespan"] == listed["simulated_makespan"] == 21.0


def test_a_link_carries_one_tensor_at_a_time() -> None:
    """Ops 0, 1 on device 0 feed 2, 3 on device 1; every tensor takes 4 s, every op 1 s.

    dev 0  0 1          contention_free: 3 starts at 2 + 4 = 6 and ends at 7
    link     0------ 1------     serial: 3 waits for its tensor until 1 + 4 + 4 = 9
    dev 1           2       3
           0 1 2    5 6     9 10
    """
    problem = drawn([(0, 2), (1, 3)], [1, 1, 1, 1], 4.0, pinned=[0, 0, 1, 1])
    for network, expected in [("contention_free", 7), ("serial_links", 10), ("one_port", 10)]:
        result = solve(problem, network, QUICK)
        assert result.optimal and result.makespan == expected
        assert find_optima(problem, network).free_makespan == expected


def test_a_tensor_moves_once_per_destination() -> None:
    # Op 0 on device 0 feeds 1 and 2 on device 1: one transfer of 3 s, then both ops: 1 + 3 + 1 + 1
    problem = drawn([(0, 1), (0, 2)], [1, 1, 1], 3.0, pinned=[0, 1, 1])
    result = solve(problem, "serial_links", QUICK)
    assert result.optimal and result.makespan == 6
    assert result.schedule is not None and result.schedule.num_transfers == 1


def test_hops_of_a_route_occupy_their_links_one_after_another() -> None:
    """Two tensors of 2 s over two hops of a route, both ready at 1 on device 0 of two slots.

    hop 1  0--- 1---       serial_links: the second arrives at 1 + 3 * 2 = 7
    hop 2       0--- 1---  shared_bus, one hop at a time: at 1 + 4 * 2 = 9
           1    3    5   7
    """
    pins = [0, 0, 1, 1]
    problem = over(host_staged(2), drawn([(0, 2), (1, 3)], [1] * 4, 2.0, pinned=pins))
    for network, expected in [("contention_free", 6), ("serial_links", 8), ("shared_bus", 10)]:
        result = solve(problem, network, QUICK)
        assert result.optimal and result.makespan == expected, network
        assert find_optima(problem, network).free_makespan == expected, network


def test_tasks_without_duration() -> None:
    # 0 and 1 end at 1 on a device each; their tensors cross in no time; 2 and 3 follow at once
    problem = drawn([(0, 2), (1, 3)], [1, 1, 1, 1], 0.0, pinned=[0, 1, 1, 0])
    for network in NETWORKS:
        assert find_optima(problem, network).free_makespan == 2
        assert solve(problem, network, QUICK).makespan == 2
    nothing = drawn([(0, 1), (1, 2)], [0, 0, 0], 0.0)
    result = solve(nothing, "serial_links", QUICK)
    assert result.optimal and result.makespan == 0 and result.gap == 0
    assert find_optima(nothing, "serial_links").free_makespan == 0


@pytest.mark.parametrize("listed", [True, False])
def test_slots_run_several_ops_at_a_time(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not listed:  # the models alone
        monkeypatch.setattr(
            "doppler.schedulers.exact.solver._Search._list_schedules", lambda _: None
        )
    # Five ops of 2 s on two devices of two slots, free communication: two rounds of 2 s
    topology = host_staged(2)
    problem = over(topology, drawn([], [2.0] * 5))
    result = solve(problem, "serial_links", QUICK)
    assert result.optimal and result.makespan == 4
    assert find_optima(problem, "serial_links").free_makespan == 4
    pinned = replace(problem, pinned=[0] * 5)  # three rounds on one device
    assert solve(pinned, "serial_links", QUICK).makespan == 6
    assert find_optima(pinned, "serial_links").free_makespan == 6


def with_memory(capacity: float) -> PlacementProblem:
    """0 -> 1 and 2 -> 3, outputs of 8 B, on two devices; tensors move in no time."""
    graph = DataflowGraph.from_edges("fat", 4, [(0, 1), (2, 3)], output_bytes=[8.0] * 4)
    links = make_topology("ideal", 2).links
    devices = tuple(Device(name, memory_bytes=capacity) for name in "ab")
    costs = CostModel(np.ones((4, 2)), np.zeros(4), np.zeros(2), np.zeros(2), "test")
    return PlacementProblem(graph, Topology("small", devices, links), costs)


def test_memory_limits_the_placement() -> None:
    """Final outputs stay: a device of 16 B holds the two tensors of one chain, and no third."""
    simulator = Simulator(with_memory(16.0), choose="given")
    placement = CpSat().schedule(simulator.problem, simulator, rng())
    assert placement.info["optimum"] == "optimal"
    assert placement.info["free_makespan"] == placement.info["simulated_makespan"] == 2.0
    assert placement.devices[0] != placement.devices[2]
    assert placement.devices[1] != placement.devices[3]
    tight = with_memory(15.0)  # an op's input and output never fit together on a device
    with pytest.raises(CapacityError, match="proven"):
        CpSat().schedule(tight, Simulator(tight), rng())
    with pytest.raises(CapacityError, match="placements fits"):
        Exhaustive().schedule(tight, Simulator(tight), rng())


def test_memory_may_make_a_schedule_longer() -> None:
    """On one device of 24 B two chains of two ops, whose final outputs of 2 B stay.

    Both heads of 12 B at once fit, but then there is no room for the output of either tail:
    12 + 12 + 2 > 24. On two slots the chains run one after the other, 4 s instead of 2. With 26 B
    the second tail waits until the first has freed its head: 3 s.
    """
    graph = DataflowGraph.from_edges(
        "heads", 4, [(0, 1), (2, 3)], output_bytes=[12.0, 2.0, 12.0, 2.0]
    )
    costs = CostModel(np.ones((4, 1)), np.zeros(4), [], [], "test")
    for capacity, expected in [(28.0, 2.0), (26.5, 3.0), (24.0, 4.0), (14.0, np.inf)]:
        device = Device("a", memory_bytes=capacity, compute_slots=2)
        problem = PlacementProblem(graph, Topology("one", (device,)), costs)
        if np.isinf(expected):
            with pytest.raises(CapacityError):
                solve(problem, "serial_links", QUICK)
            continue
        result = solve(problem, "serial_links", QUICK)
        assert result.optimal and result.makespan == expected
        assert result.schedule is not None
        assert max(held.max() for _, held in result.schedule.memory_over_time()) <= capacity


def test_memory_at_home_is_held_until_the_transfer_has_arrived() -> None:
    """Device 0 of 10 B runs op 0 (8 B, 1 s), which op 1 on device 1 reads, and op 2 (8 B, 3 s).

    dev 0  0         2-------    op 2 waits for the memory of op 0. It cannot go first: its
    link     0------             output stays
    dev 1           1
           0 1      4        7
    """
    graph = DataflowGraph.from_edges("held", 3, [(0, 1)], output_bytes=[8.0, 1.0, 8.0])
    seconds = np.array([[1.0] * 2, [1.0] * 2, [3.0] * 2])
    costs = CostModel(seconds, [3.0] * 3, np.zeros(2), np.ones(2), "test")
    devices = tuple(Device(name, memory_bytes=10.0) for name in "ab")
    topology = Topology("small", devices, make_topology("ideal", 2).links)
    problem = PlacementProblem(graph, topology, costs, pinned=[0, 1, 0])
    for network in NETWORKS:
        result = solve(problem, network, QUICK)
        assert result.optimal and result.makespan == 7
    with pytest.raises(CapacityError, match="device 0"):  # no run waits for memory
        CpSat().schedule(problem, Simulator(problem), rng())


def test_bounds_golden() -> None:
    """0 -> (1, 2, 3) -> 4, ops of 2 s but for 0 and 4 of 1 s; two devices.

    The path is 1 + 2 + 1 = 4 and the work 8 / 2 = 4, but between 0 and 4 there are 6 s for two
    devices: 1 + 3 + 1 = 5. No op can be split, so that it takes 6.
    """
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]
    problem = drawn(edges, [1, 2, 2, 2, 1])
    least = np.array([1, 2, 2, 2, 1])
    heads, tails = heads_and_tails(problem.graph, least)
    assert heads.tolist() == [0, 1, 1, 1, 3] and tails.tolist() == [3, 1, 1, 1, 0]
    assert window_bound(heads, tails, least, 2) == 5
    assert window_bound(heads, tails, least, 3) == 4
    result = solve(problem, "serial_links", QUICK)
    assert result.method == "classical" and result.optimal and result.makespan == 6


def test_ticks() -> None:
    problem = drawn([(0, 1)], [0.2, 0.3], [0.5, 7.0])
    ticks = to_ticks(problem, 1.0)
    assert ticks.exact and ticks.ops[:, 0].tolist() == [2, 3] and ticks.hops[0, 0] == 5
    assert ticks.seconds(7) == 0.7 and ticks.at_least(0.65) == 7 and ticks.at_least(0.7) == 7
    third = to_ticks(drawn([(0, 1)], [1 / 3, 0.3], [0.5, 7.0]), 1.0)
    assert not third.exact
    below = third.ops[0, 0] * third.seconds(1)
    assert 1 / 3 - 1e-6 < below <= 1 / 3
    assert third.at_least(0.5) * third.seconds(1) <= 0.5


def test_identical_devices() -> None:
    assert identical_devices(drawn([], [1.0] * 3, num_devices=3)) == [[0, 1, 2]]
    assert identical_devices(drawn([], [1.0] * 3, num_devices=3, pinned=[1, -1, -1])) == [
        [0, 2],
        [1],
    ]
    problem = drawn([], [1.0] * 3, num_devices=3)
    slower = problem.cost_model.op_seconds.copy()
    slower[2, 0] = 2.0
    costs = replace(problem.cost_model, op_seconds=slower)
    assert identical_devices(replace(problem, cost_model=costs)) == [[0], [1, 2]]
    devices = (
        *problem.topology.devices[:2],
        replace(problem.topology.devices[2], memory_bytes=1.0),
    )
    topology = replace(problem.topology, devices=devices)
    assert identical_devices(replace(problem, topology=topology)) == [[0, 1], [2]]
    latency = problem.cost_model.link_latency.copy()
    latency[np.flatnonzero((problem.topology.link_ends == (0, 1)).all(axis=1))] = 1.0
    costs = replace(problem.cost_model, link_latency=latency)
    assert identical_devices(replace(problem, cost_model=costs)) == [[0], [1], [2]]
    shared = over(host_staged(bus=True), drawn([], [1.0]))
    assert identical_devices(shared) == [[0, 1]]
    links = tuple(
        replace(k, bus="y" if 1 in (k.source, k.target) else "x") for k in shared.topology.links
    )
    apart = replace(shared, topology=replace(shared.topology, links=links))
    assert identical_devices(apart) == [[0], [1]]


@pytest.mark.parametrize("choose", ["fifo", "given"])
def test_proven_results_are_reproducible(choose: str) -> None:
    problem = random_problem(14, 3, 5, 0.4, alike=False)
    simulator = Simulator(problem, choose=choose)
    first = CpSat(budget_s=60.0, num_workers=1).schedule(problem, simulator, rng(3))
    assert first.info["optimum"] == "optimal" and first.info["reproducible"]
    assert first.info["method"] == "placement"
    for workers in (1, 2):
        again = CpSat(budget_s=60.0, num_workers=workers).schedule(problem, simulator, rng(3))
        np.testing.assert_array_equal(again.devices, first.devices)
        np.testing.assert_array_equal(again.order, first.order)


def test_a_proof_by_racing_threads_is_not_called_reproducible() -> None:
    problem = random_problem(14, 3, 5, 0.4, alike=False)
    info = CpSat(steady=0.0, num_workers=2).schedule(problem, Simulator(problem), rng()).info
    assert info["method"] == "placement" and not info["reproducible"]


def test_a_short_budget_gives_a_gap() -> None:
    problem = random_problem(60, 4, 1, 0.5, alike=False)
    simulator = Simulator(problem)
    placement = CpSat(budget_s=0.5, restarts=4).schedule(problem, simulator, rng())
    info = placement.info
    assert info["optimum"] == "gap" and 0 < info["gap"] < 1 and not info["reproducible"]
    assert info["gap"] == 1 - info["bound"] / info["free_makespan"]
    assert lower_bounds(problem).best * (1 - 1e-9) <= info["bound"]
    assert info["seconds"] < 5
    assert info["simulated_makespan"] == simulator.makespan(placement)
    assert info["free_makespan"] <= info["work_conserving_makespan"]


def test_a_start_is_never_made_worse() -> None:
    problem = random_problem(60, 4, 2, 0.5)
    simulator = Simulator(problem, choose="given")
    good = make_scheduler("critical_path", restarts=500).schedule(problem, simulator, rng())
    calls = []
    again = CpSat(budget_s=1.0, restarts=1).schedule(
        problem, simulator, rng(), Placement(good.devices, good.order), calls.append
    )
    assert again.info["simulated_makespan"] <= good.info["simulated_makespan"]
    assert calls and again.info["curve"][0][2] == good.info["simulated_makespan"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cp_sat", {"budget_s": 0}, "budget_s: 0"),
        (
            "cp_sat",
            {"budget_s": None, "budget_evals": 5},
            "budget_evals: 5; its budget is budget_s",
        ),
        ("cp_sat", {"num_workers": 0}, "num_workers: 0 is below 1"),
        ("cp_sat", {"max_ops": 1.5}, "max_ops: 1.5 is not a whole number"),
        ("cp_sat", {"restarts": None}, "restarts: None is not a whole number"),
        ("cp_sat", {"steady": 1.5}, "steady: 1.5 is more than 1"),
        ("cp_sat", {"steady": True}, "steady: True is not"),
        ("exhaustive", {"max_evaluations": -1}, "max_evaluations: -1 is below 1"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"scheduler '{name}', {message}"):
        make_scheduler(name, **options)


def test_large_problems_are_refused() -> None:
    problem = random_problem(501, 2, 0)
    with pytest.raises(ConfigurationError, match="501 ops, max_ops is 500"):
        CpSat().schedule(problem, Simulator(problem), rng())
    with pytest.raises(
        ConfigurationError, match="max_evaluations is 2000000; use scheduler cp_sat"
    ):
        Exhaustive().schedule(problem, Simulator(problem), rng())
    wide = random_problem(400, 16, 0)
    with pytest.raises(ConfigurationError, match="choices of transfers"):
        CpSat().schedule(wide, Simulator(wide), rng())
    seven = random_problem(7, 2, 0)
    with pytest.raises(ConfigurationError, match="128 placements of 7 ops"):
        Exhaustive(max_evaluations=100).schedule(seven, Simulator(seven), rng())
    pickle.loads(pickle.dumps(CpSat()))
