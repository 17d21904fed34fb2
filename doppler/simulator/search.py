"""Makespans inside compiled searches: no Python, no allocation and no checks of types per call.

A search kernel takes `SearchTables` from Python, makes one `SearchScratch` and calls `evaluate` as
often as it likes. It is compiled with `doppler.simulator.jit.entry`, whose cache notices changes of
the simulator's sources:

    @entry
    def try_moves(tables, devices, order, ops, targets, makespans):
        scratch = make_search_scratch(tables)
        for i in range(len(ops)):
            before = devices[ops[i]]
            devices[ops[i]] = targets[i]
            makespans[i] = evaluate(tables, devices, order, scratch)
            devices[ops[i]] = before

    try_moves(search_tables(simulator), devices, NO_ORDER, ops, targets, makespans)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from doppler.errors import ConfigurationError
from doppler.simulator.fifo import NOT_FIFO, simulate_fifo
from doppler.simulator.fifo_tables import FifoScratch, FifoTables, make_fifo_scratch
from doppler.simulator.jit import allocates, compiled
from doppler.simulator.kernel import simulate_queued
from doppler.simulator.ops import prepare
from doppler.simulator.tables import (
    Scratch,
    Tables,
    TransferScratch,
    make_scratch,
    make_transfer_scratch,
)
from doppler.simulator.uncontended import simulate_free

if TYPE_CHECKING:
    from doppler.simulator.simulator import Simulator

NO_ORDER = np.empty(0, np.int64)
"""The order where the simulator's choose-task rule is not `given`."""


class SearchTables(NamedTuple):
    """A simulator as compiled code sees it.

    Args:
        tables: the problem under a network model.
        fifo: of the pass without events; without ops where it does not apply.
        rank: priority of each op, lowest first, or empty. # (num_ops,) or (0,)
        op_factor, transfer_factor: noise, or empty.
        flags: whether ops have priorities other than the time at which they are ready, whether
            transfers need no events, and whether memory may run out. # (3,)
    """

    tables: Tables
    fifo: FifoTables
    rank: np.ndarray
    op_factor: np.ndarray
    transfer_factor: np.ndarray
    flags: np.ndarray


class SearchScratch(NamedTuple):
    """Working space of one thread."""

    ops: Scratch
    transfers: TransferScratch
    fifo: FifoScratch


def search_tables(simulator: Simulator, noise_seed: int = 0) -> SearchTables:
    """What `evaluate` needs of a simulator.

    Args:
        simulator: work-conserving.
        noise_seed: of the noise model's draw, the same for all evaluations.

    Raises:
        ConfigurationError: bulk-synchronous execution.
    """
    engine = simulator.engine
    if engine.levels:
        raise ConfigurationError(
            "searches need execution=work_conserving; simulate bulk-synchronous placements with "
            "Simulator.makespans"
        )
    factors = simulator.factors(noise_seed)
    return SearchTables(
        tables=engine.tables,
        fifo=_NO_FIFO if engine.fifo is None else engine.fifo,
        rank=engine.rank,
        op_factor=factors.ops,
        transfer_factor=factors.transfers,
        flags=np.array([engine.given or len(engine.rank) > 0, engine.free, engine.memory]),
    )


_NO_FIFO = FifoTables(
    succ_ptr=np.zeros(1, np.int32),
    succ_ops=np.empty(0, np.int32),
    num_inputs=np.empty(0, np.int32),
    op_seconds=np.empty((0, 1)),
    volume=np.empty(0),
    latency=np.empty(0),
    rate=np.empty(0),
    entries=np.empty(0, np.int32),
    source=np.empty(0, np.int32),
    num_devices=np.ones(1, np.int64),
    serial=np.zeros(1, np.bool_),
    horizon=np.ones(1),
)


@allocates
def make_search_scratch(t: SearchTables) -> SearchScratch:
    """Allocates; also what only the fallback of `evaluate` needs."""
    return SearchScratch(
        make_scratch(t.tables, not t.flags[0], t.flags[1]),
        make_transfer_scratch(t.tables, t.flags[2]),
        make_fifo_scratch(t.fifo),
    )


@compiled
def evaluate(t: SearchTables, devices: np.ndarray, order: np.ndarray, s: SearchScratch) -> float:
    """The makespan that `Simulator.makespan` returns.

    Args:
        t: see `search_tables`.
        devices: int64, C-contiguous; constraints of the problem are the caller's. # (num_ops,)
        order: int64 under `given`, otherwise `NO_ORDER`. # (num_ops,) or (0,)
        s: see `make_search_scratch`; overwritten.

    Returns:
        The makespan [s], infinity over capacity, negative for a placement or an order that is none.
    """
    if len(t.fifo.num_inputs):
        makespan = simulate_fifo(t.fifo, devices, t.op_factor, t.transfer_factor, s.fifo)
        if makespan != NOT_FIFO:
            return makespan
    status = prepare(t.tables, devices, order, t.rank, s.ops)
    if status != 0.0:
        return status
    if t.flags[1]:
        return simulate_free(t.tables, devices, t.op_factor, t.transfer_factor, s.ops)
    return simulate_queued(
        t.tables, devices, t.op_factor, t.transfer_factor, t.flags[2], s.ops, s.transfers
    )
