"""Roll-outs: many episodes of one problem step together, without gradients.

SEL and PLC are sampled from the mixture (1 - epsilon) * policy + epsilon * uniform over what is
legal. What the gradient pass needs (what the policies saw, or how to find it again) is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from doppler.construction import Construction
from doppler.construction.episodes import COMPLETE, NO_CANDIDATE, Choices
from doppler.construction.relations import PlacementRelations
from doppler.construction.sampling import choose
from doppler.errors import ConfigurationError, InvalidPlacementError
from doppler.policies.base import Policy
from doppler.policies.dual_policy import PlcHead, PolicyTables, sel_logits
from doppler.problem import PlacementProblem
from doppler.training.kernels import Trace, kernel_head, run_whole_episodes


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
        slots: where in `candidates` each step's op stands; empty with them. # (batch, num_ops)
        candidates: per step, the candidates' ids padded with num_ops; as wide as that step's
            most candidates; empty where `trace` stands for them, or nothing is recorded.
            # num_ops arrays (batch, width) int64
        state_features: per step, SEL's features of them. # num_ops arrays (batch, width, 4) float32
        device_features: PLC's features; empty if not recorded.
            # (num_ops, batch, num_devices, features) float32
        device_masks: devices that pins and groups allowed, or (0, batch, num_devices) where there
            are none. # (num_ops, batch, num_devices) bool
        exploration: epsilon of the mixture.
        temperature: that logits were divided by.
        trace: what the candidates follow from, in place of their lists, which would take more
            memory than all the rest.
    """

    sel_log_likelihood: np.ndarray
    plc_log_likelihood: np.ndarray
    slots: np.ndarray
    candidates: list[np.ndarray]
    state_features: list[np.ndarray]
    device_features: np.ndarray
    device_masks: np.ndarray
    exploration: float
    temperature: float
    trace: Trace | None

    @property
    def log_likelihood(self) -> np.ndarray:
        """Of whole episodes, both policies together. # (batch,)"""
        return (self.sel_log_likelihood + self.plc_log_likelihood).sum(axis=1)


class EpisodeRunner:
    """Rolls out one policy on one problem; keeps the batch's arrays between calls.

    Whole episodes run in a kernel, on all available cores. A subclass that overrides `_select` or
    `_place`, or a policy with heads of its own, is stepped op by op instead.

    Args:
        policy: read at every `run`, so it may be trained in between.
        problem: what is placed.
        network: of the earliest-start estimates (best the one that is simulated).
        batch_size: episodes per run.

    Attributes:
        builds: the way of building episodes that this is for, `Policy.episodes`.

    Raises:
        ConfigurationError: a policy that builds them in another way; see `runners.make_runner`.
    """

    builds: ClassVar[str] = "select_and_place"

    def __init__(
        self,
        policy: Policy,
        problem: PlacementProblem,
        network: str = "serial_links",
        batch_size: int = 32,
    ) -> None:
        style = getattr(policy, "episodes", None)
        if style != self.builds:
            raise ConfigurationError(
                f"roll-out: {type(self).__name__} builds episodes by {self.builds!r}, but "
                f"{type(policy).__name__} by {style!r}; use doppler.training.make_runner"
            )
        self.policy = policy
        self.problem = problem
        self.features = policy.features(problem)
        self.batch_size = batch_size
        self._construction = Construction(problem, network=network, batch_size=batch_size)
        self._relations = PlacementRelations(problem, batch_size, self.features.scale)
        self._rows = np.arange(batch_size)
        self._every_device = np.full(batch_size, problem.num_devices)
        own = type(self)._select is EpisodeRunner._select and type(self)._place is (
            EpisodeRunner._place
        )
        self._head = kernel_head(policy) if own else None
        self._prepare()

    def _prepare(self) -> None:
        """What a subclass computes once."""

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
            InvalidPlacementError: a forced episode takes an op before its predecessors, or puts one
                where a pin or a group forbids it.
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
        self._construction.reset()
        self._relations.reset()
        encoded = tables or self.policy.encode(self.features)
        tables = PolicyTables(*(table.detach() for table in encoded))
        if self._head is not None:
            return self._run_whole(
                self._head, tables, rng, (exploration, temperature, greedy), forced, record
            )
        taken = _Record(self.problem, self.batch_size, self.policy.num_device_features, record)
        pool = _DevicePool(tables, self.batch_size, self.problem.num_devices)
        draws = rng.random((self.problem.num_ops, 2, self.batch_size), dtype=np.float32)
        options = (float(exploration), float(temperature), bool(greedy))
        shown = (_NOTHING, _NOTHING)
        for step in range(self.problem.num_ops):
            if forced is not None:
                shown = (forced.ops[:, step].copy(), forced.devices[:, step].copy())
            self._select(step, tables, draws[step, 0], shown[0], options, taken)
            self._place(step, tables, pool, draws[step, 1], shown[1], options, taken)
        return taken.batch(exploration, temperature)

    def _run_whole(
        self,
        plc: PlcHead,
        tables: PolicyTables,
        rng: np.random.Generator,
        options: tuple[float, float, bool],
        forced: Episodes | None,
        record: bool,
    ) -> RolloutBatch:
        """All steps of all episodes in one kernel."""
        num_ops, construction = self.problem.num_ops, self._construction
        exploration, temperature, greedy = options
        none = np.zeros((0, num_ops), np.int64)
        choices = Choices(
            float(exploration),
            float(temperature),
            bool(greedy),
            draws=rng.random((num_ops, 2, self.batch_size), dtype=np.float32),
            forced_ops=none if forced is None else np.ascontiguousarray(forced.ops, np.int64),
            forced_devices=(
                none if forced is None else np.ascontiguousarray(forced.devices, np.int64)
            ),
        )
        done = run_whole_episodes(construction, self._relations, plc, tables, choices, record)
        self._check_ended(done.ended, done.devices, choices)
        return RolloutBatch(
            ops=done.ops,
            devices=done.devices,
            sel_log_likelihood=done.sel,
            plc_log_likelihood=done.plc,
            slots=none,
            candidates=[],
            state_features=[],
            device_features=done.device_features,
            device_masks=done.device_masks,
            exploration=exploration,
            temperature=temperature,
            trace=Trace(
                construction.finish.copy(), done.device_free, self._relations.candidate_graph
            )
            if record
            else None,
        )

    def _check_ended(self, ended: np.ndarray, devices: np.ndarray, choices: Choices) -> None:
        """Raises for the first step at which a forced episode could not go on."""
        stopped = np.flatnonzero(ended != COMPLETE)
        if not stopped.size:
            return
        steps = self._construction.placed_counts[stopped]
        episode, step = int(stopped[steps.argmin()]), int(steps.min())
        row = episode - (self.batch_size - len(choices.forced_ops))
        op = int(choices.forced_ops[row, step])
        if ended[episode] == NO_CANDIDATE:
            raise _no_candidate(row, step, op)
        why = self._construction.why_illegal(episode, op, int(devices[episode, step]))
        raise InvalidPlacementError(
            f"problem {self.problem.name!r}, forced episode {row}, step {step}: {why}"
        )

    def _select(
        self,
        step: int,
        tables: PolicyTables,
        draws: np.ndarray,
        shown: np.ndarray,
        options: tuple[float, float, bool],
        taken: _Record,
    ) -> None:
        """SEL's half of a step."""
        ids, seen, counts = self._relations.candidates(
            self._construction.candidates, self._construction.device_free
        )
        logits = sel_logits(tables, torch.from_numpy(ids), torch.from_numpy(seen))
        wanted = slots_of(shown, ids, step) if len(shown) else shown
        slots = taken.slots[step]
        choose(logits.numpy(), counts, _ALL, draws, wanted, *options, slots, taken.sel[step])
        taken.ops[step] = ids[self._rows, slots]
        taken.see(ids, seen)

    def _place(
        self,
        step: int,
        tables: PolicyTables,
        pool: _DevicePool,
        draws: np.ndarray,
        shown: np.ndarray,
        options: tuple[float, float, bool],
        taken: _Record,
    ) -> None:
        """PLC's half of a step, and the step itself."""
        ops, devices = taken.ops[step], taken.devices[step]
        features = taken.device_features_at(step)
        self._relations.device_features(ops, self._construction.device_features(ops), features)
        logits = self.policy.plc(
            tables.plc_ops[torch.from_numpy(ops)], pool.means, torch.from_numpy(features)
        )
        legal = _ALL
        if self.problem.constrained:
            legal = self._construction.allowed_devices(ops)
            taken.see_devices(legal)
        choose(
            logits.numpy(), self._every_device, legal, draws, shown, *options, devices,
            taken.plc[step],
        )  # fmt: skip
        self._construction.step(ops, devices)
        self._relations.step(ops, devices, self._construction.finish)
        pool.add(ops, devices)


_NOTHING = np.zeros(0, np.int64)
_ALL = np.zeros((0, 0), bool)


class _Record:
    """What a roll-out did and saw, step by step."""

    def __init__(
        self, problem: PlacementProblem, batch: int, num_features: int, keep: bool
    ) -> None:
        steps = (problem.num_ops, batch)
        self.ops, self.devices, self.slots = (np.empty(steps, np.int64) for _ in range(3))
        self.sel, self.plc = np.empty(steps, np.float32), np.empty(steps, np.float32)
        self._masks: list[np.ndarray] = []
        self._no_masks = np.zeros((0, batch, problem.num_devices), bool)
        self._keep = keep
        self._candidates: list[np.ndarray] = []
        self._state_features: list[np.ndarray] = []
        self._device_features = np.empty(
            (problem.num_ops if keep else 1, batch, problem.num_devices, num_features), np.float32
        )

    def device_features_at(self, step: int) -> np.ndarray:
        """Where to write a step's device features."""
        return self._device_features[step if self._keep else 0]

    def see(self, candidates: np.ndarray, features: np.ndarray) -> None:
        if self._keep:
            self._candidates.append(candidates)
            self._state_features.append(features)

    def see_devices(self, allowed: np.ndarray) -> None:
        if self._keep:
            self._masks.append(allowed)

    def batch(self, exploration: float, temperature: float) -> RolloutBatch:
        return RolloutBatch(
            ops=np.ascontiguousarray(self.ops.T),
            devices=np.ascontiguousarray(self.devices.T),
            sel_log_likelihood=self.sel.T,
            plc_log_likelihood=self.plc.T,
            slots=np.ascontiguousarray(self.slots.T),
            candidates=self._candidates,
            state_features=self._state_features,
            device_features=self._device_features,
            device_masks=np.stack(self._masks) if self._masks else self._no_masks,
            exploration=exploration,
            temperature=temperature,
            trace=None,
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


def slots_of(ops: np.ndarray, ids: np.ndarray, step: int) -> np.ndarray:
    """Where forced ops stand in the last rows of the candidate lists."""
    found = ids[len(ids) - len(ops) :] == ops[:, None]
    missing = np.flatnonzero(~found.any(axis=1))
    if missing.size:
        raise _no_candidate(int(missing[0]), step, int(ops[missing[0]]))
    return found.argmax(axis=1)


def _no_candidate(row: int, step: int, op: int) -> InvalidPlacementError:
    return InvalidPlacementError(
        f"forced episode {row}, step {step}: op {op} is no candidate; an order must place every op "
        "after its predecessors"
    )
