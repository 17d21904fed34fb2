"""What must happen to a run when its problem changes in a known way, on tie-free problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Topology
from doppler.hardware import make_topology
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator import CHOOSE_RULES, NETWORKS, Simulator

EXAMPLES = settings(max_examples=200, deadline=None)
networks = st.sampled_from(NETWORKS)
rules = st.sampled_from(CHOOSE_RULES)
executions = st.sampled_from(EXECUTIONS)
seeds = st.integers(0, 2**32)


def random_edges(rng: np.random.Generator, num_ops: int) -> np.ndarray:
    return np.argwhere(np.triu(rng.random((num_ops, num_ops)) < rng.uniform(0.05, 0.4), 1))


def problem_on(
    topology: Topology,
    rng: np.random.Generator,
    edges: np.ndarray | list[tuple[int, int]],
    num_ops: int,
    equal_devices: bool = False,
) -> PlacementProblem:
    """Continuous amounts, so that no two events of a run tie but those that must."""
    shape = (num_ops, 1 if equal_devices else topology.num_devices)
    seconds = rng.uniform(0.5, 2, shape) * np.ones(topology.num_devices)
    links = topology.num_links
    rates = np.ones(links) if equal_devices else rng.uniform(0.5, 2, links)
    costs = CostModel(
        seconds,
        rng.uniform(0.1, 2, num_ops),
        np.full(links, 0.125) if equal_devices else rng.uniform(0, 0.2, links),
        rates,
        "random",
    )
    graph = DataflowGraph.from_edges(
        "random", num_ops, edges, output_bytes=rng.uniform(1, 2, num_ops)
    )
    return PlacementProblem(graph, topology, costs)


def random_case(seed: int):
    rng = np.random.default_rng(seed)
    num_ops = int(rng.integers(1, 30))
    preset = str(rng.choice(["p100", "host_staged"]))
    topology = make_topology(preset, int(rng.integers(1, 5)))
    problem = problem_on(topology, rng, random_edges(rng, num_ops), num_ops)
    devices = rng.integers(0, topology.num_devices, num_ops)
    return problem, devices, rng.permutation(num_ops), rng


@given(seed=seeds, network=networks, choose=rules, execution=executions)
@EXAMPLES
def test_renaming_equal_devices_changes_nothing(
    seed: int, network: str, choose: str, execution: str
) -> None:
    """One op's tensors to several devices tie where they share a link, a port or a bus, and such
    ties are broken by device. Hence ops have one consumer there."""
    rng = np.random.default_rng(seed)
    num_ops, num_devices = int(rng.integers(1, 30)), int(rng.integers(1, 5))
    topology = make_topology(str(rng.choice(["p100", "host_staged"])), num_devices)
    edges = random_edges(rng, num_ops)
    if topology.hosts or network in ("one_port", "shared_bus"):
        edges = edges[np.unique(edges[:, 0], return_index=True)[1]]
    problem = problem_on(topology, rng, edges, num_ops, equal_devices=True)
    devices, order = rng.integers(0, num_devices, num_ops), rng.permutation(num_ops)
    simulator = Simulator(problem, network, choose, execution=execution)
    names = rng.permutation(problem.num_devices)
    before = simulator.run(devices, order)
    after = simulator.run(names[devices], order)
    assert after.start.tolist() == pytest.approx(before.start.tolist(), rel=1e-12)
    assert after.makespan == pytest.approx(before.makespan, rel=1e-12)
    assert after.idle_time().busy[names] == pytest.approx(before.idle_time().busy)


@given(seed=seeds, network=networks, choose=rules, execution=executions, k=st.floats(1e-6, 1e6))
@EXAMPLES
def test_scaling_all_times_scales_the_makespan(
    seed: int, network: str, choose: str, execution: str, k: float
) -> None:
    problem, devices, order, _ = random_case(seed)
    before = Simulator(problem, network, choose, execution=execution).run(devices, order)
    for factor, tolerance in ((0.25, 0), (k, 1e-9)):  # powers of two scale without rounding
        scaled = replace(problem, cost_model=problem.cost_model.scaled(factor))
        after = Simulator(scaled, network, choose, execution=execution).run(devices, order)
        assert after.makespan == pytest.approx(factor * before.makespan, rel=tolerance, abs=0)
        assert after.start == pytest.approx(factor * before.start, rel=tolerance, abs=0)


@given(seed=seeds, network=networks, choose=rules, execution=executions)
@EXAMPLES
def test_faster_parts_and_more_memory_never_break_validity(
    seed: int, network: str, choose: str, execution: str
) -> None:
    """They may lengthen a run (Graham's anomalies, see tests/golden), never make it invalid."""
    problem, devices, order, rng = random_case(seed)
    costs, topology = problem.cost_model, problem.topology
    peaks = Simulator(problem, network, choose, execution=execution).run(devices, order).peak_bytes
    faster_device = costs.op_seconds.copy()
    faster_device[:, rng.integers(problem.num_devices)] *= 0.5
    faster_link = costs.link_seconds_per_unit.copy()
    if len(faster_link):
        faster_link[rng.integers(len(faster_link))] *= 0.5
    ample = tuple(
        replace(device, memory_bytes=2 * float(peak) + 1)
        for device, peak in zip(topology.devices, peaks, strict=True)
    )
    for changed in (
        replace(problem, cost_model=replace(costs, op_seconds=faster_device)),
        replace(problem, cost_model=replace(costs, link_seconds_per_unit=faster_link)),
        replace(problem, topology=replace(topology, devices=ample)),
    ):
        schedule = Simulator(changed, network, choose, execution=execution).run(devices, order)
        schedule.validate()


@given(seed=seeds, network=networks, choose=rules, factor=st.floats(1, 4))
@EXAMPLES
def test_memory_that_suffices_changes_nothing(
    seed: int, network: str, choose: str, factor: float
) -> None:
    problem, devices, order, _ = random_case(seed)
    before = Simulator(problem, network, choose).run(devices, order)
    tight = tuple(
        replace(device, memory_bytes=factor * float(peak) + 1e-9)
        for device, peak in zip(problem.topology.devices, before.peak_bytes, strict=True)
    )
    changed = replace(problem, topology=replace(problem.topology, devices=tight))
    after = Simulator(changed, network, choose)
    assert after.run(devices, order).start.tolist() == before.start.tolist()
    assert after.makespan(devices, order) == before.makespan


@given(seed=seeds, network=networks, choose=rules, execution=executions)
@EXAMPLES
def test_one_device_takes_the_sum_of_the_work(
    seed: int, network: str, choose: str, execution: str
) -> None:
    problem, _, order, rng = random_case(seed)
    device = int(rng.integers(problem.num_devices))
    makespan = Simulator(problem, network, choose, execution=execution).makespan(
        np.full(problem.num_ops, device), order
    )
    assert makespan == pytest.approx(problem.cost_model.op_seconds[:, device].sum(), rel=1e-12)


@given(seed=seeds, network=networks, choose=rules, execution=executions)
@EXAMPLES
def test_no_makespan_exceeds_all_work_plus_all_transfers(
    seed: int, network: str, choose: str, execution: str
) -> None:
    problem, devices, order, _ = random_case(seed)
    schedule = Simulator(problem, network, choose, execution=execution).run(devices, order)
    costs = problem.cost_model
    work = costs.op_seconds[np.arange(problem.num_ops), devices].sum()
    pairs = {
        (producer, devices[consumer])
        for producer, consumer in problem.graph.edges.tolist()
        if devices[producer] != devices[consumer]
    }
    moved = sum(problem.transfer_seconds(op, int(devices[op]), int(d)) for op, d in pairs)
    assert schedule.makespan <= (work + moved) * (1 + 1e-12)
    assert schedule.num_transfers == len(pairs)


def chain(num_ops: int) -> list[tuple[int, int]]:
    return [(op, op + 1) for op in range(num_ops - 1)]


def fork_join(num_ops: int) -> list[tuple[int, int]]:
    middle = range(1, num_ops - 1)
    return [(0, op) for op in middle] + [(op, num_ops - 1) for op in middle]


@given(seed=seeds, choose=rules, shape=st.sampled_from([chain, fork_join]))
@settings(max_examples=200, deadline=None)
def test_contention_never_helps_on_chains_and_fork_joins(seed: int, choose: str, shape) -> None:
    """On other graphs it can: a late tensor may keep an urgent op from being overtaken."""
    rng = np.random.default_rng(seed)
    num_ops, num_devices = int(rng.integers(3, 20)), int(rng.integers(1, 5))
    topology = Topology(
        "direct",
        tuple(Device(f"d{d}") for d in range(num_devices)),
        tuple(Link(s, d, 1.0) for s in range(num_devices) for d in range(num_devices) if s != d),
    )
    problem = problem_on(topology, rng, shape(num_ops), num_ops)
    devices, order = rng.integers(0, num_devices, num_ops), rng.permutation(num_ops)
    free, *contended = [
        Simulator(problem, network, choose).makespan(devices, order)
        for network in ("contention_free", "serial_links", "one_port", "shared_bus")
    ]
    assert min(contended) >= free * (1 - 1e-12)
    if shape is chain:
        assert max(contended) == pytest.approx(free, rel=1e-12)
