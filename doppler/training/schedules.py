"""Hyper-parameters that change during a stage."""

from __future__ import annotations


def linear(first: float, last: float, update: int, num_updates: int) -> float:
    """Value at an update, `first` at update 0 and `last` at update num_updates - 1."""
    if num_updates <= 1:
        return first
    share = update / (num_updates - 1)
    # not first + (last - first) * share, whose rounding can end beyond `last`
    return first * (1.0 - share) + last * share
