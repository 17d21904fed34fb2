"""Searches in compiled code: every evaluation is the simulator's makespan."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from simulator_problems import random_problem

from doppler.errors import ConfigurationError
from doppler.simulator import CHOOSE_RULES, NETWORKS, LognormalNoise, Simulator
from doppler.simulator.jit import entry
from doppler.simulator.ops import BAD_ORDER, BAD_PLACEMENT
from doppler.simulator.search import (
    NO_ORDER,
    SearchTables,
    evaluate,
    make_search_scratch,
    search_tables,
)


@entry
def hill_climb(
    tables: SearchTables,
    devices: np.ndarray,
    order: np.ndarray,
    ops: np.ndarray,
    targets: np.ndarray,
    seconds: np.ndarray,
) -> None:
    """Moves one op at a time and takes back what does not help; `seconds` of each trial."""
    scratch = make_search_scratch(tables)
    best = evaluate(tables, devices, order, scratch)
    for i in range(len(ops)):
        before = devices[ops[i]]
        devices[ops[i]] = targets[i]
        seconds[i] = evaluate(tables, devices, order, scratch)
        if seconds[i] <= best:
            best = seconds[i]
        else:
            devices[ops[i]] = before


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("choose", CHOOSE_RULES)
def test_every_step_of_a_hill_climb_equals_makespan(network, choose):
    problem = random_problem(40, 3, 1, alike=False)
    simulator = Simulator(problem, network, choose, LognormalNoise(0.2), seed=2)
    rng = np.random.default_rng(3)
    devices, order = rng.integers(0, 3, 40), rng.permutation(40)
    ops, targets = rng.integers(0, 40, 200), rng.integers(0, 3, 200)
    seconds, found = np.empty(200), devices.copy()
    given = order if choose == "given" else NO_ORDER
    hill_climb(search_tables(simulator, noise_seed=5), found, given, ops, targets, seconds)
    best = first = simulator.makespan(devices, order, 5)
    for i in range(200):
        trial = devices.copy()
        trial[ops[i]] = targets[i]
        assert seconds[i] == simulator.makespan(trial, order, 5)
        if seconds[i] <= best:
            best, devices = seconds[i], trial
    assert (found == devices).all()
    assert best < 0.9 * first


def test_wrong_placements_and_orders_are_told():
    problem = random_problem(10, 2, 0)
    seconds = np.empty(1)
    devices = np.zeros(10, np.int64)
    call = (np.array([4]), np.array([2]), seconds)
    hill_climb(search_tables(Simulator(problem)), devices, NO_ORDER, *call)
    assert seconds[0] == BAD_PLACEMENT
    call[1][0] = 1
    tables = search_tables(Simulator(problem, choose="given"))
    hill_climb(tables, devices, np.zeros(10, np.int64), *call)
    assert seconds[0] == BAD_ORDER


def test_bulk_synchronous_execution_is_refused():
    simulator = Simulator(random_problem(10, 2, 0), execution="bulk_synchronous")
    with pytest.raises(ConfigurationError, match="work_conserving"):
        search_tables(simulator)


KERNEL = """
import numpy as np
from doppler.simulator.jit import entry

@entry
def double(values):
    return 2 * values[0]

@entry
def triple(values):
    return 3 * values[0]

print(double(np.ones(1)), triple(np.ones(1)))
"""


def test_a_cold_cache_is_announced_once_and_a_warm_one_is_not(tmp_path):
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    cold, warm = (
        subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True
        )
        for _ in range(2)
    )
    assert cold.stdout == warm.stdout == "2.0 3.0\n"
    assert cold.stderr.count("compiling kernels for this machine") == 1
    assert len(cold.stderr.strip().splitlines()) == 1
    assert warm.stderr == ""
