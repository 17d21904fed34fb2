"""The kernel's part that both event loops share: ops, devices and their slots."""

from __future__ import annotations

import numpy as np

from doppler.simulator.heaps import heap_push
from doppler.simulator.jit import U, compiled, inlined
from doppler.simulator.tables import Scratch, Tables

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
    w.slot_finish[:] = np.inf
    for device in range(num_devices):
        base[device + 1] += base[device]
        w.slot_base[device + 1] = w.slot_base[device] + tables.slots[device]
        w.queue_size[device] = 0
        w.pending_size[device] = 0
        w.idle[device] = tables.slots[device]
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
    for i in range(len(tables.input_ops)):
        w.missing[tables.input_ops[i]] = -1  # never waits for a device
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
    slot = w.slot_base[U(device)]
    while w.slot_finish[U(slot)] != np.inf:
        slot += 1
    w.idle[U(device)] -= 1
    w.slot_op[U(slot)] = op
    w.slot_finish[U(slot)] = time + seconds


@inlined
def take_finished(w: Scratch, device: int, slot: int) -> int:
    """Frees a slot; returns the op that finished."""
    w.idle[U(device)] += 1
    w.slot_finish[U(slot)] = np.inf
    return w.slot_op[U(slot)]
