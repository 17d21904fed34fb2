"""Learners against known answers: a 6-op problem of known optimum, a teacher to reproduce."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from doppler.errors import ConfigurationError
from doppler.policies import PAPER_POLICY, DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.simulator import Simulator
from doppler.training import (
    Callback,
    CriticalPathTeacher,
    EpisodeRunner,
    Episodes,
    Imitation,
    PlacementTeacher,
    SimRL,
    Trainer,
    simulated_objective,
)
from doppler.training.stage import ReinforceStage, Stage
from doppler.workloads.random_dags import layered_dag

SMALL = PolicyConfig(hidden_width=16, message_rounds=2, head_width=16)
PLAIN: dict[str, Any] = {"elite_batch": 0, "polish_every": 0}


class Recorder(Callback):
    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.rates: list[float] = []

    def on_update(self, trainer: Trainer, metrics: dict) -> None:
        self.rows.append(dict(metrics))
        self.rates.append(trainer.optimiser.param_groups[0]["lr"])


def policy_makespans(
    policy: DualPolicy, problem: PlacementProblem, simulator: Simulator, samples: int
) -> np.ndarray:
    runner = EpisodeRunner(policy, problem, "contention_free", samples)
    return simulator.makespans(runner.run(np.random.default_rng(9), record=False).placements)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "polish_every": 0,
            "elite_batch": 4,
            "elite_pool": 8,
            "elite_weight": 1.0,
            "elite_steps": 0,
        },
        PLAIN,
        {**PLAIN, "baseline": "batch_mean"},
        {**PLAIN, "baseline": "running_mean"},
    ],
)
def test_sim_rl_solves_six_ops_from_scratch(
    six_ops: PlacementProblem,
    six_ops_simulator: Simulator,
    six_ops_optimum: float,
    options: dict,
) -> None:
    policy = DualPolicy(SMALL, seed=0)
    before = policy_makespans(policy, six_ops, six_ops_simulator, 64).mean()
    trainer = Trainer(
        six_ops,
        policy,
        [SimRL(episodes=1920, learning_rate=1e-2, final_learning_rate=1e-3, **options)],
        simulated=simulated_objective(six_ops_simulator),
        network="contention_free",
    )
    result = trainer.fit()
    assert result.simulated is not None
    assert result.simulated.info["simulated_makespan"] == six_ops_optimum
    found = six_ops_simulator.makespan(result.simulated.devices)
    assert found == six_ops_optimum
    after = policy_makespans(policy, six_ops, six_ops_simulator, 64)
    assert before > six_ops_optimum + 1.5
    assert after.mean() < six_ops_optimum + 0.5  # the policy itself has learned it


def test_the_papers_network_learns_too(
    six_ops: PlacementProblem, six_ops_simulator: Simulator, six_ops_optimum: float
) -> None:
    policy = DualPolicy(PAPER_POLICY, seed=0)
    stage = SimRL(episodes=1920, learning_rate=5e-3, **PLAIN)
    objective = simulated_objective(six_ops_simulator)
    Trainer(six_ops, policy, [stage], simulated=objective, network="contention_free").fit()
    after = policy_makespans(policy, six_ops, six_ops_simulator, 64)
    assert after.mean() < six_ops_optimum + 0.5


def test_imitation_reproduces_a_deterministic_teacher() -> None:
    problem = layered_dag(30, 3, seed=4)
    policy = DualPolicy(SMALL, seed=0)
    recorder = Recorder()
    stage = Imitation(
        episodes=1200,
        batch_size=8,
        learning_rate=1e-2,
        final_learning_rate=1e-3,
        teacher=CriticalPathTeacher("id"),
    )
    Trainer(problem, policy, [stage], network="contention_free", callbacks=[recorder]).fit()
    losses = [row["loss"] for row in recorder.rows]
    assert losses[-1] < 0.2 * losses[0]
    shown = CriticalPathTeacher("id")(problem, 1, "contention_free", np.random.default_rng(0))
    runner = EpisodeRunner(policy, problem, "contention_free", 1)
    followed = runner.run(np.random.default_rng(0), forced=shown)
    assert np.exp(followed.plc_log_likelihood).mean() > 0.8
    assert np.exp(followed.sel_log_likelihood).mean() > 0.8


def test_imitation_of_given_placements(
    six_ops: PlacementProblem, six_ops_simulator: Simulator
) -> None:
    wanted = Placement(np.array([0, 1, 0, 1, 0, 1]))
    policy = DualPolicy(SMALL, seed=0)
    stage = Imitation(
        episodes=800, batch_size=8, learning_rate=1e-2, teacher=PlacementTeacher([wanted])
    )
    Trainer(six_ops, policy, [stage], network="contention_free").fit()
    runner = EpisodeRunner(policy, six_ops, "contention_free", 1)
    devices = runner.run(np.random.default_rng(0), greedy=True).placements[0]
    # The devices are equal, so the placement is right up to their names.
    assert np.array_equal(devices == devices[0], wanted.devices == wanted.devices[0])


def test_placement_teacher_follows_orders(six_ops: PlacementProblem) -> None:
    order = np.array([1, 3, 0, 2, 4, 5])
    teacher = PlacementTeacher([Placement(np.array([0, 1, 0, 1, 0, 1]), order)])
    shown = teacher(six_ops, 2, "contention_free", np.random.default_rng(0))
    assert shown.ops.tolist() == [order.tolist()] * 2
    assert shown.devices[0].tolist() == [1, 1, 0, 0, 0, 1]
    with pytest.raises(ConfigurationError, match="no placements"):
        PlacementTeacher([])


def test_decays_act_on_the_optimiser_and_on_the_sampling(
    six_ops: PlacementProblem, six_ops_simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    used: list[float] = []
    run = EpisodeRunner.run

    def spy(self: EpisodeRunner, *arguments: object, **options: object) -> Episodes:
        used.append(options["exploration"])  # type: ignore[arg-type]
        return run(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(EpisodeRunner, "run", spy)
    stage = SimRL(
        episodes=50,
        batch_size=10,
        learning_rate=1e-2,
        final_learning_rate=2e-3,
        exploration=0.4,
        final_exploration=0.2,
        **PLAIN,
    )
    Trainer(
        six_ops,
        DualPolicy(SMALL),
        [stage],
        simulated=simulated_objective(six_ops_simulator),
        callbacks=[recorder],
    ).fit()
    assert recorder.rates == pytest.approx([1e-2, 8e-3, 6e-3, 4e-3, 2e-3])
    assert [row["learning_rate"] for row in recorder.rows] == recorder.rates
    assert used == pytest.approx([0.4, 0.35, 0.3, 0.25, 0.2])
    assert [row["exploration"] for row in recorder.rows] == used


def test_a_smaller_rate_moves_the_weights_less(
    six_ops: PlacementProblem, six_ops_simulator: Simulator
) -> None:
    moved = []
    for rate in (1e-2, 1e-4):
        policy = DualPolicy(SMALL, seed=0)
        before = policy.embed_raw.weight.detach().clone()
        stage = SimRL(episodes=64, learning_rate=rate, final_learning_rate=rate)
        objective = simulated_objective(six_ops_simulator)
        Trainer(six_ops, policy, [stage], simulated=objective).fit()
        moved.append((policy.embed_raw.weight - before).abs().max().item())
    assert moved[1] < 0.1 * moved[0]


def test_entropy_weight_keeps_choices_open(
    six_ops: PlacementProblem, six_ops_simulator: Simulator
) -> None:
    last = []
    for weight in (0.0, 3.0):
        recorder = Recorder()
        stage = SimRL(episodes=960, learning_rate=1e-2, plc_entropy=weight, **PLAIN)
        Trainer(
            six_ops,
            DualPolicy(SMALL),
            [stage],
            simulated=simulated_objective(six_ops_simulator),
            callbacks=[recorder],
        ).fit()
        last.append(recorder.rows[-1]["entropy_plc"])
    assert last[1] > last[0] + 0.1


def advantages(stage: ReinforceStage, trainer: Trainer, *makespans: float) -> list[float]:
    return stage.advantages(trainer, np.array(makespans)).tolist()


def test_baselines_by_hand(six_ops: PlacementProblem, six_ops_simulator: Simulator) -> None:
    objective = simulated_objective(six_ops_simulator)

    def make(baseline: str, normalise: bool = False) -> tuple[SimRL, Trainer]:
        stage = SimRL(baseline=baseline, normalise=normalise)
        return stage, Trainer(six_ops, DualPolicy(SMALL), [stage], simulated=objective)

    assert advantages(*make("batch_mean"), 1.0, 2.0, 6.0) == pytest.approx([2.0, 1.0, -3.0])
    # The others' means: 4, 3.5, 1.5.
    assert advantages(*make("leave_one_out"), 1.0, 2.0, 6.0) == pytest.approx([3.0, 1.5, -4.5])
    stage, trainer = make("running_mean")
    assert advantages(stage, trainer, 2.0, 4.0) == pytest.approx([1.0, -1.0])
    assert advantages(stage, trainer, 9.0) == pytest.approx([-6.0])  # against the mean of 2 and 4
    assert advantages(stage, trainer, 5.0) == pytest.approx([0.0])  # against that of 2, 4 and 9
    scaled = advantages(*make("batch_mean", True), 1.0, 2.0, 6.0)
    assert np.std(scaled) == pytest.approx(1.0)
    assert advantages(*make("leave_one_out", True), 0.1 + 0.2, 0.3, 0.3) == [0.0, 0.0, 0.0]
    # Over capacity counts as twice the worst that fits; nothing is learned where nothing fits.
    assert advantages(*make("batch_mean"), 1.0, 3.0, np.inf) == pytest.approx(
        [7 / 3, 1 / 3, -8 / 3]
    )
    assert advantages(*make("batch_mean"), np.inf, np.inf) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: SimRL(episodes=0), "episodes"),
        (lambda: SimRL(batch_size=2.5), "batch_size"),  # type: ignore[arg-type]
        (lambda: SimRL(learning_rate=0.0), "learning_rate"),
        (lambda: SimRL(exploration=1.5), "exploration"),
        (lambda: SimRL(plc_entropy=-1.0), "plc_entropy"),
        (lambda: SimRL(baseline="median"), "baseline"),
        (lambda: SimRL(elite_batch=-1), "elite_batch"),
        (lambda: SimRL(elite_pool=0), "elite_pool"),
        (lambda: SimRL(elite_margin=-0.1), "elite_margin"),
        (lambda: SimRL(elite_steps=-1), "elite_steps"),
        (lambda: SimRL(polish_every=-1), "polish_every"),
        (lambda: SimRL(polish_evaluations=1), "polish_evaluations"),
        (lambda: SimRL(polish_share=1.5), "polish_share"),
        (lambda: Imitation(trials=-1), "trials"),
        (lambda: Imitation(budget_s=0.0), "budget_s"),
    ],
)
def test_impossible_options_are_refused(make: object, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        make()  # type: ignore[operator]


def test_stages_need_their_objectives(six_ops: PlacementProblem) -> None:
    with pytest.raises(ConfigurationError, match="no simulated objective"):
        Trainer(six_ops, DualPolicy(SMALL), [SimRL(episodes=32)]).fit()


def test_episodes_are_rounded_up_to_batches() -> None:
    stage: Stage = SimRL(episodes=33, batch_size=32)
    assert stage.num_updates == 2
