"""Chains that begin anew when they have come to rest."""

from __future__ import annotations

from collections.abc import Callable

from doppler.schedulers.search.chains import Chain
from doppler.schedulers.search.state import AGE, BEST, BEST_AGE


class RestartingChain:
    """Climbs one after the other, of which the best placement is kept (a `Chain`).

    Args:
        first: the first climb.
        again: returns a new one.
        patience: evaluations without improvement after which a climb is over.
    """

    def __init__(self, first: Chain, again: Callable[[], Chain], patience: int) -> None:
        self._climb, self._again, self._patience = first, again, patience
        self.best = first.best
        self.restarts = 0

    def advance(self, fraction: float, evaluations: int) -> int:
        """See `Chain.advance`."""
        made = 0
        while made < evaluations:
            state = self._climb.best
            left = self._patience - int(state.counts[AGE] - state.counts[BEST_AGE])
            if left <= 0:
                self._climb = self._again()
                self.restarts += 1
                continue
            wanted = min(left, evaluations - made)
            done = self._climb.advance(fraction, wanted)
            made += done
            if state.values[BEST] < self.best.values[BEST]:
                self.best = state
            if done < wanted:
                break
        return made
