"""First come, first served where nothing is shared: one pass over the ops instead of an event loop.

Under `fifo` a device runs its ops in the order in which they become ready, ties by id. If every
duration is positive, an op can only make ops ready after its own ready time, so that taking the ops
of all devices in order of (ready time, id) meets every device's ops in the order in which it runs
them: `start = max(ready, device free)`. The ops of a device with one slot also finish in that
order, hence so do the transfers from it to another device become eligible:
`start = max(finish, link free)`. Nothing else needs to be an event. Sums and maxima are those of
the event loops, in the same order, so that makespans are equal bit for bit.

What this cannot do exactly (a task that takes no time completes in a later round of its instant) is
noticed and answered with `NOT_FIFO`; `fifo_tables` refuses what can be known beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from doppler.simulator.fifo_tables import (
    FifoScratch,
    FifoTables,
    make_fifo_scratch,
    plain_fifo_tables,
)
from doppler.simulator.heaps import heap_pop, heap_push
from doppler.simulator.jit import U, compiled, entry, inlined, prefetch
from doppler.simulator.ops import BAD_PLACEMENT
from doppler.simulator.tables import Tables, permuted_rows

NOT_FIFO = -3.0
"""Returned instead of a makespan: a task took no time, the event loops must be asked."""
MANY_OPS = 50_000
"""From here on the working set exceeds a core's own cache, and ops are laid out as they run."""
_AHEAD = 8
_NUMBER = 0xFFFFFFFF
"""Lower half of a heap entry (see `_item`)."""


def fifo_tables(tables: Tables) -> FifoTables | None:
    """As `plain_fifo_tables`, with the ops of a large problem laid out as they run."""
    plain = plain_fifo_tables(tables)
    return plain if plain is None or len(plain.volume) < MANY_OPS else _laid_out(plain)


def _laid_out(plain: FifoTables) -> FifoTables:
    """Numbers ops as they become ready on devices taken in turn.

    Runs of other placements go through memory in much the same order, which saves most of the
    cache misses of a large graph. Ties are still broken by the problem's ids.
    """
    num_ops, num_devices = len(plain.volume), plain.num_devices[0]
    ready = np.empty(num_ops)
    if ready_times(plain, np.arange(num_ops) % num_devices, ready) < 0:
        return plain
    source = np.argsort(ready, kind="stable").astype(np.int32)
    number = np.empty(num_ops, np.int32)
    number[source] = np.arange(num_ops, dtype=np.int32)
    succ_ptr, succ_ops = permuted_rows(plain.succ_ptr, plain.succ_ops, source, number)
    return plain._replace(
        succ_ptr=succ_ptr,
        succ_ops=succ_ops,
        num_inputs=plain.num_inputs[source],
        op_seconds=plain.op_seconds[source],
        volume=plain.volume[source],
        entries=number[plain.entries],
        source=source,
    )


@compiled
def simulate_fifo(
    tables: FifoTables,
    devices: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    w: FifoScratch,
) -> float:
    """Simulates a placement.

    Args:
        tables: the problem.
        devices: by problem id. # (num_ops,)
        op_factor, transfer_factor: noise by problem id, or empty.
        w: all of it is overwritten.

    Returns:
        The makespan [s], `BAD_PLACEMENT` or `NOT_FIFO`.
    """
    if not _prepare(tables, devices, w):
        return BAD_PLACEMENT
    if len(w.bucket) == 0:
        return _run_few(tables, op_factor, transfer_factor, w)
    return _run_many(tables, op_factor, transfer_factor, w)


@compiled
def _prepare(tables: FifoTables, devices: np.ndarray, w: FifoScratch) -> bool:
    """Resets the scratch space; whether all devices exist."""
    num_devices = len(w.device_free)
    renumbered = len(tables.source) > 0
    wrong = False
    w.device_free[:] = 0.0
    w.arrival[:] = 0.0
    w.carried[:] = -1
    for op in range(len(devices)):
        device = devices[tables.source[op] if renumbered else op]
        wrong |= (device < 0) | (device >= num_devices)
        state = w.state[op]
        state.ready = 0.0
        state.missing = tables.num_inputs[op]
        state.device = device
    return not wrong


@inlined
def _run_op(
    tables: FifoTables, op_factor: np.ndarray, w: FifoScratch, op: int, source: int, ready: float
) -> tuple[float, bool]:
    """Runs an op as soon as its device can; returns its finish and whether it took no time."""
    device = U(w.state[U(op)].device)
    seconds = tables.op_seconds[U(op), device if tables.op_seconds.shape[1] > 1 else U(0)]
    if len(op_factor):
        seconds *= op_factor[U(source)]
    start = max(ready, w.device_free[device])
    finish = start + seconds
    w.device_free[device] = finish
    return finish, finish <= start


@inlined
def _deliver(
    tables: FifoTables,
    transfer_factor: np.ndarray,
    w: FifoScratch,
    op: int,
    source: int,
    finish: float,
    consumer: int,
) -> tuple[float, bool]:
    """Lets the output of an op that finished arrive at a consumer.

    On the device itself it is there at once, as by a route that takes no time, which spares a
    branch that cannot be predicted.

    Returns:
        The consumer's ready time, negative if an input is still unknown, and whether a transfer
        took no time.
    """
    device = np.int64(w.state[U(op)].device)
    state = w.state[U(consumer)]
    target = np.int64(state.device)
    route = device * len(w.device_free) + target
    seconds = tables.latency[U(route)] + tables.volume[U(op)] * tables.rate[U(route)]
    if len(transfer_factor):
        seconds *= transfer_factor[U(source), U(target)]
    if tables.serial[U(0)]:
        known = w.arrival[U(route)]
        arrival = max(finish, known) + seconds
        arrival = known if w.carried[U(route)] == op else arrival
        w.carried[U(route)] = op
        w.arrival[U(route)] = arrival
    else:
        arrival = finish + seconds
    ready = max(state.ready, arrival)
    state.ready = ready
    state.missing -= 1
    return ready if state.missing == 0 else -1.0, (arrival <= finish) & (target != device)


@compiled
def _run_few(
    tables: FifoTables, op_factor: np.ndarray, transfer_factor: np.ndarray, w: FifoScratch
) -> float:
    """The pass with a sorted array of ready ops: they become ready nearly in order."""
    queue_key, queue_op = w.queue_key, w.queue_op
    num_entries = len(tables.entries)
    makespan = 0.0
    timeless = False
    head = -num_entries
    tail = 0
    while head < tail:
        if head < 0:
            op = np.int64(tables.entries[U(head + num_entries)])
            ready = 0.0
        else:
            op = queue_op[U(head)]
            ready = queue_key[U(head)]
        head += 1
        first = max(head, 0)
        finish, no_time = _run_op(tables, op_factor, w, op, op, ready)
        timeless |= no_time
        makespan = max(makespan, finish)
        for edge in range(tables.succ_ptr[U(op)], tables.succ_ptr[U(op + 1)]):
            consumer = np.int64(tables.succ_ops[U(edge)])
            ready, no_time = _deliver(tables, transfer_factor, w, op, op, finish, consumer)
            timeless |= no_time
            if ready < 0:
                continue
            place = tail
            tail += 1
            while place > first:
                before = queue_key[U(place - 1)]
                if (before < ready) | ((before == ready) & (queue_op[U(place - 1)] < consumer)):
                    break
                queue_key[U(place)] = before
                queue_op[U(place)] = queue_op[U(place - 1)]
                place -= 1
            queue_key[U(place)] = ready
            queue_op[U(place)] = consumer
    return NOT_FIFO if timeless else makespan


@compiled
def _run_many(
    tables: FifoTables, op_factor: np.ndarray, transfer_factor: np.ndarray, w: FifoScratch
) -> float:
    """The pass with buckets of time ahead; a small heap sorts the bucket that has been reached.

    A heap of all ready ops would miss the cache at every level. The time that an even spread of the
    work would take is cut into equal buckets; the last one takes what lies beyond, and is cut into
    buckets of twice the width when it is reached.
    """
    renumbered = len(tables.source) > 0
    num_entries = len(tables.entries)
    num_buckets = len(w.bucket) - 1
    w.bucket[:] = -1
    begin = 0.0
    scale = num_buckets / tables.horizon[0]
    current = -1
    waiting = 0
    started = 0
    makespan = 0.0
    timeless = False
    while True:
        if started < num_entries:
            op = np.int64(tables.entries[U(started)])
            ready = 0.0
            started += 1
            if renumbered and started + 2 * _AHEAD < num_entries:
                _prefetch_op(tables, np.int64(tables.entries[U(started + 2 * _AHEAD)]))
                _prefetch_consumers(tables, w, np.int64(tables.entries[U(started + _AHEAD)]))
        else:
            while waiting == 0 and current < num_buckets:
                current += 1
                if current < num_buckets:
                    waiting = _open(tables, w, current)
                elif w.bucket[num_buckets] >= 0:
                    scale *= 0.5
                    begin = _spread(tables, w, scale)
                    current = -1
            if waiting == 0:
                return NOT_FIFO if timeless else makespan
            ready = w.queue_key[0]
            op = heap_pop(w.queue_key, w.queue_op, 0, waiting) & _NUMBER
            waiting -= 1
        source = np.int64(tables.source[U(op)]) if renumbered else op
        finish, no_time = _run_op(tables, op_factor, w, op, source, ready)
        timeless |= no_time
        makespan = max(makespan, finish)
        for edge in range(tables.succ_ptr[U(op)], tables.succ_ptr[U(op + 1)]):
            consumer = np.int64(tables.succ_ops[U(edge)])
            ready, no_time = _deliver(tables, transfer_factor, w, op, source, finish, consumer)
            timeless |= no_time
            if ready >= 0 and not _put_ahead(w, consumer, ready, current, begin, scale):
                item = _item(tables, consumer)
                heap_push(w.queue_key, w.queue_op, 0, waiting, ready, item)
                waiting += 1


@inlined
def _item(tables: FifoTables, op: int) -> Any:
    """Heap entry of an op: compares like its problem id, which breaks ties."""
    if len(tables.source) == 0:
        return op
    return (np.int64(tables.source[U(op)]) << 32) | op


@inlined
def _put_ahead(
    w: FifoScratch, op: int, ready: float, current: int, begin: float, scale: float
) -> bool:
    """Puts an op into its bucket unless that has been reached already."""
    place = np.int64(max(0.0, min((ready - begin) * scale, float(len(w.bucket) - 1))))
    if place <= current:
        return False
    w.state[U(op)].missing = w.bucket[U(place)]
    w.bucket[U(place)] = op
    return True


@inlined
def _open(tables: FifoTables, w: FifoScratch, current: int) -> int:
    """Moves a bucket into the empty heap; returns the heap's size."""
    waiting = 0
    op = np.int64(w.bucket[U(current)])
    w.bucket[U(current)] = -1
    while op >= 0:
        ready = w.state[U(op)].ready
        heap_push(w.queue_key, w.queue_op, 0, waiting, ready, _item(tables, op))
        waiting += 1
        op = np.int64(w.state[U(op)].missing)
    if len(tables.source):
        for place in range(waiting):
            _prefetch_op(tables, w.queue_op[U(place)] & _NUMBER)
        for place in range(waiting):
            _prefetch_consumers(tables, w, w.queue_op[U(place)] & _NUMBER)
    return waiting


@compiled
def _spread(tables: FifoTables, w: FifoScratch, scale: float) -> float:
    """Cuts the last bucket into new ones; returns the time at which the first begins."""
    last = len(w.bucket) - 1
    first = np.int64(w.bucket[last])
    w.bucket[last] = -1
    begin = np.inf
    op = first
    while op >= 0:
        begin = min(begin, w.state[op].ready)
        op = np.int64(w.state[op].missing)
    op = first
    while op >= 0:
        following = np.int64(w.state[op].missing)
        _put_ahead(w, op, w.state[op].ready, -1, begin, scale)
        op = following
    return begin


@inlined
def _prefetch_op(tables: FifoTables, op: int) -> None:
    """Asks for what running an op reads of the tables, before it is needed."""
    prefetch(tables.op_seconds, op)
    prefetch(tables.volume, op)
    prefetch(tables.succ_ops, np.int64(tables.succ_ptr[U(op)]))


@inlined
def _prefetch_consumers(tables: FifoTables, w: FifoScratch, op: int) -> None:
    """Asks for the consumers' cache lines before they are needed."""
    for edge in range(tables.succ_ptr[U(op)], tables.succ_ptr[U(op + 1)]):
        prefetch(w.state, np.int64(tables.succ_ops[U(edge)]))


@entry
def ready_times(tables: FifoTables, devices: np.ndarray, out: np.ndarray) -> float:
    """Simulates a placement; `out` gets when each op became ready. # (num_ops,) [s]"""
    w = make_fifo_scratch(tables)
    makespan = simulate_fifo(tables, devices, np.empty(0), np.empty((0, 0)), w)
    for op in range(len(out)):
        out[op] = w.state[op].ready
    return makespan


@entry
def fifo_one(
    tables: FifoTables, devices: np.ndarray, op_factor: np.ndarray, transfer_factor: np.ndarray
) -> float:
    """Simulates one placement; arguments and result as in `simulate_fifo`."""
    w = make_fifo_scratch(tables)
    return simulate_fifo(tables, devices, op_factor, transfer_factor, w)


@entry
def fifo_batch(
    tables: FifoTables,
    placements: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    out: np.ndarray,
) -> None:
    """Simulates placements # (batch, num_ops) with one scratch space into `out`. # (batch,)"""
    w = make_fifo_scratch(tables)
    for row in range(len(placements)):
        out[row] = simulate_fifo(tables, placements[row], op_factor, transfer_factor, w)
