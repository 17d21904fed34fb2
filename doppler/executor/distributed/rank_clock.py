"""One time for all ranks: how far each rank's clock is ahead of rank 0's, by ping-pong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

SAMPLES = 40
"""Ping-pongs per rank; only the fastest one counts, the others met some delay."""
_PING_TAG, _PONG_TAG = 3, 4


def now() -> float:
    """This rank's clock. [s]"""
    return time.perf_counter()


@dataclass(frozen=True)
class ClockOffset:
    """How far a clock is ahead of rank 0's: its time minus rank 0's at one moment.

    Args:
        seconds: the estimate. [s]
        uncertainty: half the round trip that gave it; the truth is not further off. [s]
    """

    seconds: float
    uncertainty: float

    def common(self) -> ClockOffset:
        """No offset where none can be told from zero, as between processes of one machine.

        Clocks of two machines count from their boots: to agree within a round trip by chance they
        would have to be switched on in the same millisecond.
        """
        return self if abs(self.seconds) > self.uncertainty else ClockOffset(0.0, self.uncertainty)


def estimate_offset(samples: Sequence[tuple[float, float, float, float]]) -> ClockOffset:
    """Offset of a remote clock from ping-pongs.

    Args:
        samples: (ping sent here, ping received there, pong sent there, pong received here), each
            in the clock of the place. [s]

    Source: clock filter of NTP, Mills, Improved algorithms for synchronizing computer network
    clocks (1995): the sample of the shortest round trip has the smallest error, half of that trip.
    """
    trips = [(t3 - t0) - (t2 - t1) for t0, t1, t2, t3 in samples]
    fastest = min(range(len(samples)), key=trips.__getitem__)
    t0, t1, t2, t3 = samples[fastest]
    return ClockOffset(((t1 - t0) + (t2 - t3)) / 2, max(0.0, trips[fastest]) / 2)


def align_clocks(group: dist.ProcessGroup) -> list[ClockOffset] | None:
    """Estimates all ranks' offsets; called by all ranks at the same time.

    Returns:
        On rank 0 the offset of every rank, None on the others. # (world,)
    """
    if group.rank() != 0:
        _answer(group)
        return None
    offsets = [ClockOffset(0.0, 0.0)]
    for rank in range(1, group.size()):
        offsets.append(estimate_offset(_ask(group, rank)).common())
    return offsets


def _ask(group: dist.ProcessGroup, rank: int) -> list[tuple[float, float, float, float]]:
    ping, pong = torch.zeros(1), torch.zeros(2, dtype=torch.float64)
    samples = []
    for _ in range(SAMPLES):
        t0 = now()
        sent = group.send([ping], rank, _PING_TAG)
        group.recv([pong], rank, _PONG_TAG).wait()
        t3 = now()
        sent.wait()
        t1, t2 = pong.tolist()
        samples.append((t0, t1, t2, t3))
    return samples


def _answer(group: dist.ProcessGroup) -> None:
    ping, pong = torch.zeros(1), torch.zeros(2, dtype=torch.float64)
    for _ in range(SAMPLES):
        group.recv([ping], 0, _PING_TAG).wait()
        pong[0] = now()
        pong[1] = now()
        group.send([pong], 0, _PONG_TAG).wait()
