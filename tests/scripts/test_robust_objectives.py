"""The options simulator.objective and simulator.objective_samples: what is minimised."""

from __future__ import annotations

import numpy as np
import pytest

from doppler.errors import ConfigurationError
from doppler.hardware import make_topology
from doppler.schedulers import RandomPlacement
from doppler.simulator import RobustSimulator, Simulator
from doppler.workloads import make_workload
from scripts.problems import PresetCost, Setup, SimulatorSettings


def setup(**options) -> Setup:
    problem = make_workload("chainmm", num_shards=4, block=8).problem(make_topology("p100", 4))
    return Setup(None, problem, SimulatorSettings(cost=PresetCost(), **options), None)


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("statistic", ["mean", "p95"])
def test_learners_and_schedulers_minimise_the_statistic(statistic, noise):
    chosen = setup(objective=statistic, objective_samples=8, noise=noise, seed=3)
    problem = chosen.problem
    placements = np.random.default_rng(0).integers(0, 4, (5, problem.num_ops))
    orders = np.tile(problem.graph.topological_order, (5, 1))
    simulator = chosen.training_simulator()
    assert (simulator.noise is None) == (noise == 0.0)
    rows = [simulator.robust(devices, samples=8, seed=3) for devices in placements]
    expected = [getattr(row, statistic) for row in rows]
    np.testing.assert_allclose(chosen.training_objective()(placements, orders), expected)
    assert (np.array(expected) != simulator.makespans(placements)).any()
    judge = chosen.scheduling_simulator()
    assert isinstance(judge, RobustSimulator)
    found = RandomPlacement(samples=5).schedule(problem, judge, np.random.default_rng(1))
    assert found.info[f"simulated_{statistic}"] == judge.makespan(found.devices)
    assert found.info["simulated_makespan"] == chosen.settings.build(problem).run(found).makespan


def test_the_makespan_is_minimised_by_default():
    plain = setup()
    placements = np.random.default_rng(0).integers(0, 4, (5, plain.problem.num_ops))
    orders = np.tile(plain.problem.graph.topological_order, (5, 1))
    simulator = plain.scheduling_simulator()
    assert type(simulator) is Simulator
    np.testing.assert_array_equal(
        plain.training_objective()(placements, orders), simulator.makespans(placements)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "median"}, "objective 'median' is unknown; known: makespan, mean, p95"),
        ({"objective": "mean", "objective_samples": 0}, "0"),
    ],
)
def test_impossible_objectives_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        setup(**options).training_objective()
