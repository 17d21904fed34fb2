"""The Stable-Baselines3 learners as options of `scripts/train.py`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from sb3_problems import OPTIMUM, STAGES, six_ops

from doppler import Placement, save_problem
from doppler.simulator import Simulator
from envs.sb3 import ActorCritic, ActorCriticConfig
from scripts import train, training_progress
from scripts.run_folder import resolved

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
LABELS = {"maskable_ppo": "MASKABLE-PPO", "sb3_ppo": "SB3-PPO"}
BOTH = pytest.mark.parametrize("name", list(STAGES))

Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs `python scripts/train.py` on six.json, a tiny problem; returns the exit status."""
    monkeypatch.chdir(tmp_path)
    save_problem(six_ops(), tmp_path / "six.json")

    def run(*arguments: str) -> int:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        try:
            train.main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return run


def options(name: str, *more: str) -> list[str]:
    return [
        f"experiment={name}", "workload=file", "workload.path=six.json",
        "simulator.network=contention_free", "policy.config.hidden_width=8",
        "policy.config.head_width=8", "policy.config.message_rounds=1",
        f"{name}.batch_size=8", f"{name}.minibatches=1", f"{name}.learning_rate=0.01", *more,
    ]  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["policy"]


@BOTH
def test_experiments_compose_with_every_setting_at_its_default(name: str) -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose("train", overrides=[f"experiment={name}", "seed=3"])
    train.check_options(config)
    assert list(config.stages) == [name]
    stage, policy = instantiate(config[name]), instantiate(config.policy)
    assert type(stage) is STAGES[name] and stage.name == name
    assert stage.options() == STAGES[name]().options()
    assert set(config[name]) - {"_target_"} == {*stage.options(), "budget_s"}
    assert isinstance(policy, ActorCritic) and policy.config == ActorCriticConfig()
    assert config.policy.seed == 3
    resolved(config)


@BOTH
def test_a_run_leaves_metrics_table_and_best_placement(
    name: str, command: Command, tmp_path: Path
) -> None:
    assert command(*options(name, f"{name}.episodes=400", "run_dir=out")) == 0
    folder = tmp_path / "out"
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["stage"] for row in rows] == [name] * 50
    assert int(rows[-1]["episodes"]) == 400 and float(rows[-1]["seconds"]) > 0
    evaluated = [int(row["evaluations"]) for row in rows]
    assert evaluated == sorted(evaluated) and evaluated[-1] > 0
    last = rows[-1]
    assert float(last["simulated_makespan_best"]) == OPTIMUM
    for key in ("loss", "entropy", "policy_kl", "value_loss", "illegal_share", "learning_rate"):
        assert last[key], key
    placement = Placement.load(folder / f"placement_{name}.json", six_ops())
    assert placement.order is not None
    assert Simulator(six_ops(), "contention_free").makespan(placement.devices) == OPTIMUM
    table = list(csv.DictReader((folder / "results.csv").open()))
    assert table[-1]["scheduler"] == LABELS[name]
    assert float(table[-1]["simulated_makespan_s"]) == OPTIMUM
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["evaluations"] == evaluated[-1]
    assert (folder / "learning_curve.png").exists()


@BOTH
def test_an_interrupted_run_goes_on(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(*options(name, f"{name}.episodes=48", "run_dir=whole")) == 0
    plain = training_progress.TrainingProgress.on_update

    def interrupting(self, trainer, metrics):  # type: ignore[no-untyped-def]
        plain(self, trainer, metrics)
        if metrics["total_updates"] == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training_progress.TrainingProgress, "on_update", interrupting)
        assert command(*options(name, f"{name}.episodes=48", "run_dir=cut")) == 130
    assert command("resume=cut") == 0
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[key], two[key]) for key in one)
    rows = list(csv.DictReader((tmp_path / "cut" / "metrics.csv").open()))
    assert [int(row["total_updates"]) for row in rows] == list(range(1, 7))


def test_stages_of_other_policies_are_refused_with_a_message(
    command: Command, capsys: pytest.CaptureFixture
) -> None:
    assert command(*options("maskable_ppo", "stages=[imitation]", "run_dir=out")) == 2
    assert "this policy is trained by stages of its own" in capsys.readouterr().err
