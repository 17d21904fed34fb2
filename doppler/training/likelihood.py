"""The gradient pass: log-likelihoods of recorded episodes, recomputed in batches of steps.

Episodes that kernels ran are replayed by kernels, step by step. Of others, steps are handled in
chunks, last chunk first, and each chunk's graph is freed before the next, so memory does not grow
with the number of ops. What one chunk's running sums owe to earlier steps is handed back as a
gradient, so the result is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from doppler.construction.replay import Played, Weights
from doppler.policies.base import Policy
from doppler.policies.dual_policy import NEVER, PlcHead, PolicyTables, sel_logits
from doppler.policies.features import ProblemFeatures
from doppler.training.kernels import Replay, kernel_head, replay_episodes
from doppler.training.rollout import RolloutBatch

STEPS_PER_CHUNK = 32
"""Small enough that a chunk of a usual batch stays in the processor's cache."""


@dataclass(frozen=True, eq=False)
class StepLikelihoods:
    """Of consecutive steps; log-likelihoods under the mixture, entropies of the policies alone."""

    sel: Tensor  # (batch, steps)
    plc: Tensor  # (batch, steps)
    sel_entropy: Tensor  # (batch, steps)
    plc_entropy: Tensor  # (batch, steps)


@dataclass(frozen=True)
class LossWeights:
    """What is minimised: - sum_b weight_b * log-likelihood_b / (batch * num_ops) - entropies.

    The mean over decisions keeps the balance with the entropy terms the same on every graph.

    Args:
        episodes: weight of each episode's log-likelihood. # (batch,)
        sel_entropy: weight of SEL's mean entropy.
        plc_entropy: weight of PLC's mean entropy.
        entropy_rows: only the first so many episodes count for the entropies; None means all.
    """

    episodes: np.ndarray
    sel_entropy: float = 0.0
    plc_entropy: float = 0.0
    entropy_rows: int | None = None


@dataclass(frozen=True)
class LossReport:
    """Means over the decisions of a batch."""

    loss: float
    sel_entropy: float
    plc_entropy: float
    sel_log_likelihood: np.ndarray  # (batch, num_ops)
    plc_log_likelihood: np.ndarray  # (batch, num_ops)


def accumulate_gradient(
    policy: Policy,
    features: ProblemFeatures,
    batch: RolloutBatch,
    weights: LossWeights,
    steps_per_chunk: int = STEPS_PER_CHUNK,
    tables: PolicyTables | None = None,
) -> LossReport:
    """Adds the gradient of the weighted loss to the policy's parameters.

    Args:
        policy: its parameters' `.grad` are added to.
        features: of the problem that `batch` was rolled out on.
        batch: recorded episodes.
        weights: see `LossWeights`.
        steps_per_chunk: steps whose graph is in memory at a time, unless kernels replay the batch.
        tables: `policy.encode(features)` with its graph, if already at hand; used up here.
    """
    tables = tables or policy.encode(features)
    plc = kernel_head(policy)
    if batch.trace is not None and plc is not None:
        return _accumulate_by_replay(plc, tables, batch, weights)
    leaves = PolicyTables(*(table.detach().requires_grad_() for table in tables))
    num_ops = batch.ops.shape[1]
    steps_per_chunk = min(steps_per_chunk, getattr(batch, "steps_per_chunk", steps_per_chunk))
    sums = _sums_at(leaves, batch, range(0, num_ops, steps_per_chunk))
    advantages = torch.from_numpy(np.asarray(weights.episodes, np.float32))[:, None]
    decisions = batch.ops.size
    rows = slice(None, weights.entropy_rows)
    entropy_decisions = max(len(batch.ops[rows]) * num_ops, 1)
    owed: Tensor | None = None  # gradient of the sums at the end of the chunk
    loss, sel_entropy, plc_entropy = 0.0, 0.0, 0.0
    likelihoods = np.empty((2, *batch.ops.shape), np.float32)
    for first in reversed(range(0, num_ops, steps_per_chunk)):
        last = min(first + steps_per_chunk, num_ops)
        start = sums[first].requires_grad_()
        chunk, end = step_likelihoods(policy, leaves, batch, first, last, start)
        sel_mean = chunk.sel_entropy[rows].sum() / entropy_decisions
        plc_mean = chunk.plc_entropy[rows].sum() / entropy_decisions
        value = -(advantages * (chunk.sel + chunk.plc)).sum() / decisions
        value = value - weights.sel_entropy * sel_mean - weights.plc_entropy * plc_mean
        total = value if owed is None else value + (owed * end).sum()
        total.backward()
        owed = start.grad
        loss += value.item()
        sel_entropy += sel_mean.item()
        plc_entropy += plc_mean.item()
        likelihoods[0, :, first:last] = chunk.sel.detach().numpy()
        likelihoods[1, :, first:last] = chunk.plc.detach().numpy()
    reached = [
        (table, leaf.grad)
        for table, leaf in zip(tables, leaves)
        if leaf.grad is not None and table.requires_grad
    ]
    torch.autograd.backward([t for t, _ in reached], [g for _, g in reached])
    return LossReport(loss, sel_entropy, plc_entropy, likelihoods[0], likelihoods[1])


def _accumulate_by_replay(
    head: PlcHead, tables: PolicyTables, batch: RolloutBatch, weights: LossWeights
) -> LossReport:
    """`accumulate_gradient` in kernels, from the heads back to the tables."""
    episodes, decisions = len(batch.ops), batch.ops.size
    counted = np.zeros(episodes)
    counted[: weights.entropy_rows] = 1.0
    counted /= max(counted.sum() * batch.ops.shape[1], 1)
    replay = _replay(
        head,
        tables,
        batch,
        Weights(
            advantage=np.asarray(weights.episodes, np.float64) / decisions,
            sel_entropy=weights.sel_entropy * counted,
            plc_entropy=weights.plc_entropy * counted,
            differentiate=True,
        ),
    )
    for name, slope in replay.weights.items():
        parameter = head.get_parameter(name)
        if not parameter.requires_grad:
            continue
        parameter.grad = slope.clone() if parameter.grad is None else parameter.grad + slope
    wanted = [(table, slope) for table, slope in zip(tables, replay.tables) if table.requires_grad]
    torch.autograd.backward([table for table, _ in wanted], [slope for _, slope in wanted])
    sel, plc = replay.sel.log_likelihood, replay.plc.log_likelihood
    sel_entropy = float(counted @ replay.sel.entropy.sum(axis=1, dtype=np.float64))
    plc_entropy = float(counted @ replay.plc.entropy.sum(axis=1, dtype=np.float64))
    likelihoods = (sel + plc).sum(axis=1, dtype=np.float64)
    loss = -float(weights.episodes @ likelihoods) / decisions
    loss -= weights.sel_entropy * sel_entropy + weights.plc_entropy * plc_entropy
    return LossReport(loss, sel_entropy, plc_entropy, sel, plc)


def _replay(plc: PlcHead, tables: PolicyTables, batch: RolloutBatch, weights: Weights) -> Replay:
    assert batch.trace is not None
    played = Played(
        ops=batch.ops,
        devices=batch.devices,
        device_of=batch.placements,
        finish=batch.trace.finish,
        device_free=batch.trace.device_free,
        device_features=batch.device_features,
        device_masks=batch.device_masks,
        exploration=float(batch.exploration),
        temperature=float(batch.temperature),
    )
    return replay_episodes(plc, tables, batch.trace.graph, played, weights)


@torch.no_grad()
def log_likelihoods(
    policy: Policy,
    features: ProblemFeatures,
    batch: RolloutBatch,
    steps_per_chunk: int = STEPS_PER_CHUNK,
) -> tuple[np.ndarray, np.ndarray]:
    """How likely the policy, as it is now, makes the choices of recorded episodes.

    Returns:
        Log-likelihoods under the mixture of SEL's and of PLC's choices. # (batch, num_ops) each
    """
    tables = policy.encode(features)
    plc = kernel_head(policy)
    if batch.trace is not None and plc is not None:
        none = np.zeros(len(batch.ops))
        replay = _replay(plc, tables, batch, Weights(none, none, none, differentiate=False))
        return replay.sel.log_likelihood, replay.plc.log_likelihood
    num_ops = batch.ops.shape[1]
    steps_per_chunk = min(steps_per_chunk, getattr(batch, "steps_per_chunk", steps_per_chunk))
    firsts = range(0, num_ops, steps_per_chunk)
    sums = _sums_at(tables, batch, firsts)
    found = np.empty((2, *batch.ops.shape), np.float32)
    for first in firsts:
        last = min(first + steps_per_chunk, num_ops)
        chunk, _ = step_likelihoods(policy, tables, batch, first, last, sums[first])
        found[0, :, first:last] = chunk.sel.numpy()
        found[1, :, first:last] = chunk.plc.numpy()
    return found[0], found[1]


def step_likelihoods(
    policy: Policy,
    tables: PolicyTables,
    batch: RolloutBatch,
    first: int,
    last: int,
    start: Tensor,
) -> tuple[StepLikelihoods, Tensor]:
    """Likelihoods of the choices of steps `first` to `last` - 1, differentiable.

    Args:
        policy: whose PLC head is used.
        tables: encoded by the policy (or leaves in their place).
        batch: recorded episodes.
        first, last: range of steps.
        start: sums of `plc_pool` rows over each device's ops before step `first`.
            # (batch, num_devices, head_width)

    Returns:
        The likelihoods, and the sums after step `last` - 1.
    """
    own = getattr(batch, "step_likelihoods", None)
    if own is not None:  # episodes that were not built by SEL and PLC in turn
        found: tuple[StepLikelihoods, Tensor] = own(policy, tables, first, last, start)
        return found
    ids, seen = _padded_candidates(batch, first, last, len(tables.sel_scores) - 1)
    legal = ids < len(tables.sel_scores) - 1
    sel, sel_entropy = choice_likelihood(
        sel_logits(tables, ids, seen), legal.sum(-1), batch.slots[:, first:last], batch
    )
    ops = torch.from_numpy(batch.ops[:, first:last])  # (batch, steps)
    pooled, end = pooled_means(tables, batch, first, last, start, ops)
    device_features = torch.from_numpy(batch.device_features[first:last]).transpose(0, 1)
    logits = policy.plc(tables.plc_ops[ops], pooled, device_features)  # (batch, steps, devices)
    counts = torch.full(ops.shape, logits.shape[-1])
    if len(batch.device_masks):
        allowed = torch.from_numpy(batch.device_masks[first:last]).transpose(0, 1)
        logits = logits.masked_fill(~allowed, NEVER * batch.temperature)
        counts = allowed.sum(-1)
    plc, plc_entropy = choice_likelihood(logits, counts, batch.devices[:, first:last], batch)
    return StepLikelihoods(sel, plc, sel_entropy, plc_entropy), end


def choice_likelihood(
    logits: Tensor, counts: Tensor, slots: np.ndarray, batch: RolloutBatch
) -> tuple[Tensor, Tensor]:
    """Log-likelihood of the slots under the mixture, and the policy's entropy. # (batch, steps)"""
    log_policy = torch.log_softmax(logits / batch.temperature, dim=-1)
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    chosen = log_policy.gather(-1, torch.from_numpy(slots)[..., None]).squeeze(-1)
    if batch.exploration >= 1.0:
        return -counts.float().log() + 0.0 * chosen, entropy
    if batch.exploration > 0.0:
        uniform = math.log(batch.exploration) - counts.float().log()
        chosen = torch.logaddexp(chosen + math.log1p(-batch.exploration), uniform)
    return chosen, entropy


def _padded_candidates(
    batch: RolloutBatch, first: int, last: int, padding: int
) -> tuple[Tensor, Tensor]:
    """Candidate lists of several steps, padded to one width. # (batch, steps, width[, 4])"""
    lists, features = batch.candidates[first:last], batch.state_features[first:last]
    episodes, width = len(batch.ops), max(ids.shape[1] for ids in lists)
    ids = np.full((episodes, last - first, width), padding, np.int64)
    seen = np.zeros((*ids.shape, features[0].shape[2]), np.float32)
    for step, (some, values) in enumerate(zip(lists, features)):
        ids[:, step, : some.shape[1]] = some
        seen[:, step, : some.shape[1]] = values
    return torch.from_numpy(ids), torch.from_numpy(seen)


def pooled_means(
    tables: PolicyTables, batch: RolloutBatch, first: int, last: int, start: Tensor, ops: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean `plc_pool` row over each device's ops before each step, and the sums at the end.

    A product with a 0-1 matrix (which earlier step of the chunk went to which device) replaces a
    running sum over (steps, devices, width), which would be bound by memory.
    """
    episodes, steps = ops.shape
    num_devices, width = start.shape[1:]
    on_device = _one_hot(batch.devices[:, first:last], num_devices)  # (batch, devices, steps)
    placed_before = _one_hot(batch.devices[:, :first], num_devices).sum(-1)  # (batch, devices)
    earlier = on_device[:, :, None, :] * torch.ones(steps, steps).tril(-1)
    counts = (placed_before[..., None] + earlier.sum(-1)).clamp(min=1.0)  # (b, devices, steps)
    rows = tables.plc_pool[ops]  # (batch, steps, width)
    within = torch.bmm(
        (earlier / counts[..., None]).reshape(episodes, num_devices * steps, steps), rows
    ).view(episodes, num_devices, steps, width)
    means = within + start[:, :, None, :] / counts[..., None]
    return means.transpose(1, 2), start + torch.bmm(on_device, rows)


def _one_hot(devices: np.ndarray, num_devices: int) -> Tensor:
    """Which step went to which device. # (batch, num_devices, steps) float32"""
    at = devices[:, None, :] == np.arange(num_devices)[:, None]
    return torch.from_numpy(at.astype(np.float32))


@torch.no_grad()
def _sums_at(tables: PolicyTables, batch: RolloutBatch, firsts: range) -> dict[int, Tensor]:
    """Sums of `plc_pool` rows per device before each of the given steps. # (batch, D, width)"""
    num_devices = batch.device_features.shape[2]
    total = torch.zeros(len(batch.ops), num_devices, tables.plc_pool.shape[1])
    sums = {}
    for first in firsts:
        sums[first] = total
        stretch = slice(first, first + firsts.step)
        rows = tables.plc_pool[torch.from_numpy(batch.ops[:, stretch])]
        total = total + torch.bmm(_one_hot(batch.devices[:, stretch], num_devices), rows)
    return sums
