"""The moves of a local search: each changes the placement and can be undone."""

from __future__ import annotations

import numpy as np

from doppler.schedulers.search.neighbourhood import (
    CLUSTER,
    CRITICAL,
    META_OP,
    MOVE,
    ORDER_SHIFT,
    ORDER_SWAP,
    PAIR,
    SWAP,
    TAIL,
    Neighbourhood,
)
from doppler.schedulers.search.state import (
    NUM_CRITICAL,
    NUM_MOVED,
    ORDER_FROM,
    ORDER_TO,
    State,
    below,
    device_of,
    other_device,
    place,
    put,
    shift,
    uniform,
)
from doppler.simulator.jit import U, compiled

LARGEST_CLUSTER, JOIN_CHANCE = 8, 0.7
"""Most units of a cluster, and how likely a neighbour on the same device joins it."""
_LONGEST_SHIFT = 32
_SAME_DEVICE_TRIES = 8


@compiled
def pick_kind(hood: Neighbourhood, s: State) -> int:
    """Draws a kind of move."""
    draw = uniform(s)
    kind = 0
    while draw >= hood.chances[U(kind)]:
        kind += 1
    return kind


@compiled
def apply_move(hood: Neighbourhood, s: State, kind: int) -> bool:
    """Makes a random move of a kind; whether anything changed."""
    s.counts[NUM_MOVED] = 0
    s.counts[ORDER_FROM] = -1
    if kind in (MOVE, SWAP):
        _move_or_swap(hood, s, hood.movable[U(below(s, len(hood.movable)))], kind == SWAP)
    elif kind == PAIR:
        _pair(hood, s)
    elif kind == CLUSTER:
        _cluster(hood, s)
    elif kind == CRITICAL:
        if s.counts[NUM_CRITICAL]:
            unit = s.critical[U(below(s, s.counts[NUM_CRITICAL]))]
            _move_or_swap(hood, s, unit, uniform(s) < 0.5)
    elif kind == META_OP:
        group = below(s, len(hood.group_ptr) - 1)
        first, end = hood.group_ptr[U(group)], hood.group_ptr[U(group + 1)]
        _exchange(hood, s, hood.group_units, first, end)
    elif kind == TAIL:
        movable = len(hood.movable)
        _exchange(hood, s, hood.movable, below(s, movable), movable)
    elif kind in (ORDER_SWAP, ORDER_SHIFT):
        _reorder(s, kind)
    return s.counts[NUM_MOVED] > 0 or s.counts[ORDER_FROM] >= 0


@compiled
def undo_move(hood: Neighbourhood, s: State, kind: int) -> None:
    """Takes the last move back."""
    for i in range(s.counts[NUM_MOVED] - 1, -1, -1):
        put(hood, s, s.moved[U(i)], s.moved_from[U(i)])
    if s.counts[ORDER_FROM] >= 0:
        if kind == ORDER_SHIFT:
            shift(s, s.counts[ORDER_TO], s.counts[ORDER_FROM])
        else:
            _exchange_places(s, s.counts[ORDER_FROM], s.counts[ORDER_TO])


@compiled
def _move_or_swap(hood: Neighbourhood, s: State, unit: int, swap: bool) -> None:
    device = device_of(hood, s, unit)
    if not swap:
        place(hood, s, unit, other_device(s, device, hood.num_devices[0]))
        return
    other = hood.movable[U(below(s, len(hood.movable)))]
    target = device_of(hood, s, other)
    if target != device:
        place(hood, s, unit, target)
        place(hood, s, other, device)


@compiled
def _pair(hood: Neighbourhood, s: State) -> None:
    """A unit and one that it exchanges a tensor with go to one device."""
    unit = hood.movable[U(below(s, len(hood.movable)))]
    first = hood.near_ptr[U(unit)]
    count = hood.near_ptr[U(unit + 1)] - first
    if count == 0:
        return
    other = hood.near_units[U(first + below(s, count))]
    device = below(s, hood.num_devices[0])
    if device != device_of(hood, s, unit):
        place(hood, s, unit, device)
    if device != device_of(hood, s, other):
        place(hood, s, other, device)


@compiled
def _cluster(hood: Neighbourhood, s: State) -> None:
    """Connected units of one device go to another.

    Sums and chains of small ops sit best with what they consume, and no single move of such a set
    pays by itself.
    """
    unit = hood.movable[U(below(s, len(hood.movable)))]
    device = device_of(hood, s, unit)
    target = other_device(s, device, hood.num_devices[0])
    most = 2 + below(s, LARGEST_CLUSTER - 1)
    place(hood, s, unit, target)
    head = 0
    while head < s.counts[NUM_MOVED] and s.counts[NUM_MOVED] < most:
        unit = s.moved[U(head)]
        head += 1
        for i in range(hood.near_ptr[U(unit)], hood.near_ptr[U(unit + 1)]):
            near = hood.near_units[U(i)]
            if (
                s.counts[NUM_MOVED] < most
                and device_of(hood, s, near) == device
                and uniform(s) < JOIN_CHANCE
            ):
                place(hood, s, near, target)


@compiled
def _exchange(hood: Neighbourhood, s: State, units: np.ndarray, first: int, end: int) -> None:
    """Two devices exchange what they have of some units."""
    one = below(s, hood.num_devices[0])
    other = other_device(s, one, hood.num_devices[0])
    for i in range(first, end):
        unit = units[U(i)]
        device = device_of(hood, s, unit)
        if device == one:
            place(hood, s, unit, other)
        elif device == other:
            place(hood, s, unit, one)


@compiled
def _reorder(s: State, kind: int) -> None:
    n = len(s.order)
    op = below(s, n)
    source = s.position[U(op)]
    if kind == ORDER_SHIFT:
        reach = 2 * _LONGEST_SHIFT + 1
        target = min(n - 1, max(0, source + below(s, reach) - _LONGEST_SHIFT))
        if target == source:
            return
        shift(s, source, target)
    else:
        # Only ops that share a device compete.
        other = below(s, n)
        for _ in range(_SAME_DEVICE_TRIES):
            if s.devices[U(other)] == s.devices[U(op)] and other != op:
                break
            other = below(s, n)
        if other == op:
            return
        target = s.position[U(other)]
        _exchange_places(s, source, target)
    s.counts[ORDER_FROM] = source
    s.counts[ORDER_TO] = target


@compiled
def _exchange_places(s: State, one: int, other: int) -> None:
    a, b = s.order[U(one)], s.order[U(other)]
    s.order[U(one)] = b
    s.order[U(other)] = a
    s.position[U(b)] = one
    s.position[U(a)] = other
