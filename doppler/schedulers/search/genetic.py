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
from doppler.schedulers.anytime import Run
from doppler.schedulers.base import check_count
from doppler.schedulers.exact.symmetry import identical_devices
from doppler.schedulers.search.base import SimulatedSearch, Space
from doppler.schedulers.search.breeding import breed, make_population
from doppler.schedulers.search.chains import Chain
from doppler.schedulers.search.state import BEST, make_state

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

    Args:
        population: members of an island.
        islands: of each chain.
        crossover: how likely a child has two parents.

    Raises:
        ConfigurationError: a population below 2, no islands, or a crossover outside 0 to 1.
    """

    population: int = 32
    islands: int = 2
    crossover: float = 0.3
    name: ClassVar[str] = "genetic"

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"scheduler {self.name!r}"
        check_count(where, "population", self.population)
        check_count(where, "islands", self.islands)
        if self.population < 2:
            raise ConfigurationError(f"{where}, population: 1 member has no one to be crossed with")
        chance = self.crossover
        number = isinstance(chance, int | float) and not isinstance(chance, bool)
        if not number or not 0 <= chance <= 1:
            raise ConfigurationError(f"{where}, crossover: {chance!r} is not a number from 0 to 1")

    def make_chain(self, run: Run, space: Space, seed: int) -> Chain:
        """See `SimulatedSearch.make_chain`."""
        return IslandChain(run, space, seed, self)


class IslandChain:
    """Some islands (a `Chain`).

    Args:
        run, space, seed: as in `SimulatedSearch.make_chain`.
        options: of the search.
    """

    def __init__(self, run: Run, space: Space, seed: int, options: Genetic) -> None:
        problem, hood = run.problem, space.hood
        members = options.population * options.islands
        rng = np.random.default_rng(seed)
        devices = rng.integers(0, problem.num_devices, (members, problem.num_ops))
        if space.devices is not None:
            # From the placement that is to be improved, which comes first, to random ones.
            kept = rng.random(devices.shape) >= np.linspace(0, 1, members)[:, None] ** 2
            devices = np.where(kept, space.devices, devices)
        alike = np.zeros(problem.num_devices, np.int64)
        for number, group in enumerate(identical_devices(problem)):
            alike[group] = number
        self._space = space
        self.population = make_population(
            problem.conform(devices),
            space.order,
            alike,
            np.setdiff1d(hood.movable, hood.group_units),
            options.population,
            max(2, options.population // _WINDOW_SHARE),
            options.crossover,
        )
        self.state = make_state(hood, self.population.devices[0], space.order, seed)

    @property
    def makespan(self) -> float:
        return float(self.state.values[BEST])

    @property
    def devices(self) -> np.ndarray:
        return self.state.best_devices

    @property
    def order(self) -> np.ndarray | None:
        return self.state.best_order if len(self.state.best_order) else None

    def advance(self, fraction: float, evaluations: int) -> int:
        tables, hood = self._space.tables, self._space.hood
        return int(breed(tables, hood, self.state, self.population, evaluations))
