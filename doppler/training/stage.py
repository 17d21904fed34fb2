"""What the stages of training have in common: length, schedules and the optimiser's step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from doppler.errors import ConfigurationError
from doppler.training.schedules import linear

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer

BASELINES = ("leave_one_out", "batch_mean", "running_mean")


@dataclass
class Stage(ABC):
    """One stage of training. It ends by episodes, rounded up to whole batches.

    Args:
        episodes: how many to train on.
        batch_size: episodes per update.
        learning_rate: of Adam at the first update; falls linearly.
        final_learning_rate: at the last update.
        gradient_clip: largest norm of an update's gradient.
        budget_s: stop earlier, after so many seconds of this stage; None for no limit. [s]

    Raises:
        ConfigurationError: a value out of range.
    """

    episodes: int = 8000
    batch_size: int = 32
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    gradient_clip: float = 1.0
    budget_s: float | None = None

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.require_counts("episodes", "batch_size")
        self.require(self.learning_rate > 0, "learning_rate", "above 0")
        self.require(self.final_learning_rate >= 0, "final_learning_rate", "at least 0")
        self.require(self.gradient_clip > 0, "gradient_clip", "above 0")
        self.require(self.budget_s is None or self.budget_s > 0, "budget_s", "above 0, or none")

    @property
    def num_updates(self) -> int:
        return -(-self.episodes // self.batch_size)

    def prepare(self, trainer: Trainer) -> None:  # noqa: B027
        """Builds what the updates need; called on a fresh start and on a resumed one."""

    def start(self, trainer: Trainer) -> None:  # noqa: B027
        """Once, before the first update, after `prepare`."""

    @abstractmethod
    def update(self, trainer: Trainer) -> dict[str, Any]:
        """One batch and one step of the optimiser; returns metrics."""

    def end(self, trainer: Trainer) -> dict[str, Any]:
        """Once, after the last update; returns what is worth keeping in the result."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Releases what `prepare` acquired; called however the stage ended."""

    def options(self) -> dict[str, Any]:
        """The settings that a resumed run must share. A time limit may differ."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if name != "budget_s" and isinstance(value, int | float | str | None)
        }

    def require(self, holds: bool, label: str, what: str) -> None:
        if not holds:
            raise ConfigurationError(
                f"stage {self.name}, {label}: {getattr(self, label)!r} is not {what}"
            )

    def require_counts(self, *labels: str, least: int = 1) -> None:
        for label in labels:
            value = getattr(self, label)
            whole = isinstance(value, int) and not isinstance(value, bool)
            self.require(whole and value >= least, label, f"a whole number >= {least}")

    def scheduled(self, first: float, last: float, update: int) -> float:
        return linear(first, last, update, self.num_updates)

    def step(self, trainer: Trainer) -> dict[str, float]:
        """Clips the gradient and applies it with the scheduled learning rate."""
        optimiser = trainer.optimiser
        for group in optimiser.param_groups:
            group["lr"] = self.scheduled(
                self.learning_rate, self.final_learning_rate, trainer.state.update
            )
        norm = torch.nn.utils.clip_grad_norm_(trainer.policy.parameters(), self.gradient_clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return {"learning_rate": optimiser.param_groups[0]["lr"], "grad_norm": float(norm)}


@dataclass
class ReinforceStage(Stage):
    """Settings that both reinforcement stages share.

    Args:
        exploration: epsilon of the mixture (1 - epsilon) * policy + epsilon * uniform that episodes
            are sampled from, at the first update; falls linearly.
        final_exploration: at the last update.
        sel_entropy: weight of SEL's mean entropy per decision.
        plc_entropy: weight of PLC's.
        baseline: what a makespan is compared with: "leave_one_out" (mean of the batch's others),
            "batch_mean", or "running_mean" of all past episodes (the paper's).
        normalise: divide advantages by their deviation, so that they do not depend on the graph.
    """

    exploration: float = 0.05
    final_exploration: float = 0.0
    sel_entropy: float = 0.0
    plc_entropy: float = 0.0
    baseline: str = "leave_one_out"
    normalise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for label in ("exploration", "final_exploration"):
            self.require(0.0 <= getattr(self, label) <= 1.0, label, "in [0, 1]")
        for label in ("sel_entropy", "plc_entropy"):
            self.require(getattr(self, label) >= 0.0, label, "at least 0")
        self.require(self.baseline in BASELINES, "baseline", f"one of {', '.join(BASELINES)}")

    def advantages(self, trainer: Trainer, makespans: np.ndarray) -> np.ndarray:
        """How much better than the baseline each episode is. # (batch,) [s] -> (batch,)

        An infinite makespan (over memory capacity) counts as twice the worst finite one.
        """
        finite = np.isfinite(makespans)
        if not finite.any():
            return np.zeros_like(makespans)
        values = np.where(finite, makespans, 2.0 * makespans[finite].max())
        state = trainer.state
        if self.baseline == "running_mean":
            baseline = state.reward_mean if state.reward_count else values.mean()
        elif self.baseline == "leave_one_out" and len(values) > 1:
            baseline = (values.sum() - values) / (len(values) - 1)
        else:
            baseline = values.mean()
        state.reward_count += len(values)
        state.reward_mean += (values.sum() - len(values) * state.reward_mean) / state.reward_count
        advantages = baseline - values
        if not self.normalise:
            return advantages
        deviation = advantages.std() if self.baseline != "running_mean" else values.std()
        # Rounding alone makes equal makespans differ; there is nothing to learn from that.
        if deviation <= 1e-9 * abs(values).max():
            return np.zeros_like(advantages)
        return advantages / deviation
