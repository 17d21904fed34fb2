"""Repeated runs of one placement and what they say about its makespan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Measurement:
    """Makespans of repeated runs of one placement, warm-up excluded; no run is dropped.

    Args:
        makespans: in the order in which they were measured. # (repeats,) [s]
        schedule: of the median run (the lower one of two).
        environment: see `describe_environment`.
    """

    makespans: np.ndarray
    schedule: Schedule
    environment: Mapping[str, Any]

    @classmethod
    def from_schedules(
        cls, schedules: Sequence[Schedule], environment: Mapping[str, Any]
    ) -> Measurement:
        """Summarises the schedules of repeated runs; at least one is needed."""
        makespans = np.array([schedule.makespan for schedule in schedules])
        middle = int(np.argsort(makespans, kind="stable")[(len(makespans) - 1) // 2])
        return cls(makespans=makespans, schedule=schedules[middle], environment=environment)

    @property
    def repeats(self) -> int:
        return len(self.makespans)

    @property
    def median(self) -> float:
        """The estimate of `measured_makespan`. [s]"""
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
    def min(self) -> float:
        """Fastest run. [s]"""
        return float(self.makespans.min())

    def __str__(self) -> str:
        return f"{self.median * 1e3:.2f} ms [{self.q1 * 1e3:.2f}, {self.q3 * 1e3:.2f}]"
