"""Enumeration and CP-SAT share no code of their searches and must agree on tiny problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact_problems import QUICK, random_problem, rng, tiny

from doppler import DataflowGraph, Device, PlacementProblem
from doppler.errors import CapacityError
from doppler.schedule import lower_bounds
from doppler.schedulers.exact import CpSat, Exhaustive, find_optima, solve
from doppler.schedulers.exact.replay import plan_of, seconds_replay
from doppler.simulator import NETWORKS, Simulator


@pytest.mark.parametrize("network", NETWORKS)
def test_enumeration_equals_cp_sat(network: str) -> None:
    for seed in range(24):
        problem = tiny(seed, network)
        optima = find_optima(problem, network)
        result = solve(problem, network, replace(QUICK, restarts=1 + seed % 3, seed=seed))
        label = f"{network}, seed {seed}"
        assert result.optimal, label
        assert result.makespan == pytest.approx(optima.free_makespan, rel=1e-6), label
        assert result.bound <= optima.free_makespan * (1 + 1e-9), label
        assert optima.free_makespan <= optima.makespan * (1 + 1e-9), label
        assert lower_bounds(problem).best <= optima.free_makespan * (1 + 1e-9), label


@pytest.mark.parametrize("network", ["contention_free", "serial_links"])
def test_enumeration_equals_cp_sat_without_a_list_schedule(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models alone, without hints and without the bounds that may meet them."""
    monkeypatch.setattr("doppler.schedulers.exact.solver._Search._list_schedules", lambda _: None)
    for seed in range(100, 112):
        problem = tiny(seed, network)
        optima = find_optima(problem, network)
        result = solve(problem, network, QUICK)
        assert result.optimal and result.method in ("classical", "placement")
        assert result.makespan == pytest.approx(optima.free_makespan, rel=1e-6)


def brute_force(problem: PlacementProblem) -> float:
    """Free optimum without contention: every placement, every order, replayed. Slow and plain."""
    best = np.inf
    graph, costs = problem.graph, problem.cost_model
    for code in range(problem.num_devices**problem.num_ops):
        devices = [code // problem.num_devices**op % problem.num_devices for op in range(4)]

        def extend(done: list[int], ends: dict[int, float], free: dict[int, float]) -> float:
            if len(done) == problem.num_ops:
                return max(ends.values())
            shortest = np.inf
            for op in set(range(problem.num_ops)) - set(done):
                inputs = graph.predecessors(op).tolist()
                if not set(inputs) <= set(done):
                    continue
                home = devices[op]  # noqa: B023
                start = free.get(home, 0.0)
                for producer in inputs:
                    moved = problem.transfer_seconds(producer, devices[producer], home)  # noqa: B023
                    start = max(start, ends[producer] + moved)
                end = start + costs.op_seconds[op, home]
                rest = extend([*done, op], {**ends, op: end}, {**free, home: end})
                shortest = min(shortest, rest)
            return shortest

        best = min(best, extend([], {}, {}))
    return best


def test_enumeration_equals_a_plain_one() -> None:
    for seed in range(6):
        problem = random_problem(4, 2, seed, 0.5, alike=seed % 2 == 0)
        assert find_optima(problem, "contention_free").free_makespan == brute_force(problem)


def test_the_free_schedules_are_valid_but_for_waiting() -> None:
    """Replayed as they are planned, no resource is used twice and no input is missing."""
    for seed in range(6):
        problem = random_problem(10, 3, seed, 0.5, alike=False)
        result = solve(problem, "serial_links", replace(QUICK, seed=seed))
        assert result.plan is not None and result.schedule is not None
        assert result.schedule.makespan == result.makespan
        # As a run whose idle stretches are allowed: a huge tolerance would allow all, so compare
        # with the work-conserving run of the same placement and order instead.
        executor = Simulator(problem, "serial_links", "given")
        run = executor.run(result.plan.devices.copy(), result.plan.order)
        replayed = seconds_replay(problem, "serial_links").times(plan_of(run))
        assert max(finish for _, finish in replayed.values()) <= run.makespan
        assert result.bound <= result.makespan <= run.makespan * (1 + 1e-12)


def test_exhaustive_under_another_rule() -> None:
    for seed in range(4):
        problem = random_problem(6, 2, seed, 0.7, alike=False)
        simulator = Simulator(problem, choose="fifo")
        found = Exhaustive().schedule(problem, simulator, rng())
        codes = np.arange(2**6)[:, None] >> np.arange(6) & 1
        assert found.info["simulated_makespan"] == simulator.makespans(codes).min()
        assert found.info["work_conserving_makespan"] <= found.info["simulated_makespan"]
        assert sorted(found.order.tolist()) == list(range(6))


def test_memory_never_ends_in_a_placement_that_does_not_fit() -> None:
    for seed in range(8):
        problem = random_problem(6, 2, seed, 0.5, alike=False)
        sizes = rng(seed).integers(1, 9, 6).astype(float)
        graph = DataflowGraph.from_edges("fat", 6, problem.graph.edges, output_bytes=sizes)
        capacity = sizes.sum() * 0.6
        devices = tuple(Device(f"d{i}", memory_bytes=capacity) for i in range(2))
        topology = replace(problem.topology, devices=devices)
        problem = replace(problem, graph=graph, topology=topology)
        simulator = Simulator(problem, choose="given")
        best = find_optima(problem, "serial_links").makespan
        try:
            placement = CpSat(budget_s=5.0).schedule(problem, simulator, rng())
        except CapacityError:
            assert best == np.inf
            continue
        assert np.isfinite(simulator.makespan(placement))
        assert placement.info["bound"] <= best * (1 + 1e-9)
        assert simulator.makespan(placement) >= best * (1 - 1e-9)
