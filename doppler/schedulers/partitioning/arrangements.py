"""Linear arrangements of the ops: topological orders that a chain split can cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from doppler.graph import b_levels, t_levels
from doppler.problem import PlacementProblem


def by_level(problem: PlacementProblem) -> np.ndarray:
    """Hop by hop from the entries, ids ascending in a level. # (num_ops,)"""
    return problem.graph.topological_order.copy()


def by_t_level(problem: PlacementProblem) -> np.ndarray:
    """By rising t-level, communication counted. # (num_ops,)"""
    return _sorted(
        problem, t_levels(problem.graph, problem.mean_op_seconds, problem.mean_transfer_seconds)
    )


def by_b_level(problem: PlacementProblem) -> np.ndarray:
    """By falling b-level, communication counted. # (num_ops,)"""
    return _sorted(
        problem, -b_levels(problem.graph, problem.mean_op_seconds, problem.mean_transfer_seconds)
    )


def depth_first(problem: PlacementProblem) -> np.ndarray:
    """Backwards from the exits: each op right after what it needs, which keeps tensors short-lived.

    Exits by id; of an op's open inputs the one with the longest path from an entry first, ties to
    the lower id. # (num_ops,)
    """
    graph = problem.graph
    levels = t_levels(graph, problem.mean_op_seconds, problem.mean_transfer_seconds)
    # Predecessors of each op, shallowest first, so that the end of a list is taken first.
    consumers = np.repeat(np.arange(graph.num_ops), graph.in_degrees)
    by_depth = np.lexsort((-graph.pred_ops, levels[graph.pred_ops], consumers))
    producers = graph.pred_ops[by_depth].tolist()
    first, last = graph.pred_ptr[:-1].tolist(), graph.pred_ptr[1:].tolist()
    done = [False] * graph.num_ops
    order: list[int] = []
    for exit_op in np.flatnonzero(graph.out_degrees == 0).tolist():
        stack = [exit_op]
        while stack:
            op = stack[-1]
            while last[op] > first[op] and done[producers[last[op] - 1]]:
                last[op] -= 1
            if last[op] > first[op]:
                stack.append(producers[last[op] - 1])
                continue
            stack.pop()
            done[op] = True
            order.append(op)
    return np.array(order, np.int64)


ARRANGEMENTS: dict[str, Callable[[PlacementProblem], np.ndarray]] = {
    "level": by_level,
    "t_level": by_t_level,
    "b_level": by_b_level,
    "depth_first": depth_first,
}
"""Arrangements by name; each gives a topological order."""


def _sorted(problem: PlacementProblem, levels: np.ndarray) -> np.ndarray:
    """Ops by rising level; equal ones, which ops without work can be, in topological order."""
    position = np.argsort(problem.graph.topological_order)
    return np.lexsort((position, levels))
