"""Roll-outs of policies whose episodes are built in another way than DOPPLER's.

Each is an `EpisodeRunner` with another way to select an op or to place it. What a rule chooses is
recorded as the only option of its step, so that its log-likelihood and its entropy are 0 in the
gradient pass too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from doppler.construction.list_scheduling import SAME
from doppler.construction.sampling import choose
from doppler.errors import ConfigurationError
from doppler.policies import Policy, PolicyTables
from doppler.policies.base import NEVER
from doppler.problem import PlacementProblem
from doppler.schedulers.exact.symmetry import identical_devices, numbered_by_first_use
from doppler.training.likelihood import StepLikelihoods, choice_likelihood, pooled_means
from doppler.training.rollout import EpisodeRunner, Episodes, RolloutBatch, slots_of

PAIRS_PER_CHUNK = 16384
"""Pairs whose part of the gradient's graph is in memory at a time: 4 MB at each of its layers."""

_ALL = np.zeros((0, 0), bool)


class WalkRunner(EpisodeRunner):
    """Walks the ops in the policy's own order; the policy places them.

    Forced episodes are placements to follow: they are rebuilt in the policy's order.
    """

    builds: ClassVar[str] = "walk"

    def _prepare(self) -> None:
        order = self.policy.order(self.problem)
        assert order is not None
        self._order = self.problem.check_order(order)
        self._unseen = np.zeros((self.batch_size, 1, 0), np.float32)

    def run(
        self, rng: np.random.Generator, *, forced: Episodes | None = None, **options: Any
    ) -> RolloutBatch:
        if forced is not None:
            forced = self._rebuilt(forced)
        return super().run(rng, forced=forced, **options)

    def _rebuilt(self, forced: Episodes) -> Episodes:
        """The same placements in the policy's order."""
        orders = np.repeat(self._order[None], len(forced.ops), axis=0)
        return Episodes.from_placements(forced.placements, orders)

    def _select(
        self,
        step: int,
        tables: PolicyTables,
        draws: np.ndarray,
        shown: np.ndarray,
        options: tuple[float, float, bool],
        taken: Any,
    ) -> None:
        op = self._order[step]
        taken.ops[step], taken.slots[step], taken.sel[step] = op, 0, 0.0
        taken.see(np.full((self.batch_size, 1), op), self._unseen)


class WalkAtOnceRunner(WalkRunner):
    """Takes every op's device from logits that are known beforehand.

    Such a policy knows devices by number. So that all forced episodes say the same, those of
    identical devices are renamed in the order in which the walk comes to use them.
    """

    builds: ClassVar[str] = "walk_at_once"

    def _prepare(self) -> None:
        super()._prepare()
        self._identical = identical_devices(self.problem)

    def _rebuilt(self, forced: Episodes) -> Episodes:
        named = [
            numbered_by_first_use(
                self.problem.check_placement(devices), self._order, self._identical
            )
            for devices in forced.placements
        ]
        return super()._rebuilt(Episodes.from_placements(np.stack(named), forced.ops))

    def _place(
        self,
        step: int,
        tables: PolicyTables,
        pool: Any,
        draws: np.ndarray,
        shown: np.ndarray,
        options: tuple[float, float, bool],
        taken: Any,
    ) -> None:
        ops, devices, legal = taken.ops[step], taken.devices[step], _ALL
        if self.problem.constrained:
            legal = self._construction.allowed_devices(ops)
            taken.see_devices(legal)
        logits = tables.plc_ops.numpy()[ops]
        choose(logits, self._every_device, legal, draws, shown, *options, devices, taken.plc[step])
        if self.problem.constrained:  # an op of a group says where the others go
            self._construction.step(ops, devices)


class SelectOnlyRunner(EpisodeRunner):
    """Puts every op where it can start earliest, ties to the lower device.

    As the critical-path scheduler does; in particular inputs that could be anywhere are dealt to
    the devices in turn.
    """

    builds: ClassVar[str] = "select_only"

    def _place(
        self,
        step: int,
        tables: PolicyTables,
        pool: Any,
        draws: np.ndarray,
        shown: np.ndarray,
        options: tuple[float, float, bool],
        taken: Any,
    ) -> None:
        ops, devices = taken.ops[step], taken.devices[step]
        devices[:] = self._earliest(ops)
        if len(shown):
            devices[-len(shown) :] = shown
        taken.plc[step] = 0.0
        taken.see_devices(devices[:, None] == np.arange(self.problem.num_devices))
        self._construction.step(ops, devices)
        self._relations.step(ops, devices, self._construction.finish)

    def _earliest(self, ops: np.ndarray) -> np.ndarray:
        """The rule's device for each episode's op. # (batch,)"""
        starts = self._construction.earliest_starts(ops)
        if self.problem.constrained:
            allowed = self._construction.allowed_devices(ops)
            starts[~allowed] = np.inf
        first = starts.min(axis=1, keepdims=True)
        earliest: np.ndarray = (starts <= first * (1.0 + SAME)).argmax(axis=1)
        if self.problem.constrained:
            anywhere = self.problem.is_input_op[ops] & allowed.all(axis=1)
            earliest[anywhere] = ops[anywhere] % self.problem.num_devices
        return earliest


class PairRunner(EpisodeRunner):
    """Chooses an op and its device together.

    A choice's log-likelihood and entropy are told as SEL's; PLC's are 0. What is recorded for the
    gradient grows with the number of candidates times the number of devices.
    """

    builds: ClassVar[str] = "pairs"

    def run(self, rng: np.random.Generator, **options: Any) -> PairBatch:
        self._masks: list[np.ndarray] = []
        batch = super().run(rng, **options)
        recorded = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return PairBatch(**recorded, pair_masks=self._masks)

    def _select(
        self,
        step: int,
        tables: PolicyTables,
        draws: np.ndarray,
        shown: np.ndarray,
        options: tuple[float, float, bool],
        taken: Any,
    ) -> None:
        """Lists the candidates; `_place` chooses, for it knows what is on the devices."""
        self._listed = self._relations.candidates(
            self._construction.candidates, self._construction.device_free
        )
        self._shown_slots = slots_of(shown, self._listed[0], step) if len(shown) else shown

    def _place(
        self,
        step: int,
        tables: PolicyTables,
        pool: Any,
        draws: np.ndarray,
        shown: np.ndarray,
        options: tuple[float, float, bool],
        taken: Any,
    ) -> None:
        ids, seen, counts = self._listed
        num_devices = self.problem.num_devices
        pairs = self._pair_features(ids, seen)
        logits = self.policy.plc(
            tables.plc_ops[torch.from_numpy(ids)], pool.means[:, None], torch.from_numpy(pairs)
        )  # (batch, width, num_devices)
        legal = _ALL
        if self.problem.constrained:
            legal = self._legal(ids)
            self._masks.append(legal)
        wanted = self._shown_slots * num_devices + np.minimum(shown, num_devices - 1)
        slots, ops, devices = taken.slots[step], taken.ops[step], taken.devices[step]
        choose(
            logits.flatten(1).numpy(), counts * num_devices, legal, draws, wanted, *options, slots,
            taken.sel[step],
        )  # fmt: skip
        ops[:] = ids[self._rows, slots // num_devices]
        devices[:] = slots % num_devices
        devices[len(devices) - len(shown) :] = shown  # one that does not exist is refused below
        taken.plc[step] = 0.0
        taken.see(ids, pairs)
        self._construction.step(ops, devices)
        self._relations.step(ops, devices, self._construction.finish)
        pool.add(ops, devices)

    def _pair_features(self, ids: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Device features of every pair, then SEL's features of its op.

        # (batch, width, num_devices, columns)
        """
        policy, (batch, width) = self.policy, ids.shape
        of_device, of_op = policy.num_device_features, policy.num_state_features
        shape = (batch, width, self.problem.num_devices, of_device + of_op)
        pairs = np.empty(shape, np.float32)
        pairs[..., of_device:] = seen[:, :, None, :of_op]
        # Padding repeats an episode's first candidate; it is never chosen.
        candidates = np.where(ids < self.problem.num_ops, ids, ids[:, :1]).T.copy()
        features = np.empty((batch, self.problem.num_devices, of_device), np.float32)
        for slot, ops in enumerate(candidates):
            times = self._construction.device_features(ops)
            self._relations.device_features(ops, times, features)
            pairs[:, slot, :, :of_device] = features
        return pairs

    def _legal(self, ids: np.ndarray) -> np.ndarray:
        """Which of the listed pairs pins and groups allow. # (batch, width * num_devices) bool"""
        legal = self._construction.legal_pairs()
        padding = np.zeros((len(ids), 1, legal.shape[2]), bool)
        listed = np.concatenate([legal, padding], axis=1)[self._rows[:, None], ids]
        return listed.reshape(len(ids), -1)


@dataclass(frozen=True, eq=False)
class PairBatch(RolloutBatch):
    """Episodes of a policy over pairs.

    `slots` counts pairs, the devices of one candidate side by side; `state_features` holds the
    pairs' features, # (batch, width, num_devices, features).

    Args:
        pair_masks: per step, the pairs that pins and groups allow; empty where there are none.
            # num_ops arrays (batch, width * num_devices) bool
    """

    pair_masks: list[np.ndarray]

    @property
    def steps_per_chunk(self) -> int:
        """Steps of the gradient pass whose pairs are in memory at a time."""
        pairs = sum(features[..., 0].size for features in self.state_features)
        return max(1, PAIRS_PER_CHUNK * len(self.state_features) // max(pairs, 1))

    def step_likelihoods(
        self, policy: Policy, tables: PolicyTables, first: int, last: int, start: Tensor
    ) -> tuple[StepLikelihoods, Tensor]:
        """In place of `doppler.training.likelihood.step_likelihoods`; see there."""
        num_devices = start.shape[1]
        ids, pairs, legal = self._padded(first, last, len(tables.plc_ops) - 1, num_devices)
        ops = torch.from_numpy(self.ops[:, first:last])
        pooled, end = pooled_means(tables, self, first, last, start, ops)
        logits = policy.plc(tables.plc_ops[ids], pooled[:, :, None], pairs).flatten(2)
        logits = logits.masked_fill(~legal, NEVER * self.temperature)
        slots = self.slots[:, first:last]
        chosen, entropy = choice_likelihood(logits, legal.sum(-1), slots, self)
        none = torch.zeros_like(chosen)
        return StepLikelihoods(chosen, none, entropy, none), end

    def _padded(
        self, first: int, last: int, padding: int, num_devices: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, features and legality of the pairs of some steps, padded to one width.

        # (batch, steps, width), (batch, steps, width, devices, features),
        # (batch, steps, width * devices)
        """
        lists, features = self.candidates[first:last], self.state_features[first:last]
        episodes, width = len(self.ops), max(ids.shape[1] for ids in lists)
        ids = np.full((episodes, last - first, width), padding, np.int64)
        pairs = np.zeros((*ids.shape, num_devices, features[0].shape[-1]), np.float32)
        legal = np.zeros((*ids.shape[:2], width * num_devices), bool)
        for step, (some, values) in enumerate(zip(lists, features)):
            ids[:, step, : some.shape[1]] = some
            pairs[:, step, : some.shape[1]] = values
            allowed = np.repeat(some < padding, num_devices, axis=1)
            if self.pair_masks:
                allowed = self.pair_masks[first + step]
            legal[:, step, : allowed.shape[1]] = allowed
        return torch.from_numpy(ids), torch.from_numpy(pairs), torch.from_numpy(legal)


RUNNERS: dict[str, type[EpisodeRunner]] = {
    runner.builds: runner
    for runner in (EpisodeRunner, SelectOnlyRunner, WalkRunner, WalkAtOnceRunner, PairRunner)
}
"""Ways to build episodes, by `Policy.episodes`."""


def make_runner(
    policy: Policy,
    problem: PlacementProblem,
    network: str = "serial_links",
    batch_size: int = 32,
) -> EpisodeRunner:
    """The runner that builds a policy's episodes; arguments as of `EpisodeRunner`.

    Raises:
        ConfigurationError: a policy whose episodes none of `RUNNERS` builds.
    """
    style = getattr(policy, "episodes", "")
    if style not in RUNNERS:
        raise ConfigurationError(
            f"policy {type(policy).__name__}, episodes: {style!r} is not one of "
            f"{', '.join(RUNNERS)}; this policy is trained by stages of its own"
        )
    return RUNNERS[style](policy, problem, network, batch_size)


def rollout(
    policy: Policy,
    problem: PlacementProblem,
    network: str = "serial_links",
    batch_size: int = 32,
    rng: np.random.Generator | None = None,
    exploration: float = 0.0,
    greedy: bool = False,
) -> RolloutBatch:
    """One batch of episodes; a runner of one's own is faster when called again and again."""
    runner = make_runner(policy, problem, network, batch_size)
    return runner.run(rng or np.random.default_rng(0), exploration=exploration, greedy=greedy)
