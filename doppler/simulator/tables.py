"""The arrays that the kernel works on: a problem's constants and a run's scratch space."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.problem import PlacementProblem
from doppler.schedule.networks import link_channels
from doppler.simulator.jit import allocates


class Tables(NamedTuple):
    """Constants of a problem under a network model; ids are int32 to halve memory traffic.

    Args:
        succ_ptr, succ_ops, pred_ptr, pred_ops: the graph in compressed sparse rows.
        op_seconds: # (num_ops, num_devices) [s]
        transfer_volume: # (num_ops,) [B] or [s]
        link_latency, link_rate: # (num_links,) [s], [s/B] or [1]
        route_ptr, route_links: links from device s to d in row s * num_devices + d.
        direct_latency, direct_rate: sums over each row, 0 from a device to itself; empty where a
            route has more than one link. # (num_devices ** 2,) [s], [s/B] or [1]
        channel_ptr, channels: channels that each link occupies.
        sharing_ptr, sharing: links that each channel is occupied by.
        slots: # (num_devices,)
        output_bytes: # (num_ops,) [B], or empty where unknown
        capacity: # (num_devices,) [B]
        input_ops: ops that stand for tensors present from time 0
    """

    succ_ptr: np.ndarray
    succ_ops: np.ndarray
    pred_ptr: np.ndarray
    pred_ops: np.ndarray
    op_seconds: np.ndarray
    transfer_volume: np.ndarray
    link_latency: np.ndarray
    link_rate: np.ndarray
    route_ptr: np.ndarray
    route_links: np.ndarray
    direct_latency: np.ndarray
    direct_rate: np.ndarray
    channel_ptr: np.ndarray
    channels: np.ndarray
    sharing_ptr: np.ndarray
    sharing: np.ndarray
    slots: np.ndarray
    output_bytes: np.ndarray
    capacity: np.ndarray
    input_ops: np.ndarray


class Scratch(NamedTuple):
    """Working space for ops and devices; device d's queues begin at `queue_base[d]`.

    Args:
        missing: inputs that have not arrived. # (num_ops,)
        ready_time, ready_round: latest known arrival. # (num_ops,)
        key: priority, lowest first; unused under fifo. # (num_ops,) or (0,)
        start, finish: known where every hop is simulated. # (num_ops,) [s]
        queue_base: # (num_devices + 1,)
        queue_size, queue_key, queue_op: ops that wait for their device.
        pending_size, pending_key, pending_op: ops whose ready time is known and ahead.
        delayed_key, delayed_op: ops that become ready in a later round of their instant.
        slot_base, slot_finish, slot_op: running ops of each device, infinity in a free slot.
        idle: number of free slots. # (num_devices,)
        event: when each device is due where arrivals are known ahead. # (num_devices,) [s]
    """

    missing: np.ndarray
    ready_time: np.ndarray
    ready_round: np.ndarray
    key: np.ndarray
    start: np.ndarray
    finish: np.ndarray
    queue_base: np.ndarray
    queue_size: np.ndarray
    queue_key: np.ndarray
    queue_op: np.ndarray
    pending_size: np.ndarray
    pending_key: np.ndarray
    pending_op: np.ndarray
    delayed_key: np.ndarray
    delayed_op: np.ndarray
    slot_base: np.ndarray
    slot_finish: np.ndarray
    slot_op: np.ndarray
    idle: np.ndarray
    event: np.ndarray


class TransferScratch(NamedTuple):
    """Working space for transfers, which are numbered by (op, destination device).

    Args:
        first: transfers of op v are first[v] .. first[v + 1] - 1. # (num_ops + 1,)
        op, target, key: of each transfer. # (T,)
        consumers: first edge of the chain of consumers on the target. # (T,)
        next_edge: next edge of that chain, -1 at its end. # (num_edges,)
        hop_base: hops of transfer i are hop_base[i] .. hop_base[i + 1] - 1. # (T + 1,)
        hop: the hop that waits or is under way. # (T,)
        hop_link, hop_start, hop_finish: # (H,)
        link_base, link_size, link_key, link_transfer: transfers that wait for each link.
        flight_key, flight_transfer: hops under way, by finish.
        channel_busy: # (num_channels,)
        dirty, is_dirty: links to look at in this round. # (num_links,)
        seen: last op that met each device, while transfers are numbered. # (num_devices,)
        slot_of: transfer to each device, while transfers are numbered. # (num_devices,)
        candidate_key, candidate: heads of links, while hops are started. # (num_links,)
        counts: [transfers, hops under way, dirty links, device over capacity]
        home_uses, copy_uses: consumers and transfers that still need a tensor. # (num_ops,), (T,)
        home_live, copy_live: whether it is resident. # (num_ops,), (T,)
        resident, peak: # (num_devices,) [B]
        clock: time at which the run ended or a capacity was exceeded. # (1,) [s]
    """

    first: np.ndarray
    op: np.ndarray
    target: np.ndarray
    key: np.ndarray
    consumers: np.ndarray
    next_edge: np.ndarray
    hop_base: np.ndarray
    hop: np.ndarray
    hop_link: np.ndarray
    hop_start: np.ndarray
    hop_finish: np.ndarray
    link_base: np.ndarray
    link_size: np.ndarray
    link_key: np.ndarray
    link_transfer: np.ndarray
    flight_key: np.ndarray
    flight_transfer: np.ndarray
    channel_busy: np.ndarray
    dirty: np.ndarray
    is_dirty: np.ndarray
    seen: np.ndarray
    slot_of: np.ndarray
    candidate_key: np.ndarray
    candidate: np.ndarray
    counts: np.ndarray
    home_uses: np.ndarray
    copy_uses: np.ndarray
    home_live: np.ndarray
    copy_live: np.ndarray
    resident: np.ndarray
    peak: np.ndarray
    clock: np.ndarray


def make_tables(problem: PlacementProblem, network: str) -> Tables:
    """Flattens a problem and a network model.

    Raises:
        ConfigurationError: if no network model has that name.
    """
    graph, costs, topology = problem.graph, problem.cost_model, problem.topology
    channels = link_channels(topology, network)
    num_channels = 1 + max((c for row in channels for c in row), default=-1)
    sharing: list[list[int]] = [[] for _ in range(num_channels)]
    for link, row in enumerate(channels):
        for channel in row:
            sharing[channel].append(link)
    route_ptr, route_links = _rows([route for row in topology.routes for route in row])
    direct = len(route_ptr) - 1 if np.diff(route_ptr).max() <= 1 else 0
    channel_ptr, channel_ids = _rows(channels)
    sharing_ptr, sharing_links = _rows(sharing)
    known_bytes = np.empty(0) if graph.output_bytes is None else graph.output_bytes
    return Tables(
        succ_ptr=graph.succ_ptr.astype(np.int32),
        succ_ops=graph.succ_ops.astype(np.int32),
        pred_ptr=graph.pred_ptr.astype(np.int32),
        pred_ops=graph.pred_ops.astype(np.int32),
        op_seconds=np.array(costs.op_seconds, order="C"),
        transfer_volume=np.array(costs.transfer_volume),
        link_latency=np.array(costs.link_latency),
        link_rate=np.array(costs.link_seconds_per_unit),
        route_ptr=route_ptr,
        route_links=route_links,
        direct_latency=problem.route_latency.ravel()[:direct].copy(),
        direct_rate=problem.route_seconds_per_unit.ravel()[:direct].copy(),
        channel_ptr=channel_ptr,
        channels=channel_ids,
        sharing_ptr=sharing_ptr,
        sharing=sharing_links,
        slots=np.array(topology.compute_slots),
        output_bytes=np.array(known_bytes),
        capacity=np.array(topology.memory_bytes),
        input_ops=np.flatnonzero(problem.is_input_op).astype(np.int32),
    )


def _rows(rows: list[tuple[int, ...]] | list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ptr = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=ptr[1:])
    return ptr, np.array([value for row in rows for value in row], np.int32)


def permuted_rows(
    ptr: np.ndarray, ids: np.ndarray, source: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compressed sparse rows after op `source[i]` is called `i`, and op `v` `number[v]`."""
    lengths = np.diff(ptr)[source]
    new_ptr = np.zeros(len(ptr), np.int32)
    np.cumsum(lengths, out=new_ptr[1:])
    entries = np.repeat(ptr[source] - new_ptr[:-1], lengths) + np.arange(len(ids))
    return new_ptr, number[ids[entries]]


@allocates
def make_scratch(tables: Tables, fifo: bool, free: bool) -> Scratch:
    """Allocates; `free` says that transfers need no events (see `uncontended.simulate_free`)."""
    n = len(tables.succ_ptr) - 1
    d = len(tables.slots)
    known = n if free else 0
    traced = 0 if free else n
    pending = n if free and not fifo else 0
    slots = tables.slots.sum()
    return Scratch(
        np.empty(n, np.int32),
        np.empty(known),
        np.empty(known, np.int32),
        np.empty(0 if fifo else n),
        np.empty(traced),
        np.empty(traced),
        np.empty(d + 1, np.int64),
        np.empty(d, np.int64),
        np.empty(n),
        np.empty(n, np.int64),
        np.empty(d, np.int64),
        np.empty(pending),
        np.empty(pending, np.int64),
        np.empty(known),
        np.empty(known, np.int64),
        np.empty(d + 1, np.int64),
        np.empty(slots),
        np.empty(slots, np.int32),
        np.empty(d, np.int64),
        np.empty(d),
    )


@allocates
def make_transfer_scratch(tables: Tables, memory: bool) -> TransferScratch:
    """Allocates for the largest number of transfers that a placement can cause."""
    n = len(tables.succ_ptr) - 1
    e = len(tables.succ_ops)
    d = len(tables.slots)
    links = len(tables.link_latency)
    t = min(e, n * (d - 1))
    longest = 0
    for row in range(d * d):
        longest = max(longest, tables.route_ptr[row + 1] - tables.route_ptr[row])
    hops = t * longest
    n_tracked = n if memory else 0
    t_tracked = t if memory else 0
    return TransferScratch(
        np.empty(n + 1, np.int32),
        np.empty(t, np.int32),
        np.empty(t, np.int32),
        np.empty(t),
        np.empty(t, np.int32),
        np.empty(e, np.int32),
        np.empty(t + 1, np.int32),
        np.empty(t, np.int32),
        np.empty(hops, np.int32),
        np.empty(hops),
        np.empty(hops),
        np.empty(links + 1, np.int64),
        np.empty(links, np.int64),
        np.empty(hops),
        np.empty(hops, np.int64),
        np.empty(t),
        np.empty(t, np.int64),
        np.empty(len(tables.sharing_ptr) - 1, np.bool_),
        np.empty(links, np.int32),
        np.empty(links, np.bool_),
        np.empty(d, np.int32),
        np.empty(d, np.int32),
        np.empty(links),
        np.empty(links, np.int64),
        np.empty(4, np.int64),
        np.empty(n_tracked, np.int32),
        np.empty(t_tracked, np.int32),
        np.empty(n_tracked, np.bool_),
        np.empty(t_tracked, np.bool_),
        np.empty(d),
        np.empty(d),
        np.empty(1),
    )
