"""Whole episodes of SEL and PLC in one kernel, episode by episode.

One step needs a few microseconds of arithmetic; calls into array libraries for each step of each
half of it would take longer. Episodes are independent, so threads share a batch out among them,
and what an episode does depends on nothing but its own draws.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.construction.arrays import ProblemArrays, StateArrays
from doppler.construction.candidates import (
    CandidateGraph,
    CandidateList,
    SelTables,
    advance,
    best_slot,
    draw_slot,
    open_list,
    score_candidates,
    slot_log_likelihood,
    softmax,
)
from doppler.construction.device_head import (
    DeviceHead,
    HeadState,
    empty_pools,
    pool,
    score_devices,
)
from doppler.construction.kernel import _allowed, _describe, _place
from doppler.construction.relations import (
    RelationProblem,
    RelationState,
    describe_devices,
    take_in,
)
from doppler.construction.sampling import choose_in_row
from doppler.simulator.jit import compiled, entry

COMPLETE, NO_CANDIDATE, FORBIDDEN = 0, 1, 2
"""How an episode ended: all ops placed, or at a forced op or device that may not be chosen."""


class EpisodeProblem(NamedTuple):
    """What does not change during a roll-out."""

    construction: ProblemArrays
    relations: RelationProblem
    candidates: CandidateGraph
    sel: SelTables
    plc: DeviceHead
    constrained: bool


class EpisodeState(NamedTuple):
    """Where the episodes stand. Scratch arrays serve one episode after the other."""

    construction: StateArrays
    relations: RelationState
    candidates: CandidateList  # scratch
    plc: HeadState  # scratch
    times: np.ndarray  # (1, D, 5) scratch [s]
    shares: np.ndarray  # (3, D) scratch
    chances: np.ndarray  # (D,) scratch
    legal: np.ndarray  # (1, D) bool scratch, or (0, 0) without constraints


class Choices(NamedTuple):
    """How episodes choose."""

    exploration: float
    temperature: float
    greedy: bool
    draws: np.ndarray  # (N, 2, B) float32 in [0, 1)
    forced_ops: np.ndarray  # (episodes, N) of the last rows
    forced_devices: np.ndarray  # (episodes, N)


class EpisodeRecord(NamedTuple):
    """What the episodes did and saw. `R` is N where it is recorded, else 0."""

    ops: np.ndarray  # (B, N) of each step
    devices: np.ndarray  # (B, N) of each step
    sel: np.ndarray  # (B, N) float32 log-likelihoods
    plc: np.ndarray  # (B, N) float32
    device_free: np.ndarray  # (B, N) when the step's device has a slot free afterwards [s]
    device_features: np.ndarray  # (R, B, D, F) float32
    device_masks: np.ndarray  # (R, B, D) bool, R = 0 without constraints
    ended: np.ndarray  # (B,) COMPLETE, or why not


@compiled
def _select(
    f: EpisodeProblem, s: EpisodeState, o: Choices, out: EpisodeRecord, b: int, step: int
) -> int:
    """SEL's half of a step; returns the op, or -1 if a forced one is no candidate."""
    c = s.candidates
    score_candidates(f.candidates, c, b, step, s.construction.device_free)
    greatest, total = softmax(c, o.temperature)
    shown = b - (out.ops.shape[0] - o.forced_ops.shape[0])
    slot = -1
    if shown >= 0:
        op = o.forced_ops[shown, step]
        if op < 0 or op >= out.ops.shape[1] or c.where[op] < 0:
            return -1
        slot = c.where[op]
    elif not o.greedy:
        slot = draw_slot(c, o.draws[step, 0, b], o.exploration, total)
    if slot < 0:
        slot = best_slot(c, greatest)
    out.sel[b, step] = slot_log_likelihood(c, slot, greatest, total, o.exploration, o.temperature)
    out.ops[b, step] = c.ids[slot]
    return c.ids[slot]


@compiled
def _choose_device(
    f: EpisodeProblem, s: EpisodeState, o: Choices, out: EpisodeRecord, b: int, step: int, op: int
) -> int:
    """PLC's half of a step; returns the device, or -1 if a forced one may not be chosen."""
    num_devices = s.chances.shape[0]
    _describe(f.construction, s.construction, b, op, s.times, 0)
    describe_devices(f.relations, s.relations, b, op, s.times, 0, s.shares, s.plc.features)
    score_devices(f.plc, s.plc, op)
    if len(out.device_features) > 0:
        for d in range(num_devices):
            for k in range(s.plc.features.shape[2]):
                out.device_features[step, b, d, k] = s.plc.features[0, d, k]
    if f.constrained:
        for d in range(num_devices):
            s.legal[0, d] = _allowed(f.construction, s.construction, b, op, d)
            if len(out.device_masks) > 0:
                out.device_masks[step, b, d] = s.legal[0, d]
    shown = b - (out.ops.shape[0] - o.forced_ops.shape[0])
    forced = -1
    if shown >= 0:
        forced = o.forced_devices[shown, step]
        out.devices[b, step] = forced
        if forced < 0 or forced >= num_devices or (f.constrained and not s.legal[0, forced]):
            return -1
    device = choose_in_row(
        s.plc.logits, 0, num_devices, s.legal, o.draws[step, 1, b], forced,
        o.exploration, o.temperature, o.greedy, s.chances,
    )  # fmt: skip
    out.plc[b, step] = np.log(s.chances[device])
    out.devices[b, step] = device
    return device


@compiled
def _run_episode(f: EpisodeProblem, s: EpisodeState, o: Choices, out: EpisodeRecord, b: int) -> int:
    devices, finish = s.construction.devices, s.construction.finish
    open_list(f.candidates, s.candidates, f.sel, b, devices, finish)
    empty_pools(s.plc)
    for step in range(out.ops.shape[1]):
        op = _select(f, s, o, out, b, step)
        if op < 0:
            return NO_CANDIDATE
        device = _choose_device(f, s, o, out, b, step, op)
        if device < 0:
            return FORBIDDEN
        _place(f.construction, s.construction, b, op, device)
        take_in(f.relations, s.relations, b, op, device)
        pool(f.plc, s.plc, op, device)
        advance(f.candidates, s.candidates, f.sel, b, op, step, devices, finish)
        out.device_free[b, step] = s.construction.device_free[b, device]
    return COMPLETE


@compiled
def _run_episodes(
    f: EpisodeProblem, s: EpisodeState, o: Choices, out: EpisodeRecord, first: int, end: int
) -> None:
    for b in range(first, end):
        out.ended[b] = _run_episode(f, s, o, out, b)


@entry
def run_episodes(
    f: EpisodeProblem, s: EpisodeState, o: Choices, out: EpisodeRecord, first: int, end: int
) -> None:
    """Runs episodes `first` to `end` - 1, whose state must be empty.

    Args:
        f: problem and policy.
        s: state, with scratch arrays of this call alone.
        o: how they choose.
        out: gets what they did. An episode that ends early has what it tried at the step
            `s.construction.counts[b]`.
        first, end: range of episodes.
    """
    _run_episodes(f, s, o, out, first, end)
