"""The compiled loop of all local searches: move, evaluate, keep or undo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from doppler.schedulers.search.moves import apply_move, pick_kind, undo_move
from doppler.schedulers.search.neighbourhood import CRITICAL, Neighbourhood
from doppler.schedulers.search.state import (
    AGE,
    BEST,
    BEST_AGE,
    CURRENT,
    NUM_CRITICAL,
    SINCE_CRITICAL,
    TEMPERATURE,
    State,
    uniform,
)
from doppler.simulator.jit import U, entry
from doppler.simulator.kernel import simulate_trace
from doppler.simulator.search import SearchTables, evaluate, make_search_scratch

if TYPE_CHECKING:
    from doppler.schedulers.search.base import Space

CRITICAL_EVERY = 128
"""Evaluations between two computations of the critical chain, each worth a few evaluations."""
MOST_IDLE = 10_000
"""Moves in a row that may change nothing, at no evaluation, before there seem to be no others."""


@entry
def improve(t: SearchTables, hood: Neighbourhood, s: State, evaluations: int) -> int:
    """Runs a chain on; returns how many evaluations it made.

    A move is kept if the makespan does not grow, or else, without `s.history`, with the chance of
    Metropolis et al. (1953) at the state's temperature, and with a history, if the makespan is at
    most the one of as many evaluations ago as the history is long (Burke and Bykov 2017).

    Args:
        t: the simulator.
        hood: what may move.
        s: where the chain stands; its current makespan is computed first if it is infinite.
        evaluations: how many to make.
    """
    scratch = make_search_scratch(t)
    made = 0
    if s.counts[AGE] == 0:
        s.values[CURRENT] = evaluate(t, s.devices, s.order, scratch)
        made = 1
        keep_best(s, made)
        s.history[:] = s.values[CURRENT]
    critical = hood.chances[CRITICAL] > hood.chances[CRITICAL - 1]
    idle = 0 if hood.chances[-1] > 0 else MOST_IDLE
    while made < evaluations and idle < MOST_IDLE:
        idle += 1
        if critical and s.counts[SINCE_CRITICAL] == 0:
            _find_critical(t, hood, s)
            s.counts[SINCE_CRITICAL] = CRITICAL_EVERY
        kind = pick_kind(hood, s)
        if not apply_move(hood, s, kind):
            continue
        idle = 0
        makespan = evaluate(t, s.devices, s.order, scratch)
        s.tried[U(kind)] += 1
        current = s.values[CURRENT]
        keep = makespan <= current
        if len(s.history):
            slot = (s.counts[AGE] + made) % len(s.history)
            # A placement that fits is not given up for one that does not.
            keep |= makespan <= s.history[U(slot)] and makespan < np.inf
            s.history[U(slot)] = min(s.history[U(slot)], makespan if keep else current)
        elif not keep and s.values[TEMPERATURE] > 0:
            keep = uniform(s) < np.exp((current - makespan) / s.values[TEMPERATURE])
        made += 1
        s.counts[SINCE_CRITICAL] -= 1 if critical else 0
        if keep:
            s.kept[U(kind)] += 1
            s.values[CURRENT] = makespan
            if makespan < s.values[BEST]:
                keep_best(s, made)
        else:
            undo_move(hood, s, kind)
    s.counts[AGE] += made
    return made


@entry
def keep_best(s: State, made: int) -> None:
    """Copies the current placement, found with so many evaluations since `AGE` was counted."""
    s.values[BEST] = s.values[CURRENT]
    s.counts[BEST_AGE] = s.counts[AGE] + made
    s.best_devices[:] = s.devices
    s.best_order[:] = s.order


@entry
def _find_critical(t: SearchTables, hood: Neighbourhood, s: State) -> None:
    """Lists the movable units of the chain of ops that ends last in the current placement.

    Each op follows the one that held it up: the one before on its device if it ended as late as
    this one began, else the producer whose output came last, as far as uncontended transfers tell.
    """
    s.counts[NUM_CRITICAL] = 0
    makespan, ops, _ = simulate_trace(
        t.tables, s.devices, s.order, t.rank, t.op_factor, t.transfer_factor, t.flags[2]
    )
    if not (makespan > 0 and makespan < np.inf):
        return
    num_ops, num_devices = len(s.devices), hood.num_devices[0]
    start, finish = ops.start, ops.finish
    before = np.full(num_ops, -1, np.int64)
    latest = np.full(num_devices, -1, np.int64)
    for op in np.argsort(start):
        device = s.devices[op]
        before[op] = latest[device]
        latest[device] = op
    listed = np.zeros(len(hood.unit_ptr), np.bool_)
    is_movable = np.zeros(len(hood.unit_ptr), np.bool_)
    is_movable[hood.movable] = True
    op = np.argmax(finish)
    count = 0
    for _ in range(num_ops):
        unit = hood.unit_of[op]
        if is_movable[unit] and not listed[unit]:
            listed[unit] = True
            s.critical[count] = unit
            count += 1
        cause = before[op]
        if cause < 0 or finish[cause] < start[op]:
            cause = _last_producer(t, s.devices, finish, op)
        if cause < 0:
            break
        op = cause
    s.counts[NUM_CRITICAL] = count


@entry
def _last_producer(t: SearchTables, devices: np.ndarray, finish: np.ndarray, op: int) -> int:
    """The producer whose output reaches an op last, -1 for none."""
    tables = t.tables
    num_devices = len(tables.slots)
    producer, latest = -1, -1.0
    for i in range(tables.pred_ptr[op], tables.pred_ptr[op + 1]):
        source = tables.pred_ops[i]
        arrival = finish[source]
        route = devices[source] * num_devices + devices[op]
        for hop in range(tables.route_ptr[route], tables.route_ptr[route + 1]):
            link = tables.route_links[hop]
            arrival += tables.link_latency[link]
            arrival += tables.transfer_volume[source] * tables.link_rate[link]
        if arrival > latest:
            producer, latest = source, arrival
    return producer


class LocalSearch:
    """One walk from one placement (a `Chain`).

    Args:
        space: what is searched.
        state: where the walk begins; its history or its temperature tells what is kept.
    """

    def __init__(self, space: Space, state: State) -> None:
        self._space, self.best = space, state

    def advance(self, fraction: float, evaluations: int) -> int:
        """See `Chain.advance`."""
        return int(improve(self._space.tables, self._space.hood, self.best, evaluations))
