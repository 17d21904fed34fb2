"""Hypothesis strategies: small problems in which ties and zeros abound."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Topology
from doppler.problem import InputTensor
from doppler.simulator import EmpiricalNoise, LognormalNoise, NoiseModel

NOISES = [
    None,
    None,
    LognormalNoise(0.4),
    LognormalNoise(0.2, 0.0),
    EmpiricalNoise([0.5, 1.0, 1.0, 2.0], transfer_samples=[1.0, 1.5]),
]
SECONDS = [0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0]


@dataclass
class Case:
    """A problem with a placement, an order and a noise model."""

    problem: PlacementProblem
    devices: np.ndarray
    order: np.ndarray
    noise: NoiseModel | None


@st.composite
def topologies(draw: st.DrawFn, capacities: bool) -> Topology:
    """One to four devices, fully connected or behind a host, some with a direct link besides."""
    num_devices = draw(st.integers(1, 4))
    capacity = draw(st.sampled_from([4.0, 7.0, 10.0, 1000.0])) if capacities else None
    slots = draw(st.lists(st.sampled_from([1, 1, 2]), min_size=4, max_size=4))
    devices = tuple(
        Device(f"d{d}", memory_bytes=capacity, compute_slots=slots[d]) for d in range(num_devices)
    )
    if draw(st.booleans()):
        pairs = [(s, d) for s in range(num_devices) for d in range(num_devices) if s != d]
        return Topology("direct", devices, draw(links(pairs)))
    pairs = [(d, num_devices) for d in range(num_devices)]
    pairs += [(num_devices, d) for d in range(num_devices)]
    if num_devices > 2 and draw(st.booleans()):
        pairs.append((0, 2))
    return Topology("staged", devices, draw(links(pairs)), ("host",))


@st.composite
def links(draw: st.DrawFn, pairs: list[tuple[int, int]]) -> tuple[Link, ...]:
    """All on one bus, or each on one of three; only `shared_bus` minds."""
    buses = draw(st.sampled_from([[None], [None, "a", "b"]]))
    return tuple(Link(s, d, 1.0, bus=buses[(s + d) % len(buses)]) for s, d in pairs)


@st.composite
def cases(
    draw: st.DrawFn, max_ops: int = 12, capacities: bool = False, constraints: bool = True
) -> Case:
    """Random DAGs with shuffled ids; heterogeneous devices and links; bytes known or not.

    Half of them have pins, groups and inputs with places of their own, unless `constraints` is
    False.

    Structure is drawn by hypothesis, amounts and edges from a generator whose seed it draws: one
    by one they would take longer to draw than to simulate.
    """
    topology = draw(topologies(capacities))
    num_ops = draw(st.integers(1, max_ops))
    density = draw(st.sampled_from([0.1, 0.25, 0.5]))
    known = capacities or draw(st.booleans())
    noise = draw(st.sampled_from(NOISES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_devices, num_links = topology.num_devices, topology.num_links
    names = rng.permutation(num_ops)
    edges = np.argwhere(np.triu(rng.random((num_ops, num_ops)) < density, 1))
    graph = DataflowGraph.from_edges(
        "random",
        num_ops,
        names[edges],
        output_bytes=rng.choice([0.0, 1.0, 2.0, 5.0], num_ops) if known else None,
    )
    costs = CostModel(
        op_seconds=rng.choice(SECONDS, (num_ops, num_devices)),
        transfer_volume=rng.choice(SECONDS, num_ops),
        link_latency=rng.choice(SECONDS, num_links),
        link_seconds_per_unit=rng.choice(SECONDS, num_links),
        source="hypothesis",
    )
    problem = PlacementProblem(graph, topology, costs)
    if constraints and draw(st.booleans()):
        problem = constrained(problem, rng)
    return Case(
        problem=problem,
        devices=problem.conform(rng.integers(0, num_devices, problem.num_ops)),
        order=rng.permutation(problem.num_ops),
        noise=noise,
    )


def constrained(problem: PlacementProblem, rng: np.random.Generator) -> PlacementProblem:
    """The problem with a few pins, groups and inputs, the latter as ops."""
    num_ops, num_devices = problem.num_ops, problem.num_devices
    colocation = np.where(rng.random(num_ops) < 0.4, rng.integers(0, 3, num_ops), -1)
    pinned = np.where(rng.random(num_ops) < 0.2, rng.integers(0, num_devices, num_ops), -1)
    pinned[colocation >= 0] = -1
    places = ["first_consumer", "replicated", *range(num_devices)]
    inputs = tuple(
        InputTensor(
            name=f"x{i}",
            size=float(rng.choice([0.0, 1.0, 3.0])),
            consumers=tuple(rng.permutation(num_ops)[: rng.integers(1, num_ops + 1)].tolist()),
            location=places[rng.integers(len(places))],
        )
        for i in range(rng.integers(0, 4))
    )
    stated = replace(problem, pinned=pinned, colocation=colocation, inputs=inputs)
    return stated.with_explicit_inputs()
