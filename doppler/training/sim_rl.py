"""Stage II: REINFORCE against the simulator, with an archive of the best episodes to imitate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from doppler.errors import ConfigurationError
from doppler.training.likelihood import LossWeights, accumulate_gradient
from doppler.training.runners import make_runner
from doppler.training.stage import ReinforceStage

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer


@dataclass
class SimRL(ReinforceStage):
    """Batches of episodes, one simulation each; the graph is encoded once per update.

    Args:
        elite_batch: episodes of the archive that every update imitates besides; 0: plain REINFORCE.
        elite_weight: of an archived episode's log-likelihood; advantages have deviation 1.
        archive_size: how many of the best placements are kept, at least 1.
    """

    learning_rate: float = 3e-3
    final_learning_rate: float = 3e-4
    elite_batch: int = 4
    elite_weight: float = 1.0
    archive_size: int = 8

    name: ClassVar[str] = "sim_rl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("elite_batch", least=0)
        self.require_counts("archive_size")
        self.require_number("elite_weight", least=0.0)

    def prepare(self, trainer: Trainer) -> None:
        if trainer.simulated is None:
            raise ConfigurationError("stage sim_rl: the trainer was given no simulated objective")
        self._runner = make_runner(
            trainer.policy, trainer.problem, trainer.network, self.batch_size + self.elite_batch
        )

    def start(self, trainer: Trainer) -> None:
        trainer.state.archive.capacity = self.archive_size

    def update(self, trainer: Trainer) -> dict[str, Any]:
        state, size = trainer.state, self.batch_size
        exploration = self.scheduled(self.exploration, self.final_exploration, state.update)
        elites = state.archive.sample(self.elite_batch, trainer.rng)
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
        return {
            "loss": report.loss,
            "entropy_sel": report.sel_entropy,
            "entropy_plc": report.plc_entropy,
            "exploration": exploration,
            "simulated_makespan_mean": float(makespans.mean()),
            "simulated_makespan_min": float(makespans.min()),
            "simulated_makespan_best": state.best_makespan,
            **self.step(trainer, report.loss),
        }
