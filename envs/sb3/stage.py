"""PPO by Stable-Baselines3 and MaskablePPO by sb3-contrib, as stages of training.

An update of the trainer is one roll-out of `batch_size` episodes that step together, and PPO's
epochs over it. Weights, moments of the optimiser and generator are the trainer's own, so its
checkpoints hold all that a resumed run needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from doppler.errors import ConfigurationError, TrainingError
from doppler.training.stage import Stage, is_number
from envs.sb3.episodes import JudgedEpisodes
from envs.sb3.network import ActorCritic

if TYPE_CHECKING:
    from doppler.problem import PlacementProblem
    from doppler.training import Trainer

BUFFER_BYTES = 8e9
"""Most that a roll-out's observations may take. [B]"""


@dataclass
class StableBaselines(Stage):
    """What the two algorithms share.

    Every update begins with empty placements, so that a checkpoint needs none that are half done;
    where illegal actions have cut episodes short, the critic's value stands for the rest of those
    that are open at an update's end. An *episode* here is as many steps as there are ops.

    Args:
        epochs: passes over a roll-out.
        minibatches: steps of the optimiser per pass; divides `batch_size`.
        discount: of what a step later is worth (gamma).
        gae_lambda: of generalised advantage estimation.
        clip_range: of the ratio of probabilities.
        entropy: weight of the mean entropy per step.
        value_weight: of the critic's squared error.
        archive_size: how many of the best placements are kept, at least 1.
    """

    batch_size: int = 32
    learning_rate: float = 2e-3
    final_learning_rate: float = 2e-4
    gradient_clip: float = 0.5
    epochs: int = 4
    minibatches: int = 4
    discount: float = 1.0
    gae_lambda: float = 0.98
    clip_range: float = 0.2
    entropy: float = 0.001
    value_weight: float = 0.5
    archive_size: int = 8

    masked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("epochs", "minibatches", "archive_size")
        for label in ("discount", "gae_lambda"):
            self.require_number(label, above=0.0, most=1.0)
        self.require_number("clip_range", above=0.0)
        for label in ("entropy", "value_weight"):
            self.require_number(label, least=0.0)
        self.require(
            self.batch_size % self.minibatches == 0 and self.batch_size > self.minibatches,
            "batch_size",
            f"a multiple of the {self.minibatches} minibatches, twice as large or more",
        )

    def prepare(self, trainer: Trainer) -> None:
        if trainer.simulated is None:
            raise ConfigurationError(
                f"stage {self.name}: the trainer was given no simulated objective"
            )
        network: Any = trainer.policy
        if not isinstance(network, ActorCritic):
            raise ConfigurationError(
                f"stage {self.name}: it trains policy=actor_critic, not {type(network).__name__}"
            )
        self._check_memory(trainer.problem)
        self._episodes = JudgedEpisodes(
            self.batch_size,
            trainer.simulate,
            trainer.problem,
            trainer.network,
            illegal_reward=self._illegal_reward(),
        )
        self._model = self._make_model(network, trainer)

    def start(self, trainer: Trainer) -> None:
        trainer.state.archive.capacity = self.archive_size

    def update(self, trainer: Trainer) -> dict[str, Any]:
        """One roll-out and PPO's epochs over it.

        Raises:
            TrainingError: weights or loss are not finite any more.
        """
        state, episodes = trainer.state, self._episodes
        self._rate = self.scheduled(self.learning_rate, self.final_learning_rate, state.update)
        episodes.forget()
        steps = self.batch_size * trainer.problem.num_ops
        try:
            with _seeded(trainer.rng):
                self._model.learn(steps, log_interval=None, reset_num_timesteps=True)
        except ValueError as error:  # torch's distributions refuse logits that are not finite
            self._check_finite(trainer)
            raise TrainingError(f"stage {self.name}: {error}") from error
        self._check_finite(trainer)
        return {
            "learning_rate": self._rate,
            "exploration": 0.0,
            **self._report(),
            **self._found(episodes),
            **({"simulated_makespan_best": state.best_makespan} if len(state.archive) else {}),
        }

    def close(self) -> None:
        self.__dict__.pop("_model", None)
        self.__dict__.pop("_episodes", None)

    def _illegal_reward(self) -> float | None:
        return None

    def _make_model(self, network: ActorCritic, trainer: Trainer) -> Any:
        from envs.sb3.models import make_model

        num_ops = trainer.problem.num_ops
        self._rate = self.learning_rate
        return make_model(
            self.masked,
            self._episodes,
            network,
            trainer.optimiser,
            {
                "learning_rate": lambda progress: self._rate,
                "n_steps": num_ops,
                "batch_size": self.batch_size // self.minibatches * num_ops,
                "n_epochs": self.epochs,
                "gamma": self.discount,
                "gae_lambda": self.gae_lambda,
                "clip_range": self.clip_range,
                "ent_coef": self.entropy,
                "vf_coef": self.value_weight,
                "max_grad_norm": self.gradient_clip,
            },
        )

    def _report(self) -> dict[str, float]:
        """What the algorithm recorded of its last update."""
        record = self._model.logger.name_to_value
        return {
            "loss": float(record["train/loss"]),
            "entropy": -float(record["train/entropy_loss"]),
            "policy_kl": float(record["train/approx_kl"]),
            "value_loss": float(record["train/value_loss"]),
            "clip_fraction": float(record["train/clip_fraction"]),
        }

    @staticmethod
    def _found(episodes: JudgedEpisodes) -> dict[str, float]:
        """Of the placements that were completed; nothing of them where there are none."""
        found = {"illegal_share": 1.0 - len(episodes.judged) / max(episodes.ended, 1)}
        if episodes.judged:
            found["simulated_makespan_mean"] = float(np.mean(episodes.judged))
            found["simulated_makespan_min"] = float(np.min(episodes.judged))
        return found

    def _check_finite(self, trainer: Trainer) -> None:
        finite = all(bool(torch.isfinite(p).all()) for p in trainer.policy.parameters())
        loss = float(self._model.logger.name_to_value.get("train/loss", 0.0))
        if finite and math.isfinite(loss):
            return
        what = f"the loss is {loss}" if finite else "a weight is not finite any more"
        raise TrainingError(
            f"stage {self.name}, update {trainer.state.update + 1}: {what}; the weights of the "
            f"last checkpoint are from before that. Lower {self.name}.learning_rate (now "
            f"{self.learning_rate:g})"
        )

    def _check_memory(self, problem: PlacementProblem) -> None:
        """Stable-Baselines3 keeps every step's observation and mask."""
        n, d = problem.num_ops, problem.num_devices
        needed = float(self.batch_size * n * (13 * n + 8 * n * d + 12 * d))
        if needed > BUFFER_BYTES:
            raise ConfigurationError(
                f"stage {self.name}, batch_size: {self.batch_size} episodes of {n} ops would take "
                f"{needed / 1e9:.3g} GB of roll-out buffer, more than {BUFFER_BYTES / 1e9:g} GB; "
                "Stable-Baselines3 keeps every step's observation: use fewer episodes, or sim_rl"
            )


@dataclass
class MaskablePPO(StableBaselines):
    """MaskablePPO (Huang and Ontanon 2022): illegal actions have no chance.

    Args: see `StableBaselines`.
    """

    name: ClassVar[str] = "maskable_ppo"


@dataclass
class PPO(StableBaselines):
    """PPO (Schulman et al. 2017): that an action is illegal has to be learned.

    Args:
        discount: as in `StableBaselines`. Below 1, since every episode that ends illegally earns
            the same: only if later is better is there a reason to go on.
        illegal_reward: of an illegal action; None for the environment's own.

    Further arguments: see `StableBaselines`.
    """

    discount: float = 0.99
    illegal_reward: float | None = None

    name: ClassVar[str] = "sb3_ppo"
    masked: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        reward = self.illegal_reward
        if reward is not None:
            below = is_number(reward) and reward < 0.0
            self.require(below, "illegal_reward", "a finite number below 0")

    def _illegal_reward(self) -> float | None:
        return self.illegal_reward


@contextmanager
def _seeded(rng: np.random.Generator) -> Iterator[None]:
    """Gives the global generators, from which Stable-Baselines3 draws, a seed of this update.

    They are put back afterwards: what others draw from them does not depend on training.
    """
    before = np.random.get_state()  # noqa: NPY002
    generator = torch.default_generator
    before_torch = generator.get_state()
    np.random.seed(int(rng.integers(2**32)))  # noqa: NPY002
    generator.manual_seed(int(rng.integers(2**63)))
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
        generator.set_state(before_torch)
