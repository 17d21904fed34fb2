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
from doppler.schedulers.search.local_search import LocalSearch
from doppler.schedulers.search.restarting import RestartingChain
from doppler.schedulers.search.state import make_state

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

    def make_chain(self, run: Run, space: Space, seed: int, index: int) -> Chain:
        """See `SimulatedSearch.make_chain`."""
        problem, patience = run.problem, self.patience
        if patience is None:
            patience = _PATIENCE_PER_UNIT * max(1, len(space.hood.movable)) * problem.num_devices
        rng = np.random.default_rng((seed, 1))  # `seed` alone drew where the first climb begins

        def again() -> LocalSearch:
            devices = rng.integers(0, problem.num_devices, problem.num_ops)
            order, seed = space.order, int(rng.integers(0, 2**63))
            return LocalSearch(space, make_state(space.hood, problem.conform(devices), order, seed))

        return RestartingChain(LocalSearch(space, space.state(run, seed)), again, patience)
