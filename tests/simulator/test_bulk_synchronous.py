"""Bulk-synchronous execution: what its checker refuses; batches, threads and pickles."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from test_simulator import random_problem

from doppler import CostModel, DataflowGraph, PlacementProblem, Schedule
from doppler.errors import ConfigurationError, ScheduleError
from doppler.hardware import make_topology
from doppler.schedule import validate_schedule
from doppler.simulator import LognormalNoise, Simulator
from doppler.simulator import threads as simulator_threads


def two_levels() -> Schedule:
    """
    0:d0(1) --(1)--> 2:d1(1)      level 0 [0, 3], exchange [3, 4], level 1 [4, 5]
    1:d1(3)          3:d0(0)      op 3 reads op 1: volume 0, [3, 3]
    """
    graph = DataflowGraph.from_edges("levels", 4, [(0, 2), (1, 3)])
    topology = make_topology("ideal", 2)
    seconds = np.repeat(np.array([1.0, 3.0, 1.0, 0.0])[:, None], 2, axis=1)
    costs = CostModel(seconds, [1.0, 0.0, 0.0, 0.0], np.zeros(2), np.ones(2), "by hand")
    problem = PlacementProblem(graph, topology, costs)
    return Simulator(problem, execution="bulk_synchronous").run([0, 1, 1, 0])


def test_a_valid_schedule_idles_and_may_not_pass_for_a_work_conserving_one():
    schedule = two_levels()
    assert schedule.execution == "bulk_synchronous"
    assert schedule.start.tolist() == [0.0, 0.0, 4.0, 4.0]
    assert schedule.transfer_start.tolist() == [3.0, 3.0]
    validate_schedule(schedule)
    with pytest.raises(ScheduleError, match=r"could carry it for|idles for"):
        validate_schedule(replace(schedule, execution="work_conserving"))


def test_broken_barriers_are_refused():
    schedule = two_levels()
    start, finish = schedule.start.copy(), schedule.finish.copy()
    start[3] = finish[3] = 3.5  # its input is there at 3, but tensor 0 is under way until 4
    with pytest.raises(ScheduleError, match=r"op 3 of level 1 starts at 3.5 s, before .* at 4 s"):
        validate_schedule(replace(schedule, start=start, finish=finish))
    start, finish = schedule.transfer_start.copy(), schedule.transfer_finish.copy()
    start[0], finish[0] = 1.0, 2.0
    with pytest.raises(ScheduleError, match=r"op 0 to device 1 starts at 1 s, before all ops of"):
        validate_schedule(replace(schedule, transfer_start=start, transfer_finish=finish))
    with pytest.raises(ConfigurationError, match="execution 'lazy' is unknown"):
        validate_schedule(replace(schedule, execution="lazy"))


def test_batches_threads_and_pickles_agree(monkeypatch):
    monkeypatch.setattr(simulator_threads, "_SMALLEST_SHARE", 1)
    problem = random_problem(preset="host_staged")
    simulator = Simulator(problem, noise=LognormalNoise(0.1), execution="bulk_synchronous")
    placements = np.random.default_rng(0).integers(0, 4, (23, problem.num_ops))
    single = [simulator.makespan(devices, noise_seed=3) for devices in placements]
    copy = pickle.loads(pickle.dumps(simulator))
    np.testing.assert_array_equal(copy.makespans(placements, noise_seed=3), single)
    assert [simulator.run(d, noise_seed=3).makespan for d in placements[:5]] == single[:5]
    assert len(set(single)) > 15
    conserving = Simulator(problem, noise=LognormalNoise(0.1)).makespans(placements, noise_seed=3)
    assert np.mean(single / conserving) > 1.05
