"""How well simulated makespans foretell measured ones: statistics, and placements to judge by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from doppler import Placement, PlacementProblem
from doppler.errors import DopplerError
from doppler.schedulers import SCHEDULERS, Scheduler, make_scheduler
from doppler.schedulers.anytime import AnytimeScheduler
from doppler.simulator import Simulator

SEARCH_EVALUATIONS = 4000
"""Budget of searches, counted so that an interrupted study finds the same placements again."""
EXACT_SECONDS = 5.0
RANDOM_SHARE = 0.25
"""Of the placements are random, and at least as many mutations of the best."""
MOST_MOVED = 0.25
"""Of the ops that a mutation puts somewhere else."""


@dataclass(frozen=True)
class Fidelity:
    """Agreement of simulated with measured makespans over some placements.

    Args:
        mape: mean absolute relative error. [1]
        bias: mean relative error, above 0 where the simulator says more. [1]
        tau: Kendall's tau-b of the two rankings; NaN where one of them ranks nothing.
        rho: Spearman's rank correlation.
        best_tau, best_rho: the same over the quarter with the least measured makespans.
        regret: measured makespan of the simulator's favourite over the best measured, less 1. [1]
        placements: how many.
    """

    mape: float
    bias: float
    tau: float
    rho: float
    best_tau: float
    best_rho: float
    regret: float
    placements: int


def fidelity(simulated: np.ndarray, measured: np.ndarray) -> Fidelity:
    """Compares makespans of the same placements; at least one, all above 0. # (placements,) [s]"""
    errors = simulated / measured - 1
    tau, rho = rank_agreement(simulated, measured)
    best = np.argsort(measured, kind="stable")[: -(-len(measured) // 4)]
    best_tau, best_rho = rank_agreement(simulated[best], measured[best])
    favourite = int(np.argmin(simulated))
    return Fidelity(
        mape=float(np.abs(errors).mean()),
        bias=float(errors.mean()),
        tau=tau,
        rho=rho,
        best_tau=best_tau,
        best_rho=best_rho,
        regret=float(measured[favourite] / measured.min() - 1),
        placements=len(measured),
    )


def rank_agreement(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Kendall's tau-b and Spearman's rho; NaN where either has fewer than two different values."""
    from scipy.stats import kendalltau, spearmanr

    if len(np.unique(first)) < 2 or len(np.unique(second)) < 2:
        return float("nan"), float("nan")
    return float(kendalltau(first, second)[0]), float(spearmanr(first, second)[0])


def repeatability(runs: np.ndarray) -> tuple[float, float]:
    """What measuring again would agree with: medians of the even rounds against the odd ones.

    No simulator can agree better with half of the rounds than the other half does.

    Args:
        runs: measured makespans. # (rounds, placements) [s]

    Returns:
        Kendall's tau-b and mean absolute relative difference; NaN for one round.
    """
    if len(runs) < 2:
        return float("nan"), float("nan")
    even, odd = np.median(runs[::2], axis=0), np.median(runs[1::2], axis=0)
    return rank_agreement(even, odd)[0], float(np.abs(even / odd - 1).mean())


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement to judge by.

    Args:
        label: who made it.
        kind: "scheduler", "random" or "mutation".
        devices: # (num_ops,)
    """

    label: str
    kind: str
    devices: np.ndarray


def candidates(
    problem: PlacementProblem,
    simulator: Simulator,
    count: int,
    seed: int,
    note: Callable[[str], None] = lambda label: None,
) -> list[Candidate]:
    """Different placements: of every scheduler that takes the problem, random ones, mutations.

    A quarter is random and at least a quarter are mutations of the best one: between 1 and
    `MOST_MOVED` of its ops, fewer more often, put on devices drawn at random. What two schedulers
    agree on counts once. May return fewer where the problem has fewer placements.

    Args:
        problem: to place.
        simulator: judges.
        count: how many placements.
        seed: of all randomness.
        note: called with the name of each scheduler.
    """
    num_random = int(RANDOM_SHARE * count)
    pool = _Pool()
    for name in SCHEDULERS:
        if len(pool.found) >= count - 2 * num_random:
            break
        if name == "random":
            continue
        note(name)
        try:
            rng = np.random.default_rng([seed, *name.encode()])
            placement = _scheduler(name).schedule(problem, simulator, rng)
        except DopplerError:
            continue  # this scheduler does not take this problem
        pool.add(Candidate(name.replace("_", " "), "scheduler", placement.devices))
    rng = np.random.default_rng([seed, count])
    shape = (problem.num_ops,)
    made = len(pool.found) + num_random
    for number in range(10 * count):
        if len(pool.found) >= made:
            break
        devices = rng.integers(0, problem.num_devices, shape)
        pool.add(Candidate(f"random {number}", "random", devices))
    simulated = simulator.makespans(np.array([found.devices for found in pool.found]))
    best = pool.found[int(np.argmin(simulated))].devices
    most = max(1, int(MOST_MOVED * problem.num_ops))
    for number in range(10 * count):
        if len(pool.found) >= count:
            break
        moved = round(most ** rng.random())  # log-uniform from 1 to `most`
        devices = best.copy()
        ops = rng.choice(problem.num_ops, moved, replace=False)
        devices[ops] = rng.integers(0, problem.num_devices, moved)
        pool.add(Candidate(f"{moved} ops of the best moved, {number}", "mutation", devices))
    return pool.found[:count]


class _Pool:
    """Candidates, no two alike."""

    def __init__(self) -> None:
        self.found: list[Candidate] = []
        self._known: set[bytes] = set()

    def add(self, candidate: Candidate) -> None:
        key = np.ascontiguousarray(candidate.devices, np.int64).tobytes()
        if key not in self._known:
            self._known.add(key)
            self.found.append(candidate)


def _scheduler(name: str) -> Scheduler:
    if not issubclass(SCHEDULERS[name], AnytimeScheduler):
        return make_scheduler(name)
    if name == "cp_sat":
        return make_scheduler(name, budget_s=EXACT_SECONDS)
    return make_scheduler(name, budget_s=None, budget_evals=SEARCH_EVALUATIONS)


def as_placement(candidate: Candidate) -> Placement:
    """The candidate as executors and simulators take it."""
    return Placement(candidate.devices, info={"scheduler": candidate.label})
