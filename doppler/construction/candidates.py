"""The candidates of one growing placement with what SEL sees of them, kept up step by step.

`PlacementRelations.candidates` lists and describes all candidates anew at every step. Here a list
lives as long as its episode: an op enters when its last input is placed, leaves when it is placed,
and is touched in between only when a sibling is placed. What changes at every step (how long ago
that was, how far each start is behind the first) is a few vectorised loops over the list, so that a
step among thousands of candidates takes microseconds.

The list is not sorted; its order depends on nothing but the episode's steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.simulator.jit import compiled, inlined, reducing, vectorised

NUM_STATE_FEATURES = 4
"""Of SEL: consumer_progress, sibling_recency, ready_recency, start_behind_first."""

_ONE = np.float32(1.0)
_NEVER = np.float32(-np.inf)
_BLOCK = 64
"""Candidates that sampling skips or looks through at a time."""


class CandidateGraph(NamedTuple):
    """What the candidates' features depend on. `N` ops, `D` devices."""

    succ_ptr: np.ndarray  # (N + 1,)
    succ_ops: np.ndarray  # (num_edges,)
    pred_ptr: np.ndarray  # (N + 1,)
    pred_ops: np.ndarray  # (num_edges,)
    latency: np.ndarray  # (D, D) [s]
    rate: np.ndarray  # (D, D) [s/B] or [1]
    volume: np.ndarray  # (N,) [B] or [s]
    per_op: float  # 1 / mean seconds of an op [1/s]


class SelTables(NamedTuple):
    """SEL's part of `doppler.policies.dual_policy.PolicyTables`. `S` is 0 or 4."""

    scores: np.ndarray  # (N + 1,) float32
    gains: np.ndarray  # (N + 1, S) float32


class CandidateList(NamedTuple):
    """One episode's candidates; slot i of every (.., N) array belongs to candidate `ids[i]`."""

    size: np.ndarray  # (1,) how many
    ids: np.ndarray  # (N,)
    where: np.ndarray  # (N,) slot of each op, -1 for no candidate
    missing: np.ndarray  # (N,) predecessors of each op that are not placed
    touched: np.ndarray  # (N,) float32 step that last placed an input of each op, else -inf
    score: np.ndarray  # (N,) float32
    gains: np.ndarray  # (S, N) float32
    progress: np.ndarray  # (N,) float32 the feature itself
    sibling: np.ndarray  # (N,) float32 step that last placed a co-producer, else -inf
    ready: np.ndarray  # (N,) float32 step that placed its last input, else -inf
    arrival: np.ndarray  # (D, N) when its inputs are on each device, links uncontended [s]
    start: np.ndarray  # (N,) earliest start [s]
    logits: np.ndarray  # (N,) float32
    chances: np.ndarray  # (N,) float32 exp of the logits, over the greatest
    slopes: np.ndarray  # (N,) float32 of the loss, by logit
    sums: np.ndarray  # (1 + S, N) float32 the same by score and gains, summed over steps


def make_candidate_list(num_ops: int, num_devices: int, num_features: int) -> CandidateList:
    """Allocates a list; `open_list` fills it."""
    row = (num_ops,)
    return CandidateList(
        size=np.zeros(1, np.int64),
        **{name: np.empty(row, np.int64) for name in ("ids", "where", "missing")},
        **{name: np.empty(row, np.float32) for name in ("touched", "score", "progress")},
        gains=np.empty((num_features, num_ops), np.float32),
        **{name: np.empty(row, np.float32) for name in ("sibling", "ready")},
        arrival=np.empty((num_devices, num_ops)),
        start=np.empty(row),
        **{name: np.empty(row, np.float32) for name in ("logits", "chances", "slopes")},
        sums=np.empty((1 + num_features, num_ops), np.float32),
    )


@inlined
def _append(
    g: CandidateGraph,
    c: CandidateList,
    t: SelTables,
    b: int,
    op: int,
    step: int,
    devices: np.ndarray,
    finish: np.ndarray,
) -> None:
    slot = c.size[0]
    c.size[0] = slot + 1
    c.ids[slot] = op
    c.where[op] = slot
    c.score[slot] = t.scores[op]
    for k in range(len(c.sums)):
        c.sums[k, slot] = 0.0
    if len(c.gains) == 0:
        return
    for k in range(len(c.gains)):
        c.gains[k, slot] = t.gains[op, k]
    c.ready[slot] = c.touched[op]
    progress, sibling = 0.0, _NEVER
    for i in range(g.succ_ptr[op], g.succ_ptr[op + 1]):
        consumer = g.succ_ops[i]
        progress = max(progress, _progress(g, c, consumer))
        sibling = max(sibling, c.touched[consumer])
    c.progress[slot] = progress
    c.sibling[slot] = sibling
    num_devices = len(g.latency)
    for d in range(num_devices):
        c.arrival[d, slot] = 0.0
    for i in range(g.pred_ptr[op], g.pred_ptr[op + 1]):
        pred = g.pred_ops[i]
        source = devices[b, pred]
        for d in range(num_devices):
            seconds = g.latency[source, d] + g.volume[pred] * g.rate[source, d]
            c.arrival[d, slot] = max(c.arrival[d, slot], finish[b, pred] + seconds)


@inlined
def _progress(g: CandidateGraph, c: CandidateList, consumer: int) -> float:
    """Share of a candidate's co-producers for `consumer` that are placed."""
    inputs = g.pred_ptr[consumer + 1] - g.pred_ptr[consumer]
    return (inputs - c.missing[consumer]) / max(inputs - 1, 1)


@inlined
def _remove(c: CandidateList, op: int) -> None:
    """Fills the op's slot with the last one."""
    last = c.size[0] - 1
    c.size[0] = last
    slot = c.where[op]
    c.where[op] = -1
    if slot == last:
        return
    c.ids[slot] = c.ids[last]
    c.where[c.ids[slot]] = slot
    c.score[slot] = c.score[last]
    for k in range(len(c.sums)):
        c.sums[k, slot] = c.sums[k, last]
    if len(c.gains) == 0:
        return
    for k in range(len(c.gains)):
        c.gains[k, slot] = c.gains[k, last]
    c.progress[slot] = c.progress[last]
    c.sibling[slot] = c.sibling[last]
    c.ready[slot] = c.ready[last]
    for d in range(len(c.arrival)):
        c.arrival[d, slot] = c.arrival[d, last]


@compiled
def open_list(
    g: CandidateGraph,
    c: CandidateList,
    t: SelTables,
    b: int,
    devices: np.ndarray,
    finish: np.ndarray,
) -> None:
    """Lists the candidates of an empty placement; arguments as for `advance`."""
    c.size[0] = 0
    for op in range(len(c.ids)):
        c.where[op] = -1
        c.touched[op] = _NEVER
        c.missing[op] = g.pred_ptr[op + 1] - g.pred_ptr[op]
    for op in range(len(c.ids)):
        if c.missing[op] == 0:
            _append(g, c, t, b, op, -1, devices, finish)


@compiled
def advance(
    g: CandidateGraph,
    c: CandidateList,
    t: SelTables,
    b: int,
    op: int,
    step: int,
    devices: np.ndarray,
    finish: np.ndarray,
) -> None:
    """Takes in that a step placed a candidate.

    Args:
        g, c, t: the graph, the list and SEL's tables.
        b: row of the episode in `devices` and `finish`.
        op: what was placed.
        step: at which step, from 0.
        devices, finish: of ops already placed, this one included. # (batch, N)
    """
    _remove(c, op)
    for i in range(g.succ_ptr[op], g.succ_ptr[op + 1]):
        consumer = g.succ_ops[i]
        c.missing[consumer] -= 1
        c.touched[consumer] = step
    for i in range(g.succ_ptr[op], g.succ_ptr[op + 1]):
        consumer = g.succ_ops[i]
        if c.missing[consumer] == 0:
            _append(g, c, t, b, consumer, step, devices, finish)
        if len(c.gains) == 0:
            continue
        progress = np.float32(_progress(g, c, consumer))
        for j in range(g.pred_ptr[consumer], g.pred_ptr[consumer + 1]):
            slot = c.where[g.pred_ops[j]]
            if slot >= 0:
                c.progress[slot] = max(c.progress[slot], progress)
                c.sibling[slot] = step


@vectorised
def _fill(values: np.ndarray, count: int, value: float) -> None:
    for i in range(count):
        values[i] = value


@vectorised
def _start_on(arrival: np.ndarray, device: int, free: float, count: int, start: np.ndarray) -> None:
    for i in range(count):
        time = arrival[device, i] if arrival[device, i] > free else free
        start[i] = time if time < start[i] else start[i]


@reducing
def least(values: np.ndarray, count: int) -> float:
    lowest = values[0]
    for i in range(count):
        lowest = values[i] if values[i] < lowest else lowest
    return lowest


@reducing
def _greatest(values: np.ndarray, count: int) -> float:
    greatest = values[0]
    for i in range(count):
        greatest = values[i] if values[i] > greatest else greatest
    return greatest


@reducing
def _sum(values: np.ndarray, first: int, end: int) -> np.float32:
    total = np.float32(0.0)
    for i in range(first, end):
        total += values[i]
    return total


@vectorised
def _add_siblings_part(
    score: np.ndarray,
    gains: np.ndarray,
    progress: np.ndarray,
    sibling: np.ndarray,
    now: float,
    count: int,
    logits: np.ndarray,
) -> None:
    for i in range(count):
        recency = _ONE / (now - sibling[i])
        logits[i] = score[i] + gains[0, i] * progress[i] + gains[1, i] * recency


@vectorised
def _add_own_part(
    gains: np.ndarray,
    ready: np.ndarray,
    start: np.ndarray,
    first: float,
    per_op: float,
    now: float,
    count: int,
    logits: np.ndarray,
) -> None:
    for i in range(count):
        behind = np.float32((start[i] - first) * per_op)
        recency = _ONE / (now - ready[i])
        logits[i] += gains[2, i] * recency + gains[3, i] * (behind / (_ONE + behind))


@vectorised
def _copy(values: np.ndarray, count: int, out: np.ndarray) -> None:
    for i in range(count):
        out[i] = values[i]


@compiled
def score_candidates(
    g: CandidateGraph, c: CandidateList, b: int, step: int, device_free: np.ndarray
) -> None:
    """Fills `logits`, and `start` where it matters.

    Args:
        g, c: the graph and the list.
        b: row of the episode in `device_free`.
        step: that is about to be made, from 0.
        device_free: when each device's first slot is free. # (batch, D) [s]
    """
    count = c.size[0]
    if len(c.gains) == 0:
        _copy(c.score, count, c.logits)
        return
    _fill(c.start, count, np.inf)
    for d in range(len(g.latency)):
        _start_on(c.arrival, d, device_free[b, d], count, c.start)
    now = np.float32(step)
    _add_siblings_part(c.score, c.gains, c.progress, c.sibling, now, count, c.logits)
    first = least(c.start, count)
    _add_own_part(c.gains, c.ready, c.start, first, g.per_op, now, count, c.logits)


_FLOOR = np.float32(-87.0)
_PER_LN2 = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits, so that its products with whole numbers are exact
_LN2_LOW = np.float32(0.6931471805599453 - 0.693359375)
_HALF = np.float32(0.5)
_TAYLOR = tuple(np.float32(1.0 / n) for n in (5040, 720, 120, 24, 6, 2))


@vectorised
def _exponentials(
    logits: np.ndarray, count: int, greatest: float, scale: float, out: np.ndarray
) -> None:
    """exp((logits - greatest) * scale), at least exp(-87), to single precision.

    2^n exp(r) with the Taylor series for exp(r), |r| <= ln(2) / 2; its next term is below 1e-8.
    """
    c7, c6, c5, c4, c3, c2 = _TAYLOR
    for i in range(count):
        x = (logits[i] - greatest) * scale
        x = x if x > _FLOOR else _FLOOR
        n = np.floor(x * _PER_LN2 + _HALF)
        r = (x - n * _LN2_HIGH) - n * _LN2_LOW
        series = ((((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2) * r + _ONE) * r + _ONE
        power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23))
        out[i] = series * power.view(np.float32)


@compiled
def softmax(c: CandidateList, temperature: float) -> tuple[float, float]:
    """Fills `chances`; returns the greatest logit, and the sum of the chances."""
    count = c.size[0]
    greatest = _greatest(c.logits, count)
    _exponentials(c.logits, count, greatest, np.float32(1.0 / temperature), c.chances)
    total = 0.0
    for first in range(0, count, _BLOCK):
        total += _sum(c.chances, first, min(first + _BLOCK, count))
    return greatest, total


@compiled
def best_slot(c: CandidateList, greatest: float) -> int:
    """The candidate of the greatest logit, of equals that of the lowest id."""
    best = -1
    for i in range(c.size[0]):
        if c.logits[i] == greatest and (best < 0 or c.ids[i] < c.ids[best]):
            best = i
    return max(best, 0)


@compiled
def draw_slot(c: CandidateList, draw: float, exploration: float, total: float) -> int:
    """The slot at which the summed mixture passes `draw`, -1 if rounding keeps it below."""
    count = c.size[0]
    own, uniform = (1.0 - exploration) / total, exploration / count
    passed = 0.0
    for first in range(0, count, _BLOCK):
        end = min(first + _BLOCK, count)
        block = own * _sum(c.chances, first, end) + uniform * (end - first)
        if draw >= passed + block:
            passed += block
            continue
        for slot in range(first, end):
            passed += own * c.chances[slot] + uniform
            if draw < passed:
                return slot
        return end - 1
    return -1


@compiled
def slot_log_likelihood(
    c: CandidateList,
    slot: int,
    greatest: float,
    total: float,
    exploration: float,
    temperature: float,
) -> float:
    """Of one candidate under the mixture."""
    behind = (np.float64(c.logits[slot]) - greatest) / temperature
    if exploration == 0.0:
        return behind - np.log(total)
    return np.log((1.0 - exploration) * np.exp(behind) / total + exploration / c.size[0])
