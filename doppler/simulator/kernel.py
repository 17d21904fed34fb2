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

from doppler.simulator.heaps import heap_pop, heap_push
from doppler.simulator.jit import U, compiled, entry, inlined
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


@compiled
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
        for op in range(n):
            w.key[op] = rank[op]
    for op in range(n):
        if w.missing[op] == 0:
            device = devices[op]
            key = w.key[op] if len(w.key) else 0.0
            heap_push(w.queue_key, w.queue_op, base[device], w.queue_size[device], key, op)
            w.queue_size[device] += 1
    return 0.0


@inlined
def start_op(
    tables: Tables, w: Scratch, device: int, op: int, time: float, op_factor: np.ndarray
) -> None:
    """Occupies a free slot of the device."""
    seconds = tables.op_seconds[U(op), U(device)]
    if len(op_factor):
        seconds *= op_factor[U(op)]
    slot = w.slot_base[U(device)] + w.busy[U(device)]
    w.busy[U(device)] += 1
    w.slot_op[U(slot)] = op
    w.slot_finish[U(slot)] = time + seconds
    w.start[U(op)] = time
    w.finish[U(op)] = time + seconds


@inlined
def start_ops(tables: Tables, w: Scratch, device: int, time: float, op_factor: np.ndarray) -> None:
    """Fills the free slots of a device and notes in `w.event` when to look at it again.

    Called where all arrivals are known ahead: under fifo, where priority is the time of arrival,
    the device's queue also holds ops that become ready later; otherwise these are pending.
    """
    fifo = len(w.key) == 0
    first = w.queue_base[U(device)]
    size = w.queue_size[U(device)]
    if not fifo:
        while w.pending_size[U(device)] and w.pending_key[U(first)] <= time:
            op = heap_pop(w.pending_key, w.pending_op, first, w.pending_size[U(device)])
            w.pending_size[U(device)] -= 1
            heap_push(w.queue_key, w.queue_op, first, size, w.key[U(op)], op)
            size += 1
    slots = tables.slots[U(device)]
    while w.busy[U(device)] < slots and size and not (fifo and w.queue_key[U(first)] > time):
        op = heap_pop(w.queue_key, w.queue_op, first, size)
        size -= 1
        start_op(tables, w, device, op, time, op_factor)
    w.queue_size[U(device)] = size
    following = np.inf
    if w.busy[U(device)] < slots:
        if fifo and size:
            following = w.queue_key[U(first)]
        elif not fifo and w.pending_size[U(device)]:
            following = w.pending_key[U(first)]
    for slot in range(w.slot_base[U(device)], w.slot_base[U(device)] + w.busy[U(device)]):
        following = min(following, w.slot_finish[U(slot)])
    w.event[U(device)] = following


@compiled
def simulate_free(
    tables: Tables,
    devices: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    w: Scratch,
) -> float:
    """Simulates a prepared placement where links never contend and memory is not limited.

    `w.event` holds when each device must be looked at: a slot's finish, or the next arrival if it
    has a free slot. Usually one device is due, and only it can start something.

    Returns:
        The makespan. [s]
    """
    num_devices = len(tables.slots)
    n = len(devices)
    fifo = len(w.key) == 0
    delayed = 0
    time = 0.0
    now = 1  # the round of this instant
    from_device = 0
    to_device = num_devices
    while True:
        for device in range(from_device, to_device):
            start_ops(tables, w, device, time, op_factor)
        following = w.event[0]
        from_device = 0
        for device in range(1, num_devices):
            if w.event[U(device)] < following:
                following = w.event[U(device)]
                from_device = device
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
        alone = True
        while delayed and w.delayed_key[0] == time and w.delayed_op[0] // n == now:
            alone = False
            op = heap_pop(w.delayed_key, w.delayed_op, 0, delayed) % n
            delayed -= 1
            device = devices[U(op)]
            size = w.queue_size[U(device)]
            key = time if fifo else w.key[U(op)]
            heap_push(w.queue_key, w.queue_op, w.queue_base[U(device)], size, key, op)
            w.queue_size[U(device)] = size + 1
        for device in range(from_device + 1, num_devices):
            alone &= w.event[U(device)] != time
        to_device = from_device + 1 if alone else num_devices
        from_device = from_device if alone else 0
        for device in range(from_device, to_device):
            slot = w.slot_base[U(device)]
            while slot < w.slot_base[U(device)] + w.busy[U(device)]:
                if w.slot_finish[U(slot)] == time:
                    op = take_finished(w, device, slot)
                    delayed = deliver(
                        tables, devices, transfer_factor, w, op, device, time, now, delayed
                    )
                else:
                    slot += 1


@inlined
def take_finished(w: Scratch, device: int, slot: int) -> int:
    """Frees a slot, moving the device's last running op into it; returns the op that finished."""
    op = w.slot_op[U(slot)]
    w.busy[U(device)] -= 1
    last = w.slot_base[U(device)] + w.busy[U(device)]
    w.slot_finish[U(slot)] = w.slot_finish[U(last)]
    w.slot_op[U(slot)] = w.slot_op[U(last)]
    return op


@inlined
def arrival_of(
    tables: Tables, op: int, route: int, factor: float, time: float, now: int, local: bool
) -> tuple[float, int]:
    """When, and in which round of that instant, an output sent now arrives uncontended.

    On links that take no time every hop costs a round, as when hops are simulated one by one.
    """
    volume = tables.transfer_volume[U(op)]
    if len(tables.direct_rate):
        seconds = (tables.direct_latency[U(route)] + volume * tables.direct_rate[U(route)]) * factor
        arrival = time + seconds
        return arrival, 1 if arrival > time else now + (not local)
    arrival = time
    arrival_round = now
    for hop in range(tables.route_ptr[U(route)], tables.route_ptr[U(route + 1)]):
        link = tables.route_links[U(hop)]
        before = arrival
        arrival += (tables.link_latency[U(link)] + volume * tables.link_rate[U(link)]) * factor
        arrival_round = 1 if arrival > before else arrival_round + 1
    return arrival, arrival_round


@inlined
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

    Where the last producer of a consumer has finished, its ready time is known: the latest arrival,
    compared by (time, round).
    """
    num_devices = len(tables.slots)
    n = len(devices)
    fifo = len(w.key) == 0
    noisy = len(transfer_factor) > 0
    for edge in range(tables.succ_ptr[U(op)], tables.succ_ptr[U(op + 1)]):
        consumer = tables.succ_ops[U(edge)]
        target = devices[U(consumer)]
        factor = transfer_factor[U(op), U(target)] if noisy else 1.0
        route = device * num_devices + target
        ready, due = arrival_of(tables, op, route, factor, time, now, target == device)
        known = w.ready_time[U(consumer)]
        known_due = w.ready_round[U(consumer)]
        earlier = (ready < known) | ((ready == known) & (due < known_due))
        ready = known if earlier else ready
        due = known_due if earlier else due
        w.ready_time[U(consumer)] = ready
        w.ready_round[U(consumer)] = due
        w.missing[U(consumer)] -= 1
        if w.missing[U(consumer)] > 0:
            continue
        first = w.queue_base[U(target)]
        if ((ready > time) & (due > 1)) | ((ready == time) & (due > now)):
            heap_push(w.delayed_key, w.delayed_op, 0, delayed, ready, due * n + consumer)
            delayed += 1
            continue
        if fifo or ready == time:
            key = ready if fifo else w.key[U(consumer)]
            heap_push(w.queue_key, w.queue_op, first, w.queue_size[U(target)], key, consumer)
            w.queue_size[U(target)] += 1
        else:
            heap_push(
                w.pending_key, w.pending_op, first, w.pending_size[U(target)], ready, consumer
            )
            w.pending_size[U(target)] += 1
        if w.busy[U(target)] < tables.slots[U(target)]:
            w.event[U(target)] = min(w.event[U(target)], ready)
    return delayed


@compiled
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
                op = take_finished(w, device, slot)
                if memory:
                    release_inputs(tables, devices, x, op, device)
                for edge in range(tables.succ_ptr[op], tables.succ_ptr[op + 1]):
                    if devices[tables.succ_ops[edge]] == device:
                        arrive(tables, devices, w, edge, time)
                for transfer in range(x.first[op], x.first[op + 1]):
                    queue_hop(x, transfer, time, len(w.key) == 0)
        while x.counts[1] and x.flight_key[0] == time:
            finish_hop(tables, devices, memory, time, w, x)


@entry
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


@entry
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


@entry
def simulate_trace(
    tables: Tables,
    devices: np.ndarray,
    order: np.ndarray,
    rank: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    memory: bool,
) -> tuple[float, Scratch, TransferScratch]:
    """As `simulate_one`, hop by hop; also returns the scratch space, which tells what happened."""
    w = make_scratch(tables, len(rank) == 0 and len(order) == 0, False)
    x = make_transfer_scratch(tables, memory)
    makespan = prepare(tables, devices, order, rank, w)
    if makespan == 0.0:
        makespan = simulate_queued(tables, devices, op_factor, transfer_factor, memory, w, x)
    return makespan, w, x
