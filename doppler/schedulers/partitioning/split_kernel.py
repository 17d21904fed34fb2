"""The dynamic program of the chain split, compiled: all pieces from every start, O(N (N + E))."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.simulator.jit import compiled, entry, inlined

NO_CONSUMER = -2
"""`Chain.pinned_readers` of a tensor that no pinned op reads."""
SEVERAL = -1
"""`Chain.pinned_readers` of a tensor that ops pinned to several devices read."""

_IN, _IN_VOLUME, _OUT, _OUT_VOLUME, _BYTES = range(5)


class Chain(NamedTuple):
    """A linear arrangement of P positions, and the tensors between them.

    A position holds the ops that must be together; ops pinned to a device are off the chain.

    Args:
        work: of the positions before each. # (P + 1, D) [s]
        home_bytes: bytes of the outputs at the positions before each. # (P + 1,) [B]
        base: work pinned to each device. # (D,) [s]
        room: what pinned outputs leave of each device's memory. # (D,) [B]
        rates: of each device: mean latency and seconds per unit coming in, and going out.
            # (D, 4) [s], [s/B]
        home: position of each tensor, -1 off the chain. # (T,)
        pin: device of a tensor off the chain, else -1. # (T,)
        first, last: first and last position that reads it, (P, -1) where none does. # (T,)
        pinned_readers: device of the pinned ops that read it, `NO_CONSUMER` or `SEVERAL`. # (T,)
        volume: # (T,) [B] or [s]
        tensor_bytes: # (T,) [B]
        homes_ptr, homes: tensors by home. # (P + 1,), (T,)
        reads_ptr, reads: tensors by the positions that read them, home excluded. # (P + 1,), (R,)
        ends_ptr, ends: tensors on the chain by last reader. # (P + 1,), (T,)
    """

    work: np.ndarray
    home_bytes: np.ndarray
    base: np.ndarray
    room: np.ndarray
    rates: np.ndarray
    home: np.ndarray
    pin: np.ndarray
    first: np.ndarray
    last: np.ndarray
    pinned_readers: np.ndarray
    volume: np.ndarray
    tensor_bytes: np.ndarray
    homes_ptr: np.ndarray
    homes: np.ndarray
    reads_ptr: np.ndarray
    reads: np.ndarray
    ends_ptr: np.ndarray
    ends: np.ndarray


@inlined
def _join(c: Chain, mark: np.ndarray, total: np.ndarray, own: np.ndarray, i: int, p: int) -> None:
    """Adds position p to the piece of positions i to p - 1.

    `total` counts tensors that come in and go out, and bytes that come in; `own[d]` the part of it
    that is no transfer if the piece is on device d.
    """
    for k in range(c.homes_ptr[p], c.homes_ptr[p + 1]):
        t = c.homes[k]
        if mark[t] == i:  # it came in for an earlier position, and now is at home
            total[_IN] -= 1.0
            total[_IN_VOLUME] -= c.volume[t]
            total[_BYTES] -= c.tensor_bytes[t]
        outside = c.first[t] < i or c.last[t] > p
        if outside or c.pinned_readers[t] != NO_CONSUMER:
            total[_OUT] += 1.0
            total[_OUT_VOLUME] += c.volume[t]
        if not outside and c.pinned_readers[t] >= 0:
            own[c.pinned_readers[t], _OUT] += 1.0
            own[c.pinned_readers[t], _OUT_VOLUME] += c.volume[t]
    for k in range(c.reads_ptr[p], c.reads_ptr[p + 1]):
        t = c.reads[k]
        if (c.home[t] < i or c.home[t] > p) and mark[t] != i:
            mark[t] = i
            total[_IN] += 1.0
            total[_IN_VOLUME] += c.volume[t]
            total[_BYTES] += c.tensor_bytes[t]
            if c.pin[t] >= 0:
                own[c.pin[t], _IN] += 1.0
                own[c.pin[t], _IN_VOLUME] += c.volume[t]
    for k in range(c.ends_ptr[p], c.ends_ptr[p + 1]):
        t = c.ends[k]
        if i <= c.home[t] and c.home[t] < p and c.first[t] >= i:  # all its readers are inside now
            if c.pinned_readers[t] == NO_CONSUMER:
                total[_OUT] -= 1.0
                total[_OUT_VOLUME] -= c.volume[t]
            elif c.pinned_readers[t] >= 0:
                own[c.pinned_readers[t], _OUT] += 1.0
                own[c.pinned_readers[t], _OUT_VOLUME] += c.volume[t]


@inlined
def _transfer_seconds(c: Chain, total: np.ndarray, own: np.ndarray, d: int) -> float:
    return (
        c.rates[d, 0] * (total[_IN] - own[d, _IN])
        + c.rates[d, 1] * (total[_IN_VOLUME] - own[d, _IN_VOLUME])
        + c.rates[d, 2] * (total[_OUT] - own[d, _OUT])
        + c.rates[d, 3] * (total[_OUT_VOLUME] - own[d, _OUT_VOLUME])
    )


@compiled
def _split(
    c: Chain,
    sequence: np.ndarray,
    alike: bool,
    best: np.ndarray,
    start: np.ndarray,
    mark: np.ndarray,
    total: np.ndarray,
    own: np.ndarray,
) -> None:
    num_positions = len(c.home_bytes) - 1
    best[:] = np.inf
    best[0, 0] = 0.0
    mark[:] = -1
    for i in range(num_positions + 1):
        for k in range(len(sequence)):  # a device may go without a piece
            if best[i, k] < best[i, k + 1]:
                best[i, k + 1] = best[i, k]
                start[i, k + 1] = i
        total[:] = 0.0
        own[:] = 0.0
        for p in range(i, num_positions):
            _join(c, mark, total, own, i, p)
            moved = _transfer_seconds(c, total, own, sequence[0])
            held = c.home_bytes[p + 1] - c.home_bytes[i] + total[_BYTES]
            for k in range(len(sequence)):
                d = sequence[k]
                work = c.base[d] + c.work[p + 1, d] - c.work[i, d]
                # Most pieces are hopeless by their work alone.
                if max(best[i, k], work) >= best[p + 1, k + 1] or held > c.room[d]:
                    continue
                if not alike:
                    moved = _transfer_seconds(c, total, own, d)
                value = max(best[i, k], work + moved)
                if value < best[p + 1, k + 1]:
                    best[p + 1, k + 1] = value
                    start[p + 1, k + 1] = i


@entry
def split(
    c: Chain,
    sequence: np.ndarray,
    alike: bool,
    best: np.ndarray,
    start: np.ndarray,
    mark: np.ndarray,
    total: np.ndarray,
    own: np.ndarray,
) -> None:
    """Fills the table of least bottlenecks.

    Args:
        c: the chain.
        sequence: device of the first piece, of the second, ... # (D,)
        alike: whether transfers cost the same on all devices and nothing is pinned.
        best: least bottleneck of the first p positions on the first k devices, of the devices
            with a piece. # (P + 1, D + 1) [s]
        start: where the last of these pieces starts. # (P + 1, D + 1)
        mark, total, own: scratch. # (T,), (5,), (D, 5)
    """
    _split(c, sequence, alike, best, start, mark, total, own)
