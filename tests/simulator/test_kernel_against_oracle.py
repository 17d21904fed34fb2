"""Properties of the kernel on random problems, above all that it equals the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulator_strategies import Case, cases

from doppler import CostModel
from doppler.errors import CapacityError
from doppler.graph import b_levels
from doppler.schedule import lower_bounds, validate_schedule
from doppler.simulator import CHOOSE_RULES, NETWORKS, Simulator
from doppler.simulator.oracle import OracleSimulator

EVENTS = (
    "start",
    "finish",
    "transfer_ops",
    "transfer_targets",
    "transfer_links",
    "transfer_start",
    "transfer_finish",
)
PROPERTY = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
every_model = pytest.mark.parametrize("network", NETWORKS)
every_rule = pytest.mark.parametrize("choose", CHOOSE_RULES)


def assert_equal_runs(
    case: Case, network: str, choose: str, execution: str = "work_conserving"
) -> None:
    arguments = (case.problem, network, choose, case.noise, 7)
    kernel = Simulator(*arguments, execution=execution)
    oracle = OracleSimulator(*arguments, execution=execution)
    call = (case.devices, case.order, 3)
    batch = kernel.makespans([case.devices] * 2, [case.order] * 2, 3)
    try:
        expected = oracle.run(*call)
    except CapacityError as error:
        with pytest.raises(CapacityError) as raised:
            kernel.run(*call)
        assert str(raised.value) == str(error)
        assert kernel.makespan(*call) == np.inf
        assert (batch == np.inf).all()
        return
    schedule = kernel.run(*call)
    for events in EVENTS:
        np.testing.assert_array_equal(getattr(schedule, events), getattr(expected, events), events)
    assert (schedule.peak_bytes is None) == (expected.peak_bytes is None)
    if schedule.peak_bytes is not None:
        np.testing.assert_array_equal(schedule.peak_bytes, expected.peak_bytes)
    assert kernel.makespan(*call) == schedule.makespan
    assert (batch == schedule.makespan).all()


@every_model
@every_rule
@PROPERTY
@given(case=cases())
def test_equal_schedules_event_by_event(network, choose, case):
    assert_equal_runs(case, network, choose)


@every_model
@PROPERTY
@given(case=cases(max_ops=8, capacities=True), choose=st.sampled_from(CHOOSE_RULES))
def test_equal_memory_and_equal_errors(network, choose, case):
    assert_equal_runs(case, network, choose)


@every_model
@every_rule
@PROPERTY
@given(case=cases(max_ops=10), capacities=st.booleans(), data=st.data())
def test_equal_bulk_synchronous_schedules(network, choose, case, capacities, data):
    if capacities:
        case = data.draw(cases(max_ops=8, capacities=True))
    assert_equal_runs(case, network, choose, "bulk_synchronous")


@every_model
@PROPERTY
@given(case=cases(), choose=st.sampled_from(CHOOSE_RULES))
def test_bulk_synchronous_schedules_are_valid(network, choose, case):
    simulator = Simulator(case.problem, network, choose, execution="bulk_synchronous")
    schedule = simulator.run(case.devices, case.order)
    validate_schedule(schedule)
    moving = schedule.transfer_finish - schedule.transfer_start
    seconds = schedule.finish - schedule.start
    assert schedule.makespan <= (seconds.sum() + moving.sum()) * (1 + 1e-9)
    assert lower_bounds(case.problem).best <= schedule.makespan * (1 + 1e-9)


@every_model
@every_rule
@PROPERTY
@given(case=cases(max_ops=20))
def test_schedules_are_valid_and_respect_the_bounds(network, choose, case):
    simulator = Simulator(case.problem, network, choose, case.noise)
    schedule = simulator.run(case.devices, case.order)
    validate_schedule(schedule)
    slack = 1e-9 * (1.0 + schedule.makespan)
    seconds = schedule.finish - schedule.start
    moving = schedule.transfer_finish - schedule.transfer_start
    slots = case.problem.topology.compute_slots.sum()
    assert b_levels(case.problem.graph, seconds).max() <= schedule.makespan + slack
    assert seconds.sum() / slots <= schedule.makespan + slack
    assert schedule.makespan <= seconds.sum() + moving.sum() + slack
    if case.noise is None:
        assert lower_bounds(case.problem).best <= schedule.makespan + slack


@every_model
@every_rule
@PROPERTY
@given(case=cases())
def test_scaling_all_times_scales_the_makespan(network, choose, case):
    # A power of two keeps every sum exact, so that no tie appears or disappears.
    costs = case.problem.cost_model
    scaled = replace(
        case.problem,
        cost_model=CostModel(
            costs.op_seconds * 4,
            costs.transfer_volume,
            costs.link_latency * 4,
            costs.link_seconds_per_unit * 4,
            "scaled",
        ),
    )
    call = (case.devices, case.order)
    before = Simulator(case.problem, network, choose, case.noise).makespan(*call)
    assert Simulator(scaled, network, choose, case.noise).makespan(*call) == 4 * before


@every_model
@PROPERTY
@given(case=cases(constraints=False))
def test_one_device_takes_the_sum_of_the_work(network, case):
    devices = np.zeros(case.problem.num_ops, np.int64)
    schedule = Simulator(case.problem, network).run(devices)
    if case.problem.topology.devices[0].compute_slots == 1:
        assert schedule.makespan == case.problem.cost_model.op_seconds[:, 0].sum()
    assert len(schedule.transfer_ops) == 0
