"""The event loop for links that never contend: arrivals are computed, not simulated."""

from __future__ import annotations

import numpy as np

from doppler.simulator.heaps import heap_pop, heap_push
from doppler.simulator.jit import U, compiled, inlined
from doppler.simulator.ops import start_op, take_finished
from doppler.simulator.tables import Scratch, Tables


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
    for i in range(len(tables.input_ops)):
        op = tables.input_ops[i]
        delayed = deliver(
            tables, devices, transfer_factor, w, op, devices[U(op)], 0.0, now, delayed
        )
    while True:
        for device in range(from_device, to_device):
            start_ops(tables, w, device, time, op_factor)
        following = w.event[0]
        runner_up = np.inf
        from_device = 0
        for device in range(1, num_devices):
            event = w.event[U(device)]
            runner_up = min(runner_up, max(event, following))
            from_device = device if event < following else from_device
            following = min(event, following)
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
        alone = runner_up != time
        while delayed and w.delayed_key[0] == time and w.delayed_op[0] // n == now:
            alone = False
            op = heap_pop(w.delayed_key, w.delayed_op, 0, delayed) % n
            delayed -= 1
            device = devices[U(op)]
            size = w.queue_size[U(device)]
            key = time if fifo else w.key[U(op)]
            heap_push(w.queue_key, w.queue_op, w.queue_base[U(device)], size, key, op)
            w.queue_size[U(device)] = size + 1
        to_device = from_device + 1 if alone else num_devices
        from_device = from_device if alone else 0
        for device in range(from_device, to_device):
            for slot in range(w.slot_base[U(device)], w.slot_base[U(device + 1)]):
                if w.slot_finish[U(slot)] == time:
                    op = take_finished(w, device, slot)
                    delayed = deliver(
                        tables, devices, transfer_factor, w, op, device, time, now, delayed
                    )


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
    while w.idle[U(device)] and size and not (fifo and w.queue_key[U(first)] > time):
        op = heap_pop(w.queue_key, w.queue_op, first, size)
        size -= 1
        start_op(tables, w, device, op, time, op_factor)
    w.queue_size[U(device)] = size
    following = np.inf
    if w.idle[U(device)]:
        if fifo and size:
            following = w.queue_key[U(first)]
        elif not fifo and w.pending_size[U(device)]:
            following = w.pending_key[U(first)]
    for slot in range(w.slot_base[U(device)], w.slot_base[U(device + 1)]):
        following = min(following, w.slot_finish[U(slot)])
    w.event[U(device)] = following


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
        if w.idle[U(target)]:
            w.event[U(target)] = min(w.event[U(target)], ready)
    return delayed


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
