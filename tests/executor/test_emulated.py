"""Emulated devices: on a virtual clock the simulator's schedules, in real time close to them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from executor_fakes import VirtualClock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doppler.errors import (
    CapacityError,
)
from doppler.executor import EmulatedExecutor
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, fully_connected
from doppler.problem import PlacementProblem
from doppler.schedule import Placement, Schedule
from doppler.schedule.networks import NETWORKS
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator import CHOOSE_RULES, Simulator
from doppler.simulator.engine import replication_seeds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simulator"))
from simulator_strategies import Case, cases

LOADED_MACHINE = 10.0
"""Seconds that a shared machine may be late. [s]"""


def chain_problem(seconds: list[float], num_devices: int = 2) -> PlacementProblem:
    """A chain of ops of given durations; a transfer takes 1 s."""
    n = len(seconds)
    graph = DataflowGraph.from_edges(
        "chain", n, [(op, op + 1) for op in range(n - 1)], output_bytes=np.full(n, 8.0)
    )
    topology = fully_connected(num_devices)
    costs = CostModel(
        op_seconds=np.tile(np.array(seconds)[:, None], num_devices),
        transfer_volume=np.ones(n),
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="by hand",
    )
    return PlacementProblem(graph, topology, costs)


def hops_of(schedule: Schedule) -> list[tuple]:
    columns = ("ops", "targets", "links", "start", "finish")
    return sorted(zip(*(getattr(schedule, f"transfer_{c}").tolist() for c in columns)))


def assert_equal_runs(case: Case, network: str, choose: str, execution: str) -> None:
    simulator = Simulator(case.problem, network, choose, case.noise, 7, execution=execution)
    executor = EmulatedExecutor(
        case.problem,
        network=network,
        choose=choose,
        seed=7,
        noise=case.noise,
        noise_seed=3,
        execution=execution,
        clock=VirtualClock(),
        timeout_s=1e6,
    )
    placement = Placement(case.devices, case.order)
    noise_seed = replication_seeds(3, 1)[0]
    try:
        expected = simulator.run(placement, noise_seed=noise_seed)
    except CapacityError as error:
        device = str(error).split("(")[1].split(")")[0]
        with pytest.raises(CapacityError, match=f"device '{device}'"):
            executor.run(placement)
        return
    found = executor.run(placement)
    np.testing.assert_array_equal(found.start, expected.start)
    np.testing.assert_array_equal(found.finish, expected.finish)
    assert hops_of(found) == hops_of(expected)
    np.testing.assert_array_equal(found.peak_bytes, expected.peak_bytes)
    assert (found.origin, found.execution) == ("emulated", execution)
    assert executor.lateness.max == 0.0
    found.validate()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("execution", EXECUTIONS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases(), choose=st.sampled_from(CHOOSE_RULES))
def test_on_a_virtual_clock_it_is_the_simulator(
    case: Case, choose: str, network: str, execution: str
) -> None:
    assert_equal_runs(case, network, choose, execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases(capacities=True), choose=st.sampled_from(CHOOSE_RULES))
def test_memory_runs_out_where_it_does_in_the_simulator(
    case: Case, choose: str, execution: str
) -> None:
    assert_equal_runs(case, "serial_links", choose, execution)
