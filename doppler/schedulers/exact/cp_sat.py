"""Exact scheduling of small problems by constraint programming.

Source: the model is that of Laborie, Rogerie, Shaw and Vilím (2018), "IBM ILOG CP optimizer for
scheduling", Constraints 23 (optional intervals, no-overlap and cumulative resources), solved by
OR-Tools CP-SAT (Perron and Didier).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from doppler.checks import number
from doppler.errors import CapacityError, ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler, best_of, check_count
from doppler.schedulers.exact.replay import Plan
from doppler.schedulers.exact.solver import ExactResult, SolverOptions, solve
from doppler.simulator import Simulator
from doppler.simulator.threads import available_cores

MOST_CHOICES = 1_000_000
"""Most (edge or op, source device, destination device) triples that a model is built for."""


@dataclass(frozen=True)
class CpSat(Scheduler):
    """Finds the shortest schedule of a small problem and proves that, or how far it may be off.

    What is minimised is the makespan over placements and schedules in which devices and links
    *may wait* (the free optimum), under the simulator's network model and durations without
    noise. The executor never waits, so that it may take longer with the same placement and order;
    both times are reported. Of all placements that were found the one is returned that is best in
    the given simulator: where its choose-task rule is not `given`, the order does not reach it.

    The proposal's `info`:

    - `optimum`: "optimal" where the bound proves `free_makespan` the least possible (up to one part
      in a million), else "gap";
    - `free_makespan`: of the best schedule found, waiting allowed. [s]
    - `bound`: proven; no schedule, free or work-conserving, is shorter. [s]
    - `gap`: 1 - bound / free_makespan;
    - `work_conserving_makespan`: of the returned placement and order in a noise-free executor with
      `choose=given`. [s]
    - `work_conserving_gap`: 1 - bound / work_conserving_makespan;
    - `planned_start`, `planned_devices`: of each op in the schedule of `free_makespan`;
    - `method`: "bound" (a list schedule meets the bound, nothing was searched), "classical"
      (P|prec|Cmax) or "placement";
    - `curve`: (seconds, free makespan, bound) at each improvement.

    Reproducible: with `deterministic`, a run that ends by proof returns the same for the same seed,
    on any number of threads and whatever else the machine does. A run that ends by `budget_s`
    returns what it had by then, which depends on the machine's speed.

    Args:
        budget_s: wall-clock limit. [s]
        num_workers: threads of CP-SAT; None for all available cores.
        max_ops: larger problems are refused.
        restarts: randomised critical-path list schedules to start from.
        deterministic: see above; without it, threads share what they find at once.

    Raises:
        ConfigurationError: an impossible option; on `schedule`, a problem that is too large.
        CapacityError: on `schedule`, nothing fits in the devices' memory, or was found to.
    """

    budget_s: float = 20.0
    num_workers: int | None = None
    max_ops: int = 500
    restarts: int = 128
    deterministic: bool = True
    name: ClassVar[str] = "cp_sat"

    def __post_init__(self) -> None:
        owner = f"scheduler {self.name!r}"
        number(self.budget_s, f"{owner}, budget_s", ConfigurationError, above=True)
        for field in ("num_workers", "max_ops", "restarts"):
            if getattr(self, field) is not None or field != "num_workers":
                check_count(owner, field, getattr(self, field))
        if not isinstance(self.deterministic, bool):
            raise ConfigurationError(
                f"{owner}, deterministic: {self.deterministic!r} is neither true nor false"
            )

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        self._check_size(problem)
        result = solve(
            problem,
            simulator.network,
            SolverOptions(
                budget_s=self.budget_s,
                num_workers=self.num_workers or available_cores(),
                seed=int(rng.integers(2**31)),
                restarts=self.restarts,
                deterministic=self.deterministic,
            ),
        )
        if result.plan is None or result.schedule is None:
            raise CapacityError(
                f"scheduler {self.name!r}, problem {problem.name!r}: no schedule that fits in the "
                f"devices' memory was found in {self.budget_s:g} s; a larger budget_s may find one"
            )
        plans = [result.plan, *result.pool]
        devices = np.stack([plan.devices for plan in plans])
        orders = np.stack([plan.order for plan in plans])
        makespans = simulator.makespans(devices, orders)
        best = best_of(makespans)
        return Proposal(
            devices[best].copy(),
            orders[best].copy(),
            evaluations=result.evaluations + len(plans),
            makespan=float(makespans[best]),
            info=report(problem, simulator.network, plans[best], result),
        )

    def _check_size(self, problem: PlacementProblem) -> None:
        where = f"scheduler {self.name!r}: problem {problem.name!r} has {problem.num_ops} ops"
        if problem.num_ops > self.max_ops:
            raise ConfigurationError(
                f"{where}, max_ops is {self.max_ops}; raise it, or use a heuristic or a search"
            )
        choices = (problem.num_ops + len(problem.graph.edges)) * problem.num_devices**2
        if choices > MOST_CHOICES:
            raise ConfigurationError(
                f"{where}, {len(problem.graph.edges)} edges and {problem.num_devices} devices: "
                f"{choices} choices of transfers, more than {MOST_CHOICES}; use fewer devices, or "
                "a heuristic or a search"
            )


def report(
    problem: PlacementProblem, network: str, plan: Plan, result: ExactResult
) -> dict[str, Any]:
    """The `info` of a proposal; see `CpSat`.

    Args:
        problem: what was scheduled.
        network: network model.
        plan: what is returned.
        result: of the search.
    """
    assert result.plan is not None and result.schedule is not None
    executor = Simulator(problem, network=network, choose="given")
    makespan = executor.makespan(plan.devices.copy(), plan.order)
    return {
        "optimum": "optimal" if result.optimal else "gap",
        "free_makespan": result.makespan,
        "bound": result.bound,
        "gap": result.gap,
        "work_conserving_makespan": makespan,
        "work_conserving_gap": 0.0 if makespan <= result.bound else 1 - result.bound / makespan,
        "planned_start": result.schedule.start.tolist(),
        "planned_devices": result.plan.devices.tolist(),
        "method": result.method,
        "curve": result.curve,
    }
