"""What the schedulers' benchmark compares: list schedulers, searches, restarts, policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from doppler import Placement, PlacementProblem
from doppler.schedule import lower_bounds
from doppler.schedulers import Scheduler, make_scheduler
from doppler.simulator import Simulator
from scripts.policies import place_with_policy

HEURISTICS: dict[str, tuple[str, dict[str, Any]]] = {
    "single device": ("single_device", {}),
    "round robin": ("round_robin", {}),
    "METIS": ("metis", {}),
    "chain split": ("chain_split", {}),
    "enumerative": ("enumerative", {}),
    "HEFT": ("heft", {}),
    "CPOP": ("cpop", {}),
    "PEFT": ("peft", {}),
    "ETF": ("etf", {}),
    "DLS": ("dls", {}),
}
SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "random restarts": ("random_restarts", {}),
    "genetic": ("genetic", {}),
    "late acceptance": ("late_acceptance", {}),
    "annealing": ("annealing", {}),
}
"""All but random restarts begin with the best list schedule."""
_RESTARTS_AT_A_TIME = 64


@dataclass(frozen=True)
class Case:
    """A problem, simulated in one way.

    Args:
        name: its column.
        problem: what is placed.
        simulator: judges.
        best: the makespan that ratios refer to, or None: the lower bound. [s]
    """

    name: str
    problem: PlacementProblem
    simulator: Simulator
    best: float | None = None

    @property
    def reference(self) -> float:
        """What ratios refer to. [s]"""
        return lower_bounds(self.problem).best if self.best is None else self.best


Method = Callable[[Case, int], Placement]
"""Places a case, from a seed."""


def scheduled(name: str, options: dict[str, Any], case: Case, seed: int) -> Placement:
    """One run of a scheduler."""
    scheduler = make_scheduler(name, **options)
    return scheduler.schedule(case.problem, case.simulator, np.random.default_rng(seed))


def restarted(seconds: float, case: Case, seed: int) -> Placement:
    """Randomised critical path over and over; `curve` of its info as of a search."""
    began, rng = perf_counter(), np.random.default_rng(seed)
    scheduler: Scheduler = make_scheduler("critical_path", restarts=_RESTARTS_AT_A_TIME)
    best = scheduler.schedule(case.problem, case.simulator, rng)
    evaluations = best.info["evaluations"]
    curve = [[perf_counter() - began, evaluations, best.info["simulated_makespan"]]]
    while perf_counter() - began < seconds:
        found = scheduler.schedule(case.problem, case.simulator, rng)
        evaluations += found.info["evaluations"]
        if found.info["simulated_makespan"] < best.info["simulated_makespan"]:
            best = found
            curve.append([perf_counter() - began, evaluations, best.info["simulated_makespan"]])
    spent = {"seconds": perf_counter() - began, "evaluations": evaluations, "curve": curve}
    return replace(best, info={**best.info, **spent})


def with_policy(path: Path, seconds: float, case: Case, seed: int) -> Placement:
    """The best sample of a trained policy within the seconds."""
    return place_with_policy(path, case.problem, case.simulator, seed, seconds=seconds)
