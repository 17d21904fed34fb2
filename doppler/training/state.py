"""Everything about a training run that changes, in one place, so that a checkpoint can hold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from doppler.schedule import Placement
from doppler.training.archive import EliteArchive
from doppler.training.measuring import Measuring

COUNTERS = (
    "stage",
    "started",
    "update",
    "total_updates",
    "episodes",
    "evaluations",
    "measured_rounds",
    "seconds",
    "stage_seconds",
    "reward_mean",
    "reward_count",
)


@dataclass(eq=False)
class TrainingState:
    """Where training stands.

    Args:
        stage: index of the present stage; the number of stages once all are done.
        started: whether the present stage's `start` has run.
        update: updates done in the present stage.
        total_updates: in all stages.
        episodes: sampled or shown, in all stages.
        evaluations: placements simulated.
        measured_rounds: rounds of measurements asked for.
        seconds: of training, interruptions not counted. [s]
        stage_seconds: of the present stage. [s]
        reward_mean: running mean of what the present stage minimises: makespans [s], or log ratios
            to the incumbent's.
        reward_count: how many those are.
        archive: best simulated placements; the first is the best one.
        initial: what `real_rl` started from, with its simulated makespan if known.
        incumbent: the best measured placement.
        measuring: what `real_rl` learnt by measuring, None before that stage.
        results: what each finished stage reported, by stage name.
    """

    stage: int = 0
    started: bool = False
    update: int = 0
    total_updates: int = 0
    episodes: int = 0
    evaluations: int = 0
    measured_rounds: int = 0
    seconds: float = 0.0
    stage_seconds: float = 0.0
    reward_mean: float = 0.0
    reward_count: int = 0
    archive: EliteArchive = field(default_factory=lambda: EliteArchive(8))
    initial: Placement | None = None
    incumbent: Placement | None = None
    measuring: Measuring | None = None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def best_makespan(self) -> float:
        """Of the best simulated placement, infinite before the first. [s]"""
        return self.archive.makespans[0] if len(self.archive) else float("inf")

    def best(self) -> Placement | None:
        """The best simulated placement with its order, or None before the first."""
        if not len(self.archive):
            return None
        return Placement(
            self.archive.placements[0],
            self.archive.orders[0],
            {"simulated_makespan": self.archive.makespans[0]},
        )

    def enter_stage(self, index: int) -> None:
        """Sets the counters of a stage to their beginning."""
        self.stage, self.started, self.update = index, False, 0
        self.stage_seconds, self.reward_mean, self.reward_count = 0.0, 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        return {
            **{label: getattr(self, label) for label in COUNTERS},
            "archive": self.archive.state_dict(),
            "initial": _placement_dict(self.initial),
            "incumbent": _placement_dict(self.incumbent),
            "measuring": None if self.measuring is None else self.measuring.state_dict(),
            "results": self.results,
        }

    @classmethod
    def from_state_dict(cls, values: dict[str, Any]) -> TrainingState:
        state = cls(
            archive=EliteArchive.from_state_dict(values["archive"]),
            initial=_placement(values["initial"]),
            incumbent=_placement(values["incumbent"]),
            results=values["results"],
        )
        for label in COUNTERS:
            setattr(state, label, values[label])
        if values.get("measuring") is not None:
            state.measuring = Measuring.from_state_dict(values["measuring"])
        return state


def _placement_dict(placement: Placement | None) -> dict[str, Any] | None:
    if placement is None:
        return None
    return {
        "devices": torch.tensor(placement.devices),
        "order": None if placement.order is None else torch.tensor(placement.order),
        "info": placement.info,
    }


def _placement(values: dict[str, Any] | None) -> Placement | None:
    if values is None:
        return None
    order = None if values["order"] is None else values["order"].numpy()
    return Placement(values["devices"].numpy(), order, values["info"])
