"""Exact scheduling of problems at the limits of numbers and of memory."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from exact_problems import QUICK, drawn, random_problem, rng

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Topology
from doppler.errors import CapacityError, ConfigurationError
from doppler.hardware import make_topology
from doppler.schedulers import make_scheduler
from doppler.schedulers.exact import CpSat, SolverOptions, cp_sat, solve, solver
from doppler.schedulers.exact.memory_model import UNITS, _units
from doppler.schedulers.exact.ticks import to_ticks
from doppler.simulator import Simulator


def on_two(
    seconds: list[list[float]], sizes: list[float], capacities: list[float]
) -> PlacementProblem:
    """Independent ops with these outputs on two devices; tensors move in no time."""
    count = len(seconds)
    graph = DataflowGraph.from_edges("apart", count, [], output_bytes=sizes)
    links = make_topology("ideal", 2).links
    devices = tuple(Device(f"d{d}", memory_bytes=size) for d, size in enumerate(capacities))
    costs = CostModel(np.array(seconds), np.zeros(count), np.zeros(2), np.zeros(2), "test")
    return PlacementProblem(graph, Topology("two", devices, links), costs)


def tight() -> PlacementProblem:
    """No list schedule and no device alone fits; seconds and bytes have no common unit.

    3 --> 0, 1     outputs 1.0 1.3 1.2 1.4 0.8 2.7 B on three devices of 5.6 B and two slots,
    5 --> 0, 2, 4  which share a bus over the host
    """
    devices = tuple(Device(f"d{d}", memory_bytes=5.61807422, compute_slots=2) for d in range(3))
    links = [Link(d, 3, 1.0, bus="x") for d in range(3)] + [
        Link(3, d, 1.0, bus="x") for d in range(3)
    ]
    topology = Topology("host", devices, tuple(links), ("host",))
    sizes = [1.00669648, 1.34871535, 1.20637876, 1.36583912, 0.7813784, 2.72813626]
    graph = DataflowGraph.from_edges(
        "tight", 6, [(3, 0), (3, 1), (5, 0), (5, 2), (5, 4)], output_bytes=sizes
    )
    seconds = [1.37446617, 0.83164121, 0.52104586, 2.29278087, 2.43961965, 2.70749056]
    costs = CostModel(
        np.repeat(np.array(seconds)[:, None], len(devices), axis=1),
        [1.18318773, 0.92161909, 1.60662139, 1.35852853, 1.50275849, 0.15553687],
        np.zeros(topology.num_links),
        np.ones(topology.num_links),
        "test",
    )
    return PlacementProblem(graph, topology, costs)


def test_nothing_is_shorter_than_no_time() -> None:
    """Device 0 takes no time for anything, device 1 does."""
    problem = on_two([[0.0, 3.0], [0.0, 5e-324]], [1.0, 1.0], [1e9, 1e9])
    placement = CpSat(budget_s=5.0).schedule(problem, Simulator(problem), rng())
    assert placement.info["optimum"] == "optimal"
    assert placement.info["free_makespan"] == placement.info["bound"] == 0


@pytest.mark.parametrize("shortest", [5e-324, 1e-310])
def test_the_shortest_durations_of_all(shortest: float) -> None:
    result = solve(drawn([(0, 1), (0, 2)], [shortest] * 3, shortest), "serial_links", QUICK)
    assert 2 * shortest <= result.bound <= result.makespan <= 3 * shortest


def test_very_slow_devices_stay_out_of_use() -> None:
    """Three ops on a device of 1/3 s each; on the other one they take 1e13, 1e30, 1e199 times as
    long, more ticks than a whole number holds. One after another on the first: 1 s.
    """
    third = 1 / 3
    seconds = [[third, third * slow] for slow in (3e13, 1e30, 1e199)]
    problem = on_two(seconds, [1.0] * 3, [1e9, 1e9])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = solve(problem, "serial_links", QUICK)
        ticks = to_ticks(problem, 1.0)
    assert result.optimal and result.makespan == pytest.approx(1.0)
    assert result.bound == pytest.approx(1.0, rel=2e-6)
    assert not ticks.exact and (ticks.seconds(1) * ticks.ops[:, 1] > 1.001).all()


def test_bytes_that_no_whole_number_holds() -> None:
    """Devices of 2.5e19 B hold two of four outputs of 1e19 B, 2 s; one output too many, 3 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        even = on_two([[1.0, 1.0]] * 4, [1e19] * 4, [2.5e19] * 2)
        assert solve(even, "serial_links", QUICK).makespan == 2
        odd = on_two([[1.0, 1.0]] * 4, [1e19] * 4, [3.5e19, 1.5e19])
        result = solve(odd, "serial_links", QUICK)
    assert result.optimal and result.makespan == 3


def test_units_of_bytes_never_make_memory_tighter() -> None:
    assert _units(np.array([4.0, 6.0, 100.0]), 11.0) == ([2, 3, 6], 5)  # in 2 B; 100 B never fit
    amounts, room = _units(np.array([1e19, 5e19, 1e300]), 2e19)
    assert amounts[0] <= UNITS // 2 and room > UNITS
    assert amounts[1] > room and amounts[2] > room


def test_exactly_tight_memory_is_judged_as_the_simulator_does() -> None:
    """0.1 + 0.2 is above 0.3, so that one op has to go to the device where it takes 10 s."""
    problem = on_two([[1.0, 10.0]] * 2, [0.1, 0.2], [0.3, 1.0])
    simulator = Simulator(problem)
    placement = CpSat(budget_s=5.0).schedule(problem, simulator, rng())
    assert simulator.makespan(placement.devices) == 10
    assert placement.info["free_makespan"] == placement.info["simulated_makespan"] == 10


@pytest.mark.parametrize("choose", ["given", "fifo"])
def test_tight_memory_starts_from_what_fits(choose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tight()
    simulator = Simulator(problem, choose=choose)
    full = CpSat(budget_s=8.0).schedule(problem, simulator, rng(1))
    assert full.info["optimum"] == "optimal" and np.isfinite(full.info["simulated_makespan"])
    monkeypatch.setattr(solver._Search, "_solve", lambda *_: None)  # CP-SAT finds nothing
    assert np.isfinite(solve(problem, "serial_links", QUICK).makespan)
    found = CpSat(budget_s=8.0).schedule(problem, simulator, rng(1))
    assert np.isfinite(
        simulator.makespan(found.devices, found.order if choose == "given" else None)
    )
    assert full.info["bound"] <= found.info["free_makespan"]


def test_the_message_where_only_waiting_fits() -> None:
    """Both ops at once need 12 + 12 B of 20, and one waits: the simulator never does.

    0 (12 B) --> 1 (2 B)    2 (12 B) --> 3 (2 B)    one device of two slots
    """
    sizes = [12.0, 2.0, 12.0, 2.0]
    graph = DataflowGraph.from_edges("heads", 4, [(0, 1), (2, 3)], output_bytes=sizes)
    device = Device("a", memory_bytes=20.0, compute_slots=2)
    costs = CostModel(np.ones((4, 1)), np.zeros(4), [], [], "test")
    problem = PlacementProblem(graph, Topology("one", (device,)), costs)
    with pytest.raises(CapacityError, match=r"of 4 s fits .* only with waiting.*device 0.*24 B"):
        CpSat(budget_s=5.0).schedule(problem, Simulator(problem), rng())


def test_an_impossible_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="num_workers: 100000 is more than"):
        make_scheduler("cp_sat", num_workers=100000)
    monkeypatch.setattr(cp_sat, "available_cores", lambda: 100)
    CpSat(num_workers=400)
    with pytest.raises(ConfigurationError, match="num_workers: 401 is more than 400"):
        CpSat(num_workers=401)
    options = SolverOptions(budget_s=5.0, num_workers=20_000, restarts=1, steady=0.0)
    with pytest.raises(ConfigurationError, match=r"'test': CP-SAT refuses .*num_workers.*20000"):
        solve(random_problem(14, 3, 0, 0.5, False), "serial_links", options)
