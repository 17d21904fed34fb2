"""The flat arrays that the construction kernels work on, and how a problem fills them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem

NETWORKS = ("contention_free", "serial_links", "one_port")
"""Network models, in the order of their codes in the kernels."""

CONTENTION_FREE = 0


class ProblemArrays(NamedTuple):
    """What does not change during an episode. `N` ops, `D` devices, `L` links."""

    network: int  # index into NETWORKS
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
    link_resources: np.ndarray  # (L, 2) what a hop occupies, -1 for nothing
    arrival_ptr: np.ndarray  # (N + 1,) rows of StateArrays.arrival_*


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
    resource_free: np.ndarray  # (B, R) [s]
    arrival_device: np.ndarray  # (B, M) -1 where the entry is unused
    arrival_time: np.ndarray  # (B, M) [s]
    sorted_preds: np.ndarray  # (max in-degree,) scratch
    journal_index: np.ndarray  # (2 * max hops * max in-degree,) scratch
    journal_time: np.ndarray  # (2 * max hops * max in-degree,) scratch


def make_problem_arrays(problem: PlacementProblem, network: str) -> ProblemArrays:
    """Copies a problem into flat arrays.

    Raises:
        ConfigurationError: if `network` is not one of `NETWORKS`.
    """
    if network not in NETWORKS:
        raise ConfigurationError(
            f"network {network!r} is unknown; the network models are {', '.join(NETWORKS)}"
        )
    graph, topology, costs = problem.graph, problem.topology, problem.cost_model
    routes = [topology.routes[s][d] for s in range(len(topology.routes)) for d in range(
        problem.num_devices)]  # fmt: skip
    fan_out = np.minimum(graph.out_degrees, problem.num_devices - 1)
    return ProblemArrays(
        network=NETWORKS.index(network),
        pred_ptr=_copy(graph.pred_ptr),
        pred_ops=_copy(graph.pred_ops),
        succ_ptr=_copy(graph.succ_ptr),
        succ_ops=_copy(graph.succ_ops),
        op_seconds=_copy(costs.op_seconds, np.float64),
        volume=_copy(costs.transfer_volume, np.float64),
        route_latency=_copy(problem.route_latency, np.float64),
        route_rate=_copy(problem.route_seconds_per_unit, np.float64),
        route_ptr=_offsets(np.array([len(route) for route in routes], np.int64)),
        route_links=np.array([link for route in routes for link in route], np.int64),
        link_latency=_copy(costs.link_latency, np.float64),
        link_rate=_copy(costs.link_seconds_per_unit, np.float64),
        link_resources=_link_resources(problem, network),
        arrival_ptr=_offsets(fan_out if network != "contention_free" else 0 * fan_out),
    )


def make_state_arrays(problem: PlacementProblem, p: ProblemArrays, batch_size: int) -> StateArrays:
    """Allocates the state; `Construction.reset` fills it."""
    n, d = problem.num_ops, problem.num_devices
    shape = (batch_size, n)
    in_degree = int(problem.graph.in_degrees.max())
    hops = int(np.diff(p.route_ptr).max())
    resources = int(p.link_resources.max(initial=-1)) + 1
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
        resource_free=np.empty((batch_size, resources)),
        arrival_device=np.empty((batch_size, entries), np.int32),
        arrival_time=np.empty((batch_size, entries)),
        sorted_preds=np.empty(in_degree, np.int64),
        journal_index=np.empty(2 * hops * in_degree, np.int64),
        journal_time=np.empty(2 * hops * in_degree),
    )


def _copy(values: np.ndarray, dtype: type = np.int64) -> np.ndarray:
    """A writable copy: numba compiles read-only arrays as another type, once more."""
    return np.array(values, dtype=dtype, order="C")


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _link_resources(problem: PlacementProblem, network: str) -> np.ndarray:
    """Under serial links a hop occupies its link; under one port, a sender and a receiver port.

    Only devices have ports: a host relays as many transfers at a time as like.
    """
    resources = np.full((problem.topology.num_links, 2), -1, np.int64)
    if network == "serial_links":
        resources[:, 0] = np.arange(len(resources))
    elif network == "one_port":
        ends = problem.topology.link_ends
        size = problem.num_devices
        resources[:, 0] = np.where(ends[:, 0] < size, ends[:, 0], -1)
        resources[:, 1] = np.where(ends[:, 1] < size, size + ends[:, 1], -1)
    return resources
