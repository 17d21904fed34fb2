"""Simulated annealing in the simulator.

Source: Kirkpatrick, Gelatt and Vecchi (1983), "Optimization by simulated annealing", Science 220
(4598), 671-680, with a geometric cooling schedule; the moves are our own (see `neighbourhood`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from doppler.checks import number
from doppler.errors import ConfigurationError
from doppler.schedulers.anytime import Run
from doppler.schedulers.search.base import SimulatedSearch, Space
from doppler.schedulers.search.chains import Chain
from doppler.schedulers.search.local_search import LocalSearch
from doppler.schedulers.search.state import TEMPERATURE, State

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
        initial, final = self.initial_temperature, self.final_temperature
        where = "scheduler 'annealing', "
        number(final, f"{where}final_temperature", ConfigurationError, above=True)
        if initial is None:
            initial = min(START_TEMPERATURES)
        number(initial, f"{where}initial_temperature", ConfigurationError, above=True)
        if final > initial:
            raise ConfigurationError(
                f"{where}final_temperature: {final:g} is above the initial {initial:g}"
            )

    def make_chain(self, run: Run, space: Space, seed: int, index: int) -> Chain:
        """See `SimulatedSearch.make_chain`."""
        initial = self.initial_temperature
        if initial is None and space.devices is None:
            initial = RANDOM_TEMPERATURE
        elif initial is None:
            initial = START_TEMPERATURES[index % len(START_TEMPERATURES)]
        return Annealing(space, space.state(run, seed), initial, self.final_temperature)


class Annealing(LocalSearch):
    """One annealing (a `Chain`).

    Args:
        space, state: as in `LocalSearch`.
        initial, final: temperatures in mean op durations.
    """

    def __init__(self, space: Space, state: State, initial: float, final: float) -> None:
        super().__init__(space, state)
        self._initial, self._final = initial, final

    def advance(self, fraction: float, evaluations: int) -> int:
        """See `Chain.advance`."""
        cooled = self._initial * (self._final / self._initial) ** fraction
        self.best.values[TEMPERATURE] = cooled * self._space.op_seconds
        return super().advance(fraction, evaluations)
