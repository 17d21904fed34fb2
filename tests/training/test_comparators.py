"""Comparators in training: they learn, resume and repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from comparator_problems import MAKERS, every_comparator

from doppler.errors import CheckpointError
from doppler.policies import (
    Policy,
)
from doppler.problem import PlacementProblem
from doppler.simulator import Simulator
from doppler.training import (
    Callback,
    Checkpoints,
    Imitation,
    RealRL,
    SimRL,
    Trainer,
    load_policy_from_checkpoint,
    make_runner,
    simulated_objective,
)
from doppler.workloads.random_dags import layered_dag


@every_comparator
def test_sim_rl_solves_six_ops_from_scratch(
    six_ops: PlacementProblem, six_ops_simulator: Simulator, six_ops_optimum: float, name: str
) -> None:
    """By plain REINFORCE, without imitation and search.

    SEL-only has little to do, since its rule does well here. GDP, which sees nothing of what it
    decides, needs more episodes, and its own best ones to imitate: it gets stuck at 10 without.
    """
    policy = MAKERS[name]()

    def mean() -> float:
        runner = make_runner(policy, six_ops, "contention_free", 64)
        batch = runner.run(np.random.default_rng(9), record=False)
        return float(six_ops_simulator.makespans(batch.placements).mean())

    before = mean()
    episodes, elites = (6400, 4) if name == "gdp" else (1920, 0)
    stage = SimRL(
        episodes=episodes,
        learning_rate=1e-2,
        final_learning_rate=1e-3,
        elite_batch=elites,
        elite_weight=1.0,
        polish_every=0,
    )
    result = Trainer(
        six_ops,
        policy,
        [stage],
        simulated=simulated_objective(six_ops_simulator),
        network="contention_free",
    ).fit()
    assert result.simulated is not None
    assert six_ops_simulator.makespan(result.simulated.devices) == six_ops_optimum
    assert mean() < six_ops_optimum + 0.5  # the policy itself has learned it
    if name != "sel_only":
        assert before > six_ops_optimum + 1.5


class Stop(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_update(self, trainer: Trainer, metrics: dict) -> None:
        if metrics["total_updates"] == self.at:
            raise KeyboardInterrupt


def make_trainer(name: str, folder: Path | None, *callbacks: Callback, seed: int = 0) -> Trainer:
    problem = layered_dag(16, 2, seed=1)
    simulator = Simulator(problem, network="contention_free")
    return Trainer(
        problem,
        MAKERS[name](),
        [
            Imitation(episodes=12, batch_size=4, trials=4),
            SimRL(episodes=16, batch_size=4, elite_batch=2, polish_evaluations=40),
            RealRL(episodes=4, batch_size=2, repeats=2, confirm_repeats=3, final_repeats=3),
        ],
        simulated=simulated_objective(simulator),
        measured=lambda placements, orders: simulator.makespans(placements),
        network="contention_free",
        seed=seed,
        callbacks=callbacks,
        checkpoints=None if folder is None else Checkpoints(folder, 2),
    )


def weights_of(policy: Policy) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()


@every_comparator
def test_seeds_repeat_and_checkpoints_restore_mid_stage(name: str, tmp_path: Path) -> None:
    whole = make_trainer(name, None)
    expected = whole.fit()
    other = make_trainer(name, None, seed=1)
    other.fit()
    assert not torch.equal(weights_of(other.policy), weights_of(whole.policy))
    for at in (2, 5, 8):  # in imitation, in sim_rl, in real_rl
        folder = tmp_path / str(at)
        with pytest.raises(KeyboardInterrupt):
            make_trainer(name, folder, Stop(at)).fit()
        trainer = make_trainer(name, folder)
        result = trainer.fit(resume=True)
        assert torch.equal(weights_of(trainer.policy), weights_of(whole.policy))
        assert result.simulated is not None and expected.simulated is not None
        assert np.array_equal(result.simulated.devices, expected.simulated.devices)
        assert trainer.rng.bit_generator.state == whole.rng.bit_generator.state
    loaded, _ = load_policy_from_checkpoint(folder / "checkpoint.pt")
    assert type(loaded) is type(whole.policy)
    assert torch.equal(weights_of(loaded), weights_of(whole.policy))


def test_a_checkpoint_of_another_kind_is_refused(tmp_path: Path) -> None:
    make_trainer("sel_only", tmp_path).save()
    with pytest.raises(CheckpointError, match=r"policy\.kind is 'sel_only' there, 'joint' here"):
        make_trainer("joint", tmp_path).fit(resume=True)


@every_comparator
def test_imitation_brings_the_teacher_s_episodes_nearer(name: str) -> None:
    problem = layered_dag(24, 3, seed=4)
    losses: list[float] = []

    class Listen(Callback):
        def on_update(self, trainer: Trainer, metrics: dict) -> None:
            losses.append(metrics["loss"])

    stage = Imitation(episodes=320, batch_size=8, learning_rate=1e-2, final_learning_rate=1e-3)
    Trainer(problem, MAKERS[name](), [stage], callbacks=[Listen()]).fit()
    assert np.mean(losses[-3:]) < 0.8 * losses[0]
