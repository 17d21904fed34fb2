"""Problems that several test files of the simulator build."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.hardware import make_topology


def random_problem(
    num_ops: int, num_devices: int, seed: int, transfer: float = 1.0, alike: bool = True
) -> PlacementProblem:
    """A random DAG of small whole amounts, so that ties abound; no amount is zero."""
    rng = np.random.default_rng(seed)
    consumers = rng.integers(1, num_ops, 2 * num_ops)
    producers = (rng.random(2 * num_ops) * consumers).astype(np.int64)
    names = rng.permutation(num_ops)
    edges = names[np.unique(np.stack([producers, consumers], 1), axis=0)]
    seconds = rng.integers(1, 4, (num_ops, 1 if alike else num_devices)).astype(float)
    return priced(num_ops, edges, num_devices, seconds, rng.integers(1, 4, num_ops) * transfer)


def priced(
    num_ops: int, edges: np.ndarray, num_devices: int, seconds: np.ndarray, volume: np.ndarray
) -> PlacementProblem:
    """Edges and amounts on fully connected devices whose links add nothing to the volume."""
    topology = make_topology("v100", num_devices)
    costs = CostModel(
        op_seconds=np.broadcast_to(seconds, (num_ops, num_devices)),
        transfer_volume=volume,
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="test",
    )
    return PlacementProblem(DataflowGraph.from_edges("test", num_ops, edges), topology, costs)


def with_permuted_ids(problem: PlacementProblem, source: np.ndarray) -> PlacementProblem:
    """The problem with op `source[i]` renamed to `i`."""
    graph, costs = problem.graph, problem.cost_model
    number = np.argsort(source)
    sizes = None if graph.output_bytes is None else graph.output_bytes[source]
    return PlacementProblem(
        DataflowGraph.from_edges(
            "permuted", graph.num_ops, number[graph.edges], output_bytes=sizes
        ),
        problem.topology,
        replace(
            costs,
            op_seconds=costs.op_seconds[source],
            transfer_volume=costs.transfer_volume[source],
        ),
    )
