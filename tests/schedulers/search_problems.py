"""What the tests of searches share: their classes, small problems, and brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from exact_problems import drawn, random_problem, rng

from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology
from doppler.hardware import make_topology
from doppler.problem import InputTensor
from doppler.schedulers import SCHEDULERS, make_scheduler
from doppler.schedulers.search import SimulatedSearch
from doppler.simulator import Simulator

SEARCHES = sorted(name for name, cls in SCHEDULERS.items() if issubclass(cls, SimulatedSearch))


def search(name: str, evaluations: int | None = 400, **options: Any) -> SimulatedSearch:
    """A search whose budget is a number of evaluations alone."""
    made = make_scheduler(name, **{"budget_s": None, "budget_evals": evaluations, **options})
    assert isinstance(made, SimulatedSearch)
    return made


def all_placements(problem: PlacementProblem) -> np.ndarray:
    """Every placement that respects the constraints. # (count, num_ops)"""
    pairs = itertools.product(range(problem.num_devices), repeat=problem.num_ops)
    return np.unique(problem.conform(np.array(list(pairs))), axis=0)


def optimum(simulator: Simulator) -> float:
    """The least makespan of all placements. [s]"""
    return float(simulator.makespans(all_placements(simulator.problem)).min())


def constrained(seed: int = 0, num_ops: int = 12, num_devices: int = 3) -> PlacementProblem:
    """Two groups, one of them pinned, a pinned op, and inputs that are ops."""
    colocation = [-1] * num_ops
    colocation[1] = colocation[5] = colocation[num_ops - 3] = 7
    colocation[2] = colocation[3] = 4
    pinned = [-1] * num_ops
    pinned[3], pinned[num_ops - 1] = 1, 0
    inputs = (
        InputTensor("x", 2.0, (0, 4), 1),
        InputTensor("y", 1.0, (1, 6), "first_consumer"),
    )
    problem = random_problem(num_ops, num_devices, seed, 1.0, alike=False)
    return replace(
        problem, pinned=pinned, colocation=colocation, inputs=inputs
    ).with_explicit_inputs()


def tight(seed: int, capacity: float, num_ops: int = 6) -> PlacementProblem:
    """Ops of 1 to 3 B on two devices of so many bytes."""
    drawn_problem = random_problem(num_ops, 2, seed)
    sizes = rng(seed).integers(1, 4, num_ops).astype(float)
    graph = DataflowGraph.from_edges(
        "tight", num_ops, drawn_problem.graph.edges, output_bytes=sizes
    )
    links = make_topology("ideal", 2).links
    devices = tuple(Device(name, memory_bytes=capacity) for name in "ab")
    costs = CostModel(drawn_problem.cost_model.op_seconds, sizes, np.zeros(2), np.ones(2), "test")
    return PlacementProblem(graph, Topology("small", devices, links), costs)


__all__ = [
    "SCHEDULERS",
    "SEARCHES",
    "Simulator",
    "all_placements",
    "constrained",
    "drawn",
    "make_scheduler",
    "optimum",
    "random_problem",
    "rng",
    "search",
    "tight",
]
