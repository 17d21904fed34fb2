"""Chains that begin anew when they have come to rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from doppler.schedulers.search.state import AGE, BEST, BEST_AGE, State


class Climb(Protocol):
    """A search that comes to rest."""

    state: State

    def advance(self, evaluations: int) -> int:
        """Makes so many evaluations, or fewer if there is nothing left to try."""


class RestartingChain:
    """Climbs one after the other, of which the best placement is kept (a `Chain`).

    Args:
        first: the first climb.
        again: returns a new one.
        patience: evaluations without improvement after which a climb is over.
    """

    def __init__(self, first: Climb, again: Callable[[], Climb], patience: int) -> None:
        self._climb, self._again, self._patience = first, again, patience
        self._best = first.state
        self.restarts = 0

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
            state = self._climb.state
            left = self._patience - int(state.counts[AGE] - state.counts[BEST_AGE])
            if left <= 0:
                self._climb = self._again()
                self.restarts += 1
                continue
            wanted = min(left, evaluations - made)
            done = self._climb.advance(wanted)
            made += done
            if state.values[BEST] < self._best.values[BEST]:
                self._best = state
            if done < wanted:
                break
        return made
