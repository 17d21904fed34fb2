"""From a problem and an arrangement of its ops to a chain, and from its best cuts to devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler.problem import PlacementProblem
from doppler.schedulers.partitioning.split_kernel import NO_CONSUMER, SEVERAL, Chain, split
from doppler.schedulers.partitioning.vertices import first_consumers, pins


@dataclass(frozen=True, eq=False)
class Split:
    """The best contiguous splits of one arrangement over one sequence of devices.

    Args:
        placements: the best split over the first k devices, k = 1 to D. # (D, num_ops)
        bottlenecks: the busiest device's seconds; infinite where nothing fits. # (D,) [s]
    """

    placements: np.ndarray
    bottlenecks: np.ndarray


def best_splits(
    problem: PlacementProblem,
    arrangement: np.ndarray,
    sequence: np.ndarray,
    fit_memory: bool = False,
    max_positions: int | None = None,
) -> Split:
    """Cuts an arrangement into contiguous pieces, a piece per device, at the least bottleneck.

    A device is busy for the work of its ops, for every tensor that comes in, once, and for every
    tensor that goes out, once, each at the mean latency and rate of the device's routes. What
    pinned ops send and receive counts at the other end only.

    Args:
        problem: what is split.
        arrangement: a topological order. # (num_ops,)
        sequence: the k-th piece goes on the k-th of these devices. # (D,)
        fit_memory: only pieces whose outputs and inputs would fit all at a time.
        max_positions: longer chains are cut between this many equally long runs only; None for
            anywhere.

    Raises:
        UnknownQuantityError: `fit_memory` where the graph does not know bytes.
    """
    num_devices = problem.num_devices
    leader, pin = _leaders(problem)
    rank = np.argsort(arrangement)[leader]
    free = pin < 0
    occupied, home = np.unique(rank[free], return_inverse=True)
    count = len(occupied)
    if max_positions is not None and count > max_positions:
        home, count = home * max_positions // count, max_positions
    position = np.full(problem.num_ops, -1, np.int64)
    position[free] = home
    chain = _chain(problem, position, pin, count, fit_memory)
    shape = (count + 1, num_devices + 1)
    best, start = np.empty(shape), np.zeros(shape, np.int64)
    alike = bool((chain.rates == chain.rates[0]).all() and free.all())
    scratch = (np.empty(problem.num_ops, np.int64), np.empty(5), np.empty((num_devices, 5)))
    split(chain, np.ascontiguousarray(sequence, np.int64), alike, best, start, *scratch)
    placements = np.tile(pin, (num_devices, 1))
    for pieces in range(1, num_devices + 1):
        on_device = np.zeros(count, np.int64)
        end = count
        for k in range(pieces, 0, -1):
            begin = int(start[end, k])
            on_device[begin:end] = sequence[k - 1]
            end = begin
        placements[pieces - 1, free] = on_device[home]
    # Devices without a piece have their pinned ops still.
    return Split(placements, np.maximum(best[-1, 1:], chain.base.max()))


def _leaders(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """The op that each op goes with, and its pin or -1. # (num_ops,), (num_ops,)"""
    leader, pin = problem.constraints.leader.copy(), pins(problem)
    for op, consumer in first_consumers(problem):
        leader[op] = leader[consumer]
        pin[op] = pin[consumer]
    return leader, pin


def _chain(
    problem: PlacementProblem,
    position: np.ndarray,
    pin: np.ndarray,
    count: int,
    fit_memory: bool,
) -> Chain:
    """The arrays of the kernel; tensors are numbered as the ops that make them."""
    num_ops, num_devices = problem.num_ops, problem.num_devices
    free, op_seconds = position >= 0, problem.cost_model.op_seconds
    slots = problem.topology.compute_slots
    work, base = np.zeros((count + 1, num_devices)), np.zeros(num_devices)
    np.add.at(work, position[free] + 1, op_seconds[free] / slots)
    pinned = np.flatnonzero(~free)
    np.add.at(base, pin[pinned], op_seconds[pinned, pin[pinned]] / slots[pin[pinned]])
    size = problem.graph.require("output_bytes") if fit_memory else np.zeros(num_ops)
    room = problem.topology.memory_bytes - np.bincount(pin[pinned], size[pinned], num_devices)
    home_bytes = np.zeros(count + 1)
    np.add.at(home_bytes, position[free] + 1, size[free])

    producers, consumers = problem.graph.edges.reshape(-1, 2).T
    read = free[consumers] & (position[producers] != position[consumers])
    pairs = np.unique(producers[read] * (count + 1) + position[consumers[read]])
    tensors, readers = np.divmod(pairs, count + 1)
    first, last = np.full(num_ops, count), np.full(num_ops, -1)
    np.minimum.at(first, tensors, readers)
    np.maximum.at(last, tensors, readers)
    homes = np.flatnonzero(free)
    ends = np.flatnonzero(free & (last >= 0))
    return Chain(
        work=np.cumsum(work, axis=0),
        home_bytes=np.cumsum(home_bytes),
        base=base,
        room=room if fit_memory else np.full(num_devices, np.inf),
        rates=_rates(problem),
        home=position,
        pin=pin,
        first=first,
        last=last,
        pinned_readers=_pinned_readers(producers, pin[consumers], num_ops),
        volume=problem.cost_model.transfer_volume.copy(),  # theirs are read-only
        tensor_bytes=size.copy(),
        **_rows("homes", position[homes], homes, count),
        **_rows("reads", readers, tensors, count),
        **_rows("ends", last[ends], ends, count),
    )


def _pinned_readers(producers: np.ndarray, pins: np.ndarray, num_ops: int) -> np.ndarray:
    """The device of all pinned consumers of each op; `SEVERAL` or `NO_CONSUMER`. # (num_ops,)"""
    tied = pins >= 0
    least, most = np.full(num_ops, np.iinfo(np.int64).max), np.full(num_ops, NO_CONSUMER)
    np.minimum.at(least, producers[tied], pins[tied])
    np.maximum.at(most, producers[tied], pins[tied])
    return np.where((most >= 0) & (least != most), SEVERAL, most)


def _rates(problem: PlacementProblem) -> np.ndarray:
    """Mean latency and seconds per unit of each device's routes, in and out. # (D, 4)"""
    others = max(problem.num_devices - 1, 1)
    tables = (problem.route_latency, problem.route_seconds_per_unit)
    both = [table.sum(axis=axis) / others for axis in (0, 1) for table in tables]
    return np.ascontiguousarray(np.array(both).T)


def _rows(label: str, rows: np.ndarray, values: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Values by row, in compressed form."""
    by_row = np.argsort(rows, kind="stable")
    pointer = np.searchsorted(rows[by_row], np.arange(count + 1))
    return {f"{label}_ptr": pointer, label: values[by_row]}
