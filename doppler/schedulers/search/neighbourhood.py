"""What a local search may change in a placement, as flat arrays.

A *unit* is a set of ops that must share a device: a colocation group, or an op alone. Units move as
a whole; those that are pinned never move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array

from doppler.errors import ConfigurationError
from doppler.graph import t_levels
from doppler.graph.levels import hop_depths
from doppler.problem import PlacementProblem

MOVES = (
    "move",  # a unit to another device
    "swap",  # two units exchange devices
    "pair",  # a unit and a neighbour to one device
    "cluster",  # connected units of one device to another
    "critical",  # as move or swap, with a unit on the critical chain
    "meta_op",  # two devices exchange what they have of a meta-op
    "tail",  # two devices exchange all that comes after a point in time
    "order_swap",  # two ops exchange priorities
    "order_shift",  # an op gets another priority
)
"""Kinds of moves. The last two exist under `choose=given` only."""
MOVE, SWAP, PAIR, CLUSTER, CRITICAL, META_OP, TAIL, ORDER_SWAP, ORDER_SHIFT = range(len(MOVES))
ORDER_MOVES = frozenset({"order_swap", "order_shift"})

DEFAULT_WEIGHTS = {
    "move": 1.0,
    "swap": 1.0,
    "pair": 1.0,
    "cluster": 1.0,
    "critical": 2.0,
    "meta_op": 0.1,
    "tail": 0.02,
    "order_swap": 1.0,
    "order_shift": 1.0,
}
"""How often each kind is tried, relative to the others."""
MOST_WEIGHT = 1e6


class Neighbourhood(NamedTuple):
    """Units and how they relate; constants of a problem.

    Args:
        unit_ptr, unit_ops: ops of each unit, in compressed sparse rows.
        unit_of: unit of each op. # (num_ops,)
        near_ptr, near_units: movable units that produce for or consume from each unit, by unit.
        movable: units that may move, by t-level. # (M,)
        group_ptr, group_units: movable units of each meta-op or, where these are unknown, of each
            level of the graph; groups of one unit are left out.
        chances: cumulated shares of the kinds of moves; zeros where nothing can change.
            # (len(MOVES),)
        num_devices: # (1,)
    """

    unit_ptr: np.ndarray
    unit_ops: np.ndarray
    unit_of: np.ndarray
    near_ptr: np.ndarray
    near_units: np.ndarray
    movable: np.ndarray
    group_ptr: np.ndarray
    group_units: np.ndarray
    chances: np.ndarray
    num_devices: np.ndarray


def make_neighbourhood(
    problem: PlacementProblem, weights: dict[str, float], orders: bool
) -> Neighbourhood:
    """Flattens a problem's units.

    Args:
        problem: what is placed.
        weights: how often each kind of move is tried; see `DEFAULT_WEIGHTS`.
        orders: whether the order of the ops is searched too.
    """
    unit_of, pinned = _units(problem)
    num_units = len(pinned)
    unit_ops = np.argsort(unit_of, kind="stable")
    unit_ptr = _row_ptr(np.sort(unit_of), num_units)
    levels = t_levels(problem.graph, problem.mean_op_seconds, problem.mean_transfer_seconds)
    first = np.full(num_units, np.inf)
    np.minimum.at(first, unit_of, levels)
    movable = np.flatnonzero(pinned < 0)
    movable = movable[np.argsort(first[movable], kind="stable")]
    near_ptr, near_units = _near(problem, unit_of, pinned)
    group_ptr, group_units = _groups(problem, unit_ops[unit_ptr[:-1]], movable)
    return Neighbourhood(
        unit_ptr=unit_ptr,
        unit_ops=unit_ops,
        unit_of=unit_of,
        near_ptr=near_ptr,
        near_units=near_units,
        movable=movable,
        group_ptr=group_ptr,
        group_units=group_units,
        chances=_chances(
            weights,
            devices=len(movable) > 0 and problem.num_devices > 1,
            orders=orders and problem.num_ops > 1,
            groups=len(group_ptr) > 1,
        ),
        num_devices=np.array([problem.num_devices]),
    )


def check_weights(owner: str, weights: Any) -> dict[str, float]:
    """The default weights with those given in their place.

    Raises:
        ConfigurationError: an unknown kind of move, a weight that is no number >= 0, or nothing
            left that moves an op.
    """
    if not isinstance(weights, Mapping):
        raise ConfigurationError(f"{owner}, moves: {weights!r} is not a mapping of weights by kind")
    for kind, weight in weights.items():
        if kind not in MOVES:
            raise ConfigurationError(
                f"{owner}, moves: {kind!r} is unknown; the kinds are {', '.join(MOVES)}"
            )
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= MOST_WEIGHT:
            raise ConfigurationError(
                f"{owner}, moves.{kind}: {weight!r} is not a number from 0 to {MOST_WEIGHT:g}"
            )
    merged = {**DEFAULT_WEIGHTS, **weights}
    if not sum(merged[kind] for kind in ("move", "pair", "cluster", "critical")):
        raise ConfigurationError(
            f"{owner}, moves: one of move, pair, cluster, critical must be above 0"
        )
    return merged


def _units(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """Unit of each op # (num_ops,), and device of each unit, -1 if free."""
    constraints = problem.constraints
    key = np.where(
        constraints.block >= 0,
        constraints.block,
        len(constraints.block_device) + np.arange(problem.num_ops),
    )
    keys, unit_of = np.unique(key, return_inverse=True)
    pinned = np.full(len(keys), -1, np.int64)
    blocks = keys < len(constraints.block_device)
    pinned[blocks] = constraints.block_device[keys[blocks]]
    return unit_of.astype(np.int64), pinned


def _near(
    problem: PlacementProblem, unit_of: np.ndarray, pinned: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    graph, num_units = problem.graph, len(pinned)
    producers = np.repeat(unit_of, np.diff(graph.succ_ptr))
    consumers = unit_of[graph.succ_ops]
    rows = np.concatenate([producers, consumers])
    columns = np.concatenate([consumers, producers])
    keep = (rows != columns) & (pinned[columns] < 0)
    near = coo_array(
        (np.ones(int(keep.sum())), (rows[keep], columns[keep])), shape=(num_units, num_units)
    ).tocsr()  # merges duplicates and sorts
    near.sort_indices()
    return near.indptr.astype(np.int64), near.indices.astype(np.int64)


def _groups(
    problem: PlacementProblem, first_op: np.ndarray, movable: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    graph = problem.graph
    of_op = graph.meta_op
    if of_op is None:
        of_op = hop_depths(graph)
    units = movable[np.argsort(movable)]
    group = of_op[first_op[units]]
    _, group, counts = np.unique(group, return_inverse=True, return_counts=True)
    units, group = units[counts[group] > 1], group[counts[group] > 1]
    _, group = np.unique(group, return_inverse=True)
    by_group = np.argsort(group, kind="stable")
    return _row_ptr(group[by_group], int(group.max(initial=-1)) + 1), units[by_group]


def _chances(weights: dict[str, float], devices: bool, orders: bool, groups: bool) -> np.ndarray:
    usable = np.zeros(len(MOVES))
    for index, kind in enumerate(MOVES):
        possible = orders if kind in ORDER_MOVES else devices
        if possible and (kind != "meta_op" or groups):
            usable[index] = weights[kind]
    if not usable.any():
        return usable
    chances = np.cumsum(usable) / usable.sum()
    chances[np.flatnonzero(usable)[-1] :] = 1.0  # rounding must not leave room for an unused kind
    return chances


def _row_ptr(sorted_rows: np.ndarray, num_rows: int) -> np.ndarray:
    return np.searchsorted(sorted_rows, np.arange(num_rows + 1)).astype(np.int64)
