"""Heuristics and searches, one per file, each citing its source."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from doppler.errors import ConfigurationError
from doppler.schedulers.anytime import AnytimeScheduler, Run
from doppler.schedulers.base import Proposal, Scheduler
from doppler.schedulers.critical_path import (
    CriticalPath,
    critical_path_episodes,
    critical_path_priorities,
)
from doppler.schedulers.enumerative import EnumerativeOptimizer
from doppler.schedulers.exact import CpSat, Exhaustive
from doppler.schedulers.lists import Cpop, Dls, Etf, Heft, Peft
from doppler.schedulers.partitioning import ChainSplit, Metis
from doppler.schedulers.random_placement import RandomPlacement
from doppler.schedulers.round_robin import RoundRobin
from doppler.schedulers.search import Genetic, LateAcceptance, RandomRestarts, SimulatedAnnealing
from doppler.schedulers.single_device import SingleDevice

SCHEDULERS: dict[str, type[Scheduler]] = {
    cls.name: cls
    for cls in (
        SingleDevice,
        RandomPlacement,
        RoundRobin,
        CriticalPath,
        EnumerativeOptimizer,
        Metis,
        ChainSplit,
        Heft,
        Cpop,
        Peft,
        Etf,
        Dls,
        CpSat,
        Exhaustive,
        SimulatedAnnealing,
        LateAcceptance,
        RandomRestarts,
        Genetic,
    )
}
"""Schedulers by name."""


def make_scheduler(name: str, **options: Any) -> Scheduler:
    """Returns a scheduler by name.

    Args:
        name: a key of `SCHEDULERS`.
        options: fields of that scheduler's class.

    Raises:
        ConfigurationError: an unknown name or option, or an impossible value.
    """
    if name not in SCHEDULERS:
        raise ConfigurationError(
            f"scheduler {name!r} is unknown; the schedulers are {', '.join(sorted(SCHEDULERS))}"
        )
    known = {option.name for option in fields(SCHEDULERS[name])}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ConfigurationError(
            f"scheduler {name!r}: unknown option {unknown[0]!r}; its options are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return SCHEDULERS[name](**options)


__all__ = [
    "SCHEDULERS",
    "AnytimeScheduler",
    "ChainSplit",
    "CpSat",
    "Cpop",
    "CriticalPath",
    "Dls",
    "EnumerativeOptimizer",
    "Etf",
    "Exhaustive",
    "Genetic",
    "Heft",
    "LateAcceptance",
    "Metis",
    "Peft",
    "Proposal",
    "RandomPlacement",
    "RandomRestarts",
    "RoundRobin",
    "Run",
    "Scheduler",
    "SimulatedAnnealing",
    "SingleDevice",
    "critical_path_episodes",
    "critical_path_priorities",
    "make_scheduler",
]
