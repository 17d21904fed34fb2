"""What calibration finds out about one kernel and about copies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

MOST_FACTORS = 64
"""How many quantiles of a kernel's durations a profile keeps at most."""

LEAST_SHARE = 0.25
"""Where the others worked less than this, busy durations tell too little to be extrapolated far."""


@dataclass(frozen=True)
class KernelTiming:
    """Duration of a kernel signature.

    Args:
        busy: while all other devices work too. [s]
        alone: while all other devices idle. [s]
        variation: coefficient of variation of the busy durations.
        samples: how many busy durations there were; 0 where the timing was estimated.
        factors: evenly spaced quantiles of the busy durations over their mean; empty where the
            timing was estimated.
        share: how much of the busy durations the other devices really were at work, 0 to 1.
        transfers: how many transfers were under way during a busy duration, on average.
        flops: of one run, None where unknown. [FLOP]
        traffic: operands and result of one run, None where unknown. [B]
    """

    busy: float
    alone: float
    variation: float
    samples: int
    factors: tuple[float, ...] = ()
    share: float = 1.0
    transfers: float = 0.0
    flops: float | None = None
    traffic: float | None = None

    def spread(self) -> np.ndarray:
        """Busy durations over their mean, as measured; else lognormal ones of equal variation."""
        if self.factors:
            return np.array(self.factors)
        sigma = math.sqrt(math.log1p(self.variation**2))
        normal = NormalDist()
        quantiles = [normal.inv_cdf((i + 0.5) / MOST_FACTORS) for i in range(MOST_FACTORS)]
        factors = np.exp(sigma * np.array(quantiles))
        return factors / factors.mean()

    def contention(self, share: float) -> float:
        """How far from `alone` (0) to `busy` (1) it is while others work for `share` of it.

        Linear, and beyond 1 where they work more than they did when `busy` was measured.
        """
        return share / max(self.share, LEAST_SHARE)


@dataclass(frozen=True)
class CopyTiming:
    """Seconds of a copy between two devices: `latency + bytes / bandwidth`.

    Args:
        latency: from the end of the producing op to the start of the copy, while devices work. [s]
        latency_alone: the same while they idle, with the hand-over to the consumer. [s]
        bandwidth: [B/s]
        sweep: (bytes, seconds) from end of producer to start of consumer, devices idle. [B], [s]
        interruption: by which an op takes longer for every transfer that is under way meanwhile,
            since the threads that copy need a core too. [s]
    """

    latency: float
    latency_alone: float
    bandwidth: float
    sweep: tuple[tuple[int, float], ...] = ()
    interruption: float = 0.0
