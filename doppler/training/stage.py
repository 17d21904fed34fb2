"""What the stages of training have in common: length, schedules and the optimiser's step."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from doppler.checks import whole_number
from doppler.errors import ConfigurationError, TrainingError
from doppler.training.schedules import linear

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer

_BOUNDS = {"above": "above", "least": ">=", "most": "<="}
BASELINES = ("leave_one_out", "batch_mean", "running_mean")


def is_number(
    value: Any, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> bool:
    """Whether a value is a finite number (no bool) within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    # Compared first: an int beyond every float has no finite float.
    return bool(max(-sys.float_info.max, least) <= value <= min(sys.float_info.max, most)) and bool(
        value > above
    )


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
        self.require_number("learning_rate", above=0.0, most=1.0)
        self.require_number("final_learning_rate", least=0.0, most=1.0)
        self.require_number("gradient_clip", above=0.0)
        if self.budget_s is not None:
            self.require_number("budget_s", above=0.0)

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

    def spent(self, trainer: Trainer) -> bool:
        """Whether a budget ends the stage before its last update."""
        return self.budget_s is not None and trainer.state.stage_seconds >= self.budget_s

    def end(self, trainer: Trainer) -> dict[str, Any]:
        """Once, after the last update; returns what is worth keeping in the result."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Releases what `prepare` acquired; called however the stage ended."""

    def options(self) -> dict[str, Any]:
        """The settings that a resumed run must share. A budget may differ."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if not name.startswith("budget_") and isinstance(value, int | float | str | None)
        }

    def require(self, holds: bool, label: str, what: str) -> None:
        if not holds:
            raise ConfigurationError(
                f"stage {self.name}, {label}: {getattr(self, label)!r} is not {what}"
            )

    def require_counts(self, *labels: str, least: int = 1) -> None:
        for label in labels:
            where = f"stage {self.name}, {label}"
            setattr(self, label, whole_number(getattr(self, label), where, least))

    def require_number(self, label: str, **bounds: float) -> None:
        what = ", ".join(f"{_BOUNDS[side]} {bound:g}" for side, bound in bounds.items())
        holds = is_number(getattr(self, label), **bounds)
        self.require(holds, label, f"a finite number {what}")

    def require_bool(self, label: str) -> None:
        self.require(isinstance(getattr(self, label), bool), label, "true or false")

    def scheduled(self, first: float, last: float, update: int) -> float:
        return linear(first, last, update, self.num_updates)

    def step(self, trainer: Trainer, loss: float) -> dict[str, float]:
        """Clips the gradient and applies it with the scheduled learning rate.

        Raises:
            TrainingError: loss or gradient is not finite; the weights stay as they are.
        """
        optimiser = trainer.optimiser
        for group in optimiser.param_groups:
            group["lr"] = self.scheduled(
                self.learning_rate, self.final_learning_rate, trainer.state.update
            )
        norm = torch.nn.utils.clip_grad_norm_(trainer.policy.parameters(), self.gradient_clip)
        for label, value in (("loss", loss), ("gradient norm", float(norm))):
            if not math.isfinite(value):
                optimiser.zero_grad(set_to_none=True)
                raise TrainingError(
                    f"stage {self.name}, update {trainer.state.update + 1}: the {label} is "
                    f"{value}; the weights of the last checkpoint are from before that. Lower "
                    f"{self.name}.learning_rate (now {self.learning_rate:g})"
                )
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
            self.require_number(label, least=0.0, most=1.0)
        for label in ("sel_entropy", "plc_entropy"):
            self.require_number(label, least=0.0)
        self.require_bool("normalise")
        self.require(self.baseline in BASELINES, "baseline", f"one of {', '.join(BASELINES)}")

    def advantages(self, trainer: Trainer, makespans: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """How much better than the baseline each episode is. # (batch,) [s] -> (batch,)

        An infinite makespan (over memory capacity) counts as twice the worst finite one. When
        normalised, advantages are divided by at least `noise`, the deviation that equal episodes
        have: what noise alone explains is not blown up to a lesson.
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
        return advantages / max(deviation, noise)
