"""Roll-outs: many episodes of one problem step together, without gradients.

SEL and PLC are sampled from the mixture (1 - epsilon) * policy + epsilon * uniform over what is
legal. What the gradient pass needs (candidates and features as the policy saw them) is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from doppler.construction import Construction
from doppler.construction.relations import PlacementRelations
from doppler.errors import ConfigurationError, InvalidPlacementError
from doppler.policies.dual_policy import DualPolicy, PolicyTables, sel_logits
from doppler.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class Episodes:
    """Placements as they are built, op by op.

    Args:
        ops: the op of each step, a permutation of the ops. # (batch, num_ops) int64
        devices: the device that each *step* chose, not indexed by op. # (batch, num_ops) int64
    """

    ops: np.ndarray
    devices: np.ndarray

    @property
    def placements(self) -> np.ndarray:
        """The device of each op, indexed by op. # (batch, num_ops)"""
        placements = np.empty_like(self.devices)
        np.put_along_axis(placements, self.ops, self.devices, axis=1)
        return placements

    @classmethod
    def from_placements(cls, placements: np.ndarray, orders: np.ndarray) -> Episodes:
        """Episodes that build given placements in given orders. # (batch, num_ops) each"""
        return cls(orders, np.take_along_axis(placements, orders, axis=1))


@dataclass(frozen=True, eq=False)
class RolloutBatch(Episodes):
    """Episodes with what the policies saw and how likely their choices were.

    Args:
        sel_log_likelihood: of each step's op, under the mixture. # (batch, num_ops)
        plc_log_likelihood: of each step's device, under the mixture. # (batch, num_ops)
        slots: where in `candidates` each step's op stands. # (batch, num_ops)
        candidates: per step, the candidates' ids padded with num_ops; as wide as that step's
            most candidates; empty if not recorded. # num_ops arrays (batch, width) int64
        state_features: per step, SEL's features of them. # num_ops arrays (batch, width, 4) float32
        device_features: PLC's features. # (num_ops, batch, num_devices, features) float32
        exploration: epsilon of the mixture.
        temperature: that logits were divided by.
    """

    sel_log_likelihood: np.ndarray
    plc_log_likelihood: np.ndarray
    slots: np.ndarray
    candidates: list[np.ndarray]
    state_features: list[np.ndarray]
    device_features: np.ndarray
    exploration: float
    temperature: float

    @property
    def log_likelihood(self) -> np.ndarray:
        """Of whole episodes, both policies together. # (batch,)"""
        return (self.sel_log_likelihood + self.plc_log_likelihood).sum(axis=1)


class EpisodeRunner:
    """Rolls out one policy on one problem; keeps the batch's arrays between calls.

    Args:
        policy: read at every `run`, so it may be trained in between.
        problem: what is placed.
        network: of the earliest-start estimates (best the one that is simulated).
        batch_size: episodes per run.
    """

    def __init__(
        self,
        policy: DualPolicy,
        problem: PlacementProblem,
        network: str = "serial_links",
        batch_size: int = 32,
    ) -> None:
        self.policy = policy
        self.problem = problem
        self.features = policy.features(problem)
        self.batch_size = batch_size
        self._construction = Construction(problem, network=network, batch_size=batch_size)
        self._relations = PlacementRelations(problem, batch_size, self.features.scale)
        self._rows = np.arange(batch_size)

    @torch.no_grad()
    def run(
        self,
        rng: np.random.Generator,
        *,
        exploration: float = 0.0,
        temperature: float = 1.0,
        greedy: bool = False,
        forced: Episodes | None = None,
        tables: PolicyTables | None = None,
        record: bool = True,
    ) -> RolloutBatch:
        """Builds a batch of placements.

        Args:
            rng: the only source of randomness.
            exploration: share of the uniform distribution, 0 to 1.
            temperature: above 1 flattens, below 1 sharpens the policies.
            greedy: take the likeliest op and device (ties to the lower id) instead of sampling.
            forced: episodes that the last rows of the batch follow, at most `batch_size`.
            tables: `policy.encode(features)` if already at hand.
            record: keep what `accumulate_gradient` needs; not needed for mere inference.

        Raises:
            ConfigurationError: exploration or temperature out of range, too many forced episodes.
            InvalidPlacementError: a forced episode takes an op before its predecessors.
        """
        if not 0.0 <= exploration <= 1.0 or not temperature > 0.0:
            raise ConfigurationError(
                f"roll-out: exploration {exploration} must lie in [0, 1], temperature "
                f"{temperature} above 0"
            )
        if forced is not None and len(forced.ops) > self.batch_size:
            raise ConfigurationError(
                f"roll-out: {len(forced.ops)} forced episodes in a batch of {self.batch_size}"
            )
        construction, relations = self._construction, self._relations
        construction.reset()
        relations.reset()
        encoded = tables or self.policy.encode(self.features)
        tables = PolicyTables(*(table.detach() for table in encoded))
        num_ops, batch, num_devices = (
            self.problem.num_ops,
            self.batch_size,
            self.problem.num_devices,
        )
        pool = _DevicePool(tables, batch, num_devices)
        draws = rng.random((num_ops, 2, batch), dtype=np.float32)
        steps = (num_ops, batch)
        chosen_ops, devices, slots = (np.empty(steps, np.int64) for _ in range(3))
        likelihoods = np.empty((2, *steps), np.float32)
        kept = num_ops if record else 1
        device_features = np.empty(
            (kept, batch, num_devices, self.policy.num_device_features), np.float32
        )
        candidates, state_features = [], []
        choose = _Chooser(exploration, temperature, greedy)
        for step in range(num_ops):
            ids, seen = relations.candidates(construction.candidates, construction.device_free)
            legal = ids < num_ops
            logits = sel_logits(tables, torch.from_numpy(ids), torch.from_numpy(seen))
            wanted = None if forced is None else _slots_of(forced.ops[:, step], ids, step)
            slots[step], likelihoods[0, step] = choose(logits, legal, draws[step, 0], wanted)
            ops = chosen_ops[step] = ids[self._rows, slots[step]]

            times = construction.device_features(ops)
            row = device_features[step if record else 0]
            relations.device_features(ops, times, row)
            logits = self.policy.plc(
                tables.plc_ops[torch.from_numpy(ops)], pool.means, torch.from_numpy(row)
            )
            wanted = None if forced is None else forced.devices[:, step]
            devices[step], likelihoods[1, step] = choose(logits, None, draws[step, 1], wanted)
            construction.step(ops, devices[step])
            relations.step(ops, devices[step], construction.finish)
            pool.add(ops, devices[step])
            if record:
                candidates.append(ids)
                state_features.append(seen)
        return RolloutBatch(
            ops=np.ascontiguousarray(chosen_ops.T),
            devices=np.ascontiguousarray(devices.T),
            sel_log_likelihood=likelihoods[0].T,
            plc_log_likelihood=likelihoods[1].T,
            slots=np.ascontiguousarray(slots.T),
            candidates=candidates,
            state_features=state_features,
            device_features=device_features,
            exploration=exploration,
            temperature=temperature,
        )


class _DevicePool:
    """Running mean of PLC's pooled rows over the ops of each device."""

    def __init__(self, tables: PolicyTables, batch: int, num_devices: int) -> None:
        self._table = tables.plc_pool.numpy()
        self._rows = np.arange(batch)
        self._sums = np.zeros((batch, num_devices, self._table.shape[1]), np.float32)
        self._counts = np.zeros((batch, num_devices, 1), np.float32)
        self._means = np.zeros_like(self._sums)
        self.means = torch.from_numpy(self._means)  # the same memory

    def add(self, ops: np.ndarray, devices: np.ndarray) -> None:
        at = (self._rows, devices)
        self._sums[at] += self._table[ops]
        self._counts[at] += 1.0
        self._means[at] = self._sums[at] / self._counts[at]


class _Chooser:
    """Samples slots from the mixture, or takes the likeliest, or follows forced rows."""

    def __init__(self, exploration: float, temperature: float, greedy: bool) -> None:
        self._exploration = exploration
        self._temperature = temperature
        self._greedy = greedy

    def __call__(
        self, logits: Tensor, legal: np.ndarray | None, draws: np.ndarray, forced: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns slots (batch,) and their log-likelihoods (batch,)."""
        probabilities = torch.softmax(logits / self._temperature, dim=1).numpy()
        if self._exploration > 0.0:
            probabilities *= 1.0 - self._exploration
            if legal is None:
                probabilities += self._exploration / logits.shape[1]
            else:
                probabilities += legal * (self._exploration / legal.sum(axis=1, keepdims=True))
        if self._greedy:
            slots = logits.numpy().argmax(axis=1)
        else:
            # A draw stays strictly below the total, so the slot found has a probability above 0.
            summed = np.cumsum(probabilities, axis=1, dtype=np.float32)
            limits = draws * np.float32(1.0 - 1e-6) * summed[:, -1]
            slots = (summed <= limits[:, None]).sum(axis=1)
        if forced is not None:
            slots[len(slots) - len(forced) :] = forced
        return slots, np.log(probabilities[np.arange(len(slots)), slots])


def _slots_of(ops: np.ndarray, ids: np.ndarray, step: int) -> np.ndarray:
    """Where forced ops stand in the last rows of the candidate lists."""
    found = ids[len(ids) - len(ops) :] == ops[:, None]
    missing = np.flatnonzero(~found.any(axis=1))
    if missing.size:
        raise InvalidPlacementError(
            f"forced episode {missing[0]}, step {step}: op {ops[missing[0]]} is no candidate; an "
            "order must place every op after its predecessors"
        )
    return found.argmax(axis=1)


def rollout(
    policy: DualPolicy,
    problem: PlacementProblem,
    network: str = "serial_links",
    batch_size: int = 32,
    rng: np.random.Generator | None = None,
    exploration: float = 0.0,
    greedy: bool = False,
) -> RolloutBatch:
    """One batch of episodes; `EpisodeRunner` is faster when called again and again."""
    runner = EpisodeRunner(policy, problem, network, batch_size)
    return runner.run(rng or np.random.default_rng(0), exploration=exploration, greedy=greedy)
