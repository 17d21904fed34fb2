"""Bulk-synchronous execution: level by level, with a barrier and an exchange of tensors between.

The ops of one depth (most edges on a path from an entry) run, each device its own by priority; when
the last of them is done, every tensor that they made goes once to every other device that consumes
it, under the network model; when the last transfer is done, the next level starts. All ops of a
level become eligible at once, so that under `fifo` the lower id goes first. Inputs with a place of
their own belong to the first level and are exchanged with its outputs.

The entries have the signatures of those in `kernel` and share its scratch space.
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
    finish_hop,
    number_transfers,
    over_capacity,
    queue_hop,
    release_inputs,
    reset_memory,
    start_hops,
)


@compiled
def simulate_levels(
    tables: Tables,
    devices: np.ndarray,
    op_factor: np.ndarray,
    transfer_factor: np.ndarray,
    memory: bool,
    w: Scratch,
    x: TransferScratch,
    done: np.ndarray,
) -> float:
    """Simulates a prepared placement; arguments and result as in `kernel.simulate_queued`.

    Args:
        done: gets the ops of each level in turn. # (num_ops,)
    """
    number_transfers(tables, devices, w, x)
    if memory:
        reset_memory(tables, devices, x)
    # Consumers learn of their inputs at the barrier, not when a transfer ends.
    for transfer in range(x.counts[0]):
        x.consumers[transfer] = -1
    time = 0.0
    inputs = len(tables.input_ops)
    for i in range(inputs):
        op = tables.input_ops[i]
        w.start[op] = 0.0
        w.finish[op] = 0.0
        done[i] = op
        if memory:
            allocate_output(tables, x, op, devices[op])
    while True:
        time, count = run_level(tables, devices, op_factor, memory, time, w, x, done, inputs)
        inputs = 0
        if count == 0:
            return time
        time = exchange(tables, devices, transfer_factor, memory, time, w, x, done, count)
        if time == np.inf:
            return time


@compiled
def run_level(
    tables: Tables,
    devices: np.ndarray,
    op_factor: np.ndarray,
    memory: bool,
    time: float,
    w: Scratch,
    x: TransferScratch,
    done: np.ndarray,
    count: int,
) -> tuple[float, int]:
    """Runs the ops that wait; lists them in `done` behind the `count` that are there.

    Returns:
        When the last is done [s], infinity over capacity; and how many there were, then 0.
    """
    num_devices = len(tables.slots)
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
            for slot in range(w.slot_base[device], w.slot_base[device + 1]):
                following = min(following, w.slot_finish[slot])
        x.clock[0] = time
        if memory and over_capacity(tables, x):
            return np.inf, 0
        if following == np.inf:
            return time, count
        time = following
        for device in range(num_devices):
            for slot in range(w.slot_base[device], w.slot_base[device + 1]):
                if w.slot_finish[slot] != time:
                    continue
                op = take_finished(w, device, slot)
                w.finish[op] = time
                if memory:
                    release_inputs(tables, devices, x, op, device)
                done[count] = op
                count += 1


@compiled
def exchange(
    tables: Tables,
    devices: np.ndarray,
    transfer_factor: np.ndarray,
    memory: bool,
    time: float,
    w: Scratch,
    x: TransferScratch,
    done: np.ndarray,
    count: int,
) -> float:
    """Sends the outputs of the level's ops to all who need them; then the next level may start.

    Returns:
        When the last transfer is done [s], infinity over capacity.
    """
    for i in range(count):
        for transfer in range(x.first[done[i]], x.first[done[i] + 1]):
            queue_hop(x, transfer, time, len(w.key) == 0)
    while True:
        start_hops(tables, transfer_factor, memory, time, x)
        x.clock[0] = time
        if memory and over_capacity(tables, x):
            return np.inf
        if x.counts[1] == 0:
            break
        time = x.flight_key[0]
        while x.counts[1] and x.flight_key[0] == time:
            finish_hop(tables, devices, memory, time, w, x)
    for i in range(count):
        for edge in range(tables.succ_ptr[done[i]], tables.succ_ptr[done[i] + 1]):
            arrive(tables, devices, w, edge, time)
    return time


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
    """As `kernel.simulate_batch`; `free` makes no difference."""
    w = make_scratch(tables, len(rank) == 0 and orders.shape[1] == 0, False)
    memory = len(tables.output_bytes) > 0
    x = make_transfer_scratch(tables, memory)
    done = np.empty(placements.shape[1], np.int32)
    for row in range(len(placements)):
        out[row] = prepare(tables, placements[row], orders[row], rank, w)
        if out[row] == 0.0:
            out[row] = simulate_levels(
                tables, placements[row], op_factor, transfer_factor, memory, w, x, done
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
    """As `kernel.simulate_one`; `free` makes no difference."""
    w = make_scratch(tables, len(rank) == 0 and len(order) == 0, False)
    x = make_transfer_scratch(tables, memory)
    done = np.empty(len(devices), np.int32)
    status = prepare(tables, devices, order, rank, w)
    if status != 0.0:
        return status
    return simulate_levels(tables, devices, op_factor, transfer_factor, memory, w, x, done)


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
    """As `kernel.simulate_trace`."""
    w = make_scratch(tables, len(rank) == 0 and len(order) == 0, False)
    x = make_transfer_scratch(tables, memory)
    done = np.empty(len(devices), np.int32)
    makespan = prepare(tables, devices, order, rank, w)
    if makespan == 0.0:
        makespan = simulate_levels(tables, devices, op_factor, transfer_factor, memory, w, x, done)
    return makespan, w, x
