"""PLC's likelihoods of recorded episodes, and the loss's slopes; see `replay` for the loss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.construction.device_head import (
    DeviceHead,
    HeadSlopes,
    HeadState,
    empty_pools,
    pool,
    score_devices,
    slope_back,
)
from doppler.construction.replay import Found, Played, Weights, share_of_policy
from doppler.simulator.jit import compiled, entry, vectorised


class PlcScratch(NamedTuple):
    """Of one episode at a time."""

    logits: np.ndarray  # (D,) over the temperature
    chances: np.ndarray  # (D,)
    slopes: np.ndarray  # (1, D) float32
    owed: np.ndarray  # (D, K) slopes by each op on a device, from the steps so far
    owed_before: np.ndarray  # (N, K) the same when each step's op came


@compiled
def _device_softmax(
    s: HeadState, x: PlcScratch, played: Played, b: int, step: int
) -> tuple[float, float, int]:
    """Fills `logits` (infinitely low where forbidden) and `chances`.

    Returns the logarithm of the sum of their exponentials, the entropy, and how many are allowed.
    """
    masked = len(played.device_masks) > 0
    greatest, options = -np.inf, 0
    for d in range(len(x.logits)):
        x.logits[d] = -np.inf
        if not masked or played.device_masks[step, b, d]:
            x.logits[d] = s.logits[0, d] / played.temperature
            greatest = max(greatest, x.logits[d])
            options += 1
    total = 0.0
    for d in range(len(x.logits)):
        x.chances[d] = np.exp(x.logits[d] - greatest)
        total += x.chances[d]
    log_total = greatest + np.log(total)
    entropy = 0.0
    for d in range(len(x.logits)):
        x.chances[d] /= total
        if x.chances[d] > 0.0:
            entropy -= x.chances[d] * (x.logits[d] - log_total)
    return log_total, entropy, options


@vectorised
def _add_over(rows: np.ndarray, row: int, count: float, out: np.ndarray) -> None:
    for k in range(out.shape[1]):
        out[row, k] += rows[row, k] / count


@vectorised
def _remember(rows: np.ndarray, row: int, out: np.ndarray, place: int) -> None:
    for k in range(out.shape[1]):
        out[place, k] = rows[row, k]


@vectorised
def _settle(
    owed: np.ndarray,
    device: int,
    before: np.ndarray,
    step: int,
    out: np.ndarray,
    group: int,
    op: int,
) -> None:
    for k in range(owed.shape[1]):
        out[group, op, k] += np.float32(owed[device, k] - before[step, k])


@compiled
def _see(played: Played, b: int, step: int, s: HeadState) -> None:
    for d in range(s.features.shape[1]):
        for k in range(s.features.shape[2]):
            s.features[0, d, k] = played.device_features[step, b, d, k]


@compiled
def _replay_plc(
    h: DeviceHead,
    s: HeadState,
    x: PlcScratch,
    played: Played,
    w: Weights,
    found: Found,
    slopes: HeadSlopes,
    group: int,
    b: int,
) -> None:
    """What a step's pools get is due to all ops on them: each op, from all steps after its own."""
    exploration, temperature = played.exploration, played.temperature
    num_devices, steps = len(x.logits), played.ops.shape[1]
    empty_pools(s)
    for d in range(num_devices):
        for k in range(x.owed.shape[1]):
            x.owed[d, k] = 0.0
    for step in range(steps):
        op, device = played.ops[b, step], played.devices[b, step]
        _see(played, b, step, s)
        score_devices(h, s, op)
        log_total, entropy, options = _device_softmax(s, x, played, b, step)
        own = x.logits[device] - log_total
        mixture = own
        if exploration > 0.0:
            mixture = np.log((1.0 - exploration) * np.exp(own) + exploration / options)
        found.log_likelihood[b, step] = mixture
        found.entropy[b, step] = entropy
        if w.differentiate:
            pull = w.advantage[b] * share_of_policy(own, mixture, exploration)
            for d in range(num_devices):
                slope = pull * x.chances[d]
                if x.chances[d] > 0.0:
                    surprise = x.logits[d] - log_total + entropy
                    slope += w.plc_entropy[b] * x.chances[d] * surprise
                if d == device:
                    slope -= pull
                x.slopes[0, d] = slope / temperature
            slope_back(h, s, op, x.slopes, slopes, group)
            for d in range(num_devices):
                if s.pool_counts[d] > 0:
                    _add_over(s.second_slopes, d, np.float32(s.pool_counts[d]), x.owed)
            _remember(x.owed, device, x.owed_before, step)
        pool(h, s, op, device)
    if w.differentiate:
        for step in range(steps):
            op, device = played.ops[b, step], played.devices[b, step]
            _settle(x.owed, device, x.owed_before, step, slopes.pool_rows, group, op)


@entry
def replay_plc(
    h: DeviceHead,
    s: HeadState,
    x: PlcScratch,
    played: Played,
    w: Weights,
    found: Found,
    slopes: HeadSlopes,
    group: int,
    first: int,
    end: int,
) -> None:
    """PLC's part of episodes `first` to `end` - 1; arguments as for `replay_sel`.

    Args:
        h: the head.
        s, x: scratch of this call alone.
        played, w, found, slopes, group, first, end: see `replay_sel`.
    """
    for b in range(first, end):
        _replay_plc(h, s, x, played, w, found, slopes, group, b)
