"""Resident bytes over time: by hand, and against the peaks that the simulator tracks."""

from __future__ import annotations

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.errors import UnknownQuantityError
from doppler.hardware import fully_connected, make_topology
from doppler.simulator import Simulator
from doppler.workloads import make_workload
from doppler.workloads.random_dags import layered_dag


def fork(output_bytes: list[float] | None) -> PlacementProblem:
    """0 -> 1, 0 -> 2; ops take 2, 3 and 3 s, a transfer 1 s."""
    graph = DataflowGraph.from_edges("fork", 3, [(0, 1), (0, 2)], output_bytes=output_bytes)
    costs = CostModel(
        op_seconds=np.repeat([[2.0], [3.0], [3.0]], 2, axis=1),
        transfer_volume=np.ones(3),
        link_latency=np.zeros(2),
        link_seconds_per_unit=np.ones(2),
        source="by hand",
    )
    return PlacementProblem(graph, fully_connected(2), costs)


def test_a_fork_by_hand() -> None:
    # device 0: op 0 from 0 s (10 B), op 1 from 2 s (20 B); op 0's output is last used at 5 s
    # device 1: its copy from 2 s, op 2 from 3 s (40 B); the copy is freed at 6 s
    schedule = Simulator(fork([10.0, 20.0, 40.0])).run([0, 0, 1])
    (times0, bytes0), (times1, bytes1) = schedule.memory_over_time()
    assert (times0.tolist(), bytes0.tolist()) == ([0, 2, 5], [10, 30, 20])
    assert (times1.tolist(), bytes1.tolist()) == ([2, 3, 6], [10, 50, 40])


@pytest.mark.parametrize("network", ["contention_free", "serial_links", "one_port"])
@pytest.mark.parametrize("preset", ["p100", "host_staged"])
def test_peaks_equal_the_simulators(network: str, preset: str) -> None:
    problems = [make_workload("llama_layer", num_shards=4).problem(make_topology(preset, 3))]
    if preset == "p100":
        problems += [layered_dag(60, num_devices=3, seed=seed) for seed in range(10)]
    rng = np.random.default_rng(0)
    for problem in problems:
        devices = rng.integers(0, 3, problem.num_ops)
        schedule = Simulator(problem, network=network).run(devices)
        peaks = [resident.max() for _, resident in schedule.memory_over_time()]
        assert peaks == pytest.approx(schedule.peak_bytes)


def test_unknown_bytes_are_refused() -> None:
    with pytest.raises(UnknownQuantityError, match="output_bytes"):
        Simulator(fork(None)).run([0, 0, 1]).memory_over_time()
