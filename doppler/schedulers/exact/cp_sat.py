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
from doppler.schedulers.anytime import AnytimeScheduler, Run
from doppler.schedulers.base import Proposal, check_count
from doppler.schedulers.exact.fitting import fitting_placement
from doppler.schedulers.exact.replay import Plan, plan_of
from doppler.schedulers.exact.solver import ExactResult, SolverOptions, solve
from doppler.simulator import Simulator
from doppler.simulator.threads import available_cores

MOST_CHOICES = 100_000
"""Most (edge or op, source device, destination device) triples that a model is built for."""
MOST_WORKERS = 64
WORKERS_PER_CORE = 4
"""More threads than this per core, and than `MOST_WORKERS`, are refused."""


@dataclass(frozen=True, kw_only=True)
class CpSat(AnytimeScheduler):
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
    - `reproducible`: see below;
    - `free_curve`: (seconds, free makespan, bound) at each improvement, while `curve` is that of
      the makespan in the given simulator.

    Reproducible: a run that ends, by proof, within the first `steady` of its budget returns the
    same placement for the same seed, whatever the machine does (`reproducible` in the `info`): one
    thread takes turns among strategies. After that, `num_workers` threads share what they find
    at once, and what is returned depends on the machine; bound and optimum are true all the same.

    Args:
        budget_s: wall-clock limit, building the model included, compiling kernels at their first
            use not. [s]
        budget_evals: must be None, the search does not consist of evaluations.
        num_workers: threads of CP-SAT after `steady`; None for all available cores; at most
            `MOST_WORKERS`, or `WORKERS_PER_CORE` for each core if that is more.
        max_ops: larger problems are refused.
        restarts: randomised critical-path list schedules to start from.
        steady: share of the budget, 0 to 1, for the reproducible search.

    Raises:
        ConfigurationError: an impossible option; on `schedule`, a problem that is too large.
        CapacityError: on `schedule`, nothing fits in the devices' memory, or was found to.
    """

    budget_s: float | None = 20.0
    num_workers: int | None = None
    max_ops: int = 500
    restarts: int = 128
    steady: float = 0.25
    name: ClassVar[str] = "cp_sat"

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = f"scheduler {self.name!r}"
        if self.budget_evals is not None:
            raise ConfigurationError(
                f"{owner}, budget_evals: {self.budget_evals!r}; its budget is budget_s"
            )
        for field in ("num_workers", "max_ops", "restarts"):
            if getattr(self, field) is not None or field != "num_workers":
                check_count(owner, field, getattr(self, field))
        most = max(MOST_WORKERS, WORKERS_PER_CORE * available_cores())
        if self.num_workers is not None and self.num_workers > most:
            raise ConfigurationError(
                f"{owner}, num_workers: {self.num_workers} is more than {most}, of which this "
                f"machine's {available_cores()} cores make no use"
            )
        share = number(self.steady, f"{owner}, steady", ConfigurationError, above=False)
        if share > 1:
            raise ConfigurationError(f"{owner}, steady: {self.steady!r} is more than 1")

    def search(self, run: Run) -> Proposal:
        """See `AnytimeScheduler.search`."""
        problem, simulator = run.problem, run.simulator
        self._check_size(problem)

        def progress(plan: Plan) -> None:
            makespan = float(simulator.makespans(plan.devices[None], plan.order[None])[0])
            run.record(makespan, plan.devices, plan.order, evaluations=1)

        options = SolverOptions(
            budget_s=self.budget_s or 0.0,
            num_workers=self.num_workers or available_cores(),
            seed=int(run.rng.integers(2**31)),
            restarts=self.restarts,
            steady=self.steady,
        )
        look = run.watch
        result = solve(
            problem,
            simulator.network,
            options,
            progress,
            start=self._start_plan(run),
            watch=None if look is None else lambda: look(run),
        )
        run.interrupted = result.interrupted
        run.evaluations += result.evaluations
        if not np.isfinite(run.makespan):
            self._look_for_fitting(run, result)
        devices, order = self._best(run, result)
        info = report(problem, simulator.network, devices, order, result)
        return Proposal(devices, order, run.evaluations, run.makespan, info)

    def _look_for_fitting(self, run: Run, result: ExactResult) -> None:
        """Records a placement that fits under the simulator's own rules, if one is found."""
        simulator = run.simulator
        nominal = getattr(simulator, "simulator", simulator)  # of a `RobustSimulator`
        candidates = []
        if run.best is not None and run.best[1] is not None:
            candidates.append((run.best[0], run.best[1]))
        found, tries = fitting_placement(nominal, candidates, run.rng)
        run.evaluations += tries
        if found is None:
            return
        devices, order = found
        run.record(float(simulator.makespans([devices], [order])[0]), devices, order, 1)
        if result.plan is None:
            result.schedule = nominal.run(devices, order)
            result.plan, result.makespan = plan_of(result.schedule), result.schedule.makespan

    def _best(self, run: Run, result: ExactResult) -> tuple[np.ndarray, np.ndarray]:
        """The best placement; raises `CapacityError` if the simulator refuses all."""
        if run.best is not None and result.plan is not None and np.isfinite(run.makespan):
            devices, order = run.best
            assert order is not None
            return devices, order
        where = f"scheduler {self.name!r}, problem {run.problem.name!r}"
        if result.plan is None or run.best is None:
            raise CapacityError(
                f"{where}: no schedule that fits in the devices' memory was found in "
                f"{self.budget_s:g} s; a larger budget_s may find one"
            )
        message = (
            f"{where}: a schedule of {result.makespan:g} s fits in the devices' memory, but only "
            "with waiting; no placement was found that fits in a run that never waits"
        )
        try:
            run.simulator.run(*run.best)
        except CapacityError as error:  # names device, time and tensors
            message += f"; in the first one tried, {error}"
        raise CapacityError(message)

    def _start_plan(self, run: Run) -> Plan | None:
        """Records the start placement; how it runs, unless it does not fit."""
        if run.start is None:
            return None
        devices, order = run.start.devices.copy(), run.problem.graph.topological_order.copy()
        if run.start.order is not None:
            order = run.start.order.copy()
        run.record(float(run.simulator.makespans([devices], [order])[0]), devices, order, 1)
        executor = Simulator(run.problem, network=run.simulator.network, choose="given")
        if not np.isfinite(executor.makespan(devices, order)):
            return None
        return plan_of(executor.run(devices, order))

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
    problem: PlacementProblem,
    network: str,
    devices: np.ndarray,
    order: np.ndarray,
    result: ExactResult,
) -> dict[str, Any]:
    """The `info` of a proposal; see `CpSat`.

    Args:
        problem: what was scheduled.
        network: network model.
        devices, order: what is returned. # (num_ops,), (num_ops,)
        result: of the search.
    """
    assert result.plan is not None and result.schedule is not None
    executor = Simulator(problem, network=network, choose="given")
    makespan = executor.makespan(devices, order)
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
        "reproducible": result.reproducible,
        "free_curve": [list(point) for point in result.curve],
    }
