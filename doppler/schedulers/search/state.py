"""Where a local search stands: its placement, the best so far, and working space."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from doppler.schedulers.search.neighbourhood import MOVES, Neighbourhood
from doppler.simulator.jit import U, compiled, inlined
from doppler.simulator.search import NO_ORDER

CURRENT, BEST, TEMPERATURE = range(3)
"""Places in `State.values`."""
NUM_MOVED, NUM_CRITICAL, SINCE_CRITICAL, ORDER_FROM, ORDER_TO, AGE, BEST_AGE = range(7)
"""Places in `State.counts`."""


class State(NamedTuple):
    """One chain of a local search.

    Args:
        devices: # (num_ops,)
        order, position: op at each place and place of each op, empty where orders are not searched.
            # (num_ops,) or (0,)
        best_devices, best_order: of the best placement so far.
        values: current makespan, best makespan, temperature. # (3,) [s]
        counts: units in `moved`; in `critical`; evaluations since that was computed; places of the
            order that the last move touched; evaluations made; of these, up to the best. # (7,)
        moved, moved_from: units that the last move touched and where they were. # (M,)
        critical: movable units on a critical chain of a recent placement. # (M,)
        history: makespans that late acceptance compares with, or empty. [s]
        random: state of the generator of random numbers. # (1,) uint64
        tried, kept: moves of each kind. # (len(MOVES),)
    """

    devices: np.ndarray
    order: np.ndarray
    position: np.ndarray
    best_devices: np.ndarray
    best_order: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    moved: np.ndarray
    moved_from: np.ndarray
    critical: np.ndarray
    history: np.ndarray
    random: np.ndarray
    tried: np.ndarray
    kept: np.ndarray


def make_state(
    hood: Neighbourhood,
    devices: np.ndarray,
    order: np.ndarray | None,
    seed: int,
    history: int = 0,
) -> State:
    """Allocates.

    Args:
        hood: what may move.
        devices: to begin with; respects the problem's constraints. # (num_ops,)
        order: to begin with, or None where orders are not searched. # (num_ops,)
        seed: of the chain, at least 0.
        history: length of late acceptance's memory, 0 for annealing.
    """
    devices = np.array(devices, np.int64)
    order = NO_ORDER.copy() if order is None else np.array(order, np.int64)
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    movable = len(hood.movable)
    return State(
        devices=devices,
        order=order,
        position=position,
        best_devices=devices.copy(),
        best_order=order.copy(),
        values=np.array([np.inf, np.inf, 0.0]),
        counts=np.zeros(7, np.int64),
        moved=np.empty(movable, np.int64),
        moved_from=np.empty(movable, np.int64),
        critical=np.empty(movable, np.int64),
        history=np.full(history, np.inf),
        random=np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1),
        tried=np.zeros(len(MOVES), np.int64),
        kept=np.zeros(len(MOVES), np.int64),
    )


def return_to_best(s: State) -> None:
    """Makes the best placement so far the current one."""
    s.devices[:], s.order[:] = s.best_devices, s.best_order
    s.position[s.order] = np.arange(len(s.order))
    s.values[CURRENT] = s.values[BEST]


def best_of(s: State) -> tuple[float, np.ndarray, np.ndarray | None]:
    """Makespan [s], devices # (num_ops,), and order, where it is searched, of the best so far."""
    return float(s.values[BEST]), s.best_devices, s.best_order if len(s.best_order) else None


@inlined
def uniform(s: State) -> float:
    """A random number in [0, 1): Marsaglia's xorshift64 (Journal of Statistical Software, 2003)."""
    x = s.random[U(0)]
    x ^= x << U(13)
    x ^= x >> U(7)
    x ^= x << U(17)
    s.random[U(0)] = x
    return (x >> U(11)) * (1.0 / 9007199254740992.0)


@inlined
def below(s: State, count: int) -> Any:
    """A random whole number from 0 to count - 1."""
    return np.int64(uniform(s) * count)


@inlined
def other_device(s: State, device: int, num_devices: int) -> Any:
    """A random device other than this one."""
    choice = below(s, num_devices - 1)
    return choice + (choice >= device)


@compiled
def place(hood: Neighbourhood, s: State, unit: int, device: int) -> None:
    """Moves a unit, and remembers where it was."""
    first = hood.unit_ptr[U(unit)]
    moved = s.counts[NUM_MOVED]
    s.moved[U(moved)] = unit
    s.moved_from[U(moved)] = s.devices[U(hood.unit_ops[U(first)])]
    s.counts[NUM_MOVED] = moved + 1
    put(hood, s, unit, device)


@inlined
def put(hood: Neighbourhood, s: State, unit: int, device: int) -> None:
    """Puts all ops of a unit on a device."""
    for i in range(hood.unit_ptr[U(unit)], hood.unit_ptr[U(unit + 1)]):
        s.devices[U(hood.unit_ops[U(i)])] = device


@inlined
def device_of(hood: Neighbourhood, s: State, unit: int) -> Any:
    """Where a unit is."""
    return s.devices[U(hood.unit_ops[U(hood.unit_ptr[U(unit)])])]


@compiled
def shift(s: State, source: int, target: int) -> None:
    """Moves the op at one place of the order to another; those between make room."""
    op = s.order[U(source)]
    step = 1 if target > source else -1
    at = source
    while at != target:
        s.order[U(at)] = s.order[U(at + step)]
        s.position[U(s.order[U(at)])] = at
        at += step
    s.order[U(target)] = op
    s.position[U(op)] = target
