"""Ops that must be together, contracted into the vertices of an undirected weighted graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class VertexGraph:
    """What a partitioner of undirected graphs sees of a problem.

    All ops pinned to one device are one vertex, an *anchor*; so is every colocation group. An op
    that stands for an input and is free belongs to its first consumer in topological order.

    Args:
        of_op: vertex of each op. # (num_ops,)
        device: where a vertex must be, -1 where it is free. # (V,)
        seconds: work on each device, divided by its compute slots. # (V, num_devices) [s]
        output_bytes: of all ops of a vertex, None where unknown. # (V,) [B]
        edges: joined vertices, lower first, each pair once. # (E, 2)
        edge_seconds: mean uncontended seconds of the tensors that go either way if the edge is cut;
            a tensor with several consumers in a vertex goes there once. # (E,) [s]
    """

    of_op: np.ndarray
    device: np.ndarray
    seconds: np.ndarray
    output_bytes: np.ndarray | None
    edges: np.ndarray
    edge_seconds: np.ndarray

    @property
    def num_vertices(self) -> int:
        return len(self.device)


def contract(problem: PlacementProblem) -> VertexGraph:
    """The vertex graph of a problem; vertices are numbered anchors first, then groups, then ops."""
    limits, graph = problem.constraints, problem.graph
    num_devices, num_blocks = problem.num_devices, len(limits.block_device)
    own = num_blocks + np.arange(problem.num_ops)
    key = num_devices + np.where(limits.block >= 0, limits.block, own)
    pin = pins(problem)
    key[pin >= 0] = pin[pin >= 0]
    for op, consumer in first_consumers(problem):
        key[op] = key[consumer]
    keys, of_op = np.unique(key, return_inverse=True)
    count = len(keys)
    seconds = np.zeros((count, num_devices))
    np.add.at(seconds, of_op, problem.cost_model.op_seconds / problem.topology.compute_slots)
    known = graph.output_bytes
    edges, edge_seconds = _joined(problem, of_op, count)
    return VertexGraph(
        of_op=of_op,
        device=np.where(keys < num_devices, keys, -1),
        seconds=seconds,
        output_bytes=None if known is None else np.bincount(of_op, known, count),
        edges=edges,
        edge_seconds=edge_seconds,
    )


def pins(problem: PlacementProblem) -> np.ndarray:
    """Where each op is pinned, itself or with its group, -1 where it is free. # (num_ops,)"""
    return problem.conform(np.full(problem.num_ops, -1))


def first_consumers(problem: PlacementProblem) -> list[tuple[int, int]]:
    """Free ops that stand for inputs, each with its first consumer in topological order."""
    free = np.flatnonzero(problem.is_input_op & (problem.constraints.block < 0))
    if not free.size:
        return []
    position = np.argsort(problem.graph.topological_order)
    pairs = []
    for op in free.tolist():
        consumers = problem.graph.successors(op)
        if consumers.size:
            pairs.append((op, int(consumers[np.argmin(position[consumers])])))
    return pairs


def _joined(
    problem: PlacementProblem, of_op: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of vertices with an edge between their ops, and the seconds that cutting it costs."""
    producers, consumers = problem.graph.edges.reshape(-1, 2).T
    cut = of_op[producers] != of_op[consumers]
    deliveries = np.unique(producers[cut] * count + of_op[consumers[cut]])  # (tensor, vertex)
    producers, ends = np.divmod(deliveries, count)
    starts = of_op[producers]
    pairs, inverse = np.unique(
        np.minimum(starts, ends) * count + np.maximum(starts, ends), return_inverse=True
    )
    edges = np.stack(np.divmod(pairs, count), axis=1)
    seconds = np.bincount(inverse, problem.mean_transfer_seconds[producers], len(pairs))
    return edges, seconds
