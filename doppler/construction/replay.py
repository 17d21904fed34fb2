"""SEL's likelihoods of recorded episodes, and the loss's slopes, from what the steps left behind.

Lists of candidates would take (steps x candidates) of memory for every episode. They follow from
ops, devices and times, so a replay builds them again, one step at a time. PLC's part, which is
independent of SEL's, is in `plc_replay`.

The loss is -sum over decisions (advantage * log-likelihood + entropy_weight * entropy), under the
mixture and of the policy alone. The slopes by logit j, with p the policy at this temperature, H its
entropy, c the choice and k = share of the policy in the mixture's likelihood of c:

    (advantage * k * (p_j - [j = c]) + entropy_weight * p_j * (log p_j + H)) / temperature
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.construction.candidates import (
    CandidateGraph,
    CandidateList,
    SelTables,
    advance,
    least,
    open_list,
    score_candidates,
    slot_log_likelihood,
    softmax,
)
from doppler.simulator.jit import compiled, entry, reducing, vectorised

_ONE = np.float32(1.0)


class Played(NamedTuple):
    """Recorded episodes. `B` episodes of `N` steps."""

    ops: np.ndarray  # (B, N) of each step
    devices: np.ndarray  # (B, N) of each step
    device_of: np.ndarray  # (B, N) of each op
    finish: np.ndarray  # (B, N) of each op [s]
    device_free: np.ndarray  # (B, N) see `EpisodeRecord`
    device_features: np.ndarray  # (N, B, D, F) float32
    device_masks: np.ndarray  # (N, B, D) bool, or (0, B, D)
    exploration: float
    temperature: float


class Weights(NamedTuple):
    """What an episode's decisions count in the loss."""

    advantage: np.ndarray  # (B,)
    sel_entropy: np.ndarray  # (B,)
    plc_entropy: np.ndarray  # (B,)
    differentiate: bool  # whether slopes are wanted


class Found(NamedTuple):
    """Results of one policy."""

    log_likelihood: np.ndarray  # (B, N) float32
    entropy: np.ndarray  # (B, N) float32


class SelSlopes(NamedTuple):
    """Slopes of the loss by SEL's tables, float32, added up per group of episodes `G`."""

    scores: np.ndarray  # (G, N + 1)
    gains: np.ndarray  # (G, N + 1, S)


@reducing
def _mean_behind(
    chances: np.ndarray, logits: np.ndarray, greatest: float, scale: float, count: int
) -> np.float32:
    total = np.float32(0.0)
    for i in range(count):
        total += chances[i] * ((logits[i] - greatest) * scale)
    return total


@vectorised
def _slopes_by_logit(
    chances: np.ndarray,
    logits: np.ndarray,
    greatest: float,
    base: float,
    tilt: float,
    count: int,
    out: np.ndarray,
) -> None:
    for i in range(count):
        out[i] = chances[i] * (base + tilt * (logits[i] - greatest))


@vectorised
def _add(values: np.ndarray, count: int, sums: np.ndarray, row: int) -> None:
    for i in range(count):
        sums[row, i] += values[i]


@vectorised
def _add_times(
    values: np.ndarray, factors: np.ndarray, count: int, sums: np.ndarray, row: int
) -> None:
    for i in range(count):
        sums[row, i] += values[i] * factors[i]


@vectorised
def _add_recent(
    values: np.ndarray, steps: np.ndarray, now: float, count: int, sums: np.ndarray, row: int
) -> None:
    for i in range(count):
        sums[row, i] += values[i] / (now - steps[i])


@vectorised
def _add_behind(
    values: np.ndarray,
    start: np.ndarray,
    first: float,
    per_op: float,
    count: int,
    sums: np.ndarray,
    row: int,
) -> None:
    for i in range(count):
        behind = np.float32((start[i] - first) * per_op)
        sums[row, i] += values[i] * (behind / (_ONE + behind))


@compiled
def _add_sel_slopes(
    g: CandidateGraph,
    c: CandidateList,
    step: int,
    slot: int,
    greatest: float,
    total: float,
    pull: float,
    entropy_weight: float,
    entropy: float,
    temperature: float,
) -> None:
    """Adds one step's slopes to the candidates' sums; `pull` is advantage * k."""
    count = c.size[0]
    base = (pull + entropy_weight * (entropy - np.log(total))) / (total * temperature)
    tilt = entropy_weight / (total * temperature * temperature)
    _slopes_by_logit(
        c.chances, c.logits, greatest, np.float32(base), np.float32(tilt), count, c.slopes
    )
    c.slopes[slot] -= np.float32(pull / temperature)
    _add(c.slopes, count, c.sums, 0)
    if len(c.gains) == 0:
        return
    now = np.float32(step)
    _add_times(c.slopes, c.progress, count, c.sums, 1)
    _add_recent(c.slopes, c.sibling, now, count, c.sums, 2)
    _add_recent(c.slopes, c.ready, now, count, c.sums, 3)
    first = least(c.start, count)
    _add_behind(c.slopes, c.start, first, g.per_op, count, c.sums, 4)


@compiled
def share_of_policy(log_policy: float, log_mixture: float, exploration: float) -> float:
    """The policy's share in the mixture's likelihood of a choice."""
    if exploration == 0.0:
        return 1.0
    if exploration >= 1.0:
        return 0.0
    return (1.0 - exploration) * np.exp(log_policy - log_mixture)


@compiled
def _replay_sel(
    g: CandidateGraph,
    t: SelTables,
    c: CandidateList,
    free: np.ndarray,
    played: Played,
    w: Weights,
    found: Found,
    slopes: SelSlopes,
    group: int,
    b: int,
) -> None:
    exploration, temperature = played.exploration, played.temperature
    scale = np.float32(1.0 / temperature)
    open_list(g, c, t, b, played.device_of, played.finish)
    for d in range(free.shape[1]):
        free[0, d] = 0.0
    for step in range(played.ops.shape[1]):
        op = played.ops[b, step]
        slot = c.where[op]
        score_candidates(g, c, 0, step, free)
        greatest, total = softmax(c, temperature)
        mixture = slot_log_likelihood(c, slot, greatest, total, exploration, temperature)
        behind = _mean_behind(c.chances, c.logits, greatest, scale, c.size[0])
        entropy = np.log(total) - behind / total
        found.log_likelihood[b, step] = mixture
        found.entropy[b, step] = entropy
        if w.differentiate:
            own = slot_log_likelihood(c, slot, greatest, total, 0.0, temperature)
            pull = w.advantage[b] * share_of_policy(own, mixture, exploration)
            _add_sel_slopes(
                g, c, step, slot, greatest, total, pull, w.sel_entropy[b], entropy, temperature
            )
            slopes.scores[group, op] += c.sums[0, slot]
            for k in range(1, len(c.sums)):
                slopes.gains[group, op, k - 1] += c.sums[k, slot]
        advance(g, c, t, b, op, step, played.device_of, played.finish)
        free[0, played.devices[b, step]] = played.device_free[b, step]


@entry
def replay_sel(
    g: CandidateGraph,
    t: SelTables,
    c: CandidateList,
    free: np.ndarray,
    played: Played,
    w: Weights,
    found: Found,
    slopes: SelSlopes,
    group: int,
    first: int,
    end: int,
) -> None:
    """SEL's part of episodes `first` to `end` - 1.

    Args:
        g, t: the graph, SEL's tables.
        c, free: scratch of this call alone. # free: (1, D)
        played: the episodes.
        w: their weights.
        found: gets log-likelihoods and entropies.
        slopes, group: row `group` is added to.
        first, end: range of episodes.
    """
    for b in range(first, end):
        _replay_sel(g, t, c, free, played, w, found, slopes, group, b)
