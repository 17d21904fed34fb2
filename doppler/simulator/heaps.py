"""Binary min-heaps of (key, id) pairs inside segments of preallocated arrays.

Pairs are compared by key, then by id, so that no two entries tie and nothing depends on the order
of insertion. A heap is the segment that begins at `base`; the caller keeps its size.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, forceinline=True)
def heap_push(
    keys: np.ndarray, ids: np.ndarray, base: int, size: int, key: float, item: int
) -> None:
    """Adds a pair to a heap of `size` entries; the caller then counts one more."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        above = keys[base + parent]
        if above < key or (above == key and ids[base + parent] < item):
            break
        keys[base + child] = above
        ids[base + child] = ids[base + parent]
        child = parent
    keys[base + child] = key
    ids[base + child] = item


@njit(cache=True, nogil=True, forceinline=True)
def heap_pop(keys: np.ndarray, ids: np.ndarray, base: int, size: int) -> int:
    """Removes the smallest pair of a heap of `size` >= 1 entries and returns its id."""
    top = ids[base]
    last = size - 1
    key = keys[base + last]
    item = ids[base + last]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= last:
            break
        least = keys[base + child]
        if child + 1 < last:
            other = keys[base + child + 1]
            if other < least or (other == least and ids[base + child + 1] < ids[base + child]):
                child += 1
                least = other
        if key < least or (key == least and item < ids[base + child]):
            break
        keys[base + hole] = least
        ids[base + hole] = ids[base + child]
        hole = child
    keys[base + hole] = key
    ids[base + hole] = item
    return top
