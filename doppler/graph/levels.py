"""Levels: longest paths through a dataflow graph, with or without communication.

Definitions as in Kwok and Ahmad (1999): the t-level of an op excludes the op itself, the b-level
includes it; their sum is largest on the critical path.
"""

from __future__ import annotations

import numpy as np

from doppler.graph.dataflow_graph import DataflowGraph


def hop_depths(graph: DataflowGraph) -> np.ndarray:
    """Number of edges on the longest path from an entry to each op. # (num_ops,)"""
    depths = np.zeros(graph.num_ops, np.int64)
    for op in graph.topological_order:
        row = graph.predecessors(op)
        if row.size:
            depths[op] = depths[row].max() + 1
    return depths


def t_levels(
    graph: DataflowGraph, op_seconds: np.ndarray, transfer_seconds: np.ndarray | None = None
) -> np.ndarray:
    """Longest path from an entry to each op, the op itself excluded.

    Args:
        graph: the dataflow graph.
        op_seconds: duration of each op. # (num_ops,) [s]
        transfer_seconds: seconds to move each op's output to a consumer; None leaves communication
            out. # (num_ops,) [s]

    Returns:
        The t-levels. # (num_ops,) [s]
    """
    leave = (op_seconds if transfer_seconds is None else op_seconds + transfer_seconds).tolist()
    # Plain lists: element by element they are many times faster than arrays.
    ptr, producers = graph.pred_ptr.tolist(), graph.pred_ops.tolist()
    levels = [0.0] * graph.num_ops
    for op in graph.topological_order.tolist():
        level = 0.0
        for producer in producers[ptr[op] : ptr[op + 1]]:
            reached = levels[producer] + leave[producer]
            if reached > level:
                level = reached
        levels[op] = level
    return np.array(levels)


def b_levels(
    graph: DataflowGraph, op_seconds: np.ndarray, transfer_seconds: np.ndarray | None = None
) -> np.ndarray:
    """Longest path from each op to an exit, the op included. Arguments as in `t_levels`."""
    ptr, consumers = graph.succ_ptr.tolist(), graph.succ_ops.tolist()
    seconds = op_seconds.tolist()
    sending = None if transfer_seconds is None else transfer_seconds.tolist()
    levels = [0.0] * graph.num_ops
    for op in graph.topological_order[::-1].tolist():
        onward = 0.0
        row = consumers[ptr[op] : ptr[op + 1]]
        for consumer in row:
            if levels[consumer] > onward:
                onward = levels[consumer]
        if row and sending is not None:
            onward += sending[op]
        levels[op] = seconds[op] + onward
    return np.array(levels)


def path_successors(graph: DataflowGraph, levels: np.ndarray) -> np.ndarray:
    """The next op on each op's longest path to an exit (ties to the lower id), -1 at an exit.

    Args:
        graph: the dataflow graph.
        levels: b-levels, with or without communication (an op's transfer seconds are the same for
            all its consumers, so they do not change which one is next). # (num_ops,) [s]
    """
    following = np.full(graph.num_ops, -1, np.int64)
    for op in range(graph.num_ops):
        row = graph.successors(op)
        if row.size:
            following[op] = row[np.argmax(levels[row])]
    return following


def critical_path(
    graph: DataflowGraph, op_seconds: np.ndarray, transfer_seconds: np.ndarray | None = None
) -> np.ndarray:
    """Ops of a longest path from an entry to an exit, in order; ties go to the lower id."""
    levels = b_levels(graph, op_seconds, transfer_seconds)
    following = path_successors(graph, levels)
    op = int(np.argmax(levels))
    path = [op]
    while following[op] >= 0:
        op = int(following[op])
        path.append(op)
    return np.array(path)
