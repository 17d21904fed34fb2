"""Durations in whole ticks, as a solver over integers needs them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler.problem import PlacementProblem

MOST_EXACT_TICKS = 2.0**40
"""A common tick is used as long as no schedule is longer than this many of them."""
MOST_DIGITS = 15
SHORTEST_TICK = 1e-300
"""A tick is at least so long, so that quotients by it have all their digits. [s]"""
RELATIVE_ERROR = 1e-6
"""Where there is no common tick, rounding all tasks down loses at most this part of the horizon."""


@dataclass(frozen=True, eq=False)
class Ticks:
    """The durations of a problem in ticks.

    Where all durations are whole multiples of a common decimal fraction of a second, that is the
    tick and nothing is rounded. Elsewhere durations are rounded *down*: every schedule in seconds,
    its order kept, is then also one in ticks that is no longer, so that a lower bound in ticks
    holds for the true seconds.

    Args:
        exact: whether nothing was rounded.
        numerator, denominator: a tick is numerator / denominator. [s]
        ops: duration of each op on each device. # (num_ops, num_devices) [ticks]
        hops: duration of each op's output on each link. # (num_ops, num_links) [ticks]
    """

    exact: bool
    numerator: float
    denominator: float
    ops: np.ndarray
    hops: np.ndarray

    def seconds(self, ticks: float) -> float:
        """Converts ticks. [s]"""
        return ticks * self.numerator / self.denominator

    def at_least(self, seconds: float) -> int:
        """The fewest ticks of any schedule that takes at least `seconds`."""
        ticks = seconds / self.numerator * self.denominator
        if self.exact:
            return int(np.ceil(ticks * (1 - 1e-12) - 1e-6))
        return int(np.floor(ticks * (1 - 1e-12)))


def hop_seconds(problem: PlacementProblem) -> np.ndarray:
    """Seconds of each op's output on each link. # (num_ops, num_links) [s]"""
    costs = problem.cost_model
    seconds: np.ndarray = (
        costs.link_latency + costs.transfer_volume[:, None] * costs.link_seconds_per_unit
    )
    return seconds


def to_ticks(problem: PlacementProblem, horizon: float) -> Ticks:
    """Converts the durations of a problem.

    Args:
        problem: what is scheduled.
        horizon: length of some schedule, above 0, which the rounding error is relative to; what
            takes longer is cut to a little more, as no schedule of interest has it. [s]
    """
    ops, hops = problem.cost_model.op_seconds, hop_seconds(problem)
    used = hops[problem.graph.out_degrees > 0]
    durations = np.unique(np.concatenate([ops.ravel(), used.ravel()]))
    common = _common_tick(durations[durations > 0], horizon)
    if common is not None:
        numerator, denominator = common
        scale = denominator / numerator
        return Ticks(True, numerator, denominator, _nearest(ops, scale), _nearest(hops, scale))
    # A chain of a schedule passes each op once and at most a few hops for each
    chain = 4.0 * problem.num_ops
    tick = max(horizon * RELATIVE_ERROR / chain, SHORTEST_TICK)
    most = 1.01 * horizon / tick + 4
    return Ticks(False, tick, 1.0, _down(ops, tick, most), _down(hops, tick, most))


def _common_tick(durations: np.ndarray, horizon: float) -> tuple[float, float] | None:
    """Numerator and denominator of the longest decimal tick that divides all durations."""
    if not durations.size:
        return 1.0, 1.0
    for digits in range(MOST_DIGITS + 1):
        scale = 10.0**digits
        if max(horizon, durations[-1]) * scale > MOST_EXACT_TICKS:
            return None
        whole = np.round(durations * scale)
        if (np.abs(whole / scale - durations) <= 4e-16 * durations).all():
            divisor = int(np.gcd.reduce(whole.astype(np.int64)))
            return float(divisor), scale
    return None


def _nearest(seconds: np.ndarray, scale: float) -> np.ndarray:
    most = 2 * MOST_EXACT_TICKS / scale  # only what is never sent is longer
    return np.round(np.minimum(seconds, most) * scale).astype(np.int64)


def _down(seconds: np.ndarray, tick: float, most: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        ticks = np.minimum(seconds / tick, most)
    return np.floor(ticks * (1 - 1e-15)).astype(np.int64)
