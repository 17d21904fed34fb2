"""Simulated annealing in the simulator.

Source: Kirkpatrick, Gelatt and Vecchi (1983), "Optimization by simulated annealing", Science 220
(4598), 671-680, with a geometric cooling schedule; the moves are our own (see `neighbourhood`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.errors import ConfigurationError
from doppler.schedulers.anytime import Run
from doppler.schedulers.search.base import SimulatedSearch, Space
from doppler.schedulers.search.chains import Chain
from doppler.schedulers.search.local_search import improve
from doppler.schedulers.search.state import BEST, TEMPERATURE

RANDOM_TEMPERATURE, START_TEMPERATURES = 0.5, (0.1, 0.5)
"""Of a search that begins at random; of the chains, in turn, of one that begins with a good
placement: how much of that should be kept cannot be known."""


@dataclass(frozen=True, kw_only=True)
class SimulatedAnnealing(SimulatedSearch):
    """Simulated annealing.

    Args:
        initial_temperature: in mean op durations; None: 0.5 from a random placement, from a good
            one 0.1 in every other chain, which keeps more of it.
        final_temperature: in mean op durations.

    Raises:
        ConfigurationError: temperatures that are not 0 < final <= initial.
    """

    initial_temperature: float | None = None
    final_temperature: float = 0.001
    name: ClassVar[str] = "annealing"

    def __post_init__(self) -> None:
        super().__post_init__()
        initial = (
            min(START_TEMPERATURES)
            if self.initial_temperature is None
            else self.initial_temperature
        )
        for value in (initial, self.final_temperature):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigurationError(
                    f"scheduler 'annealing', temperatures: {value!r} is not a number"
                )
        if not 0 < self.final_temperature <= initial < np.inf:
            raise ConfigurationError(
                f"scheduler 'annealing', temperatures: not 0 < {self.final_temperature:g} (final) "
                f"<= {initial:g} (initial)"
            )

    def make_chain(self, run: Run, space: Space, seed: int) -> AnnealingChain:
        """See `SimulatedSearch.make_chain`."""
        initial = self.initial_temperature
        if initial is None:
            initial = RANDOM_TEMPERATURE if space.devices is None else START_TEMPERATURES[0]
        return AnnealingChain(run, space, seed, initial, self.final_temperature)

    def make_chains(self, run: Run, space: Space, seeds: list[int]) -> list[Chain]:
        """See `SimulatedSearch.make_chains`."""
        chains = [self.make_chain(run, space, seed) for seed in seeds]
        if self.initial_temperature is None and space.devices is not None:
            for index, chain in enumerate(chains):
                chain.initial = START_TEMPERATURES[index % len(START_TEMPERATURES)]
        return list(chains)


class AnnealingChain:
    """One annealing (a `Chain`).

    Args:
        run, space, seed: as in `SimulatedSearch.make_chain`.
        initial, final: temperatures in mean op durations.
    """

    def __init__(self, run: Run, space: Space, seed: int, initial: float, final: float) -> None:
        self._space = space
        self.state = space.state(run, seed)
        self.initial, self._final = initial, final

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
        cooled = self.initial * (self._final / self.initial) ** fraction
        self.state.values[TEMPERATURE] = cooled * self._space.op_seconds
        return int(improve(self._space.tables, self._space.hood, self.state, evaluations))
