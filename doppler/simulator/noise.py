"""Noise: seeded factors on durations, one per op and one per (op, destination device).

Factors are drawn before the run and belong to an op or a transfer, never to the order of events,
so that a makespan is a pure function of placement and noise seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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


MOST_FACTOR = 1e100
"""Keeps every sum of seconds finite, see `doppler.problem.magnitudes`."""
MOST_SIGMA = 3.0
"""Beyond this nearly all lognormal factors are close to 0 and a few huge ones make up the mean."""


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
        ConfigurationError: if a sigma is negative, not a number, or above `MOST_SIGMA`.
    """

    sigma: float
    transfer_sigma: float | None = None

    def __post_init__(self) -> None:
        for label in ("sigma", "transfer_sigma"):
            value = getattr(self, label)
            if value is None and label == "transfer_sigma":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                raise ConfigurationError(f"noise, {label}: {value!r} is not a number")
            if not (value >= 0 and value < np.inf):  # also refuses NaN
                raise ConfigurationError(f"noise, {label}: {value} is not finite and >= 0")
            if value > MOST_SIGMA:
                raise ConfigurationError(
                    f"noise, {label}: {value} is above {MOST_SIGMA:g}; it is the standard "
                    "deviation of a factor's logarithm, 0.1 means about 10 % of noise"
                )

    def draw(self, problem: PlacementProblem, rng: np.random.Generator) -> NoiseFactors:
        """Draws ops first, then transfers row by row."""
        transfer_sigma = self.sigma if self.transfer_sigma is None else self.transfer_sigma
        size = (problem.num_ops, problem.num_devices)
        return NoiseFactors(
            ops=rng.lognormal(-0.5 * self.sigma**2, self.sigma, size[0]),
            transfers=rng.lognormal(-0.5 * transfer_sigma**2, transfer_sigma, size),
        )


@dataclass(frozen=True, eq=False)
class EmpiricalNoise(NoiseModel):
    """Factors drawn with replacement from measured ones, each op from the samples of its key.

    Args:
        samples: factors, 1 where a duration was as the cost model says: one list for all ops, or
            one for each key.
        op_keys: key of each op, for example its kernel signature; None: its kind in the graph.
            # (num_ops,)
        transfer_samples: factors of transfers; None: transfers have no noise.

    Raises:
        ConfigurationError: an empty list, or a factor that is not finite and >= 0; on `draw`, an
            op without samples.
    """

    samples: Mapping[str, Sequence[float]] | Sequence[float]
    op_keys: Sequence[str] | None = None
    transfer_samples: Sequence[float] | None = None

    def __post_init__(self) -> None:
        sound: Mapping[str, np.ndarray] | np.ndarray
        if isinstance(self.samples, Mapping):
            sound = {k: _factors(f"samples of {k!r}", row) for k, row in self.samples.items()}
        else:
            sound = _factors("samples", self.samples)
        object.__setattr__(self, "samples", sound)
        if self.transfer_samples is not None:
            moved = _factors("transfer_samples", self.transfer_samples)
            object.__setattr__(self, "transfer_samples", moved)

    def draw(self, problem: PlacementProblem, rng: np.random.Generator) -> NoiseFactors:
        """Draws ops first, then transfers row by row."""
        ops = rng.random(problem.num_ops)
        if isinstance(self.samples, Mapping):
            keys = np.array(problem.graph.kinds if self.op_keys is None else self.op_keys)
            if keys.shape != ops.shape:
                raise ConfigurationError(
                    f"noise, op_keys: {len(keys)} keys for the {problem.num_ops} ops of problem "
                    f"{problem.name!r}"
                )
            for key in np.unique(keys).tolist():
                where = np.flatnonzero(keys == key)
                if key not in self.samples:
                    raise ConfigurationError(
                        f"noise, samples: none for {key!r}, the key of op {where[0]} of problem "
                        f"{problem.name!r}"
                    )
                ops[where] = _pick(self.samples[key], ops[where])
        else:
            ops = _pick(self.samples, ops)
        transfers = np.ones((problem.num_ops, problem.num_devices))
        if self.transfer_samples is not None:
            transfers = _pick(self.transfer_samples, rng.random(transfers.shape))
        return NoiseFactors(ops, transfers)


def _factors(label: str, values: Sequence[float]) -> np.ndarray:
    try:
        array = np.array(list(values), np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"noise, {label}: not a list of numbers: {error}") from error
    if array.ndim != 1 or not array.size or not (np.isfinite(array) & (array >= 0)).all():
        raise ConfigurationError(f"noise, {label}: a list of finite factors >= 0 is needed")
    return array


def _pick(samples: Sequence[float], uniform: np.ndarray) -> np.ndarray:
    """The samples that uniform numbers in [0, 1) fall on."""
    values = np.asarray(samples)
    picked: np.ndarray = values[(uniform * len(values)).astype(np.int64)]
    return picked
