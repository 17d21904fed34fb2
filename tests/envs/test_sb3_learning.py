"""PPO and MaskablePPO as stages: known optimum, legality, determinism, resuming."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_problems import (
    OPTIMUM,
    SMALL,
    STAGES,
    Recorder,
    StopAfter,
    constrained,
    make_trainer,
    six_ops,
)

from doppler.errors import ConfigurationError, TrainingError
from doppler.policies import DualPolicy
from doppler.simulator import Simulator
from doppler.training import SimRL, Trainer
from envs.sb3 import ActorCritic, MaskablePPO, sample_episodes
from envs.sb3.episodes import JudgedEpisodes

BOTH = pytest.mark.parametrize("name", list(STAGES))


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(trainer.policy.parameters()).detach().clone()


def sampled_mean(network: ActorCritic) -> float:
    rng = np.random.default_rng(5)
    found = sample_episodes(network, six_ops(), "contention_free", 64, rng)
    return float(Simulator(six_ops(), "contention_free").makespans(found.placements).mean())


def test_the_optimum_is_known() -> None:
    every = np.array(list(itertools.product(range(2), repeat=6)))
    assert Simulator(six_ops(), "contention_free").makespans(every).min() == OPTIMUM


def test_maskable_ppo_solves_six_ops() -> None:
    recorder, network = Recorder(), ActorCritic(SMALL, seed=0)
    before = sampled_mean(network)
    trainer = make_trainer(
        "maskable_ppo", callbacks=(recorder,), network=network, episodes=640, batch_size=16,
        learning_rate=2e-2, final_learning_rate=2e-3, minibatches=1,
    )  # fmt: skip
    result = trainer.fit()
    assert result.simulated is not None and result.simulated.info["simulated_makespan"] == OPTIMUM
    placement = result.simulated
    given = Simulator(six_ops(), "contention_free", choose="given")
    assert given.makespan(placement.devices, placement.order) >= OPTIMUM  # the order is a legal one
    assert before > OPTIMUM + 1.5
    assert sampled_mean(network) < OPTIMUM + 0.5  # the policy itself has learned it
    assert recorder.rows[-1]["simulated_makespan_mean"] < OPTIMUM + 0.5
    assert recorder.rows[-1]["entropy"] < 0.5 * recorder.rows[0]["entropy"]


def test_plain_ppo_learns_what_is_legal_and_what_is_good() -> None:
    recorder = Recorder()
    trainer = make_trainer(
        "sb3_ppo", callbacks=(recorder,), episodes=1280, batch_size=16, learning_rate=2e-2,
        final_learning_rate=2e-3, minibatches=1,
    )  # fmt: skip
    result = trainer.fit()
    first, last = recorder.rows[0], recorder.rows[-1]
    assert first["illegal_share"] > 0.9
    assert np.mean([row["illegal_share"] for row in recorder.rows[-10:]]) < 0.1
    assert result.simulated is not None
    assert result.simulated.info["simulated_makespan"] <= 1.1 * OPTIMUM
    assert last["simulated_makespan_mean"] < OPTIMUM + 2.0
    assert 0 < result.evaluations < result.episodes * 6


@pytest.mark.parametrize("make", [six_ops, constrained])
def test_masks_admit_no_illegal_action(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make()
    legal: list[bool] = []
    step = JudgedEpisodes.step

    def watched(self: JudgedEpisodes, actions: np.ndarray) -> Any:
        legal.extend(self.action_masks()[np.arange(len(actions)), actions])
        return step(self, actions)

    monkeypatch.setattr(JudgedEpisodes, "step", watched)
    recorder = Recorder()
    trainer = make_trainer("maskable_ppo", problem, callbacks=(recorder,), episodes=80)
    result = trainer.fit()
    assert all(legal) and len(legal) == 80 * problem.num_ops
    assert result.episodes == result.evaluations == 80
    assert all(row["illegal_share"] == 0.0 for row in recorder.rows)
    assert result.simulated is not None
    problem.check_placement(result.simulated.devices)


def test_what_is_judged_is_what_the_trainer_was_given() -> None:
    """A noisy, robust or bulk-synchronous objective reaches rewards, metrics and archive."""
    recorder = Recorder()
    trainer = make_trainer("maskable_ppo", callbacks=(recorder,), episodes=8)
    trainer.simulated = lambda placements, orders: np.arange(100.0, 100.0 + len(placements))
    result = trainer.fit()
    assert recorder.rows[0]["simulated_makespan_min"] == 100.0
    assert recorder.rows[0]["simulated_makespan_mean"] == 103.5
    assert result.simulated is not None
    assert result.simulated.info["simulated_makespan"] == 100.0
    assert len(trainer.state.archive) == 8
    assert result.simulated.order is not None
    six_ops().check_order(result.simulated.order)


@BOTH
def test_one_seed_gives_one_result_and_leaves_the_global_generators_alone(name: str) -> None:
    torch.manual_seed(11)
    np.random.seed(12)  # noqa: NPY002
    ends = [weights(trainer) for trainer in _trained(name, seeds=(3, 3, 4))]
    drawn = float(torch.rand(1)), float(np.random.rand())  # noqa: NPY002
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])
    torch.manual_seed(11)
    np.random.seed(12)  # noqa: NPY002
    assert drawn == (float(torch.rand(1)), float(np.random.rand()))  # noqa: NPY002


def _trained(name: str, seeds: tuple[int, ...]) -> list[Trainer]:
    trainers = [make_trainer(name, episodes=24, seed=seed) for seed in seeds]
    for trainer in trainers:
        trainer.fit()
    return trainers


@BOTH
@pytest.mark.parametrize("after", [1, 4])
def test_a_resumed_run_ends_as_an_uninterrupted_one(name: str, after: int, tmp_path: Path) -> None:
    whole, rows = make_trainer(name, episodes=56, folder=tmp_path / "whole"), Recorder()
    expected = whole.fit()
    cut = make_trainer(name, episodes=56, folder=tmp_path / "cut", callbacks=(StopAfter(after),))
    with pytest.raises(KeyboardInterrupt):
        cut.fit()
    resumed = make_trainer(name, episodes=56, folder=tmp_path / "cut", callbacks=(rows,))
    result = resumed.fit(resume=True)
    assert len(rows.rows) == 7 - after
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.rng.bit_generator.state == whole.rng.bit_generator.state
    assert resumed.state.archive.makespans == whole.state.archive.makespans
    assert (result.episodes, result.evaluations) == (expected.episodes, expected.evaluations)


@BOTH
def test_the_learning_rate_falls_and_moments_are_the_trainers(name: str) -> None:
    recorder = Recorder()
    trainer = make_trainer(
        name, episodes=24, learning_rate=4e-3, final_learning_rate=2e-3, callbacks=(recorder,)
    )
    steps: list[float] = []
    recorder.on_stage_end = lambda trainer, stage: steps.extend(  # type: ignore[method-assign]
        float(entry["step"]) for entry in trainer.optimiser.state.values()
    )
    trainer.fit()
    assert recorder.rates == pytest.approx([4e-3, 3e-3, 2e-3])
    assert [row["learning_rate"] for row in recorder.rows] == pytest.approx(recorder.rates)
    used = len(list(trainer.policy.parameters()))
    assert len(steps) <= used and set(steps) <= {3.0 * 4 * 2}  # updates * epochs * minibatches


def test_the_graph_is_encoded_once_per_roll_out_and_minibatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[bool] = []
    plain = ActorCritic.encode_graph

    def counted(self: ActorCritic, features: Any) -> Any:
        calls.append(torch.is_grad_enabled())
        return plain(self, features)

    monkeypatch.setattr(ActorCritic, "encode_graph", counted)
    make_trainer("maskable_ppo", episodes=16, epochs=3).fit()
    assert calls == [False, *[True] * 6] * 2


def test_diverged_weights_end_training_with_a_message() -> None:
    network = ActorCritic(SMALL, seed=0)
    with torch.no_grad():
        network.score.bias.fill_(torch.nan)
    trainer = make_trainer("maskable_ppo", network=network, episodes=16)
    with pytest.raises(TrainingError, match="stage maskable_ppo, update 1: a weight is not finite"):
        trainer.fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs: 0 is below 1"),
        ({"batch_size": 6, "minibatches": 4}, "batch_size: 6 is not a multiple of the 4"),
        ({"batch_size": 4, "minibatches": 4}, "batch_size: 4 is not a multiple of the 4"),
        ({"discount": 0.0}, "discount: 0.0 is not"),
        ({"gae_lambda": 1.5}, "gae_lambda: 1.5 is not"),
        ({"clip_range": 0}, "clip_range: 0 is not"),
        ({"entropy": -1.0}, "entropy: -1.0 is not"),
        ({"archive_size": 0}, "archive_size: 0 is below 1"),
    ],
)
@BOTH
def test_wrong_settings_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"stage {name}, {message}"):
        make_trainer(name, **options)


def test_a_penalty_that_is_none_is_refused() -> None:
    for value in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigurationError, match="stage sb3_ppo, illegal_reward: "):
            make_trainer("sb3_ppo", illegal_reward=value)


def test_policies_and_stages_that_do_not_go_together_are_refused() -> None:
    trainer = make_trainer("maskable_ppo", network=DualPolicy())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="trains policy=actor_critic, not DualPolicy"):
        trainer.fit()
    other = Trainer(
        six_ops(), ActorCritic(SMALL), [SimRL(episodes=32)],  # type: ignore[arg-type]
        simulated=trainer.simulated,
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="trained by stages of its own"):
        other.fit()
    blind = Trainer(six_ops(), ActorCritic(SMALL), [MaskablePPO()])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="maskable_ppo: the trainer was given no simulat"):
        blind.fit()


def test_graphs_beyond_the_buffer_are_refused() -> None:
    from doppler.workloads.random_dags import layered_dag

    trainer = make_trainer("maskable_ppo", layered_dag(3000, 4, seed=0), batch_size=32)
    with pytest.raises(ConfigurationError, match=r"batch_size: 32 episodes of 3000 ops .* GB"):
        trainer.fit()


def test_stable_baselines_is_imported_when_a_stage_begins() -> None:
    """Only `models` imports it, and that is imported inside functions."""
    folder = Path(__file__).resolve().parents[2] / "envs" / "sb3"
    heavy = {"stable_baselines3", "sb3_contrib"}
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {
            alias
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in [getattr(node, "module", None), *(a.name for a in node.names)]
            if alias
        }
        found = heavy & {name.split(".")[0] for name in names}
        assert bool(found) == (path.name == "models.py"), path
        assert "envs.sb3.models" not in names, path
