"""Late-acceptance hill climbing in the simulator.

Source: Burke and Bykov (2017), "The late acceptance Hill-Climbing heuristic", European Journal of
Operational Research 258(1), 70-78. It needs no temperatures: the one parameter, the length of the
history, sets how slowly the search closes in, and with it how good the result is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from doppler.schedulers.anytime import Run
from doppler.schedulers.base import check_count
from doppler.schedulers.search.base import SimulatedSearch, Space
from doppler.schedulers.search.chains import Chain
from doppler.schedulers.search.local_search import LocalSearch

_HISTORY_PER_UNIT = 5
_SHARE_OF_BUDGET = 300
"""A history longer than the budget over this would not let the search come to rest."""


@dataclass(frozen=True, kw_only=True)
class LateAcceptance(SimulatedSearch):
    """Late-acceptance hill climbing: a placement is kept if it beats the one of some time ago.

    Args:
        history: how many evaluations ago; None: 5 for each op or colocation group that may move,
            but at most 1/300 of a chain's evaluations.

    Raises:
        ConfigurationError: a history that is no whole number of at least 1.
    """

    history: int | None = None
    name: ClassVar[str] = "late_acceptance"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history is not None:
            check_count(f"scheduler {self.name!r}", "history", self.history, 100_000_000)

    def make_chain(self, run: Run, space: Space, seed: int, index: int) -> Chain:
        """See `SimulatedSearch.make_chain`."""
        length = self.history
        if length is None:
            length = max(1, _HISTORY_PER_UNIT * len(space.hood.movable))
            if run.budget_evals is not None:
                most = run.budget_evals // self.chains // _SHARE_OF_BUDGET
                length = min(length, max(1, most))
        return LocalSearch(space, space.state(run, seed, length))
