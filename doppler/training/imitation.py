"""Stage I: imitate a teacher, by default the critical-path scheduler with random ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.schedulers.critical_path import critical_path_episodes
from doppler.training.likelihood import LossWeights, accumulate_gradient
from doppler.training.rollout import Episodes
from doppler.training.runners import make_runner
from doppler.training.stage import Stage

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer


class Teacher(Protocol):
    """Shows how to build placements."""

    def __call__(
        self, problem: PlacementProblem, batch_size: int, network: str, rng: np.random.Generator
    ) -> Episodes: ...


@dataclass(frozen=True)
class CriticalPathTeacher:
    """The critical-path scheduler; `ties` as there."""

    ties: str = "random"

    def __call__(
        self, problem: PlacementProblem, batch_size: int, network: str, rng: np.random.Generator
    ) -> Episodes:
        return Episodes(*critical_path_episodes(problem, batch_size, network, rng, self.ties))


@dataclass(frozen=True)
class PlacementTeacher:
    """Rebuilds given placements, each in its own order (topological where it has none)."""

    placements: Sequence[Placement]

    def __post_init__(self) -> None:
        if not self.placements:
            raise ConfigurationError("placement teacher: no placements given")

    def __call__(
        self, problem: PlacementProblem, batch_size: int, network: str, rng: np.random.Generator
    ) -> Episodes:
        picked = [self.placements[i] for i in rng.integers(len(self.placements), size=batch_size)]
        devices = np.stack([problem.check_placement(one.devices) for one in picked])
        orders = np.stack(
            [
                problem.graph.topological_order
                if one.order is None
                else problem.check_order(one.order)
                for one in picked
            ]
        )
        return Episodes.from_placements(devices, orders)


@dataclass
class Imitation(Stage):
    """Maximises the likelihood of the teacher's choices.

    Args:
        teacher: shows episodes; None for the critical path with random ties.
        trials: episodes sampled from the policy and simulated at the end of the stage, besides the
            greedy one, for a best placement to go on from; needs a simulated objective.
    """

    episodes: int = 1600
    batch_size: int = 16
    learning_rate: float = 3e-3
    final_learning_rate: float = 3e-4
    teacher: Teacher | None = None
    trials: int = 32

    name: ClassVar[str] = "imitation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("trials", least=0)

    def prepare(self, trainer: Trainer) -> None:
        self._runner = make_runner(
            trainer.policy, trainer.problem, trainer.network, self.batch_size
        )

    def update(self, trainer: Trainer) -> dict[str, Any]:
        teacher = self.teacher or CriticalPathTeacher()
        shown = teacher(trainer.problem, self.batch_size, trainer.network, trainer.rng)
        tables = trainer.policy.encode(self._runner.features)
        batch = self._runner.run(trainer.rng, forced=shown, tables=tables)
        report = accumulate_gradient(
            trainer.policy,
            self._runner.features,
            batch,
            LossWeights(np.ones(self.batch_size)),
            tables=tables,
        )
        return {
            "loss": report.loss,
            "entropy_sel": report.sel_entropy,
            "entropy_plc": report.plc_entropy,
            "exploration": 0.0,
            **self.step(trainer, report.loss),
        }

    def end(self, trainer: Trainer) -> dict[str, Any]:
        if trainer.simulated is not None:
            trainer.try_policy(self.trials)
        return {}
