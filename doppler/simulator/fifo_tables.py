"""The arrays that the pass without events works on: constants of a problem and working space."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.simulator.jit import allocates
from doppler.simulator.tables import Tables

FEW_OPS = 1024
"""Up to here a sorted array is the fastest queue; its worst case is quadratic."""
_OPS_PER_BUCKET = 8

OP_STATE = np.dtype(
    [
        ("ready", np.float64),  # latest known arrival of an input [s]
        # Inputs whose arrival is unknown; later the next op of the bucket, -1 at its end.
        ("missing", np.int32),
        ("device", np.int32),
    ]
)
"""What a run knows of an op; compact, because a large graph's ops are touched in random order."""


class FifoTables(NamedTuple):
    """Constants of a problem; ops may be numbered as they usually run (see `_laid_out`).

    Args:
        succ_ptr, succ_ops: consumers in compressed sparse rows.
        num_inputs: predecessors of each op. # (num_ops,)
        op_seconds: one column where all devices are equally fast.
            # (num_ops, num_devices) or (num_ops, 1) [s]
        volume: of each op's output. # (num_ops,) [B] or [s]
        latency, rate: from device s to d in entry s * num_devices + d, 0 from a device to itself.
            # (num_devices ** 2,) [s], [s/B] or [1]
        entries: ops without inputs, by problem id.
        source: problem id of each op, or empty where that is its number. # (num_ops,) or (0,)
        num_devices: # (1,)
        serial: whether a link carries one transfer at a time. # (1,)
        horizon: time that an even spread of the work over the devices would take. # (1,) [s]
    """

    succ_ptr: np.ndarray
    succ_ops: np.ndarray
    num_inputs: np.ndarray
    op_seconds: np.ndarray
    volume: np.ndarray
    latency: np.ndarray
    rate: np.ndarray
    entries: np.ndarray
    source: np.ndarray
    num_devices: np.ndarray
    serial: np.ndarray
    horizon: np.ndarray


class FifoScratch(NamedTuple):
    """Working space of a run.

    Args:
        state: `OP_STATE` of each op. # (num_ops,)
        queue_key, queue_op: ready ops, a sorted array or a heap. # (num_ops,)
        bucket: first op of each interval of time ahead, -1 if none.
        device_free: when each device finishes what it was given. # (num_devices,) [s]
        arrival: when the latest transfer of each route arrives. # (num_devices ** 2,) [s]
        carried: op whose output that transfer carries. # (num_devices ** 2,)
    """

    state: np.ndarray
    queue_key: np.ndarray
    queue_op: np.ndarray
    bucket: np.ndarray
    device_free: np.ndarray
    arrival: np.ndarray
    carried: np.ndarray


def plain_fifo_tables(tables: Tables) -> FifoTables | None:
    """The tables of this simulation, or None where it does not apply.

    It applies where routes are direct, links shared by nobody, devices have one slot and every
    task takes time.
    """
    links_of = np.diff(tables.channel_ptr)
    serial = len(tables.channels) > 0
    own_link = (links_of == 1).all() and (np.diff(tables.sharing_ptr) == 1).all()
    if len(tables.direct_rate) == 0 or (serial and not own_link) or (tables.slots != 1).any():
        return None
    if len(tables.input_ops):
        return None
    out_degree = np.diff(tables.succ_ptr)
    moved = tables.transfer_volume[out_degree > 0]
    volume = moved.min() if len(moved) else 1.0
    if (tables.op_seconds <= 0).any() or (
        tables.link_latency + volume * tables.link_rate <= 0
    ).any():
        return None
    num_inputs = np.diff(tables.pred_ptr)
    alike = bool((tables.op_seconds == tables.op_seconds[:, :1]).all())
    return FifoTables(
        succ_ptr=tables.succ_ptr,
        succ_ops=tables.succ_ops,
        num_inputs=num_inputs,
        op_seconds=tables.op_seconds[:, :1].copy() if alike else tables.op_seconds,
        volume=tables.transfer_volume,
        latency=tables.direct_latency,
        rate=tables.direct_rate,
        entries=np.flatnonzero(num_inputs == 0).astype(np.int32),
        source=np.empty(0, np.int32),
        num_devices=np.array([len(tables.slots)]),
        serial=np.array([serial]),
        horizon=np.array([max(tables.op_seconds.mean(1).sum() / len(tables.slots), 1e-300)]),
    )


@allocates
def make_fifo_scratch(tables: FifoTables) -> FifoScratch:
    """Allocates."""
    n = len(tables.num_inputs)
    d = tables.num_devices[0]
    return FifoScratch(
        np.empty(n, OP_STATE),
        np.empty(n),
        np.empty(n, np.int64),
        np.empty(0 if n <= FEW_OPS else n // _OPS_PER_BUCKET + 1, np.int32),
        np.empty(d),
        np.empty(d * d),
        np.empty(d * d, np.int64),
    )
