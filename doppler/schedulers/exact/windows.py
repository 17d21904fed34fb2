"""Heads, tails and the bounds that follow from them."""

from __future__ import annotations

import numpy as np

from doppler.graph import DataflowGraph, b_levels, t_levels


def heads_and_tails(graph: DataflowGraph, least: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What must pass before each op starts, and after it has finished.

    Args:
        graph: what is scheduled.
        least: the least duration of each op. # (num_ops,) [ticks]

    Returns:
        # (num_ops,), (num_ops,) [ticks]
    """
    seconds = least.astype(np.float64)  # whole numbers below 2**53 stay exact
    heads = t_levels(graph, seconds).astype(np.int64)
    tails = (b_levels(graph, seconds) - seconds).astype(np.int64)
    return heads, tails


def window_bound(heads: np.ndarray, tails: np.ndarray, least: np.ndarray, capacity: int) -> int:
    """The least makespan that paths and work allow together.

    The ops with a head of at least `a` and a tail of at least `b` share the slots of all devices
    between `a` and `b` before the end, for every pair (a, b); with a = b = 0 this is the work
    bound, with one op alone it is a path.

    Source: Carlier (1987), "Scheduling jobs with release dates and tails on identical machines to
    minimize the makespan", European Journal of Operational Research 29.

    Args:
        heads, tails, least: of each op. # (num_ops,) [ticks]
        capacity: compute slots of all devices.

    Returns:
        [ticks]
    """
    bound = int((heads + least + tails).max(initial=0))
    by_tail = np.argsort(-tails, kind="stable")
    heads, tails, least = heads[by_tail], tails[by_tail], least[by_tail]
    for head in np.unique(heads).tolist():
        chosen = heads >= head
        work = np.cumsum(least[chosen])
        ends = tails[chosen] + -(-work // capacity)
        bound = max(bound, head + int(ends[work > 0].max(initial=0)))
    return bound
