"""Between a policy's tensors and the kernels that run and replay its episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from doppler.construction import Construction
from doppler.construction.candidates import CandidateGraph, SelTables, make_candidate_list
from doppler.construction.device_head import (
    DeviceHead,
    HeadSlopes,
    make_head_slopes,
    make_head_state,
)
from doppler.construction.episodes import (
    Choices,
    EpisodeProblem,
    EpisodeRecord,
    EpisodeState,
    run_episodes,
)
from doppler.construction.kernel import NUM_DEVICE_FEATURES
from doppler.construction.plc_replay import PlcScratch, replay_plc
from doppler.construction.relations import PlacementRelations
from doppler.construction.replay import Found, Played, SelSlopes, Weights, replay_sel
from doppler.policies.dual_policy import DualPolicy, PlcHead, PolicyTables
from doppler.simulator.threads import map_chunks

_STEP_WORK = 200
"""What an op of an episode costs, in ops of a simulation."""
_GROUPS = 8
"""Most sums that a replay's slopes are first added up in; fixed, so that threads change no bit."""


@dataclass(frozen=True, eq=False)
class Trace:
    """What it takes to list a batch's candidates once more.

    Args:
        finish: estimated finish of each op, indexed by op. # (batch, num_ops) [s]
        device_free: when each *step's* device has a slot free afterwards. # (batch, num_ops) [s]
        graph: what the candidates' features depend on besides.
    """

    finish: np.ndarray
    device_free: np.ndarray
    graph: CandidateGraph


def kernel_head(policy: object) -> PlcHead | None:
    """The policy's PLC head if the kernels know how the policy chooses, else None."""
    if type(policy) is DualPolicy and type(policy.plc) is PlcHead:
        return policy.plc
    return None


def run_whole_episodes(
    construction: Construction,
    relations: PlacementRelations,
    plc: PlcHead,
    tables: PolicyTables,
    choices: Choices,
    record: bool,
) -> EpisodeRecord:
    """Runs a batch of episodes from empty placements on all available cores.

    Args:
        construction, relations: empty; they are left where the episodes ended.
        plc: the policy's PLC head.
        tables: encoded by the policy.
        choices: how episodes choose.
        record: whether to keep device features and masks.
    """
    problem = construction.problem
    head = _device_head(plc, tables)
    fixed = EpisodeProblem(
        construction.arrays,
        relations.fixed,
        relations.candidate_graph,
        _sel_tables(tables),
        head,
        problem.constrained,
    )
    out = _empty_record(construction, head.w1.shape[0], record)
    num_features = fixed.sel.gains.shape[1]
    num_ops, num_devices = problem.num_ops, problem.num_devices

    def run(first: int, end: int) -> None:
        state = EpisodeState(
            construction.state_with_own_scratch(),
            relations.state,
            make_candidate_list(num_ops, num_devices, num_features),
            make_head_state(num_devices, head),
            times=np.empty((1, num_devices, NUM_DEVICE_FEATURES)),
            shares=np.empty((3, num_devices)),
            chances=np.empty(num_devices),
            legal=np.empty((1, num_devices) if problem.constrained else (0, 0), bool),
        )
        run_episodes(fixed, state, choices, out, first, end)

    map_chunks(run, construction.batch_size, num_ops * _STEP_WORK, None)
    return out


def _empty_record(construction: Construction, num_features: int, record: bool) -> EpisodeRecord:
    problem, batch = construction.problem, construction.batch_size
    shape = (batch, problem.num_ops)
    features = (problem.num_ops if record else 0, batch, problem.num_devices, num_features)
    masks = (problem.num_ops if record and problem.constrained else 0, batch, problem.num_devices)
    return EpisodeRecord(
        ops=np.empty(shape, np.int64),
        devices=np.empty(shape, np.int64),
        sel=np.empty(shape, np.float32),
        plc=np.empty(shape, np.float32),
        device_free=np.empty(shape),
        device_features=np.empty(features, np.float32),
        device_masks=np.empty(masks, bool),
        ended=np.zeros(batch, np.int64),
    )


@dataclass(frozen=True, eq=False)
class Replay:
    """Both policies' parts of a batch of episodes.

    Args:
        sel, plc: log-likelihoods under the mixture, entropies of the policies. # (batch, num_ops)
        tables: slopes of the loss by the policy's tables.
        weights: slopes of the loss by the PLC head's parameters, by name.
    """

    sel: Found
    plc: Found
    tables: PolicyTables
    weights: dict[str, Tensor]


def replay_episodes(
    plc: PlcHead, tables: PolicyTables, graph: CandidateGraph, played: Played, w: Weights
) -> Replay:
    """Likelihoods of recorded episodes and, if wanted, the loss's slopes.

    Args:
        plc: the policy's PLC head.
        tables: encoded by the policy.
        graph: of the episodes' candidates.
        played: the episodes.
        w: what their decisions count in the loss.
    """
    batch, num_ops = played.ops.shape
    sel, head = _sel_tables(tables), _device_head(plc, tables)
    groups = min(batch, _GROUPS) if w.differentiate else 1
    sel_found, plc_found = (
        Found(*(np.empty((batch, num_ops), np.float32) for _ in Found._fields)) for _ in range(2)
    )
    sel_slopes = SelSlopes(
        np.zeros((groups, *sel.scores.shape), np.float32),
        np.zeros((groups, *sel.gains.shape), np.float32),
    )
    plc_slopes = make_head_slopes(groups, head)
    num_devices = played.device_features.shape[2]

    def run(first: int, end: int) -> None:
        candidates = make_candidate_list(num_ops, num_devices, sel.gains.shape[1])
        free = np.zeros((1, num_devices))
        state, scratch = (
            make_head_state(num_devices, head),
            _plc_scratch(head, num_devices, num_ops),
        )
        for group, episodes in _pieces(batch, groups if w.differentiate else batch, first, end):
            at = group if w.differentiate else 0
            replay_sel(
                graph, sel, candidates, free, played, w, sel_found, sel_slopes, at, *episodes
            )
            replay_plc(head, state, scratch, played, w, plc_found, plc_slopes, at, *episodes)

    pieces = groups if w.differentiate else batch
    map_chunks(run, pieces, batch // pieces * num_ops * _STEP_WORK, None)
    return Replay(sel_found, plc_found, *_slopes(sel_slopes, plc_slopes))


def _pieces(batch: int, pieces: int, first: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    for piece in range(first, end):
        yield piece, (batch * piece // pieces, batch * (piece + 1) // pieces)


def _plc_scratch(head: DeviceHead, num_devices: int, num_ops: int) -> PlcScratch:
    width = len(head.w3)
    return PlcScratch(
        logits=np.empty(num_devices),
        chances=np.empty(num_devices),
        slopes=np.empty((1, num_devices), np.float32),
        owed=np.empty((num_devices, width)),
        owed_before=np.empty((num_ops, width)),
    )


def _slopes(sel: SelSlopes, plc: HeadSlopes) -> tuple[PolicyTables, dict[str, Tensor]]:
    tables = PolicyTables(
        sel_scores=_total(sel.scores),
        sel_gains=_total(sel.gains),
        plc_ops=_total(plc.op_rows),
        plc_pool=_total(plc.pool_rows),
    )
    weights = {
        "embed_device.weight": _total(plc.w1).T.contiguous(),
        "embed_device.bias": _total(plc.b1),
        "of_device.weight": _total(plc.w2).T.contiguous(),
        "last.weight": _total(plc.w3)[None],
        "last.bias": _total(plc.b3),
    }
    return tables, weights


def _total(groups: np.ndarray) -> Tensor:
    return torch.from_numpy(groups.sum(axis=0))


def _sel_tables(tables: PolicyTables) -> SelTables:
    return SelTables(_array(tables.sel_scores), _array(tables.sel_gains))


def _device_head(plc: PlcHead, tables: PolicyTables) -> DeviceHead:
    second = _array(plc.of_device.weight)  # (K, H)
    return DeviceHead(
        w1=np.ascontiguousarray(_array(plc.embed_device.weight).T),
        b1=_array(plc.embed_device.bias),
        w2=np.ascontiguousarray(second.T),
        w2_turned=second,
        w3=_array(plc.last.weight)[0],
        b3=_array(plc.last.bias),
        op_rows=_array(tables.plc_ops),
        pool_rows=_array(tables.plc_pool),
    )


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().numpy())
