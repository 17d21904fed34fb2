"""Stage II: expert iteration around REINFORCE against the simulator.

A short search improves what the policy samples, and besides learning from its own makespans the
policy imitates the best placement so far. With `polish_every=0` nothing is searched, with
`elite_batch=0` nothing is imitated, and both together are plain REINFORCE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from doppler.errors import ConfigurationError
from doppler.training.archive import Elite
from doppler.training.likelihood import LossWeights, accumulate_gradient
from doppler.training.polish import Polisher, searchable
from doppler.training.rollout import Episodes, RolloutBatch
from doppler.training.runners import make_runner
from doppler.training.stage import ReinforceStage

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer


class EliteFollower:
    """Gradients of the likelihood of the placement that is imitated.

    What a policy sees while it rebuilds a placement does not depend on its weights, so the episode
    is recorded once for as many steps as the placement stays the best.

    Args:
        trainer: whose policy and problem these are.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._runner = make_runner(trainer.policy, trainer.problem, trainer.network, 1)
        self._batch: RolloutBatch | None = None
        self._target: Elite | None = None

    def accumulate(self, trainer: Trainer, target: Elite) -> float:
        """Adds the gradient to the policy's parameters; returns the loss."""
        if self._batch is None or target is not self._target:
            self._target = target
            shown = Episodes.from_placements(target.placement[None], target.order[None])
            self._batch = self._runner.run(np.random.default_rng(0), forced=shown)
        report = accumulate_gradient(
            trainer.policy, self._runner.features, self._batch, LossWeights(np.ones(1))
        )
        return report.loss


@dataclass
class SimRL(ReinforceStage):
    """Batches of episodes, one simulation each; the graph is encoded once per update.

    Args:
        elite_batch: episodes of the archive that every update imitates besides; 0: nothing is
            imitated at all.
        elite_weight: of an archived episode's log-likelihood; advantages have deviation 1.
        elite_pool: how many of the best placements these are drawn from. More than one may
            contradict each other: placements that differ much can be equally good.
        elite_margin: with a pool of one, how much better (relatively) a placement must be than the
            one that is imitated to take its place.
        elite_steps: further steps of the optimiser in every update, on the likelihood of the best
            placement (but for the margin) alone; its episode is built once, so that a step costs a
            part of an update.
        archive_size: how many of the best placements are kept, at least 1.
        polish_every: updates from one polish to the next, the first one included; 0 for none. An
            objective that no search can ask (`polish.searchable`) gets none either.
        polish_evaluations: placements simulated by each, fewer on graphs of more than 250 ops (see
            `polish.FULL_OPS`); they count as evaluations, not as episodes.
        polish_share: of the updates, from the first on, within which placements are polished, so
            that the policy has time to learn what was found last.
    """

    learning_rate: float = 3e-3
    final_learning_rate: float = 3e-4
    elite_batch: int = 1
    elite_weight: float = 32.0
    elite_pool: int = 1
    elite_margin: float = 0.002
    elite_steps: int = 2
    archive_size: int = 8
    polish_every: int = 10
    polish_evaluations: int = 100_000
    polish_share: float = 0.5

    name: ClassVar[str] = "sim_rl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("elite_batch", "elite_steps", "polish_every", least=0)
        self.require_counts("elite_pool", "archive_size")
        self.require_counts("polish_evaluations", least=2)
        self.require_number("elite_weight", least=0.0)
        self.require_number("elite_margin", least=0.0, most=1.0)
        self.require_number("polish_share", least=0.0, most=1.0)

    def prepare(self, trainer: Trainer) -> None:
        if trainer.simulated is None:
            raise ConfigurationError("stage sim_rl: the trainer was given no simulated objective")
        self._runner = make_runner(
            trainer.policy, trainer.problem, trainer.network, self.batch_size + self.elite_batch
        )
        self._follower = None
        if self.elite_batch and self.elite_steps:
            self._follower = EliteFollower(trainer)
        simulator = searchable(trainer.simulated) if self.polish_every else None
        self._polisher = None
        if simulator is not None:
            self._polisher = Polisher(trainer.problem, simulator, self.polish_evaluations)

    def start(self, trainer: Trainer) -> None:
        trainer.state.archive.capacity = self.archive_size

    def update(self, trainer: Trainer) -> dict[str, Any]:
        state, size = trainer.state, self.batch_size
        exploration = self.scheduled(self.exploration, self.final_exploration, state.update)
        elites = self._elites(trainer)
        tables = trainer.policy.encode(self._runner.features)
        batch = self._runner.run(trainer.rng, exploration=exploration, forced=elites, tables=tables)
        placements, orders = batch.placements[:size], batch.ops[:size]
        makespans = trainer.simulate(placements, orders)
        weights = np.zeros(len(batch.ops))
        weights[:size] = self.advantages(trainer, makespans)
        weights[size:] = self.elite_weight if elites is not None else 0.0
        report = accumulate_gradient(
            trainer.policy,
            self._runner.features,
            batch,
            LossWeights(weights, self.sel_entropy, self.plc_entropy, entropy_rows=size),
            tables=tables,
        )
        metrics = self.step(trainer, report.loss)
        best = int(np.argmin(makespans))
        self._polish(trainer, placements[best], orders[best])
        target = state.archive.follow(self.elite_margin)
        if self._follower is not None and target is not None:
            for _ in range(self.elite_steps):
                self.step(trainer, self._follower.accumulate(trainer, target))
        return {
            "loss": report.loss,
            "entropy_sel": report.sel_entropy,
            "entropy_plc": report.plc_entropy,
            "exploration": exploration,
            "simulated_makespan_mean": float(makespans.mean()),
            "simulated_makespan_min": float(makespans.min()),
            "simulated_makespan_best": state.best_makespan,
            **metrics,
        }

    def _elites(self, trainer: Trainer) -> Episodes | None:
        """What this update imitates."""
        archive = trainer.state.archive
        if self.elite_pool > 1:
            return archive.sample(self.elite_batch, trainer.rng, self.elite_pool)
        target = archive.follow(self.elite_margin)
        if target is None or not self.elite_batch:
            return None
        rows = (np.tile(row, (self.elite_batch, 1)) for row in (target.placement, target.order))
        return Episodes.from_placements(*rows)

    def _polish(self, trainer: Trainer, devices: np.ndarray, order: np.ndarray) -> None:
        """Improves a placement for the archive, if it is time to. # (num_ops,) each"""
        update = trainer.state.update
        if self._polisher is None or update % self.polish_every:
            return
        if update >= self.polish_share * self.num_updates:
            return
        found, evaluations = self._polisher.improve(devices, order, trainer.rng)
        assert found.order is not None
        trainer.state.evaluations += evaluations
        trainer.simulate(found.devices[None], found.order[None])
