"""Noise: seeded factors on durations, one per op and one per (op, destination device).

Factors are drawn before the run and belong to an op or a transfer, never to the order of events,
so that a makespan is a pure function of placement and noise seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem


class NoiseFactors(NamedTuple):
    """What durations are multiplied by in one run.

    Args:
        ops: factor of each op's duration. # (num_ops,)
        transfers: factor of every hop of an op's transfer to a device. # (num_ops, num_devices)
    """

    ops: np.ndarray
    transfers: np.ndarray


NO_NOISE = NoiseFactors(np.empty(0), np.empty((0, 0)))
"""Empty arrays tell the kernel that every factor is 1."""


class NoiseModel(ABC):
    """How the durations of a run differ from the cost model's."""

    @abstractmethod
    def draw(self, problem: PlacementProblem, rng: np.random.Generator) -> NoiseFactors:
        """Draws the factors of one run; same generator state, same factors."""


@dataclass(frozen=True)
class LognormalNoise(NoiseModel):
    """Independent lognormal factors of mean one.

    Args:
        sigma: standard deviation of a factor's logarithm (about its coefficient of variation).
        transfer_sigma: the same for transfers; `sigma` where None.

    Raises:
        ConfigurationError: if a sigma is negative or not finite.
    """

    sigma: float
    transfer_sigma: float | None = None

    def __post_init__(self) -> None:
        for label in ("sigma", "transfer_sigma"):
            value = getattr(self, label)
            if value is not None and not (np.isfinite(value) and value >= 0):
                raise ConfigurationError(f"noise, {label}: {value} is not finite and >= 0")

    def draw(self, problem: PlacementProblem, rng: np.random.Generator) -> NoiseFactors:
        """Draws ops first, then transfers row by row."""
        transfer_sigma = self.sigma if self.transfer_sigma is None else self.transfer_sigma
        size = (problem.num_ops, problem.num_devices)
        return NoiseFactors(
            ops=rng.lognormal(-0.5 * self.sigma**2, self.sigma, size[0]),
            transfers=rng.lognormal(-0.5 * transfer_sigma**2, transfer_sigma, size),
        )
