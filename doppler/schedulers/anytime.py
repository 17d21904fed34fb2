"""Schedulers that improve for as long as they are let: budgets, the best so far, and its curve."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.checks import number
from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.schedulers.base import Proposal, Scheduler, check_count

if TYPE_CHECKING:
    from doppler.simulator import Simulator

Watch = Callable[["Run"], None]
"""Called a few times a second while a search goes on."""


@dataclass(eq=False)
class Run:
    """One search while it goes on. Threads may report to it.

    Args:
        problem: what is placed.
        simulator: judges placements.
        rng: the only source of randomness.
        start: a placement to improve, or None.
        budget_s: stop after so long, or None. [s]
        budget_evals: stop after so many evaluations, or None.
        watch: see `Watch`.
    """

    problem: PlacementProblem
    simulator: Simulator
    rng: np.random.Generator
    start: Placement | None = None
    budget_s: float | None = None
    budget_evals: int | None = None
    watch: Watch | None = None
    evaluations: int = 0
    makespan: float = math.inf
    """The best so far. [s]"""
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    """Improvements: seconds since the beginning, evaluations, makespan [s]."""
    interrupted: bool = False
    _best: tuple[np.ndarray, np.ndarray | None] | None = None
    _began: float = field(default_factory=perf_counter)
    _lock: Any = field(default_factory=Lock, repr=False)

    def restart_clock(self) -> None:
        """Begins to count seconds now, after preparations that are not the search's."""
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return perf_counter() - self._began

    @property
    def fraction(self) -> float:
        """Share of the budget that is spent, at most 1."""
        spent = [0.0]
        if self.budget_s is not None:
            spent.append(self.seconds / self.budget_s)
        if self.budget_evals is not None:
            spent.append(self.evaluations / self.budget_evals)
        return min(1.0, max(spent))

    def record(
        self,
        makespan: float,
        devices: np.ndarray,
        order: np.ndarray | None = None,
        evaluations: int = 0,
    ) -> bool:
        """Reports a placement; it is copied if it is better than all before.

        Args:
            makespan: simulated. [s]
            devices: # (num_ops,)
            order: under `choose=given`. # (num_ops,)
            evaluations: made since the last report.

        Returns:
            Whether it is the best so far.
        """
        with self._lock:
            self.evaluations += evaluations
            better = makespan < self.makespan or self._best is None
            if better:
                self.makespan = makespan
                self._best = (devices.copy(), None if order is None else order.copy())
                if math.isfinite(makespan):
                    self.curve.append((self.seconds, self.evaluations, makespan))
        return better

    @property
    def best(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Devices and order of the best placement so far, None before the first report."""
        return self._best


@dataclass(frozen=True, kw_only=True)
class AnytimeScheduler(Scheduler):
    """A search with a budget. It can be interrupted (Ctrl-C): the best so far is its result.

    The result's `info` also has `curve`, the improvements as (seconds, evaluations, makespan [s]),
    and `interrupted`, if it was.

    Args:
        budget_s: stop after so many seconds, compiling kernels at their first use not counted, or
            None. What is found then depends on how fast the machine is. [s]
        budget_evals: stop after so many evaluations, or None; with this budget alone, the same seed
            gives the same result on every machine.

    Raises:
        ConfigurationError: a budget that is not positive, or none at all.
    """

    budget_s: float | None = 10.0
    budget_evals: int | None = None

    def __post_init__(self) -> None:
        where = f"scheduler {self.name!r}"
        if self.budget_s is None and self.budget_evals is None:
            raise ConfigurationError(f"{where}: give budget_s or budget_evals; both are None")
        if self.budget_s is not None:
            number(self.budget_s, f"{where}, budget_s", ConfigurationError, above=True)
        if self.budget_evals is not None:
            check_count(where, "budget_evals", self.budget_evals, most=2**62)

    def schedule(
        self,
        problem: PlacementProblem,
        simulator: Simulator,
        rng: np.random.Generator,
        start: Placement | None = None,
        watch: Watch | None = None,
    ) -> Placement:
        """As `Scheduler.schedule`.

        Args:
            problem, simulator, rng: as there.
            start: a placement to improve; the result is never worse.
            watch: called a few times a second with the run.

        Raises:
            InvalidPlacementError: a start that does not fit the problem.
            ConfigurationError: a simulator or a start that the search cannot use.
        """
        if start is not None:
            devices = problem.check_placement(start.devices)
            order = None if start.order is None else problem.check_order(start.order)
            start = Placement(devices, order, start.info)
        run = Run(problem, simulator, rng, start, self.budget_s, self.budget_evals, watch)
        proposal = self.search(run)
        proposal.info["curve"] = [list(point) for point in run.curve]
        if run.interrupted:
            proposal.info["interrupted"] = True
        placement = self._placement(proposal, simulator, rng, run.seconds)
        return placement if start is None else self._at_least(start, placement, simulator)

    def _at_least(self, start: Placement, found: Placement, simulator: Simulator) -> Placement:
        """The start if it is better than what was found, whatever `search` did with it."""
        order = start.order
        if simulator.choose == "given" and order is None:
            return found  # without an order it has no makespan
        statistic = getattr(simulator, "statistic", "makespan")
        value = float(simulator.makespan(start.devices, order))
        if value >= found.info[f"simulated_{statistic}"]:
            return found
        info = {**found.info, f"simulated_{statistic}": value}
        if statistic != "makespan":
            info["simulated_makespan"] = simulator.run(start.devices, order).makespan
        return Placement(start.devices, found.order if order is None else order, info)

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        """See `Scheduler.propose`."""
        return self.search(Run(problem, simulator, rng, None, self.budget_s, self.budget_evals))

    @abstractmethod
    def search(self, run: Run) -> Proposal:
        """Searches until `run.fraction` is 1, reporting to `run`; returns the best."""
