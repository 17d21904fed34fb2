"""The event loop: work-conserving execution over flat arrays, compiled, free of Python objects.

Time advances in rounds. A round first takes in every completion of the earliest pending instant,
then starts whatever can start, in order of priority. Tasks of zero duration complete in a following
round of the same instant.

There are two loops over the same rules. `simulate_queued` gives every hop of a transfer its start
and finish and knows contention and memory. Where links never contend and memory is not limited,
`simulate_free` computes arrivals directly, which is several times faster; both return the same
makespan bit for bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from doppler.simulator.heaps import heap_pop, heap_push
from doppler.simulator.tables import (
    Scratch,
    Tables,
    TransferScratch,
    make_scratch,
    make_transfer_scratch,
)
from doppler.simulator.transfers import (
    allocate_output,
    arrive,
    finish_hop,
    number_transfers,
    over_capacity,
    queue_hop,
    release_inputs,
    reset_memory,
    start_hops,
)

BAD_PLACEMENT = -1.0
"""Returned instead of a makespan: a device that does not exist."""
BAD_ORDER = -2.0
"""Returned instead of a makespan: an order that is no permutation."""


@njit(cache=True, nogil=True)
def prepare(
    tables: Tables, devices: np.ndarray, order: np.ndarray, rank: np.ndarray, w: Scratch
) -> float:
    """Resets the scratch space for a placement.

    Args:
        tables: the problem.
        devices: # (num_ops,)
        order: op ids, most urgent first, under `given`, otherwise empty. # (num_ops,) or (0,)
        rank: priority of each op, lowest first, under `b_level` and `random`, otherwise empty.
            # (num_ops,) or (0,)
        w: all of it is overwritten.

    Returns:
        0, `BAD_PLACEMENT` or `BAD_ORDER`.
    """
    n = len(devices)
    num_devices = len(tables.slots)
    pred_ptr = tables.pred_ptr
    base = w.queue_base
    base[:] = 0
    known = len(w.ready_time)
    for op in range(n):
        device = devices[op]
        if device < 0 or device >= num_devices:
            return BAD_PLACEMENT
        base[device + 1] += 1
        w.missing[op] = pred_ptr[op + 1] - pred_ptr[op]
    if known:
        w.ready_time[:] = 0.0
        w.ready_round[:] = 0
    w.slot_base[0] = 0
    for device in range(num_devices):
        base[device + 1] += base[device]
        w.slot_base[device + 1] = w.slot_base[device] + tables.slots[device]
        w.queue_size[device] = 0
        w.pending_size[device] = 0
        w.busy[device] = 0
    if len(order):
        w.key[:] = -1.0
        for position in range(n):
            op = order[position]
            if op < 0 or op >= n or w.key[op] >= 0.0:
                return BAD_ORDER
            w.key[op] = position
    elif len(rank):
        w.key[:] = rank
    for op in range(n):
        if w.missing[op] == 0:
            device = devices[op]
            key = w.key[op] if len(w.key) else 0.0
            heap_push(w.queue_key, w.queue_op, base[device], w.queue_size[device], key, op)
            w.queue_size[device] += 1
    return 0.0


@njit(cache=True, nogil=True, forceinline=True)
def start_op(
    tables: Tables, w: Scratch, device: int, op: int, time: float, op_factor: np.ndarray
) -> None:
    """Occupies a free slot of the device."""
    seconds = tables.op_seconds[op, device]
    if len(op_factor):
        seconds *= op_factor[op]
    slot = w.slot_base[device] + w.busy[device]
    w.busy[device] += 1
    w.slot_op[slot] = op
    w.slot_finish[slot] = time + seconds
    w.start[op] = time
    w.finish[op] = time + seconds


@njit(cache=True, nogil=True)
def simulate_free(
    tables: Tables,
    devices: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    w: Scratch,
) -> float:
    """Simulates a prepared placement where links never contend and memory is not limited.

    An op whose inputs' arrivals are all known waits in its device's `pending` heap until the time
    comes; under fifo, where priority is that very time, it goes to the device's queue at once.

    Returns:
        The makespan. [s]
    """
    num_devices = len(tables.slots)
    n = len(devices)
    fifo = len(w.key) == 0
    base, busy, slot_base, slot_finish = w.queue_base, w.busy, w.slot_base, w.slot_finish
    ahead_size, ahead_key = w.queue_size, w.queue_key
    if not fifo:
        ahead_size, ahead_key = w.pending_size, w.pending_key
    delayed = 0
    time = 0.0
    now = 1  # the round of this instant
    while True:
        following = np.inf
        for device in range(num_devices):
            first = base[device]
            if not fifo:
                while ahead_size[device] and ahead_key[first] <= time:
                    op = heap_pop(ahead_key, w.pending_op, first, ahead_size[device])
                    ahead_size[device] -= 1
                    heap_push(w.queue_key, w.queue_op, first, w.queue_size[device], w.key[op], op)
                    w.queue_size[device] += 1
            idle = tables.slots[device] - busy[device]
            while idle and w.queue_size[device] and not (fifo and ahead_key[first] > time):
                op = heap_pop(w.queue_key, w.queue_op, first, w.queue_size[device])
                w.queue_size[device] -= 1
                start_op(tables, w, device, op, time, op_factor)
                idle -= 1
            for slot in range(slot_base[device], slot_base[device] + busy[device]):
                following = min(following, slot_finish[slot])
            if idle and ahead_size[device]:
                following = min(following, ahead_key[first])
        next_round = now + 1 if following == time else 1
        if delayed and w.delayed_key[0] <= following:
            due = w.delayed_op[0] // n
            if w.delayed_key[0] < following or due < next_round:
                following = w.delayed_key[0]
                next_round = due
        if following == np.inf:
            return time
        time = following
        now = next_round
        while delayed and w.delayed_key[0] == time and w.delayed_op[0] // n == now:
            op = heap_pop(w.delayed_key, w.delayed_op, 0, delayed) % n
            delayed -= 1
            device = devices[op]
            key = time if fifo else w.key[op]
            heap_push(w.queue_key, w.queue_op, base[device], w.queue_size[device], key, op)
            w.queue_size[device] += 1
        for device in range(num_devices):
            slot = slot_base[device]
            while slot < slot_base[device] + busy[device]:
                if slot_finish[slot] != time:
                    slot += 1
                    continue
                op = w.slot_op[slot]
                busy[device] -= 1
                last = slot_base[device] + busy[device]
                slot_finish[slot] = slot_finish[last]
                w.slot_op[slot] = w.slot_op[last]
                delayed = deliver(
                    tables, devices, transfer_factor, w, op, device, time, now, delayed
                )


@njit(cache=True, nogil=True, forceinline=True)
def deliver(
    tables: Tables,
    devices: np.ndarray,
    transfer_factor: np.ndarray,
    w: Scratch,
    op: int,
    device: int,
    time: float,
    now: int,
    delayed: int,
) -> int:
    """Tells the consumers of a finished op when its output arrives; returns how many are delayed.

    Arrivals are compared by (time, round): on a route of links that take no time every hop costs a
    round, as it does when hops are simulated one by one.
    """
    num_devices = len(tables.slots)
    n = len(devices)
    fifo = len(w.key) == 0
    noisy = len(transfer_factor) > 0
    volume = tables.transfer_volume[op]
    for edge in range(tables.succ_ptr[op], tables.succ_ptr[op + 1]):
        consumer = tables.succ_ops[edge]
        target = devices[consumer]
        arrival = time
        arrival_round = now
        if target != device:
            factor = transfer_factor[op, target] if noisy else 1.0
            route = device * num_devices + target
            for hop in range(tables.route_ptr[route], tables.route_ptr[route + 1]):
                link = tables.route_links[hop]
                before = arrival
                arrival += (tables.link_latency[link] + volume * tables.link_rate[link]) * factor
                arrival_round = 1 if arrival > before else arrival_round + 1
        if arrival > w.ready_time[consumer]:
            w.ready_time[consumer] = arrival
            w.ready_round[consumer] = arrival_round
        elif arrival == w.ready_time[consumer] and arrival_round > w.ready_round[consumer]:
            w.ready_round[consumer] = arrival_round
        w.missing[consumer] -= 1
        if w.missing[consumer] > 0:
            continue
        ready = w.ready_time[consumer]
        due = w.ready_round[consumer]
        first = w.queue_base[target]
        if (ready > time and due > 1) or (ready == time and due > now):
            heap_push(w.delayed_key, w.delayed_op, 0, delayed, ready, due * n + consumer)
            delayed += 1
        elif fifo or ready == time:
            key = ready if fifo else w.key[consumer]
            heap_push(w.queue_key, w.queue_op, first, w.queue_size[target], key, consumer)
            w.queue_size[target] += 1
        else:
            heap_push(w.pending_key, w.pending_op, first, w.pending_size[target], ready, consumer)
            w.pending_size[target] += 1
    return delayed


@njit(cache=True, nogil=True)
def simulate_queued(
    tables: Tables,
    devices: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    memory: bool,
    w: Scratch,
    x: TransferScratch,
) -> float:
    """Simulates a prepared placement hop by hop.

    Returns:
        The makespan [s], or infinity where a device's capacity was exceeded; `x.counts[3]` then
        names the device and `x.clock` the time.
    """
    num_devices = len(tables.slots)
    busy, slot_base, slot_finish = w.busy, w.slot_base, w.slot_finish
    number_transfers(tables, devices, w, x)
    if memory:
        reset_memory(tables, devices, x)
    time = 0.0
    while True:
        following = np.inf
        for device in range(num_devices):
            first = w.queue_base[device]
            while w.queue_size[device] and busy[device] < tables.slots[device]:
                op = heap_pop(w.queue_key, w.queue_op, first, w.queue_size[device])
                w.queue_size[device] -= 1
                start_op(tables, w, device, op, time, op_factor)
                if memory:
                    allocate_output(tables, x, op, device)
            for slot in range(slot_base[device], slot_base[device] + busy[device]):
                following = min(following, slot_finish[slot])
        start_hops(tables, transfer_factor, memory, time, x)
        x.clock[0] = time
        if memory and over_capacity(tables, x):
            return np.inf
        if x.counts[1]:
            following = min(following, x.flight_key[0])
        if following == np.inf:
            return time
        time = following
        for device in range(num_devices):
            slot = slot_base[device]
            while slot < slot_base[device] + busy[device]:
                if slot_finish[slot] != time:
                    slot += 1
                    continue
                op = w.slot_op[slot]
                busy[device] -= 1
                last = slot_base[device] + busy[device]
                slot_finish[slot] = slot_finish[last]
                w.slot_op[slot] = w.slot_op[last]
                if memory:
                    release_inputs(tables, devices, x, op, device)
                for edge in range(tables.succ_ptr[op], tables.succ_ptr[op + 1]):
                    if devices[tables.succ_ops[edge]] == device:
                        arrive(tables, devices, w, edge, time)
                for transfer in range(x.first[op], x.first[op + 1]):
                    queue_hop(x, transfer, time, len(w.key) == 0)
        while x.counts[1] and x.flight_key[0] == time:
            finish_hop(tables, devices, memory, time, w, x)


@njit(cache=True, nogil=True)
def simulate_batch(
    tables: Tables,
    placements: np.ndarray,
    orders: np.ndarray,
    rank: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    free: bool,
    out: np.ndarray,
) -> None:
    """Simulates placements one after the other with one scratch space.

    Args:
        tables: the problem.
        placements: # (batch, num_ops)
        orders: under `given`. # (batch, num_ops) or (batch, 0)
        rank: see `prepare`.
        op_factor, transfer_factor: noise, the same for all placements, or empty.
        free: whether `simulate_free` applies; otherwise memory is checked where bytes are known.
        out: makespans, or what `prepare` and `simulate_queued` return instead. # (batch,)
    """
    fifo = len(rank) == 0 and orders.shape[1] == 0
    w = make_scratch(tables, fifo, free)
    if free:
        for row in range(len(placements)):
            out[row] = prepare(tables, placements[row], orders[row], rank, w)
            if out[row] == 0.0:
                out[row] = simulate_free(tables, placements[row], op_factor, transfer_factor, w)
        return
    memory = len(tables.output_bytes) > 0
    x = make_transfer_scratch(tables, memory)
    for row in range(len(placements)):
        out[row] = prepare(tables, placements[row], orders[row], rank, w)
        if out[row] == 0.0:
            out[row] = simulate_queued(
                tables, placements[row], op_factor, transfer_factor, memory, w, x
            )


@njit(cache=True, nogil=True)
def simulate_one(
    tables: Tables,
    devices: np.ndarray,
    order: np.ndarray,
    rank: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    free: bool,
    memory: bool,
) -> float:
    """Simulates one placement; arguments as in `simulate_batch`, `memory` says whether to track."""
    w = make_scratch(tables, len(rank) == 0 and len(order) == 0, free)
    status = prepare(tables, devices, order, rank, w)
    if status != 0.0:
        return status
    if free:
        return simulate_free(tables, devices, op_factor, transfer_factor, w)
    x = make_transfer_scratch(tables, memory)
    return simulate_queued(tables, devices, op_factor, transfer_factor, memory, w, x)
