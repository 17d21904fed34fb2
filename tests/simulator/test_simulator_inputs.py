"""What a simulator refuses, and what survives copies of it."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.errors import ConfigurationError
from doppler.hardware import make_topology
from doppler.simulator import EmpiricalNoise, LognormalNoise, Simulator


def three_ops() -> PlacementProblem:
    return PlacementProblem(
        DataflowGraph.from_edges("chain", 3, [(0, 1), (1, 2)]),
        make_topology("ideal", 2),
        CostModel(np.ones((3, 2)), np.ones(3), np.zeros(2), np.ones(2), "by hand"),
    )


def _send(simulator: Simulator, pipe: Any) -> None:
    pipe.send(simulator.makespan([0, 1, 0], noise_seed=0))


@pytest.mark.parametrize("noise_seed", [0, 1])
@pytest.mark.parametrize("used", [False, True])
def test_copies_keep_their_noise(noise_seed: int, used: bool) -> None:
    simulator = Simulator(three_ops(), noise=LognormalNoise(0.5))
    fresh = Simulator(three_ops(), noise=LognormalNoise(0.5))
    expected = fresh.makespan([0, 1, 0], noise_seed=noise_seed)
    assert expected != 5.0  # 3 s of ops and 2 s of transfers without noise
    if used:
        simulator.makespan([0, 1, 0])
    for copied in (pickle.loads(pickle.dumps(simulator)), copy.deepcopy(simulator)):
        assert copied.makespan([0, 1, 0], noise_seed=noise_seed) == expected
        assert copied.makespans([[0, 1, 0]], noise_seed=noise_seed)[0] == expected


def test_a_forked_simulator_keeps_its_noise() -> None:
    simulator = Simulator(three_ops(), noise=LognormalNoise(0.5))
    here = simulator.makespan([0, 1, 0])
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_send, args=(simulator, theirs))
    child.start()
    assert ours.poll(30) and ours.recv() == here
    child.join()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": ["a"]}, "network \\['a'\\] is unknown"),
        ({"choose": ["fifo"]}, "choose \\['fifo'\\] is unknown"),
        ({"execution": None}, "execution None is unknown"),
        ({"num_threads": "2"}, "num_threads: '2' is not a whole number"),
        ({"num_threads": 1.5}, "num_threads: 1.5 is not a whole number"),
        ({"num_threads": True}, "num_threads: True is not a whole number"),
        ({"num_threads": 0}, "num_threads: 0 is below 1"),
        ({"seed": -1}, "seed: -1 is below 0"),
        ({"seed": "a", "choose": "random"}, "seed: 'a' is not a whole number"),
        ({"noise": 0.5}, "noise is 0.5, not a NoiseModel"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Simulator(three_ops(), **options)


@pytest.mark.parametrize("noise_seed", [-1, 1.5, "a", None, True])
def test_a_noise_seed_is_a_whole_number(noise_seed: Any) -> None:
    simulator = Simulator(three_ops(), noise=LognormalNoise(0.5))
    with pytest.raises(ConfigurationError, match="noise_seed: "):
        simulator.makespan([0, 1, 0], noise_seed=noise_seed)
    with pytest.raises(ConfigurationError, match="noise_seed: "):
        simulator.makespans([[0, 1, 0]], noise_seed=noise_seed, replications=2)
    with pytest.raises(ConfigurationError, match="seed: "):
        simulator.robust([0, 1, 0], seed=noise_seed)


@pytest.mark.parametrize(
    ("sigma", "message"),
    [
        ("x", "noise, sigma: 'x' is not a number"),
        (True, "noise, sigma: True is not a number"),
        (None, "noise, sigma: None is not a number"),
        (-0.1, "noise, sigma: -0.1 is not finite and >= 0"),
        (float("nan"), "noise, sigma: nan is not finite"),
        (3.5, "noise, sigma: 3.5 is above 3.*standard deviation of a factor's logarithm"),
        (1e300, "noise, sigma: 1e\\+300 is above 3"),
    ],
)
def test_a_sigma_is_a_moderate_number(sigma: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LognormalNoise(sigma)
    if sigma is not None:
        with pytest.raises(ConfigurationError, match=message.replace("sigma", "transfer_sigma", 1)):
            LognormalNoise(0.1, sigma)


def test_factors_that_would_overflow_are_refused() -> None:
    simulator = Simulator(three_ops(), noise=EmpiricalNoise([1e301]))
    with pytest.raises(ConfigurationError, match=r"noise .*ops: factors .* at most 1e\+100"):
        simulator.makespan([0, 0, 0])
    assert Simulator(three_ops(), noise=EmpiricalNoise([1e99])).makespan(
        [0, 0, 0]
    ) == pytest.approx(3e99)
