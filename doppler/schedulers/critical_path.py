"""Critical-path list scheduling, the teacher of the imitation stage.

Source: Kwok and Ahmad (1999), "Static scheduling algorithms for allocating directed task graphs to
multiprocessors", ACM Computing Surveys 31(4), as DOPPLER (Yao et al. 2026) uses it: among the
candidates the op with the longest path to an exit, computation and communication counted, goes on
the device where it can start earliest; ties at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from doppler.construction import Construction
from doppler.errors import ConfigurationError
from doppler.graph import b_levels
from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler, best_of, check_count

if TYPE_CHECKING:
    from doppler.simulator import Simulator

TIES = ("id", "random")
TIE_DIGITS = 1e12
"""Levels that agree to this many parts of the largest are a tie: sums differ by rounding."""
OPS_AT_A_TIME = 1_000_000
MAX_BATCH = 256


@dataclass(frozen=True)
class CriticalPath(Scheduler):
    """Critical-path list scheduling.

    Args:
        ties: "id" (the lower op, the lower device) or "random".
        restarts: with random ties, how many runs; the best in the simulator is kept.

    Raises:
        ConfigurationError: an unknown tie rule, or several restarts of a run without randomness.
    """

    ties: str = "random"
    restarts: int = 1
    name: ClassVar[str] = "critical_path"

    def __post_init__(self) -> None:
        _check_ties(self.ties)
        check_count("scheduler 'critical_path'", "restarts", self.restarts)
        if self.ties == "id" and self.restarts > 1:
            raise ConfigurationError(
                f"scheduler 'critical_path', restarts: {self.restarts} runs with ties='id' are "
                "all the same; use ties='random'"
            )

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        best = Proposal(np.zeros(0, np.int64), np.zeros(0, np.int64), self.restarts, None)
        batch = max(1, min(MAX_BATCH, self.restarts, OPS_AT_A_TIME // problem.num_ops))
        construction = Construction(problem, simulator.network, batch)
        for first in range(0, self.restarts, batch):
            count = min(batch, self.restarts - first)
            construction.reset()
            _fill(construction, rng, self.ties)
            placements = construction.devices[:count]
            orders = construction.order[:count]
            makespans = simulator.makespans(placements, orders)
            winner = best_of(makespans)
            if best.makespan is None or makespans[winner] < best.makespan:
                best.devices = placements[winner].copy()
                best.order = orders[winner].copy()
                best.makespan = float(makespans[winner])
        return best


def critical_path_priorities(problem: PlacementProblem) -> np.ndarray:
    """Longest path from each op to an exit, in whole parts of the longest, so that ties are exact.

    Ops count with their mean seconds over the devices, transfers with their mean uncontended
    seconds over the pairs of devices. # (num_ops,)
    """
    levels = b_levels(problem.graph, problem.mean_op_seconds, problem.mean_transfer_seconds)
    top = levels.max()
    return np.zeros(len(levels)) if top == 0 else np.round(levels / top * TIE_DIGITS)


def critical_path_episodes(
    problem: PlacementProblem,
    batch_size: int,
    network: str,
    rng: np.random.Generator,
    ties: str = "random",
) -> tuple[np.ndarray, np.ndarray]:
    """The teacher's episodes: which op it places at each step, and where.

    Args:
        problem: what is placed.
        batch_size: number of episodes.
        network: network model of the estimated starts.
        rng: breaks ties if they are random.
        ties: "id" (all episodes are equal) or "random".

    Returns:
        ops and devices by step: `devices[b, t]` is where `ops[b, t]` goes. # (B, N), (B, N)

    Raises:
        ConfigurationError: an unknown network or tie rule.
    """
    _check_ties(ties)
    construction = Construction(problem, network, batch_size)
    _fill(construction, rng, ties)
    ops = construction.order.copy()
    return ops, np.take_along_axis(construction.devices, ops, axis=1)


def _fill(construction: Construction, rng: np.random.Generator, ties: str) -> None:
    seeds = None
    if ties == "random":
        seeds = rng.integers(1, 2**63, construction.batch_size, dtype=np.uint64)
    construction.list_schedule(critical_path_priorities(construction.problem), seeds)


def _check_ties(ties: str) -> None:
    if ties not in TIES:
        raise ConfigurationError(
            f"scheduler 'critical_path', ties: {ties!r} is not one of {', '.join(TIES)}"
        )
