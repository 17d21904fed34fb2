"""Balanced assignments of the ops of one layer to devices, at the least cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import linear_sum_assignment

LOAD_WEIGHT = 1e-6
"""Weight of a device's load against the cost: it only decides ties."""
SAME = 1e-12
"""Costs that agree to this many parts of the largest are a tie: sums differ by rounding."""
SAME_END = 1e-9
"""Ops that end within this relative distance of each other end together."""


@dataclass(frozen=True, eq=False)
class LayerCost:
    """What the units (ops, or ops that must be together) of a layer cost on the devices.

    Args:
        own: seconds of each unit itself beyond its least over the devices. # (k, D) [s]
        fetch: seconds to get each tensor to each device, 0 where it is. # (T, D) [s]
        readers: units that read each tensor, ascending; T lists.
    """

    own: np.ndarray
    fetch: np.ndarray
    readers: list[list[int]]

    @cached_property
    def upper_bound(self) -> np.ndarray:
        """Seconds of each unit, every tensor paid for by each of its readers. # (k, D) [s]"""
        cost = self.own.copy()
        for seconds, rows in zip(self.fetch, self.readers):
            cost[rows] += seconds
        return cost

    @property
    def shares(self) -> bool:
        """Whether two units read a tensor that has to be sent."""
        return any(len(rows) > 1 for rows in self.readers)

    def of(self, assignments: np.ndarray) -> np.ndarray:
        """Seconds of whole assignments, a tensor paid for once per device.

        Args:
            assignments: a device per unit. # (M, k)

        Returns:
            # (M,) [s]
        """
        count = len(assignments)
        total = self.own[np.arange(len(self.own)), assignments].sum(axis=1)
        for seconds, rows in zip(self.fetch, self.readers):
            there = np.zeros((count, len(seconds)), bool)
            for row in rows:
                there[np.arange(count), assignments[:, row]] = True
            total += there @ seconds
        return total


def assign_layer(
    cost: LayerCost, load: np.ndarray, pace: np.ndarray, enumerate_up_to: int
) -> np.ndarray:
    """The cheapest balanced assignment, among equals the one on the less loaded devices.

    Exact where the cost is a sum over units (at most one unit per device, or no tensor that two
    units read), and where there are at most `enumerate_up_to` balanced assignments; else the exact
    optimum of `upper_bound`.

    Args:
        cost: # k units, D devices
        load: work already on each device. # (D,) [s]
        pace: as in `balanced_counts`. # (D,)
        enumerate_up_to: most assignments that are enumerated.

    Returns:
        device of each unit. # (k,)
    """
    count = len(cost.own)
    least, most = balanced_counts(count, pace)
    assignments = None
    if most.max() > 1 and cost.shares:
        each = tuple(least.tolist()), tuple(most.tolist())
        assignments = _assignments(count, *each, enumerate_up_to)
    if assignments is None:
        return balanced_assignment(cost.upper_bound, load, (least, most))
    seconds = cost.of(assignments)
    equal = np.flatnonzero(seconds <= seconds.min() + SAME * seconds.max())
    ties = load[assignments[equal]].sum(axis=1)
    return assignments[equal[np.argmin(ties)]]


def balanced_counts(count: int, pace: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and most ops of each device where they are spread so that the last is done soonest.

    At a pace of s_d seconds per op, n ops keep device d busy for n s_d; the last of all ops is done
    at T, the `count`-th smallest of these over all n and d. A device has time for all its ops that
    end before T, and for those that end at T. On equal devices: floor(k / D), or one more.

    Args:
        count: of the ops.
        pace: seconds per op on each device, alike for all ops; all equal where one is 0. # (D,)

    Returns:
        # (D,), (D,)
    """
    if not (pace > 0).all():
        pace = np.ones(len(pace))
    ends = np.arange(1, count + 1) * pace[:, None]  # (D, k)
    last = np.partition(ends.ravel(), count - 1)[count - 1]
    before = (ends < last * (1 - SAME_END)).sum(axis=1)
    return before, (ends <= last * (1 + SAME_END)).sum(axis=1)


def balanced_assignment(
    cost: np.ndarray, load: np.ndarray, counts: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Spreads k ops over D devices at the least cost.

    Args:
        cost: of each op on each device. # (k, D)
        load: work already on each device; decides between equals. # (D,)
        counts: least and most ops of each device, from `balanced_counts`. # (D,), (D,)

    Returns:
        device of each op. # (k,)
    """
    count, (least, most) = len(cost), counts
    scaled = cost / max(float(cost.max()), np.finfo(float).tiny)
    scaled = scaled + LOAD_WEIGHT * load / max(float(load.max()), np.finfo(float).tiny)
    needed, optional = _columns(np.zeros_like(least), least), _columns(least, most)
    columns = np.concatenate([needed, optional])
    table = np.zeros((len(columns), len(columns)))
    table[:count] = scaled[:, columns]
    # A surplus row stands for an optional slot that stays empty; it must not take another one.
    table[count:, : len(needed)] = np.inf
    rows, slots = linear_sum_assignment(table)
    return columns[slots[np.argsort(rows)][:count]]


def _columns(first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Device of each slot from `first` on to before `end`, one of every device in turn."""
    devices = np.repeat(np.arange(len(first)), end - first)
    turns = np.concatenate([np.arange(a, b) for a, b in zip(first, end)])
    return devices[np.lexsort((devices, turns))]


@lru_cache(maxsize=16)
def _assignments(
    count: int, least: tuple[int, ...], most: tuple[int, ...], up_to: int
) -> np.ndarray | None:
    """All with such counts in lexicographic order, or None if there are more. # (M, count)"""
    size = len(least)
    rows, used = np.zeros((1, 0), np.int64), np.zeros((1, size), np.int64)
    for left in reversed(range(count)):
        device = np.tile(np.arange(size), len(rows))
        rows = np.column_stack([np.repeat(rows, size, axis=0), device])
        used = np.repeat(used, size, axis=0)
        used[np.arange(len(used)), device] += 1
        missing = np.maximum(np.array(least) - used, 0).sum(axis=1)
        legal = (used <= np.array(most)).all(axis=1) & (missing <= left)
        rows, used = rows[legal], used[legal]
        if len(rows) > up_to:  # each of them can be completed
            return None
    rows.setflags(write=False)
    return rows
