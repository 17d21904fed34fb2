"""Finds a schedule in which resources may wait, and proves how short such a schedule can be."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from doppler.construction import Construction
from doppler.errors import CapacityError, ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule, lower_bounds
from doppler.schedulers.critical_path import critical_path_priorities
from doppler.schedulers.exact.classical import ClassicalModel
from doppler.schedulers.exact.fitting import fitting_placement
from doppler.schedulers.exact.instance import Instance, make_instance
from doppler.schedulers.exact.model import PlacementModel
from doppler.schedulers.exact.replay import (
    Plan,
    Times,
    fits,
    length,
    memory_may_bind,
    plan_of,
    schedule_of,
    seconds_replay,
)
from doppler.simulator import Simulator

OPTIMAL_GAP = 1e-6
"""A makespan this close to its proven bound, relative to itself, is called optimal."""
SPREAD = 0.1
"""How far the priorities of restarted list schedules are from the critical path's, relatively."""
BATCH = 64
WATCH_S = 0.25
"""Seconds between two looks at a solver that runs."""


@dataclass(frozen=True)
class SolverOptions:
    """How CP-SAT runs.

    Args:
        budget_s: wall-clock limit of the call, from the first batch of list schedules on, for
            which kernels may have to be compiled. [s]
        num_workers: threads after the steady part.
        seed: of CP-SAT and of the restarts.
        restarts: list schedules to start from.
        steady: share of the budget for one thread that takes turns among strategies, so that runs
            that end in it are equal for a seed, on every machine. After it threads share what they
            find at once, which improves large problems faster.
    """

    budget_s: float = 20.0
    num_workers: int = 1
    seed: int = 0
    restarts: int = 128
    steady: float = 0.25


@dataclass
class ExactResult:
    """What a call of `solve` found.

    Args:
        makespan: of `schedule`, infinite if none was found. [s]
        bound: no schedule is shorter, waiting or not. [s]
        plan: placement and order of all tasks, None if no schedule was found.
        schedule: the best schedule, in true seconds.
        seconds: spent. [s]
        method: "bound" (the list schedule meets the bound), "classical" or "placement" (models).
        reproducible: whether it ended within `SolverOptions.steady`.
        interrupted: whether Ctrl-C ended it.
        evaluations: simulations that it took.
        curve: (seconds, makespan, bound) whenever the schedule got better, and at the end.
    """

    makespan: float
    bound: float
    plan: Plan | None
    schedule: Schedule | None
    seconds: float = 0.0
    method: str = "bound"
    reproducible: bool = True
    interrupted: bool = False
    evaluations: int = 0
    curve: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def gap(self) -> float:
        """How far the bound is below the makespan, relative to the makespan."""
        return 0.0 if self.makespan <= self.bound else 1.0 - self.bound / self.makespan

    @property
    def optimal(self) -> bool:
        """Whether the makespan is proven to be the least, up to `OPTIMAL_GAP`."""
        return self.gap <= OPTIMAL_GAP


def solve(
    problem: PlacementProblem,
    network: str = "serial_links",
    options: SolverOptions | None = None,
    progress: Callable[[Plan], None] | None = None,
    start: Plan | None = None,
    watch: Callable[[], None] | None = None,
) -> ExactResult:
    """Minimises the makespan over placements and schedules in which resources may wait.

    Args:
        problem: what is scheduled, its inputs explicit.
        network: a model of `doppler.simulator.NETWORKS`.
        options: how CP-SAT runs; None for the defaults.
        progress: called with each plan that is found, better or not.
        start: a plan to improve.
        watch: called a few times a second while CP-SAT runs, and at the end.

    Raises:
        CapacityError: it is proven that nothing fits in the devices' memory.
    """
    search = _Search(problem, network, options or SolverOptions(), progress, watch)
    if start is not None:
        search.accept(start)
    return search.run()


class _Search:
    """One call of `solve`."""

    def __init__(
        self,
        problem: PlacementProblem,
        network: str,
        options: SolverOptions,
        progress: Callable[[Plan], None] | None,
        watch: Callable[[], None] | None,
    ) -> None:
        self.called = self.began = perf_counter()
        self.problem = problem
        self.network = network
        self.options = options
        self.progress = progress
        self.watch = watch
        self.in_seconds = seconds_replay(problem, network)
        self.executor = Simulator(problem, network=network, choose="given")
        self.memory = memory_may_bind(problem)
        self.result = ExactResult(np.inf, lower_bounds(problem).best, None, None)

    def run(self) -> ExactResult:
        self._list_schedules()
        horizon = self.result.makespan
        if not np.isfinite(horizon):
            horizon = _one_after_another(self.problem)
        if horizon > 0:  # else nothing is shorter
            instance = make_instance(self.problem, self.network, horizon)
            self._raise_bound(instance.lower_seconds)
            if not self.result.optimal and self._time_left() > 0:
                self._solve(instance, horizon)
        result = self.result
        if result.bound > result.makespan * (1 + 1e-9):
            raise RuntimeError(
                f"problem {self.problem.name!r}: the proven bound {result.bound} s is above the "
                f"makespan {result.makespan} s of a schedule; the model must be wrong"
            )
        result.bound = min(result.bound, result.makespan)
        result.seconds = perf_counter() - self.called
        self._note()
        if self.watch is not None:
            self.watch()
        return result

    def accept(self, plan: Plan, planned: Times | None = None) -> None:
        """Replays a plan in seconds and keeps it if it is better.

        Args:
            plan: what was found.
            planned: when its tasks start and finish, to be waited for where the earliest starts
                need too much memory. [ticks]
        """
        makespan = np.inf
        for waited_for in (None,) if planned is None else (None, planned):
            times = self.in_seconds.times(plan, waited_for)
            schedule = schedule_of(self.problem, self.network, plan, times)
            if not self.memory or fits(schedule):
                makespan = float(length(times))
                self._keep(plan, schedule, makespan)
                break
        if not np.isfinite(makespan):
            self._accept_run(plan.devices, plan.order)
        if self.progress is not None:
            self.progress(plan)

    def _accept_run(self, devices: np.ndarray, order: np.ndarray) -> None:
        """Keeps how the simulator runs a placement, if it does not refuse it and that is better."""
        self.result.evaluations += 1
        if self.executor.makespan(devices, order) < self.result.makespan:
            schedule = self.executor.run(devices, order)
            self._keep(plan_of(schedule), schedule, float(schedule.makespan))

    def _keep(self, plan: Plan, schedule: Schedule, makespan: float) -> None:
        if makespan < self.result.makespan:
            self.result.makespan, self.result.plan = makespan, plan
            self.result.schedule = schedule
            self._note()

    def _raise_bound(self, bound: float) -> None:
        self.result.bound = max(self.result.bound, bound)

    def _note(self) -> None:
        seconds = perf_counter() - self.called
        self.result.curve.append((seconds, self.result.makespan, self.result.bound))

    def _time_left(self) -> float:
        return self.options.budget_s - (perf_counter() - self.began)

    def _list_schedules(self) -> None:
        """Starts from critical-path list schedules whose priorities are disturbed more and more."""
        problem, rng = self.problem, np.random.default_rng(self.options.seed)
        simulator = self.executor
        priorities = critical_path_priorities(problem)
        restarts = self.options.restarts
        construction = Construction(problem, self.network, min(BATCH, restarts))
        for first in range(0, restarts, BATCH):
            count = min(BATCH, restarts - first)
            spread = SPREAD * first / restarts
            construction.reset()
            construction.list_schedule(
                priorities * (1 + spread * rng.standard_normal(problem.num_ops)),
                rng.integers(1, 2**63, construction.batch_size, dtype=np.uint64),
            )
            placements = np.ascontiguousarray(construction.devices[:count])
            orders = np.ascontiguousarray(construction.order[:count])
            makespans = simulator.makespans(placements, orders)
            self.result.evaluations += count
            for row in np.argsort(makespans, kind="stable")[:4].tolist():
                if np.isfinite(makespans[row]):
                    self.accept(plan_of(simulator.run(placements[row], orders[row])))
            if first == 0:
                if self.result.plan is None:
                    self._start_from_fitting(placements, orders, rng)
                self.began = perf_counter()  # kernels may have had to be compiled
            if self.result.optimal or self._time_left() < self.options.budget_s / 2:
                return

    def _start_from_fitting(
        self, placements: np.ndarray, orders: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Starts from a single device, or from list schedules that are made to fit."""
        found, tries = fitting_placement(self.executor, zip(placements, orders), rng)
        self.result.evaluations += tries
        if found is not None:
            self.accept(plan_of(self.executor.run(*found)))

    def _solve(self, instance: Instance, horizon: float) -> None:
        result = self.result
        upper = int(horizon / instance.ticks.numerator * instance.ticks.denominator * 1.001) + 2
        if result.plan is not None and not instance.memory:
            # With memory, the earliest times in ticks may need more of it than the true ones
            upper = int(length(instance.replay.times(result.plan)))
        model: ClassicalModel | PlacementModel
        if instance.classical:
            result.method, model = "classical", ClassicalModel(instance, upper)
        else:
            result.method, model = "placement", PlacementModel(instance, upper)
        for steady in (True, False):
            left = self._time_left()
            if steady:
                left -= self.options.budget_s * (1 - self.options.steady)
            if left <= 0:
                continue
            result.reproducible = steady
            if result.plan is not None:
                model.model.clear_hints()
                model.hint(result.plan, instance.replay.times(result.plan))
            status, bound = self._call(instance, model, steady, left)
            self._raise_bound(instance.ticks.seconds(bound))
            model.model.add(model.makespan >= bound)
            if status == "OPTIMAL":
                return
            if result.interrupted:
                break
        result.reproducible = False

    def _check(self, status: str, reason: str, instance: Instance) -> None:
        where = f"problem {self.problem.name!r}"
        if status == "MODEL_INVALID":
            raise ConfigurationError(f"{where}: CP-SAT refuses the model or its options: {reason}")
        if status == "INFEASIBLE" and (self.result.plan is not None or not instance.memory):
            raise RuntimeError(f"{where}: CP-SAT says {status}, which is wrong")
        if status == "INFEASIBLE":
            raise CapacityError(
                f"{where}: no placement and schedule fits in the devices' "
                "memory, which is proven; devices of more memory are needed"
            )

    def _call(
        self, instance: Instance, model: Any, steady: bool, seconds: float
    ) -> tuple[str, int]:
        """Runs CP-SAT; returns its status and the proven bound. [ticks]"""
        from ortools.sat.python import cp_model

        search, options = self, self.options

        class Found(cp_model.CpSolverSolutionCallback):
            """Takes every solution in."""

            def on_solution_callback(self) -> None:
                plan, times = model.read(self.value)
                search.accept(plan, times if instance.memory else None)

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = 1 if steady else options.num_workers
        solver.parameters.random_seed = options.seed % 2**31
        solver.parameters.interleave_search = steady
        solver.parameters.use_timetable_edge_finding_in_cumulative = True
        solver.parameters.catch_sigint_signal = False
        status = solver.status_name(self._wait(solver, model.model, Found()))
        invalid = status == "MODEL_INVALID"
        reason = model.model.validate() or solver.response_proto.solution_info if invalid else ""
        self._check(status, reason, instance)
        proven = solver.best_objective_bound
        known = status in ("OPTIMAL", "FEASIBLE", "UNKNOWN") and np.isfinite(proven)
        return status, max(instance.lower, int(np.ceil(proven - 1e-6)) if known else 0)

    def _wait(self, solver: Any, model: Any, found: Any) -> Any:
        """Solves in another thread, so that this one can look on and be interrupted."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            running = pool.submit(solver.solve, model, found)
            while True:
                try:
                    return running.result(timeout=WATCH_S)
                except FutureTimeoutError:
                    if self.watch is not None:
                        self.watch()
                except KeyboardInterrupt:
                    self.result.interrupted = True
                    solver.stop_search()


def _one_after_another(problem: PlacementProblem) -> float:
    """Seconds that suffice for all ops and transfers in sequence. [s]"""
    longest = problem.route_latency.max() + (
        problem.cost_model.transfer_volume * problem.route_seconds_per_unit.max()
    )
    transfers = longest[problem.graph.out_degrees > 0].sum() * (problem.num_devices - 1)
    return float(problem.cost_model.op_seconds.max(axis=1).sum() + transfers)
