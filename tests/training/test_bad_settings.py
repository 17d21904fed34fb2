"""Impossible settings are refused at once; training that diverges stops before it does harm."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from doppler.errors import ConfigurationError, TrainingError
from doppler.hardware import Device
from doppler.policies import DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.simulator import Simulator
from doppler.training import (
    Callback,
    Checkpoints,
    Imitation,
    RealRL,
    SimRL,
    Stage,
    Trainer,
    load_policy_from_checkpoint,
    simulated_objective,
)
from doppler.workloads.random_dags import layered_dag

SMALL = PolicyConfig(hidden_width=8, message_rounds=2, head_width=8)
HUGE = 10**400


@pytest.mark.parametrize(
    ("kind", "label", "value"),
    [
        *(
            (Imitation, "learning_rate", value)
            for value in (math.inf, 1e30, math.nan, 0, "1", True)
        ),
        *((SimRL, "final_learning_rate", value) for value in (math.inf, 1.5, -1e-9, None, HUGE)),
        *((SimRL, "gradient_clip", value) for value in (math.inf, 0.0, "x")),
        *((SimRL, "budget_s", value) for value in (math.inf, math.nan, "soon", True, 0)),
        *((SimRL, "episodes", value) for value in (True, 1.5, "8", 0)),
        *((SimRL, "archive_size", value) for value in (0, True, 2.5)),
        *((SimRL, "elite_weight", value) for value in (math.inf, math.nan, -1)),
        *((SimRL, "exploration", value) for value in (math.nan, "0", 1.01)),
        *((SimRL, "sel_entropy", value) for value in (math.inf, -0.1)),
        (SimRL, "normalise", 1),
        *((RealRL, "confidence", value) for value in (math.nan, 1.0, "0.9")),
    ],
)
def test_impossible_settings_of_stages_are_refused(
    kind: type[Stage], label: str, value: object
) -> None:
    with pytest.raises(ConfigurationError, match=rf"stage {kind.name}, {label}: .* is (not|below)"):
        kind(**{label: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.5, True, "50", 0])
def test_checkpoints_come_after_whole_numbers_of_updates(tmp_path: Path, value: object) -> None:
    with pytest.raises(
        ConfigurationError, match=r"checkpoints, every: .* is (not a whole number|below 1)"
    ):
        Checkpoints(tmp_path, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("label", "value"),
    [("budget_s", "soon"), ("budget_s", math.nan), ("budget_s", 0), ("seed", 1.5), ("seed", -1)],
)
def test_impossible_settings_of_the_trainer_are_refused(label: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"trainer, {label}: "):
        Trainer(layered_dag(8, 2), DualPolicy(SMALL), [SimRL()], **{label: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["gradient norm", "loss"])
def test_training_that_diverges_stops_before_the_step(tmp_path: Path, what: str) -> None:
    class Poison(Callback):
        """Makes the third update's loss or gradient infinite."""

        def on_update(self, trainer: Trainer, metrics: dict) -> None:
            if metrics["total_updates"] != 2:
                return
            if what == "loss":
                trainer.stages[0].elite_weight = math.inf  # type: ignore[attr-defined]
            else:
                trainer.policy.sel.last.bias.register_hook(lambda grad: grad * math.inf)

    task = layered_dag(12, 2, seed=1)
    policy = DualPolicy(SMALL)
    trainer = Trainer(
        task,
        policy,
        [SimRL(episodes=40, batch_size=4)],
        simulated=simulated_objective(Simulator(task)),
        callbacks=[Poison()],
        checkpoints=Checkpoints(tmp_path, every=1),
    )
    with pytest.raises(TrainingError, match=rf"stage sim_rl, update 3: the {what} is (nan|-?inf)"):
        trainer.fit()
    kept, _ = load_policy_from_checkpoint(tmp_path / "checkpoint.pt")
    for (name, stored), present in zip(kept.state_dict().items(), policy.state_dict().values()):
        assert torch.equal(stored, present), name


def without_memory(problem: PlacementProblem) -> PlacementProblem:
    devices = tuple(Device(device.name, memory_bytes=1e-3) for device in problem.topology.devices)
    graph = replace(problem.graph, output_bytes=np.ones(problem.num_ops))
    return replace(problem, graph=graph, topology=replace(problem.topology, devices=devices))


def test_a_result_says_why_it_has_no_placement() -> None:
    task = without_memory(layered_dag(8, 2, seed=1))
    objective = simulated_objective(Simulator(task))
    stages = [
        Imitation(episodes=4, batch_size=4, trials=4),
        SimRL(episodes=8, batch_size=4, polish_every=0),
    ]
    result = Trainer(task, DualPolicy(SMALL), stages, simulated=objective).fit()
    assert result.completed
    assert result.simulated is None
    assert result.reason is not None
    assert "no placement within memory was found: all 13 that were simulated" in result.reason
    result = Trainer(task, DualPolicy(SMALL), stages[:1]).fit()
    assert result.reason == "no placement was simulated"
    task = layered_dag(8, 2, seed=1)
    objective = simulated_objective(Simulator(task))
    assert Trainer(task, DualPolicy(SMALL), stages, simulated=objective).fit().reason is None
