"""How much a makespan depends on chance: on how ties are broken and on noise.

Graphs of sharded tensor operations are full of equal amounts, so that many ops and transfers become
eligible at one instant. Which goes first is decided by id, which says nothing about the devices: a
real run may decide otherwise, and some placements then take half as long again.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.simulator.engine import Sample, replication_seeds

if TYPE_CHECKING:
    from doppler.problem import PlacementProblem
    from doppler.schedule import Schedule
    from doppler.simulator.simulator import Simulator

STATISTICS = ("makespan", "mean", "p95")
"""What an objective may be: the nominal makespan, or a statistic of samples."""

TIE_SENSITIVE = 1.01
"""From this ratio of worst to best tie order on, a placement counts as tie-sensitive."""


@dataclass(frozen=True, eq=False)
class Robustness:
    """Simulated makespans of one placement over random tie orders and noise draws.

    Args:
        samples: # (S,) [s]
        nominal: ties broken by id, no noise. [s]
        tie_orders: without noise, in the tie orders of `samples`. # (S,) [s]
    """

    samples: np.ndarray
    nominal: float
    tie_orders: np.ndarray

    @property
    def mean(self) -> float:
        """[s]"""
        return float(self.samples.mean())

    @property
    def p95(self) -> float:
        """95th percentile, linear between samples. [s]"""
        return float(percentile_95(self.samples))

    @property
    def worst(self) -> float:
        """[s]"""
        return float(self.samples.max())

    @property
    def best(self) -> float:
        """[s]"""
        return float(self.samples.min())

    @property
    def tie_sensitivity(self) -> float:
        """Worst over best makespan among the tie orders and ids, without noise; 1 where equal."""
        worst = max(self.nominal, float(self.tie_orders.max()))
        best = min(self.nominal, float(self.tie_orders.min()))
        return 1.0 if worst == best else worst / best

    @property
    def tie_sensitive(self) -> bool:
        """Whether tie orders alone change the makespan by a percent or more."""
        return self.tie_sensitivity >= TIE_SENSITIVE

    def __str__(self) -> str:
        return (
            f"simulated makespan {self.nominal:.6g} s; over {len(self.samples)} samples mean "
            f"{self.mean:.6g} s, 95th percentile {self.p95:.6g} s, worst {self.worst:.6g} s; worst "
            f"over best tie order {self.tie_sensitivity:.3f}"
        )


def percentile_95(samples: np.ndarray) -> np.ndarray:
    """95th percentile over the first axis; infinite where the samples that it lies between are."""
    place = 0.95 * (len(samples) - 1)
    ordered = np.sort(samples, axis=0)
    low, high = ordered[int(place)], ordered[int(np.ceil(place))]
    part = place - int(place)
    return np.where(low == high, low, low * (1 - part) + high * part)


def tie_samples(simulator: Simulator, samples: int, seed: int) -> list[Sample]:
    """Samples with a random tie order and a noise seed each; a prefix of those of more samples.

    Raises:
        ConfigurationError: if `samples` is not a whole number of at least 1.
    """
    engine, num_ops = simulator.engine, simulator.problem.num_ops
    seeds = replication_seeds(seed, samples)
    return [
        Sample(engine.permuted(np.random.default_rng((seed, s)).permutation(num_ops)), seeds[s])
        for s in range(samples)
    ]


class RobustSimulator:
    """A simulator whose makespans are a statistic over tie orders and noise.

    It has the face that schedulers and training objectives use, so that whatever minimises a
    makespan can minimise its mean or its 95th percentile: all placements meet the same samples.

    Args:
        simulator: its noise, if any, is drawn anew for each sample.
        statistic: "mean" or "p95"; "makespan" passes everything on to `simulator`.
        samples: how many tie orders and noise draws.
        seed: of both.

    Raises:
        ConfigurationError: an unknown statistic, or `samples` below 1.
    """

    def __init__(
        self, simulator: Simulator, statistic: str = "mean", samples: int = 16, seed: int = 0
    ) -> None:
        if statistic not in STATISTICS:
            raise ConfigurationError(
                f"objective {statistic!r} is unknown; known: {', '.join(STATISTICS)}"
            )
        self.simulator = simulator
        self.statistic = statistic
        self._samples = tie_samples(simulator, samples, seed)

    @property
    def problem(self) -> PlacementProblem:
        """Of the simulator, as the following."""
        return self.simulator.problem

    @property
    def network(self) -> str:
        return self.simulator.network

    @property
    def choose(self) -> str:
        return self.simulator.choose

    def makespan(self, devices: Any, order: Any = None, noise_seed: int = 0) -> float:
        """The statistic of one placement; arguments and errors as in `Simulator.makespan`. [s]"""
        if self.statistic == "makespan":
            return self.simulator.makespan(devices, order, noise_seed)
        orders = None if order is None else [order]
        return float(self.makespans([devices], orders, noise_seed)[0])

    def makespans(self, placements: Any, orders: Any = None, noise_seed: int = 0) -> np.ndarray:
        """The statistic of each placement; arguments and errors as in `Simulator.makespans`.

        `noise_seed` counts for "makespan" only, the samples have their own. # (batch,) [s]
        """
        if self.statistic == "makespan":
            return self.simulator.makespans(placements, orders, noise_seed)
        seconds = self.simulator.sample(self._samples, placements, orders)
        if self.statistic == "mean":
            return seconds.mean(axis=0)
        return percentile_95(seconds)

    def run(self, devices: Any, order: Any = None, noise_seed: int = 0) -> Schedule:
        """The nominal schedule: ties broken by id, no noise; otherwise as `Simulator.run`."""
        quiet = copy(self.simulator)
        quiet.noise = None
        return quiet.run(devices, order, noise_seed)
