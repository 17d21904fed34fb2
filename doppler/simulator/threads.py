"""Splits a batch over threads; the kernels release the interpreter lock while they run.

Plain threads rather than numba's `prange`: its thread pools abort when two Python threads enter
them at once (workqueue) or after a fork (OpenMP), and both happen in vector environments.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_SMALLEST_SHARE = 20_000
"""Ops plus edges below which handing a share to another thread costs more than it saves."""
_SHARES_PER_THREAD = 4
"""More shares than threads, because a busy core should not hold up the whole batch."""

_pool: ThreadPoolExecutor | None = None


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_chunks(
    function: Callable[[int, int], None], rows: int, row_work: int, num_threads: int | None
) -> None:
    """Calls `function(first, last)` over consecutive pieces that cover `rows` rows.

    Args:
        function: must write its results where they belong; pieces run in any order.
        rows: how many.
        row_work: ops plus edges of a row.
        num_threads: most threads to use, all available cores where None.
    """
    threads = min(num_threads or available_cores(), rows * row_work // _SMALLEST_SHARE)
    if threads <= 1:
        function(0, rows)
        return
    shares = min(rows, threads * _SHARES_PER_THREAD)
    pieces = iter([(rows * i // shares, rows * (i + 1) // shares) for i in range(shares)])

    def work() -> None:
        # The iterator is shared: next() on a list iterator is atomic under the interpreter lock.
        for first, last in pieces:
            function(first, last)

    others = [_get_pool().submit(work) for _ in range(threads - 1)]
    work()
    for other in others:
        other.result()


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(available_cores(), thread_name_prefix="doppler-simulator")
    return _pool


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
