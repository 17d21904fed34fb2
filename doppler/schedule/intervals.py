"""Half-open time intervals on a resource that serves a few tasks at a time."""

from __future__ import annotations

import numpy as np


def first_overlap(start: np.ndarray, finish: np.ndarray, capacity: int) -> int | None:
    """Index of the first interval, by start, that begins while `capacity` others are running.

    Intervals of no length take no capacity, but may not lie strictly inside a full stretch.

    Args:
        start, finish: # (num_intervals,) [s]
        capacity: how many may run at a time.
    """
    lasting = finish > start
    begins = np.sort(start[lasting])
    ends = np.sort(finish[lasting])
    # How many lasting intervals run at the instant of each start, itself left out: those that began
    # before it in (start, index) order and have not ended by then.
    order = np.lexsort((np.arange(len(start)), ~lasting, start))
    begun_before = np.searchsorted(begins, start[order], side="left")
    rank: np.ndarray = np.cumsum(lasting[order]) - lasting[order]
    begun = np.where(lasting[order], rank, begun_before)
    running = begun - np.searchsorted(ends, start[order], side="right")
    wrong = np.flatnonzero(running >= capacity)
    return int(order[wrong[0]]) if wrong.size else None


def free_stretches(
    start: np.ndarray, finish: np.ndarray, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Maximal stretches of time >= 0, the last one endless, with less than `capacity` running.

    Args:
        start, finish: # (num_intervals,) [s]
        capacity: how many may run at a time.

    Returns:
        Where the stretches begin and end, ascending. # (num_stretches,), (num_stretches,) [s]
    """
    times, where = np.unique(np.concatenate([[0.0], start, finish]), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, where[1 : 1 + len(start)], 1)
    np.add.at(change, where[1 + len(start) :], -1)
    free = np.cumsum(change) < capacity
    opens = free & ~np.concatenate([[False], free[:-1]])
    closes = ~free & np.concatenate([[False], free[:-1]])
    ends = times[closes]
    if free[-1]:
        ends = np.append(ends, np.inf)
    return times[opens], ends


def longest_free_wait(
    eligible: np.ndarray, start: np.ndarray, free_from: np.ndarray, free_until: np.ndarray
) -> np.ndarray:
    """For each task the longest of a few free stretches that it spent waiting.

    The first two and the last stretch that meet the wait are measured; any between them lie wholly
    inside it, so that a caller who first drops stretches up to a tolerance misses none above it.

    Args:
        eligible, start: when each task could and did start. # (num_tasks,) [s]
        free_from, free_until: stretches, ascending and disjoint. # (num_stretches,) [s]

    Returns:
        # (num_tasks,) [s]
    """
    longest = np.zeros(len(start))
    if not len(free_from):
        return longest
    first = np.searchsorted(free_until, eligible, side="right")
    last = np.searchsorted(free_from, start, side="left") - 1
    for index in (first, np.minimum(first + 1, last), last):
        inside = (index >= first) & (index <= last)
        which = np.clip(index, 0, len(free_from) - 1)
        overlap = np.minimum(free_until[which], start) - np.maximum(free_from[which], eligible)
        longest = np.maximum(longest, np.where(inside, overlap, 0.0))
    return longest
