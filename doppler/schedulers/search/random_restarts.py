"""Hill climbing from random placements, again and again: what cleverer searches must beat.

Source: multi-start local search, for example Marti (2003), "Multi-start methods", Handbook of
Metaheuristics, 355-368; moves and evaluations are those of simulated annealing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.schedulers.anytime import Run
from doppler.schedulers.base import check_count
from doppler.schedulers.search.base import SimulatedSearch, Space
from doppler.schedulers.search.chains import Chain
from doppler.schedulers.search.local_search import improve
from doppler.schedulers.search.state import AGE, BEST, BEST_AGE, State, make_state

_PATIENCE_PER_UNIT = 20


@dataclass(frozen=True, kw_only=True)
class RandomRestarts(SimulatedSearch):
    """Hill climbing that starts anew at a random placement when it has come to rest.

    Moves that leave the makespan as it is are kept, so that a climb can cross a plateau. Only the
    first climb of each chain begins as `begin` or `start` say; orders always begin there.

    Args:
        begin: as in `SimulatedSearch`, but random where not told otherwise.
        patience: evaluations without improvement after which a climb is over; None: 20 for each op
            or colocation group that may move, times the number of devices.

    Raises:
        ConfigurationError: a patience that is no whole number of at least 1.
    """

    begin: str = "random"
    patience: int | None = None
    name: ClassVar[str] = "random_restarts"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None:
            check_count(f"scheduler {self.name!r}", "patience", self.patience)

    def make_chain(self, run: Run, space: Space, seed: int) -> Chain:
        """See `SimulatedSearch.make_chain`."""
        patience = self.patience
        if patience is None:
            units = max(1, len(space.hood.movable))
            patience = _PATIENCE_PER_UNIT * units * run.problem.num_devices
        return RestartingChain(run, space, seed, patience)


class RestartingChain:
    """Climbs one after the other (a `Chain`).

    Args:
        run, space, seed: as in `SimulatedSearch.make_chain`.
        patience: evaluations.
    """

    def __init__(self, run: Run, space: Space, seed: int, patience: int) -> None:
        self._space, self._problem, self._patience = space, run.problem, patience
        self._rng = np.random.default_rng((seed, 1))  # `seed` alone drew where it begins
        self.climb = space.state(run, seed)
        self.restarts = 0
        self._best = self.climb

    @property
    def makespan(self) -> float:
        return float(self._best.values[BEST])

    @property
    def devices(self) -> np.ndarray:
        return self._best.best_devices

    @property
    def order(self) -> np.ndarray | None:
        return self._best.best_order if len(self._best.best_order) else None

    def advance(self, fraction: float, evaluations: int) -> int:
        made = 0
        while made < evaluations:
            counts = self.climb.counts
            left = self._patience - (counts[AGE] - counts[BEST_AGE])
            if left <= 0:
                self.climb = self._restart()
                continue
            wanted = min(int(left), evaluations - made)
            done = int(improve(self._space.tables, self._space.hood, self.climb, wanted))
            made += done
            if self.climb.values[BEST] < self._best.values[BEST]:
                self._best = self.climb
            if done < wanted:
                break
        return made

    def _restart(self) -> State:
        self.restarts += 1
        problem, space = self._problem, self._space
        devices = problem.conform(self._rng.integers(0, problem.num_devices, problem.num_ops))
        return make_state(space.hood, devices, space.order, int(self._rng.integers(0, 2**63)))
