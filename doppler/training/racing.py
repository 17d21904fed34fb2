"""Races: rounds of the incumbent and candidates, which those that are clearly worse leave early."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CLEARLY = 2.5
"""Standard errors by which a candidate must be behind to leave a race."""

LEAST_ROUNDS = 3
"""None leaves earlier: one run is no median, and the first one often pays for new memory."""

PRIOR_NOISE = 0.05
PRIOR_WEIGHT = 2.0
"""Before anything is measured, the noise is taken to be this, as if from so many rounds."""

LEAST_NOISE = 1e-3
MEMORY = 0.9
"""What every race leaves of the weight of the earlier ones in the estimate of the noise."""

MeasureRound = Callable[[list[int]], np.ndarray]
"""Runs once the incumbent and the candidates of these numbers; the incumbent's seconds first."""


@dataclass
class PairedNoise:
    """Deviation of log(candidate / incumbent) between the rounds of one race, over all candidates.

    Args:
        squares: of the distances from each candidate's own mean, earlier races discounted.
        degrees: how many free distances those are: rounds less one for each candidate.
    """

    squares: float = 0.0
    degrees: float = 0.0

    @property
    def sigma(self) -> float:
        """Of one round's log ratio, at least `LEAST_NOISE`."""
        squares = self.squares + PRIOR_WEIGHT * PRIOR_NOISE**2
        return max(math.sqrt(squares / (self.degrees + PRIOR_WEIGHT)), LEAST_NOISE)

    def add(self, races: Sequence[np.ndarray]) -> None:
        """Takes in the log ratios of each candidate of one race. # (rounds,) each"""
        self.squares *= MEMORY
        self.degrees *= MEMORY
        for log_ratios in races:
            if len(log_ratios) > 1 and np.isfinite(log_ratios).all():
                self.squares += float(((log_ratios - log_ratios.mean()) ** 2).sum())
                self.degrees += len(log_ratios) - 1


@dataclass(frozen=True, eq=False)
class Race:
    """What a race measured.

    Args:
        incumbent: # (rounds,) [s]
        candidates: of each candidate, in the rounds before it left. # (its rounds,) each [s]
        log_ratios: of candidate to incumbent, in the same rounds. # (its rounds,) each
    """

    incumbent: np.ndarray
    candidates: list[np.ndarray]
    log_ratios: list[np.ndarray]


def race(measure: MeasureRound, num_candidates: int, most_rounds: int, noise: float) -> Race:
    """Measures candidates in up to `most_rounds` rounds; those that are clearly worse leave.

    All comparisons are within rounds, because the speed of a machine drifts.

    Args:
        measure: one round.
        num_candidates: without the incumbent.
        most_rounds: at least 1.
        noise: deviation of one round's log ratio.
    """
    incumbent: list[float] = []
    candidates: list[list[float]] = [[] for _ in range(num_candidates)]
    ratios: list[list[float]] = [[] for _ in range(num_candidates)]
    active = list(range(num_candidates))
    while active and len(incumbent) < most_rounds:
        seconds = measure(active)
        incumbent.append(float(seconds[0]))
        for number, value in zip(active, seconds[1:], strict=True):
            candidates[number].append(float(value))
            ratios[number].append(log_ratio(float(value), incumbent[-1]))
        active = [number for number in active if not clearly_worse(ratios[number], noise)]
    return Race(
        np.array(incumbent),
        [np.array(values) for values in candidates],
        [np.array(values) for values in ratios],
    )


def clearly_worse(log_ratios: Sequence[float], noise: float) -> bool:
    """Whether the mean log ratio is above 0 by more than `CLEARLY` of its standard errors."""
    rounds = len(log_ratios)
    return rounds >= LEAST_ROUNDS and float(np.mean(log_ratios)) > CLEARLY * noise / math.sqrt(
        rounds
    )


def log_ratio(seconds: float, incumbent: float) -> float:
    """Logarithm of a ratio of two makespans, infinite if only the first one is. [s]

    It is bounded below, as if neither were shorter than a tiny time nor infinite.
    """
    if math.isinf(seconds):
        return 0.0 if math.isinf(incumbent) else math.inf
    least, most = 1e-12, 1e12
    return math.log(max(seconds, least)) - math.log(min(max(incumbent, least), most))
