"""The pass without events: where it applies, and that it equals the event loops bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulator_problems import random_problem

from doppler import CostModel, DataflowGraph, Device, PlacementProblem
from doppler.hardware import make_topology
from doppler.simulator import LognormalNoise, Simulator, fifo
from doppler.simulator.fifo import NOT_FIFO, fifo_tables
from doppler.simulator.fifo_tables import FEW_OPS

PROPERTY = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
both_networks = pytest.mark.parametrize("network", ["contention_free", "serial_links"])


@both_networks
@PROPERTY
@given(
    seed=st.integers(0, 2**32),
    num_ops=st.integers(2, 60),
    num_devices=st.integers(1, 5),
    alike=st.booleans(),
    noisy=st.booleans(),
)
def test_equals_the_event_loop(network, seed, num_ops, num_devices, alike, noisy):
    problem = random_problem(num_ops, num_devices, seed, alike=alike)
    noise = LognormalNoise(0.3) if noisy else None
    devices = np.random.default_rng(seed).integers(0, num_devices, num_ops)
    simulator = Simulator(problem, network, noise=noise)
    assert simulator.engine.fifo is not None
    expected = simulator.run(devices, noise_seed=1).makespan
    assert simulator.makespan(devices, noise_seed=1) == expected
    assert simulator.makespans([devices] * 2, noise_seed=1).tolist() == [expected] * 2


@both_networks
@pytest.mark.parametrize("transfer", [0.1, 30.0])
@pytest.mark.parametrize("laid_out", [False, True])
def test_buckets_equal_the_event_loop(monkeypatch, network, transfer, laid_out):
    """With long transfers the run lasts many times the horizon of the buckets."""
    if laid_out:
        monkeypatch.setattr(fifo, "MANY_OPS", 1)
    problem = random_problem(FEW_OPS + 1500, 3, seed=5, transfer=transfer, alike=False)
    simulator = Simulator(problem, network)
    assert (len(simulator.engine.fifo.source) > 0) == laid_out
    for seed in range(3):
        devices = np.random.default_rng(seed).integers(0, 3, problem.num_ops)
        assert simulator.makespan(devices) == simulator.run(devices).makespan
    one_device = np.zeros(problem.num_ops, np.int64)
    assert simulator.makespan(one_device) == problem.cost_model.op_seconds[:, 0].sum()


def test_applies_only_where_it_is_exact():
    problem = random_problem(30, 3, 0)
    topology = problem.topology
    assert fifo_tables(Simulator(problem, "serial_links").engine.tables) is not None
    for network in ("one_port", "shared_bus"):
        assert fifo_tables(Simulator(problem, network).engine.tables) is None
    slots = tuple(replace(device, compute_slots=2) for device in topology.devices)
    costs = problem.cost_model
    idle = np.array(costs.op_seconds)
    idle[3] = 0.0
    for changed in (
        PlacementProblem(problem.graph, replace(topology, devices=slots), costs),
        PlacementProblem(problem.graph, topology, replace(costs, op_seconds=idle)),
        PlacementProblem(problem.graph, topology, replace(costs, transfer_volume=np.zeros(30))),
    ):
        assert Simulator(changed).engine.fifo is None
    for choose in ("b_level", "random", "given"):
        assert Simulator(problem, choose=choose).engine.fifo is None
    assert Simulator(problem, execution="bulk_synchronous").engine.fifo is None


@both_networks
def test_a_task_that_takes_no_time_is_left_to_the_event_loop(network):
    """At 1e17 s a second is below the resolution of a float, as if the op took no time."""
    graph = DataflowGraph.from_edges("chain", 3, np.array([[0, 1], [1, 2]]))
    topology = make_topology("v100", 2)
    costs = CostModel([[1e17] * 2, [1.0] * 2, [1.0] * 2], [1.0] * 3, [0.0] * 2, [1.0] * 2, "huge")
    simulator = Simulator(PlacementProblem(graph, topology, costs), network)
    devices = np.array([0, 1, 1])
    out = np.empty(3)
    assert fifo.ready_times(simulator.engine.fifo, devices, out) == NOT_FIFO
    assert simulator.makespan(devices) == simulator.run(devices).makespan == 1e17
    assert simulator.makespans([devices])[0] == 1e17


def test_memory_that_could_run_out_needs_the_event_loop():
    problem = random_problem(30, 2, 0)
    graph = problem.graph
    known = DataflowGraph.from_edges("bytes", 30, graph.edges, output_bytes=np.ones(30))
    for capacity, applies in ((29.0, False), (30.0, True)):
        devices = tuple(Device(f"d{d}", memory_bytes=capacity) for d in range(2))
        topology = replace(problem.topology, devices=devices)
        simulator = Simulator(PlacementProblem(known, topology, problem.cost_model))
        assert (simulator.engine.fifo is not None) == applies


def test_applies_to_the_published_graphs(shared_data: Path):
    from doppler import load_problem

    for path in sorted((shared_data / "doppler").glob("*.txt")):
        problem = load_problem(path, num_devices=4)
        for network in ("contention_free", "serial_links"):
            simulator = Simulator(problem, network)
            devices = np.random.default_rng(0).integers(0, 4, problem.num_ops)
            assert simulator.engine.fifo is not None
            assert simulator.makespan(devices) == simulator.run(devices).makespan
