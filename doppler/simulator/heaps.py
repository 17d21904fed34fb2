"""Binary min-heaps of (key, id) pairs inside segments of preallocated arrays.

Pairs are compared by key, then by id, so that no two entries tie and nothing depends on the order
of insertion. A heap is the segment that begins at `base`; the caller keeps its size.
"""

from __future__ import annotations

import numpy as np

from doppler.simulator.jit import U, inlined


@inlined
def heap_push(
    keys: np.ndarray, ids: np.ndarray, base: int, size: int, key: float, item: int
) -> None:
    """Adds a pair to a heap of `size` entries; the caller then counts one more."""
    _sift_up(keys, ids, base, size, key, item)


@inlined
def heap_pop(keys: np.ndarray, ids: np.ndarray, base: int, size: int) -> int:
    """Removes the smallest pair of a heap of `size` >= 1 entries and returns its id.

    The hole sinks to a leaf first and the last entry then rises from there (Wegener's bottom-up
    heapsort): the choice between two children is a select instead of a branch that the processor
    guesses wrong half of the time.
    """
    top = ids[U(base)]
    last = size - 1
    hole = 0
    child = 2
    while child < last:
        left = U(base + child - 1)
        right = U(base + child)
        child -= (keys[left] < keys[right]) | (
            (keys[left] == keys[right]) & (ids[left] < ids[right])
        )
        keys[U(base + hole)] = keys[U(base + child)]
        ids[U(base + hole)] = ids[U(base + child)]
        hole = child
        child = 2 * hole + 2
    if child == last:
        keys[U(base + hole)] = keys[U(base + child - 1)]
        ids[U(base + hole)] = ids[U(base + child - 1)]
        hole = child - 1
    _sift_up(keys, ids, base, hole, keys[U(base + last)], ids[U(base + last)])
    return top


@inlined
def _sift_up(
    keys: np.ndarray, ids: np.ndarray, base: int, child: int, key: float, item: int
) -> None:
    while child > 0:
        parent = (child - 1) >> 1
        above = keys[U(base + parent)]
        if (above < key) | ((above == key) & (ids[U(base + parent)] < item)):
            break
        keys[U(base + child)] = above
        ids[U(base + child)] = ids[U(base + parent)]
        child = parent
    keys[U(base + child)] = key
    ids[U(base + child)] = item
