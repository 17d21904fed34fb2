"""Lower bounds: values worked out by hand, the linear program, and simulated makespans above."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology
from doppler.graph import b_levels
from doppler.hardware import Link
from doppler.schedule import LowerBounds, lower_bounds
from doppler.simulator import CHOOSE_RULES, NETWORKS, LognormalNoise, Simulator


def problem_of(
    seconds: list[list[float]] | np.ndarray,
    edges: list[tuple[int, int]] | np.ndarray = (),
    slots: list[int] | None = None,
) -> PlacementProblem:
    """Ops with these seconds per device (num_ops, num_devices); every transfer takes 1 s."""
    seconds = np.asarray(seconds, float)
    num_ops, num_devices = seconds.shape
    counts = slots or [1] * num_devices
    pairs = [(s, d) for s in range(num_devices) for d in range(num_devices) if s != d]
    topology = Topology(
        "direct",
        tuple(Device(f"d{d}", compute_slots=counts[d]) for d in range(num_devices)),
        tuple(Link(s, d, 1.0) for s, d in pairs),
    )
    graph = DataflowGraph.from_edges("bounds", num_ops, edges)
    costs = CostModel(
        seconds, np.ones(num_ops), np.zeros(len(pairs)), np.ones(len(pairs)), "by hand"
    )
    return PlacementProblem(graph, topology, costs)


def test_equal_devices_share_all_work_evenly() -> None:
    """
    0(2) --> 1(3)     2(1)      two devices with a slot each: 6 / 2 = 3, but the chain takes 5
    """
    bounds = lower_bounds(problem_of([[2, 2], [3, 3], [1, 1]], [(0, 1)]))
    assert bounds == LowerBounds(critical_path=5, work=3, area=3)
    assert bounds.best == 5
    slots = lower_bounds(problem_of([[2, 2], [3, 3], [1, 1]], [(0, 1)], slots=[1, 3]))
    assert (slots.work, slots.area) == (1.5, 1.5)


def test_uniform_machines_share_work_by_speed() -> None:
    """Device 1 is half, device 2 a quarter as fast: 7 seconds of work over 1 + 1/2 + 1/4 is 4."""
    bounds = lower_bounds(problem_of([[3, 6, 12], [4, 8, 16]]))
    assert bounds.critical_path == 4
    assert bounds.work == pytest.approx(4)
    assert bounds.area == pytest.approx(4)


def test_unrelated_devices_by_hand() -> None:
    """
    seconds   d0  d1      Each op has its own fast device: by itself `work` sees speeds 1 and 1 and
    op 0       1   4      says (1 + 2) / 2. Ops split at will: a share x of op 1 moves to d0, where
    op 1       6   2      it takes 6 x; T = max(1 + 6 x, 2 (1 - x)), least at x = 1/8: T = 7/4.
    """
    bounds = lower_bounds(problem_of([[1, 4], [6, 2]]))
    assert bounds.critical_path == 2
    assert bounds.work == 1.5
    assert bounds.area == pytest.approx(7 / 4)
    assert bounds.best == 2


def test_ops_of_no_length_and_whole_graphs_of_them() -> None:
    assert lower_bounds(problem_of([[0, 0], [0, 3]])) == LowerBounds(0, 0, 0)
    bounds = lower_bounds(problem_of([[0, 0], [0, 9], [2, 4], [4, 2]]))
    assert bounds.area == pytest.approx(2)


def test_the_program_is_solved_to_optimality() -> None:
    """Strong duality: the primal program, written out in full here, has the same optimum."""
    from scipy.optimize import linprog

    rng = np.random.default_rng(0)
    seconds, slots = rng.uniform(1, 5, (7, 3)), np.array([1, 2, 1])
    shares = np.zeros((7, 22))
    loads = np.zeros((3, 22))
    for op in range(7):
        for device in range(3):
            shares[op, 3 * op + device] = 1
            loads[device, 3 * op + device] = seconds[op, device]
    loads[:, 21] = -slots
    solved = linprog(
        np.eye(22)[21], A_ub=loads, b_ub=np.zeros(3), A_eq=shares, b_eq=np.ones(7), method="highs"
    )
    area = lower_bounds(problem_of(seconds, slots=slots.tolist())).area
    assert area == pytest.approx(solved.fun, rel=1e-9)


@pytest.mark.parametrize("kinds", [20, 10_000])
def test_ten_thousand_ops_on_eight_devices_take_seconds(kinds: int) -> None:
    rng = np.random.default_rng(1)
    rows = rng.uniform(1, 3, (kinds, 8))[rng.integers(0, kinds, 10_000)]
    problem = problem_of(rows * rng.uniform(1, 2, (10_000, 1)))
    began = time.perf_counter()
    bounds = lower_bounds(problem)
    assert time.perf_counter() - began < (2 if kinds == 20 else 10)
    assert bounds.critical_path < bounds.work < bounds.area


def test_more_kinds_of_ops_than_the_program_takes_are_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    suits = rng.integers(0, 4, (600, 1)) <= np.arange(4)  # later devices suit more ops
    problem = problem_of(rng.uniform(1, 3, (600, 4)) * np.where(suits, 1, 4))
    exact = lower_bounds(problem)
    monkeypatch.setattr("doppler.schedule.bounds.MAX_PROFILES", 60)
    sampled = lower_bounds(problem)
    assert exact.work < sampled.area <= exact.area * (1 + 1e-12)
    assert sampled.area > 0.97 * exact.area


def test_pins_and_groups_count() -> None:
    """
    seconds   d0  d1      Ops 0 and 1 alone: 2 s of work at speeds 1 and 1/4 take 1.6. With op 0
    op 0       1   4      pinned to d1, that takes 4. In a group they are one op of 2 or 8 s, which
    op 1       1   4      the program may still split: 1.6; pinned to d1 as well: 8.
    op 2       5   0
                          Ops 0 and 2 in a group are one op of 6 or 4 s. A share x of it joins op 1
                          on d0: 6 x + 1 = 4 (1 - x) at x = 0.3, 2.8 s.
    """
    rows = [[1, 4], [1, 4]]
    free = problem_of(rows)
    assert lower_bounds(free).area == pytest.approx(1.6)
    pinned = lower_bounds(replace(free, pinned=[1, -1]))
    assert pinned.critical_path == 4
    assert pinned.area == pytest.approx(4)
    grouped = lower_bounds(replace(free, colocation=[0, 0]))
    assert grouped.area == pytest.approx(1.6)
    both = lower_bounds(replace(free, pinned=[1, -1], colocation=[0, 0]))
    assert both.area == pytest.approx(8)
    three = replace(problem_of([*rows, [5, 0]]), colocation=[0, -1, 0])
    assert lower_bounds(three).area == pytest.approx(2.8)


@st.composite
def heterogeneous(draw: st.DrawFn) -> tuple[PlacementProblem, np.random.Generator]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_ops, num_devices = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    edges = np.argwhere(np.triu(rng.random((num_ops, num_ops)) < 0.2, 1))
    seconds = rng.choice([0.0, 0.5, 1.0, 2.0, 5.0], (num_ops, num_devices))
    slots = rng.choice([1, 1, 2], num_devices).tolist()
    problem = problem_of(seconds, edges, slots)
    if draw(st.booleans()):
        pinned = np.where(rng.random(num_ops) < 0.2, rng.integers(0, num_devices, num_ops), -1)
        colocation = np.where((pinned < 0) & (rng.random(num_ops) < 0.4), 0, -1)
        problem = replace(problem, pinned=pinned, colocation=colocation)
    return problem, rng


@given(
    case=heterogeneous(),
    network=st.sampled_from(NETWORKS),
    choose=st.sampled_from(CHOOSE_RULES),
)
@settings(max_examples=150, deadline=None)
def test_no_simulated_makespan_is_below_the_bounds(case, network: str, choose: str) -> None:
    problem, rng = case
    bounds = lower_bounds(problem)
    assert (
        bounds.area
        >= bounds.work
        >= problem.cost_model.op_seconds.min(axis=1).sum()
        / (problem.topology.compute_slots.sum() * (1 + 1e-12))
    )
    placements = problem.conform(rng.integers(0, problem.num_devices, (8, problem.num_ops)))
    orders = np.array([rng.permutation(problem.num_ops) for _ in placements])
    makespans = Simulator(problem, network, choose).makespans(placements, orders)
    assert makespans.min() >= bounds.best * (1 - 1e-9)


@given(case=heterogeneous(), network=st.sampled_from(NETWORKS))
@settings(max_examples=50, deadline=None)
def test_noisy_runs_respect_the_bounds_of_their_own_durations(case, network: str) -> None:
    problem, rng = case
    simulator = Simulator(problem, network, noise=LognormalNoise(0.5))
    placement = problem.conform(rng.integers(0, problem.num_devices, problem.num_ops))
    schedule = simulator.run(placement, noise_seed=3)
    durations = schedule.finish - schedule.start
    slack = 1 + 1e-9
    assert b_levels(problem.graph, durations).max() <= schedule.makespan * slack
    busy = np.bincount(schedule.devices, weights=durations, minlength=problem.num_devices)
    assert (busy <= problem.topology.compute_slots * schedule.makespan * slack).all()
    moved = (schedule.transfer_finish - schedule.transfer_start).sum()
    assert schedule.makespan <= (durations.sum() + moved) * slack


def test_devices_of_very_unlike_speed() -> None:
    """Where the linear program cannot be solved, a weaker bound is left, and it is one."""
    for slow in (1e9, 1e18, 1e30, 1e200):
        problem = problem_of([[1e-9, 1e-9 * slow], [1e-9, 2e-9 * slow], [1e-9, 3e-9 * slow]])
        bounds = lower_bounds(problem)
        least = Simulator(problem).makespan([0, 0, 0])
        assert bounds.critical_path == 1e-9
        assert 0.99 * least <= bounds.work <= bounds.area <= least * (1 + 1e-12)


def test_a_program_that_is_not_solved_leaves_a_weaker_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import scipy.optimize

    class Unsolved:
        status = 4
        ineqlin = type("Rows", (), {"marginals": None})

    monkeypatch.setattr(scipy.optimize, "linprog", lambda *_, **__: Unsolved)
    bounds = lower_bounds(problem_of([[1, 4], [6, 2]]))
    assert bounds.work == bounds.area == 1.5
