"""An island genetic algorithm in the simulator.

Sources: Goldberg (1989), "Genetic algorithms in search, optimization and machine learning", chapter
3 (tournaments); Hou, Ansari and Ren (1994), "A genetic algorithm for multiprocessor scheduling",
IEEE Transactions on Parallel and Distributed Systems 5(2), 113-120 (placements of DAGs that are cut
in time and crossed); Harik (1995), "Finding multimodal solutions using restricted tournament
selection", 24-31 (a child replaces a similar member). Mutations are the moves of annealing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedulers.anytime import Run
from doppler.schedulers.base import check_count
from doppler.schedulers.exact.symmetry import identical_devices
from doppler.schedulers.search.base import MOST_CHAINS, SimulatedSearch, Space
from doppler.schedulers.search.breeding import breed, make_population
from doppler.schedulers.search.chains import Chain
from doppler.schedulers.search.local_search import improve
from doppler.schedulers.search.restarting import RestartingChain
from doppler.schedulers.search.state import AGE, BEST_AGE, make_state, return_to_best

_PATIENCE_PER_UNIT = 80
_WINDOW_SHARE = 4
"""Replacement looks at the island's size over this."""


@dataclass(frozen=True, kw_only=True)
class Genetic(SimulatedSearch):
    """A steady-state genetic algorithm on islands; every chain has its own islands.

    Parents are the winners of tournaments of two. A child takes whole meta-ops (levels, where these
    are unknown) from either parent, or one parent's placement up to a point in time and the other's
    from there on, after devices that may change places have been matched; then it is mutated by a
    move or more, and replaces the most similar of some members if it is no worse. Now and then the
    best of an island replaces the worst of the next.

    When the islands of a chain have come to rest, hill climbing goes on from their best member;
    when that has too, the chain begins anew at random.

    Args:
        population: members of an island.
        islands: of each chain.
        crossover: how likely a child has two parents.
        patience: evaluations of a chain without improvement after which it begins anew (half as
            many: after which it climbs); None: 80 for each op or colocation group that may move,
            times the number of devices.

    Raises:
        ConfigurationError: a population below 2, no islands, no patience, or a crossover outside 0
            to 1.
    """

    population: int = 16
    islands: int = 2
    crossover: float = 0.3
    patience: int | None = None
    name: ClassVar[str] = "genetic"

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"scheduler {self.name!r}"
        check_count(where, "population", self.population, 100_000)
        check_count(where, "islands", self.islands, MOST_CHAINS)
        if self.patience is not None:
            check_count(where, "patience", self.patience)
        if self.population < 2:
            raise ConfigurationError(f"{where}, population: 1 member has no one to be crossed with")
        chance = self.crossover
        number = isinstance(chance, int | float) and not isinstance(chance, bool)
        if not number or not 0 <= chance <= 1:
            raise ConfigurationError(f"{where}, crossover: {chance!r} is not a number from 0 to 1")

    def make_chain(self, run: Run, space: Space, seed: int, index: int) -> Chain:
        """See `SimulatedSearch.make_chain`."""
        problem, patience = run.problem, self.patience
        if patience is None:
            patience = _PATIENCE_PER_UNIT * max(1, len(space.hood.movable)) * problem.num_devices
        alike = np.zeros(problem.num_devices, np.int64)
        for number, group in enumerate(identical_devices(problem)):
            alike[group] = number
        rng = np.random.default_rng(seed)

        def islands(devices: np.ndarray | None) -> Islands:
            return Islands(problem, space, alike, devices, rng, self, patience // 2)

        return RestartingChain(islands(space.devices), lambda: islands(None), patience)


class Islands:
    """Some islands (a `Chain`).

    Args:
        problem: what is placed.
        space: what is searched.
        alike: see `Population`.
        devices: a placement to begin with, or None to begin at random. # (num_ops,)
        rng: draws members and the seed.
        options: of the search.
        patience: evaluations without improvement after which the best member climbs on.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        space: Space,
        alike: np.ndarray,
        devices: np.ndarray | None,
        rng: np.random.Generator,
        options: Genetic,
        patience: int,
    ) -> None:
        members = options.population * options.islands
        drawn = rng.integers(0, problem.num_devices, (members, problem.num_ops))
        if devices is not None:
            # From the placement that is to be improved, which comes first, to random ones.
            kept = rng.random(drawn.shape) >= np.linspace(0, 1, members)[:, None] ** 2
            drawn = np.where(kept, devices, drawn)
        hood = space.hood
        self._space, self._patience, self._climbing = space, patience, False
        self.population = make_population(
            problem.conform(drawn),
            space.order,
            alike,
            np.setdiff1d(hood.movable, hood.group_units),
            options.population,
            max(2, options.population // _WINDOW_SHARE),
            options.crossover,
        )
        self.best = make_state(
            hood, self.population.devices[0], space.order, int(rng.integers(0, 2**63))
        )

    def advance(self, fraction: float, evaluations: int) -> int:
        """See `Chain.advance`."""
        tables, hood, s = self._space.tables, self._space.hood, self.best
        made = 0
        while not self._climbing and made < evaluations:
            left = self._patience - int(s.counts[AGE] - s.counts[BEST_AGE])
            if left <= 0:
                return_to_best(s)
                self._climbing = True
                break
            wanted = min(evaluations - made, left)
            done = int(breed(tables, hood, s, self.population, wanted))
            made += done
            if done < wanted:
                return made
        if made < evaluations:
            made += int(improve(tables, hood, s, evaluations - made))
        return made
