"""Whole episodes of list scheduling in one kernel, so that 10 000 ops take milliseconds."""

from __future__ import annotations

import numpy as np

from doppler.construction.arrays import ProblemArrays, StateArrays
from doppler.construction.kernel import _allowed, _place, _sort_predecessors, _start_of
from doppler.simulator.jit import compiled, entry, inlined

SAME = 1e-12
"""Start times within this relative distance are a tie: sums of equal terms differ by rounding."""


@inlined
def _tie_key(seed: np.uint64, op: int, device: int) -> np.uint64:
    """A random number that depends on its arguments only (splitmix64), 0 for seed 0."""
    if seed == np.uint64(0):
        return np.uint64(0)
    x = seed + np.uint64(op) * np.uint64(0x9E3779B97F4A7C15)
    x += np.uint64(device + 1) * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inlined
def _before(priorities: np.ndarray, keys: np.ndarray, a: int, b: int) -> bool:
    """Whether op a goes before op b: higher priority, then lower key, then lower id."""
    if priorities[a] != priorities[b]:
        return priorities[a] > priorities[b]
    if keys[a] != keys[b]:
        return keys[a] < keys[b]
    return a < b


@inlined
def _push(heap: np.ndarray, size: int, op: int, priorities: np.ndarray, keys: np.ndarray) -> int:
    i = size
    while i > 0 and _before(priorities, keys, op, heap[(i - 1) // 2]):
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = op
    return size + 1


@inlined
def _pop(heap: np.ndarray, size: int, priorities: np.ndarray, keys: np.ndarray) -> int:
    """Moves the first op to `heap[size - 1]` and returns it; the heap is one shorter."""
    top = heap[0]
    size -= 1
    op = heap[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _before(priorities, keys, heap[child + 1], heap[child]):
            child += 1
        if not _before(priorities, keys, heap[child], op):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = op
    return top


@inlined
def _earliest_device(p: ProblemArrays, s: StateArrays, b: int, op: int, seed: np.uint64) -> int:
    """The allowed device on which `op` starts first; ties by key, then by id.

    An input whose group is open could be anywhere, and its group would follow: such inputs are
    dealt to the devices in turn, or at random.
    """
    open_input = p.is_input[op] and s.block_device[b, p.block[op]] < 0
    if open_input:
        turn = np.uint64(op) if seed == np.uint64(0) else _tie_key(seed, op, 0)
        return np.int64(turn % np.uint64(p.op_seconds.shape[1]))  # type: ignore[return-value]
    count = _sort_predecessors(p, s, b, op)
    best, best_start, best_key = -1, np.inf, np.uint64(0)
    for device in range(p.op_seconds.shape[1]):
        if not _allowed(p, s, b, op, device):
            continue
        if s.device_free[b, device] > best_start * (1.0 + SAME):
            continue
        start = _start_of(p, s, b, op, device, count)
        key = _tie_key(seed, op, device)
        if start < best_start * (1.0 - SAME) or best < 0:
            best, best_start, best_key = device, start, key
        elif start <= best_start * (1.0 + SAME) and key < best_key:
            best, best_start, best_key = device, min(start, best_start), key
    return best


@compiled
def _list_schedule(
    p: ProblemArrays,
    s: StateArrays,
    priorities: np.ndarray,
    seeds: np.ndarray,
    heap: np.ndarray,
    keys: np.ndarray,
) -> None:
    num_ops = len(priorities)
    for b in range(len(seeds)):
        size = 0
        for op in range(num_ops):
            keys[op] = _tie_key(seeds[b], op, -1)
            if s.candidates[b, op]:
                size = _push(heap, size, op, priorities, keys)
        while size > 0:
            op = _pop(heap, size, priorities, keys)
            size -= 1
            _place(p, s, b, op, _earliest_device(p, s, b, op, seeds[b]))
            for edge in range(p.succ_ptr[op], p.succ_ptr[op + 1]):
                consumer = p.succ_ops[edge]
                if s.candidates[b, consumer]:
                    size = _push(heap, size, consumer, priorities, keys)


@entry
def list_schedule(
    p: ProblemArrays,
    s: StateArrays,
    priorities: np.ndarray,
    seeds: np.ndarray,
    heap: np.ndarray,
    keys: np.ndarray,
) -> None:
    """Completes every episode: the candidate of highest priority goes where it starts earliest.

    Args:
        p, s: the problem and the state.
        priorities: # (N,)
        seeds: one per episode; 0 breaks ties by id, any other at random. # (B,) uint64
        heap, keys: scratch. # (N,) int64, (N,) uint64
    """
    _list_schedule(p, s, priorities, seeds, heap, keys)
