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

from doppler.simulator.heaps import heap_pop
from doppler.simulator.jit import compiled, entry
from doppler.simulator.ops import prepare, start_op, take_finished
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
    deliver_inputs,
    finish_hop,
    number_transfers,
    over_capacity,
    queue_hop,
    release_inputs,
    reset_memory,
    start_hops,
)
from doppler.simulator.uncontended import simulate_free


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
    slot_base, slot_finish = w.slot_base, w.slot_finish
    number_transfers(tables, devices, w, x)
    if memory:
        reset_memory(tables, devices, x)
    deliver_inputs(tables, devices, memory, w, x)
    time = 0.0
    while True:
        following = np.inf
        for device in range(num_devices):
            first = w.queue_base[device]
            while w.queue_size[device] and w.idle[device]:
                op = heap_pop(w.queue_key, w.queue_op, first, w.queue_size[device])
                w.queue_size[device] -= 1
                w.start[op] = time
                start_op(tables, w, device, op, time, op_factor)
                if memory:
                    allocate_output(tables, x, op, device)
            for slot in range(slot_base[device], slot_base[device + 1]):
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
            for slot in range(slot_base[device], slot_base[device + 1]):
                if slot_finish[slot] != time:
                    continue
                op = take_finished(w, device, slot)
                w.finish[op] = time
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
