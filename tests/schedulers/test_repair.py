"""Placements that do not fit in the devices' memory are repaired, if they can be."""

from __future__ import annotations

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.errors import CapacityError
from doppler.hardware import Device, Link, Topology
from doppler.schedulers import SCHEDULERS, make_scheduler
from doppler.schedulers.repair import TRIES_PER_UNIT, memory_may_bind, repaired
from doppler.simulator import Simulator


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def shared_sum(capacity: float, **constraints: object) -> PlacementProblem:
    """Eight ops of 1 s and 10 B each feed one op.

        0  1  2  3  4  5  6  7      10 B each, all alive until 8 has them
         \\  \\  \\  \\ /  /  /  /
                  8                 10 B

    Wherever op 8 runs, all eight outputs and its own are resident at once: 90 B.
    """
    graph = DataflowGraph.from_edges(
        "sum", 9, np.array([[op, 8] for op in range(8)]), output_bytes=np.full(9, 10.0)
    )
    return on_two_devices(graph, (capacity, 90.0), **constraints)


def on_two_devices(
    graph: DataflowGraph, capacities: tuple[float, float], **constraints: object
) -> PlacementProblem:
    """Links are fast, device 1 is slower, so that schedulers prefer device 0."""
    topology = Topology(
        "two",
        tuple(Device(f"d{d}", memory_bytes=capacities[d]) for d in range(2)),
        (Link(0, 1, bandwidth=1e3), Link(1, 0, bandwidth=1e3)),
    )
    costs = CostModel(
        op_seconds=np.repeat([[1.0, 3.0]], graph.num_ops, axis=0),
        transfer_volume=np.full(graph.num_ops, 10.0),
        link_latency=np.zeros(2),
        link_seconds_per_unit=np.full(2, 1e-3),
        source="test",
    )
    return PlacementProblem(graph, topology, costs, **constraints)  # type: ignore[arg-type]


def test_the_sum_goes_where_it_fits() -> None:
    problem = shared_sum(60.0)
    simulator = Simulator(problem)
    assert memory_may_bind(simulator)
    devices, tries = repaired(simulator, np.zeros(9, np.int64), None, rng())
    assert devices is not None
    assert devices[8] == 1  # 90 B fit on device 1 alone
    assert np.isfinite(simulator.makespan(devices))
    assert 1 < tries <= 9 * TRIES_PER_UNIT


def test_what_fits_is_left_alone() -> None:
    simulator = Simulator(shared_sum(60.0))
    devices, tries = repaired(simulator, np.ones(9, np.int64), None, rng())
    assert devices is not None and devices.tolist() == [1] * 9
    assert tries == 1


def test_where_nothing_fits_the_tries_end() -> None:
    problem = shared_sum(60.0, pinned=np.array([-1] * 8 + [0]))
    devices, tries = repaired(Simulator(problem), np.zeros(9, np.int64), None, rng(), most=50)
    assert devices is None
    assert tries == 50


def test_the_same_seed_repairs_alike() -> None:
    simulator = Simulator(shared_sum(60.0))
    found = [repaired(simulator, np.zeros(9, np.int64), None, rng())[0] for _ in range(2)]
    assert found[0] is not None and found[1] is not None
    assert found[0].tolist() == found[1].tolist()


def test_ample_memory_needs_no_repair() -> None:
    assert not memory_may_bind(Simulator(shared_sum(1e9)))


QUICK = {"budget_s": None, "budget_evals": 400}


@pytest.mark.parametrize("choose", ["fifo", "given"])
@pytest.mark.parametrize("name", sorted(set(SCHEDULERS) - {"exhaustive", "cp_sat", "enumerative"}))
def test_every_scheduler_finds_what_fits(name: str, choose: str) -> None:
    """Only placements with ops 8 and 0 to 2 on device 1 fit; groups and pins are kept."""
    problem = shared_sum(60.0, colocation=np.array([0, 0, 0] + [-1] * 6))
    simulator = Simulator(problem, choose=choose)
    known = set(SCHEDULERS[name].__dataclass_fields__)
    options = {key: value for key, value in QUICK.items() if key in known}
    placement = make_scheduler(name, **options).schedule(problem, simulator, rng())
    problem.check_placement(placement.devices)
    assert placement.devices[8] == 1
    assert simulator.makespan(placement.devices, placement.order) == pytest.approx(
        placement.info["simulated_makespan"]
    )


@pytest.mark.parametrize("begin", ["random", "lists"])
def test_a_repair_keeps_to_the_budget(begin: str) -> None:
    problem = shared_sum(60.0)
    scheduler = make_scheduler("annealing", begin=begin, budget_s=None, budget_evals=120)
    placement = scheduler.schedule(problem, Simulator(problem), rng())
    assert placement.info["evaluations"] <= 120


def test_the_error_still_tells_what_does_not_fit() -> None:
    problem = shared_sum(60.0, pinned=np.zeros(9, np.int64))
    for name in ("critical_path", "heft", "round_robin"):
        with pytest.raises(CapacityError, match="device 0"):
            make_scheduler(name).schedule(problem, Simulator(problem), rng())
