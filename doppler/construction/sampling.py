"""Choosing among listed options, one row per episode.

A kernel, because at every step of a roll-out the lists are so short that calls into array libraries
would take several times as long as the arithmetic.
"""

from __future__ import annotations

import numpy as np

from doppler.simulator.jit import compiled, entry


@compiled
def choose_in_row(
    logits: np.ndarray,
    row: int,
    count: int,
    legal: np.ndarray,
    draw: float,
    forced: int,
    exploration: float,
    temperature: float,
    greedy: bool,
    chances: np.ndarray,
) -> int:
    """Picks a slot of one row and leaves all slots' chances under the mixture in `chances`.

    Args:
        logits, row: # (rows, width) float32
        count: only the first so many slots exist, at least 1.
        legal: which of these may be taken, or (0, 0) where all may. # (rows, width) bool
        draw: uniform number in [0, 1).
        forced: a slot that must be taken, or -1.
        exploration, temperature, greedy: see `choose`.
        chances: scratch. # (width,)
    """
    masked = len(legal) > 0
    best = -1
    options = 0
    for slot in range(count):
        if masked and not legal[row, slot]:
            continue
        options += 1
        if best < 0 or logits[row, slot] > logits[row, best]:
            best = slot
    total = 0.0
    for slot in range(count):
        chances[slot] = 0.0
        if not masked or legal[row, slot]:
            chances[slot] = np.exp((logits[row, slot] - logits[row, best]) / temperature)
        total += chances[slot]
    for slot in range(count):
        chances[slot] = (1.0 - exploration) * chances[slot] / total
        if not masked or legal[row, slot]:
            chances[slot] += exploration / options
    if forced >= 0:
        return forced
    if greedy:
        return best
    passed = 0.0
    for slot in range(count):
        passed += chances[slot]
        if draw < passed:
            return slot
    return best  # where rounding leaves the sum below the draw


@entry
def choose(
    logits: np.ndarray,
    counts: np.ndarray,
    legal: np.ndarray,
    draws: np.ndarray,
    forced: np.ndarray,
    exploration: float,
    temperature: float,
    greedy: bool,
    slots: np.ndarray,
    log_likelihoods: np.ndarray,
) -> None:
    """Picks a slot of each row from (1 - exploration) * softmax(logits / temperature) + uniform.

    Args:
        logits: # (rows, width) float32
        counts: only the first so many slots of a row exist, at least 1. # (rows,)
        legal: which of these may be taken, at least one in each row, or (0, 0) where all may.
            # (rows, width) bool
        draws: uniform numbers in [0, 1). # (rows,)
        forced: slots that the last rows must take. # (at most rows,)
        exploration: share of the uniform distribution.
        temperature: above 0.
        greedy: take the greatest logit (the first of equals) instead of drawing.
        slots: gets the picks. # (rows,)
        log_likelihoods: gets their log-likelihoods, under the mixture. # (rows,)
    """
    rows, width = logits.shape
    chances = np.empty(width)
    for row in range(rows):
        shown = row - (rows - len(forced))
        pick = choose_in_row(
            logits, row, counts[row], legal, draws[row], forced[shown] if shown >= 0 else -1,
            exploration, temperature, greedy, chances,
        )  # fmt: skip
        slots[row] = pick
        log_likelihoods[row] = np.log(chances[pick])
