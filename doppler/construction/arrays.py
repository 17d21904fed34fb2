"""The flat arrays that the construction kernels work on, and how a problem fills them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from doppler.problem import PlacementProblem
from doppler.schedule.networks import link_channels


class ProblemArrays(NamedTuple):
    """What does not change during an episode. `N` ops, `D` devices, `L` links."""

    contended: bool  # whether any link can be busy
    pred_ptr: np.ndarray  # (N + 1,)
    pred_ops: np.ndarray  # (num_edges,)
    succ_ptr: np.ndarray  # (N + 1,)
    succ_ops: np.ndarray  # (num_edges,)
    op_seconds: np.ndarray  # (N, D) [s]
    volume: np.ndarray  # (N,) [B] or [s]
    route_latency: np.ndarray  # (D, D) [s]
    route_rate: np.ndarray  # (D, D) [s/B] or [1]
    route_ptr: np.ndarray  # (D * D + 1,) row s * D + d holds the links from s to d
    route_links: np.ndarray  # (sum of hops,)
    link_latency: np.ndarray  # (L,) [s]
    link_rate: np.ndarray  # (L,) [s/B] or [1]
    channel_ptr: np.ndarray  # (L + 1,) rows of channels
    channels: np.ndarray  # what a hop over each link occupies; see schedule.networks
    arrival_ptr: np.ndarray  # (N + 1,) rows of StateArrays.arrival_*
    block: np.ndarray  # (N,) pinned and colocated ops share a block's device; -1: free
    block_device: np.ndarray  # (number of blocks,) where each is pinned, or -1
    is_input: np.ndarray  # (N,) bool: there from time 0, without duration or slot


class StateArrays(NamedTuple):
    """`B` partial placements. Scratch arrays are shared by all of them: kernels run serially.

    A tensor goes to at most min(consumers, D - 1) other devices, so the arrivals are kept in rows
    of that length, 12 bytes an entry and never more entries than edges, rather than in a dense
    (B, N, D) table.
    """

    devices: np.ndarray  # (B, N) -1 where unplaced
    start: np.ndarray  # (B, N) [s]
    finish: np.ndarray  # (B, N) [s]
    candidates: np.ndarray  # (B, N) bool
    missing: np.ndarray  # (B, N) predecessors not placed yet
    order: np.ndarray  # (B, N) op placed at each step, -1 from the present step on
    counts: np.ndarray  # (B,) ops placed
    slot_free: np.ndarray  # (B, D, S) [s] infinite for slots that a device does not have
    device_free: np.ndarray  # (B, D) [s] its first free slot
    compute_placed: np.ndarray  # (B, D) [s]
    channel_free: np.ndarray  # (B, number of channels) [s]
    block_device: np.ndarray  # (B, number of blocks) -1 where still open
    arrival_device: np.ndarray  # (B, M) -1 where the entry is unused
    arrival_time: np.ndarray  # (B, M) [s]
    sorted_preds: np.ndarray  # (max in-degree,) scratch
    journal_index: np.ndarray  # (max in-degree * max channels of a route,) scratch
    journal_time: np.ndarray  # (max in-degree * max channels of a route,) scratch


def make_problem_arrays(problem: PlacementProblem, network: str) -> ProblemArrays:
    """Copies a problem into flat arrays.

    Raises:
        ConfigurationError: if no network model is called `network`.
    """
    graph, topology, costs = problem.graph, problem.topology, problem.cost_model
    routes = [route for row in topology.routes for route in row]
    channels = link_channels(topology, network)
    contended = any(channels)
    fan_out = np.minimum(graph.out_degrees, problem.num_devices - 1)
    return ProblemArrays(
        contended=contended,
        pred_ptr=_copy(graph.pred_ptr),
        pred_ops=_copy(graph.pred_ops),
        succ_ptr=_copy(graph.succ_ptr),
        succ_ops=_copy(graph.succ_ops),
        op_seconds=_copy(costs.op_seconds, np.float64),
        volume=_copy(costs.transfer_volume, np.float64),
        route_latency=_copy(problem.route_latency, np.float64),
        route_rate=_copy(problem.route_seconds_per_unit, np.float64),
        route_ptr=_offsets([len(route) for route in routes]),
        route_links=np.array([link for route in routes for link in route], np.int64),
        link_latency=_copy(costs.link_latency, np.float64),
        link_rate=_copy(costs.link_seconds_per_unit, np.float64),
        channel_ptr=_offsets([len(row) for row in channels]),
        channels=np.array([channel for row in channels for channel in row], np.int64),
        arrival_ptr=_offsets(fan_out if contended else 0 * fan_out),
        block=_copy(problem.constraints.block),
        block_device=_copy(problem.constraints.block_device),
        is_input=_copy(problem.is_input_op, np.bool_),
    )


def make_state_arrays(problem: PlacementProblem, p: ProblemArrays, batch_size: int) -> StateArrays:
    """Allocates the state; `Construction.reset` fills it."""
    n, d = problem.num_ops, problem.num_devices
    shape = (batch_size, n)
    in_degree = int(problem.graph.in_degrees.max())
    hops = int(np.diff(p.route_ptr).max())
    per_hop = int(np.diff(p.channel_ptr).max(initial=0))
    entries = int(p.arrival_ptr[-1])
    return StateArrays(
        devices=np.empty(shape, np.int64),
        start=np.empty(shape),
        finish=np.empty(shape),
        candidates=np.empty(shape, np.bool_),
        missing=np.empty(shape, np.int64),
        order=np.empty(shape, np.int64),
        counts=np.empty(batch_size, np.int64),
        slot_free=np.empty((batch_size, d, int(problem.topology.compute_slots.max()))),
        device_free=np.empty((batch_size, d)),
        compute_placed=np.empty((batch_size, d)),
        channel_free=np.empty((batch_size, int(p.channels.max(initial=-1)) + 1)),
        block_device=np.empty((batch_size, len(p.block_device)), np.int64),
        arrival_device=np.empty((batch_size, entries), np.int32),
        arrival_time=np.empty((batch_size, entries)),
        sorted_preds=np.empty(in_degree, np.int64),
        journal_index=np.empty(in_degree * hops * per_hop, np.int64),
        journal_time=np.empty(in_degree * hops * per_hop),
    )


def _copy(values: np.ndarray, dtype: type = np.int64) -> np.ndarray:
    """A writable copy: numba compiles read-only arrays as another type, once more."""
    return np.array(values, dtype=dtype, order="C")


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
