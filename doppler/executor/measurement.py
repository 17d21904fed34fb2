"""Repeated runs of one placement and what they say about its makespan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from doppler.checks import shown, whole_number
from doppler.errors import ConfigurationError
from doppler.schedule import Schedule

OUTLIER_SCORE = 3.5
"""A run whose modified z-score is above this is flagged."""

_NORMAL_MAD = 1.4826
_NORMAL_MEAN_DEVIATION = 1.2533
"""Standard deviation of normal numbers over their median or mean absolute deviation."""

TRIMMED = 0.25
"""What `trimmed_mean` leaves out at either end."""


def trimmed_mean(values: np.ndarray) -> float:
    """Mean without the lowest and highest `TRIMMED` of the values, rounded down. [s]"""
    cut = int(TRIMMED * len(values))
    return float(np.sort(values)[cut : len(values) - cut].mean())


ESTIMATORS: dict[str, Callable[[np.ndarray], float]] = {
    "median": lambda values: float(np.median(values)),
    "mean": lambda values: float(np.mean(values)),
    "trimmed_mean": trimmed_mean,
    "min": lambda values: float(np.min(values)),
}
"""What a `measured_makespan` may be, of those of repeated runs."""


def find_outliers(values: np.ndarray) -> np.ndarray:
    """Indices of the values that are far from the median, ascending.

    Far is a modified z-score above `OUTLIER_SCORE`: the distance from the median over 1.4826
    median absolute deviations; where at least half of the values are equal, so that this deviation
    is 0, over 1.2533 mean absolute deviations.

    Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993).
    """
    distance = np.abs(values - np.median(values))
    deviation = _NORMAL_MAD * float(np.median(distance))
    if deviation == 0:
        deviation = _NORMAL_MEAN_DEVIATION * float(distance.mean())
    return np.flatnonzero(distance > OUTLIER_SCORE * deviation)


@dataclass(frozen=True, eq=False)
class Measurement:
    """Makespans of repeated runs of one placement, warm-up excluded; no run is dropped.

    Args:
        makespans: in the order in which they were measured. # (repeats,) [s]
        schedule: of the median run (the lower one of two).
        environment: see `describe_environment`.
        warmup: runs before these that were not reported; None where nobody said.
        estimator: one of `ESTIMATORS`, what `estimate` is.

    Raises:
        ConfigurationError: no runs, an unknown estimator, or a negative warm-up.
    """

    makespans: np.ndarray
    schedule: Schedule
    environment: Mapping[str, Any]
    warmup: int | None = None
    estimator: str = "median"

    def __post_init__(self) -> None:
        if not len(self.makespans):
            raise ConfigurationError("a measurement needs at least one run")
        if self.estimator not in ESTIMATORS:
            raise ConfigurationError(
                f"estimator {shown(self.estimator)} is unknown; known: {', '.join(ESTIMATORS)}"
            )
        if self.warmup is not None:
            whole_number(self.warmup, "warmup", 0)

    @classmethod
    def from_schedules(
        cls,
        schedules: Sequence[Schedule],
        environment: Mapping[str, Any],
        warmup: int | None = None,
        estimator: str = "median",
    ) -> Measurement:
        """Summarises the schedules of repeated runs; at least one is needed."""
        if not schedules:
            raise ConfigurationError("a measurement needs at least one run")
        makespans = np.array([schedule.makespan for schedule in schedules])
        middle = int(np.argsort(makespans, kind="stable")[(len(makespans) - 1) // 2])
        return cls(makespans, schedules[middle], environment, warmup, estimator)

    def estimated_by(self, estimator: str) -> Measurement:
        """The same runs with another estimator.

        Raises:
            ConfigurationError: an unknown estimator.
        """
        return replace(self, estimator=estimator)

    @property
    def repeats(self) -> int:
        return len(self.makespans)

    @property
    def clock(self) -> str | None:
        """What told the time, None where the environment does not say."""
        clock = self.environment.get("clock")
        return None if clock is None else str(clock)

    @property
    def estimate(self) -> float:
        """The `measured_makespan`: what the estimator makes of all runs. [s]"""
        return ESTIMATORS[self.estimator](self.makespans)

    @property
    def median(self) -> float:
        """Half of the runs took longer. [s]"""
        return float(np.median(self.makespans))

    @property
    def q1(self) -> float:
        """First quartile. [s]"""
        return float(np.quantile(self.makespans, 0.25))

    @property
    def q3(self) -> float:
        """Third quartile. [s]"""
        return float(np.quantile(self.makespans, 0.75))

    @property
    def iqr(self) -> float:
        """Interquartile range. [s]"""
        return self.q3 - self.q1

    @property
    def spread(self) -> float:
        """Interquartile range over median; 0 where the median is."""
        return self.iqr / self.median if self.median > 0 else 0.0

    @property
    def min(self) -> float:
        """Fastest run. [s]"""
        return float(self.makespans.min())

    @property
    def mad(self) -> float:
        """Median absolute deviation from the median. [s]"""
        return float(np.median(np.abs(self.makespans - self.median)))

    @property
    def outliers(self) -> tuple[int, ...]:
        """Indices of runs far from the median, see `find_outliers`; flagged, never dropped."""
        return tuple(find_outliers(self.makespans).tolist())

    def __str__(self) -> str:
        text = f"{self.estimate * 1e3:.2f} ms [{self.q1 * 1e3:.2f}, {self.q3 * 1e3:.2f}]"
        if self.estimator != "median":
            text += f" ({self.estimator.replace('_', ' ')})"
        return text + self.outlier_note()

    def outlier_note(self) -> str:
        """For behind the numbers: how many of the runs are outliers, and which; "" for none."""
        found = self.outliers
        if not found:
            return ""
        which = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
        plural = "" if len(found) == 1 else "s"
        return f", {len(found)} outlier{plural} of {self.repeats} runs (run {which})"
