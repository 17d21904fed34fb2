"""The compiled loop of the genetic search: select, cross, mutate, evaluate, replace."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from doppler.schedulers.search.local_search import MOST_IDLE, keep_best
from doppler.schedulers.search.moves import apply_move, pick_kind
from doppler.schedulers.search.neighbourhood import Neighbourhood
from doppler.schedulers.search.state import AGE, BEST, CURRENT, State, below, put, uniform
from doppler.simulator.jit import U, compiled, entry
from doppler.simulator.search import SearchTables, evaluate, make_search_scratch

UNIFORM_SHARE = 0.5
"""Of the crossovers; the others cut in time."""
SECOND_MUTATION = 0.3
"""Chance of one more move, and again."""
GENERATIONS_BETWEEN_MIGRATIONS = 50


class Population(NamedTuple):
    """The members of all islands, one island after the other, and working space.

    Args:
        devices: # (members, num_ops)
        orders: empty where orders are not searched. # (members, num_ops) or (members, 0)
        makespans: # (members,) [s]
        alike: a number for each device, equal for those that may change places. # (num_devices,)
        ungrouped: movable units in no group of the neighbourhood.
        overlap: units that two parents have on each pair of devices. # (num_devices, num_devices)
        name: the first parent's device for each of the second's. # (num_devices,)
        listed: ops that a child's order already has. # (num_ops,)
        sizes: members of an island; members that replacement looks at. # (2,)
        crossover: how likely a child has two parents. # (1,)
    """

    devices: np.ndarray
    orders: np.ndarray
    makespans: np.ndarray
    alike: np.ndarray
    ungrouped: np.ndarray
    overlap: np.ndarray
    name: np.ndarray
    listed: np.ndarray
    sizes: np.ndarray
    crossover: np.ndarray


@entry
def breed(t: SearchTables, hood: Neighbourhood, s: State, g: Population, evaluations: int) -> int:
    """Runs a chain on; returns how many evaluations it made.

    Args:
        t: the simulator.
        hood: what may move.
        s: the latest child, and the best of all.
        g: its first evaluations go to the members as they are.
        evaluations: how many to make.
    """
    scratch = make_search_scratch(t)
    size, members = g.sizes[0], len(g.makespans)
    made = 0
    idle = 0
    while made < evaluations and idle < MOST_IDLE:
        idle += 1
        age = s.counts[AGE] + made
        if age < members:
            _load(s, g, age)
        elif hood.chances[-1] <= 0 or not _child(hood, s, g, age % (members // size) * size):
            continue
        idle = 0
        makespan = evaluate(t, s.devices, s.order, scratch)
        made += 1
        s.values[CURRENT] = makespan
        if makespan < s.values[BEST]:
            keep_best(s, made)
        if age < members:
            g.makespans[U(age)] = makespan
            if hood.chances[-1] <= 0:
                break  # all members are the same
            continue
        island = age % (members // size) * size
        nearest = _nearest(s, g, island)
        if makespan <= g.makespans[U(nearest)]:
            _store(s, g, nearest)
        if age % (GENERATIONS_BETWEEN_MIGRATIONS * members) == 0:
            _migrate(g)
    s.counts[AGE] += made
    return made


@compiled
def _child(hood: Neighbourhood, s: State, g: Population, island: int) -> bool:
    """Makes a child in `s`; whether it differs from its first parent, as far as moves tell."""
    first = _tournament(s, g, island)
    _load(s, g, first)
    crossed = False
    if uniform(s) < g.crossover[U(0)]:
        second = _tournament(s, g, island)
        if second != first:
            cross(hood, s, g, second)
            crossed = True
    mutated = False
    while True:
        mutated |= apply_move(hood, s, pick_kind(hood, s))
        if uniform(s) >= SECOND_MUTATION:
            break
    return crossed or mutated


@compiled
def cross(hood: Neighbourhood, s: State, g: Population, second: int) -> None:
    """Gives the child in `s`, a copy of its first parent, a part of the second.

    Either whole meta-ops or levels, each with even chances, or all that comes after a point in
    time.
    Devices that may change places are first matched so that the parents agree on most units: two
    placements that differ by names only would otherwise have senseless children.
    """
    other = g.devices[U(second)]
    _match(hood, s, g, other)
    movable = len(hood.movable)
    if uniform(s) < UNIFORM_SHARE:
        for group in range(len(hood.group_ptr) - 1):
            if uniform(s) < 0.5:
                for i in range(hood.group_ptr[U(group)], hood.group_ptr[U(group + 1)]):
                    _inherit(hood, s, g, other, hood.group_units[U(i)])
        for i in range(len(g.ungrouped)):
            if uniform(s) < 0.5:
                _inherit(hood, s, g, other, g.ungrouped[U(i)])
    else:
        for i in range(below(s, movable), movable):
            _inherit(hood, s, g, other, hood.movable[U(i)])
    if len(s.order):
        _cross_orders(s, g, second)


@compiled
def _inherit(hood: Neighbourhood, s: State, g: Population, other: np.ndarray, unit: int) -> None:
    device = other[U(hood.unit_ops[U(hood.unit_ptr[U(unit)])])]
    put(hood, s, unit, g.name[U(device)])


@compiled
def _match(hood: Neighbourhood, s: State, g: Population, other: np.ndarray) -> None:
    """Names the second parent's devices after the first's: the largest overlaps first."""
    num_devices = hood.num_devices[0]
    g.overlap[:] = 0
    for i in range(len(hood.movable)):
        op = U(hood.unit_ops[U(hood.unit_ptr[U(hood.movable[U(i)])])])
        g.overlap[U(s.devices[op]), U(other[op])] += 1
    g.name[:] = -1
    for _ in range(num_devices):
        most, ours, theirs = -1, -1, -1
        for a in range(num_devices):
            for b in range(num_devices):
                if g.alike[U(a)] == g.alike[U(b)] and g.overlap[U(a), U(b)] > most:
                    most, ours, theirs = g.overlap[U(a), U(b)], a, b
        g.name[U(theirs)] = ours
        for device in range(num_devices):
            g.overlap[U(ours), U(device)] = -1
            g.overlap[U(device), U(theirs)] = -1


@compiled
def _cross_orders(s: State, g: Population, second: int) -> None:
    """The first parent's order up to a point, and all other ops in the second's order."""
    n = len(s.order)
    cut = below(s, n)
    g.listed[:] = False
    for i in range(cut):
        g.listed[U(s.order[U(i)])] = True
    at = cut
    for i in range(n):
        op = g.orders[U(second), U(i)]
        if not g.listed[U(op)]:
            s.order[U(at)] = op
            s.position[U(op)] = at
            at += 1


@compiled
def _tournament(s: State, g: Population, island: int) -> int:
    """The better of two random members of an island."""
    one, other = island + below(s, g.sizes[U(0)]), island + below(s, g.sizes[U(0)])
    return other if g.makespans[U(other)] < g.makespans[U(one)] else one


@compiled
def _nearest(s: State, g: Population, island: int) -> int:
    """Of some members of an island the one whose placement is most like the child's."""
    nearest, least = -1, len(s.devices) + 1
    for _ in range(g.sizes[U(1)]):
        member = island + below(s, g.sizes[U(0)])
        distance = 0
        for op in range(len(s.devices)):
            distance += g.devices[U(member), U(op)] != s.devices[U(op)]
        if distance < least:
            nearest, least = member, distance
    return nearest


@compiled
def _load(s: State, g: Population, member: int) -> None:
    for op in range(len(s.devices)):
        s.devices[U(op)] = g.devices[U(member), U(op)]
    for place in range(len(s.order)):
        op = g.orders[U(member), U(place)]
        s.order[U(place)] = op
        s.position[U(op)] = place


@compiled
def _store(s: State, g: Population, member: int) -> None:
    g.makespans[U(member)] = s.values[CURRENT]
    for op in range(len(s.devices)):
        g.devices[U(member), U(op)] = s.devices[U(op)]
    for place in range(len(s.order)):
        g.orders[U(member), U(place)] = s.order[U(place)]


@compiled
def _migrate(g: Population) -> None:
    """The best of each island takes the place of the worst on the next."""
    size, members = g.sizes[0], len(g.makespans)
    if members == size:
        return
    for island in range(0, members, size):
        target = (island + size) % members
        best, worst = island, target
        for i in range(size):
            if g.makespans[U(island + i)] < g.makespans[U(best)]:
                best = island + i
            if g.makespans[U(target + i)] > g.makespans[U(worst)]:
                worst = target + i
        if g.makespans[U(best)] < g.makespans[U(worst)]:
            g.makespans[U(worst)] = g.makespans[U(best)]
            for op in range(g.devices.shape[1]):
                g.devices[U(worst), U(op)] = g.devices[U(best), U(op)]
            for place in range(g.orders.shape[1]):
                g.orders[U(worst), U(place)] = g.orders[U(best), U(place)]


def make_population(
    devices: np.ndarray,
    order: Any,
    alike: np.ndarray,
    ungrouped: np.ndarray,
    island: int,
    window: int,
    crossover: float,
) -> Population:
    """Allocates.

    Args:
        devices: members to begin with. # (members, num_ops)
        order: to begin with, or None where orders are not searched. # (num_ops,)
        alike, ungrouped: see `Population`.
        island: members of an island.
        window: members that replacement looks at.
        crossover: how likely a child has two parents.
    """
    members, num_ops = devices.shape
    orders = np.empty((members, 0), np.int64) if order is None else np.tile(order, (members, 1))
    return Population(
        devices=np.ascontiguousarray(devices),
        orders=np.ascontiguousarray(orders),
        makespans=np.full(members, np.inf),
        alike=alike,
        ungrouped=ungrouped,
        overlap=np.zeros((len(alike), len(alike)), np.int64),
        name=np.zeros(len(alike), np.int64),
        listed=np.zeros(num_ops, np.bool_),
        sizes=np.array([island, window]),
        crossover=np.array([crossover]),
    )
