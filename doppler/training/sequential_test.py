"""Is a challenger faster than the incumbent? Rounds decide one by one, for as long as they must."""

from __future__ import annotations

import math
from dataclasses import dataclass

WIN_CHANCE = 0.8
"""Under the alternative hypothesis the challenger wins a round with this probability."""

GIVE_UP = 0.1
"""A likelihood ratio of this or less ends the test: the challenger is not that good."""


@dataclass
class SequentialTest:
    """Wald's probability-ratio test on the signs of paired rounds.

    Each round runs both once; it is a win of the challenger if that one was faster, and tells
    nothing if both took equally long. The likelihood ratio of "wins with probability `WIN_CHANCE`"
    to "wins half of the time" starts at 1, and is multiplied by 1.6 at a win and by 0.4 at a loss.
    The challenger is better once the ratio reaches 1 / alpha. If it is no better in truth, the
    ratio is a supermartingale, so it gets there with a probability of at most alpha whatever the
    noise is like, and however long the test goes on (Ville's inequality; the looser bound of Wald,
    (1 - beta) / alpha, holds only approximately).

    Args:
        alpha: chance of taking a challenger that is no better, above 0 and below 1.
        most_rounds: give up after so many.
        wins, losses: of the challenger so far.
        rounds: so far, those that told nothing included.

    Source: Wald, Sequential Tests of Statistical Hypotheses (1945), section 3.
    """

    alpha: float
    most_rounds: int
    wins: int = 0
    losses: int = 0
    rounds: int = 0

    def add(self, challenger: float, incumbent: float) -> None:
        """Takes one round in. [s]"""
        self.rounds += 1
        self.wins += challenger < incumbent
        self.losses += challenger > incumbent

    @property
    def log_likelihood_ratio(self) -> float:
        """Logarithm of the likelihood ratio."""
        win, loss = math.log(WIN_CHANCE / 0.5), math.log((1.0 - WIN_CHANCE) / 0.5)
        return self.wins * win + self.losses * loss

    @property
    def better(self) -> bool:
        """Whether the challenger has won."""
        return self.log_likelihood_ratio >= -math.log(self.alpha)

    @property
    def open(self) -> bool:
        """Whether another round is needed."""
        hopeless = self.log_likelihood_ratio <= math.log(GIVE_UP)
        return not (self.better or hopeless or self.rounds >= self.most_rounds)


def sign_test(wins: int, trials: int) -> float:
    """Chance of at least so many wins if either side wins with probability 1/2."""
    return sum(math.comb(trials, k) for k in range(wins, trials + 1)) / 2**trials
