"""What exploring cost: how much slower than the incumbent the executed runs were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FREE_EXECUTIONS = 10
"""The worst placement is looked for after so many executions, when nothing is known yet."""

BRAKE_RUNS = 10
"""The brake takes so many runs of regret 0 to have been made: a few slow ones are no trend."""

BRAKE_SHARE = 0.5
"""The brake is applied over this last part of the limit."""


@dataclass
class Regret:
    """Of the runs while exploring, relative to the incumbent's median at the time.

    A run's regret is max(0, seconds / the incumbent's median - 1). The incumbent's own runs count
    too: they are executions, and noise alone makes some of them slower than their median. What
    exploring adds to that is told apart.

    Args:
        executions: runs so far.
        total: sum of their regrets.
        explored: runs of other placements than the incumbent.
        explored_total: sum of their regrets.
        worst: largest median of one placement's runs over the incumbent's in the same rounds, less
            1, after the first `FREE_EXECUTIONS` executions; 0 if there were none.
    """

    executions: int = 0
    total: float = 0.0
    explored: int = 0
    explored_total: float = 0.0
    worst: float = 0.0

    @property
    def mean(self) -> float:
        """Mean regret of a run, 0 before the first."""
        return self.total / max(self.executions, 1)

    @property
    def explored_mean(self) -> float:
        """Mean regret of a run of another placement than the incumbent, 0 before the first."""
        return self.explored_total / max(self.explored, 1)

    @property
    def own_mean(self) -> float:
        """Mean regret of the incumbent's own runs, which is noise; 0 before the first."""
        own = self.executions - self.explored
        return (self.total - self.explored_total) / max(own, 1)

    @property
    def added(self) -> float:
        """What exploring added to a run on average, noise set off; 0 before the first.

        The incumbent's own runs, made in the same rounds, say what noise alone adds.
        """
        more = self.explored_total - self.own_mean * self.explored
        return max(more, 0.0) / max(self.executions, 1)

    def add(self, incumbent: np.ndarray, others: Sequence[np.ndarray], median: float) -> None:
        """Takes in runs that were made together.

        Args:
            incumbent: its runs. # (its runs,) [s]
            others: of each other placement. # (its runs,) each [s]
            median: the incumbent's, of its last runs. [s]
        """
        free = self.executions < FREE_EXECUTIONS
        for number, runs in enumerate([incumbent, *others]):
            # A run that never ends has no regret in percent; the reward sees to it.
            seconds = runs[np.isfinite(runs)]
            if not len(seconds) or not median > 0:
                continue
            regrets = float(np.maximum(seconds / median - 1.0, 0.0).sum())
            self.executions += len(seconds)
            self.total += regrets
            if number:
                self.explored += len(seconds)
                self.explored_total += regrets
            if number and not free:
                self.worst = max(self.worst, _paired_excess(runs, incumbent))


def _paired_excess(runs: np.ndarray, incumbent: np.ndarray) -> float:
    """Median of a placement's runs over the incumbent's of the same rounds, less 1."""
    rounds = min(len(runs), len(incumbent))  # one that left a race has the first rounds only
    runs, beside = runs[:rounds], incumbent[:rounds]
    good = np.isfinite(runs) & np.isfinite(beside) & (beside > 0)
    return float(np.median(runs[good] / beside[good])) - 1.0 if good.any() else 0.0


def brake(regret: Regret, limit: float) -> float:
    """What part of the margin is left: 1 while the mean regret is well below its limit, 0 at it.

    Of the regret that the incumbent's own runs have too, which is noise and no reason to stop, only
    as much counts as lies before the part over which the brake is applied.
    """
    braking = BRAKE_SHARE * limit
    own = regret.own_mean
    added = max(regret.explored_total - own * regret.explored, 0.0)
    mean = added / (regret.executions + BRAKE_RUNS) + min(own, limit - braking)
    return min(max((limit - mean) / braking, 0.0), 1.0)
