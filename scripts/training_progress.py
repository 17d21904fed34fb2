"""Training callbacks of the scripts: a progress bar per stage, and the best placement of each."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from doppler import Placement, PlacementProblem
from doppler.policies import Policy
from doppler.simulator import Simulator
from doppler.training import Callback, Stage, Trainer
from doppler.viz.figure import format_seconds
from scripts.progress import Advance, ProgressDisplay
from scripts.report import simulate
from scripts.run_folder import RunFolder

POLICY_LABELS = {
    "imitation": "DOPPLER-IMITATION",
    "sim_rl": "DOPPLER-SIM",
    "real_rl": "DOPPLER-SYS",
    "maskable_ppo": "MASKABLE-PPO",
    "sb3_ppo": "SB3-PPO",
}
"""Every stage, and what the best placement at its end is called."""


def policy_label(stage: str, policy: Policy) -> str:
    """What the best placement of a policy is called at the end of a stage."""
    kind = getattr(policy, "kind", "")
    named = POLICY_LABELS[stage]
    return named.replace("DOPPLER", kind.upper().replace("_", "-")) if kind else named


COMPARATORS = ("maskable_ppo", "sb3_ppo")
"""Stages of other learners, which tables name only where they were run."""

SHOWN = ("measured_makespan_incumbent", "simulated_makespan_best", "loss")
"""The first of these that an update reports is shown beside its bar."""


class TrainingProgress(Callback):
    """Shows a bar per stage, counted in updates."""

    def __init__(self, display: ProgressDisplay) -> None:
        self.display = display
        self._stack = ExitStack()
        self._stage: Stage | None = None
        self._advance: Advance | None = None

    def on_start(self, trainer: Trainer, resumed: bool) -> None:
        if not resumed:
            return
        state = trainer.state
        if state.stage >= len(trainer.stages):
            where = "training was finished; the placements are measured again"
        else:
            stage = trainer.stages[state.stage]
            where = f"going on in stage {stage.name} after update {state.update}"
        self.display.console.print(where, highlight=False)

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        if self._stage is not trainer.stage or self._advance is None:
            # Not in on_stage_start: a resumed stage does not start again.
            self._stack.close()
            self._stage = trainer.stage
            step = self.display.step(f"stage {trainer.stage.name}", trainer.stage.num_updates)
            self._advance = self._stack.enter_context(step)
        self._advance(metrics["update"], self._note(metrics))

    def on_stage_end(self, trainer: Trainer, stage: Stage) -> None:
        self._stack.close()
        self._advance = None

    def on_end(self, trainer: Trainer) -> None:
        self._stack.close()

    def _note(self, metrics: dict[str, Any]) -> str:
        for name in SHOWN:
            value = metrics.get(name)
            if value is not None:
                text = f"{value:.4g}" if name == "loss" else format_seconds(value)
                return f"{name.replace('_', ' ')} {text}"
        return ""


class BestPlacements(Callback):
    """Writes the best placement known at the end of each stage into the run folder."""

    def __init__(self, folder: RunFolder, problem: PlacementProblem, simulator: Simulator) -> None:
        self.folder = folder
        self.problem = problem
        self.simulator = simulator

    def on_stage_end(self, trainer: Trainer, stage: Stage) -> None:
        state = trainer.state
        best = state.incumbent if stage.name == "real_rl" else state.best()
        if best is None:
            return
        info = {
            **best.info,
            "scheduler": policy_label(stage.name, trainer.policy),
            "simulated_makespan": simulate(self.simulator, best),
            "seconds": state.seconds,
            "evaluations": state.evaluations,
            "episodes": state.episodes,
        }
        Placement(best.devices, best.order, info).save(
            self.folder.placement(stage.name), self.problem
        )
