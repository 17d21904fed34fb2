"""Runs are reproducible, resumable at any moment, and refuse what does not belong to them."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from doppler.errors import CheckpointError, ConfigurationError
from doppler.policies import DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.simulator import Simulator
from doppler.training import (
    METRICS,
    Callback,
    Checkpoints,
    CsvMetrics,
    Imitation,
    RealRL,
    SimRL,
    Trainer,
    TrainingResult,
    simulated_objective,
)
from doppler.training.journal import JOURNAL_NAME
from doppler.workloads.random_dags import layered_dag

SMALL = PolicyConfig(hidden_width=8, message_rounds=2, head_width=8)
UPDATES = (4, 5, 3)  # of the three stages


def problem() -> PlacementProblem:
    return layered_dag(16, 2, seed=1)


def noisy(simulator: Simulator, seed: int) -> object:
    """Simulated makespans times a factor that no two calls share, as on a real machine."""
    rng = np.random.default_rng(seed)

    def measure(placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return simulator.makespans(placements) * rng.uniform(0.9, 1.1, len(placements))

    return measure


def make_trainer(
    folder: Path | None,
    callbacks: tuple[Callback, ...] = (),
    every: int = 2,
    measured_seed: int = 0,
    seed: int = 0,
    config: PolicyConfig = SMALL,
    sim_episodes: int = 4 * UPDATES[1],
) -> Trainer:
    task = problem()
    simulator = Simulator(task, network="contention_free")
    return Trainer(
        task,
        DualPolicy(config, seed=0),
        [
            Imitation(episodes=4 * UPDATES[0], batch_size=4, trials=4),
            SimRL(
                episodes=sim_episodes,
                batch_size=4,
                elite_batch=2,
                baseline="running_mean",
                polish_every=0,  # a search cannot ask an objective that a test wraps
            ),
            RealRL(
                episodes=2 * UPDATES[2],
                batch_size=2,
                repeats=2,
                confirm_repeats=3,
                final_repeats=3,
                learning_rate=1e-3,
            ),
        ],
        simulated=simulated_objective(simulator),
        measured=noisy(simulator, measured_seed),  # type: ignore[arg-type]
        network="contention_free",
        seed=seed,
        callbacks=callbacks,
        checkpoints=None if folder is None else Checkpoints(folder, every),
    )


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(trainer.policy.parameters()).detach().clone()


class Stop(Callback):
    """Raises at one update of the whole run."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.at = at
        self.error = error

    def on_update(self, trainer: Trainer, metrics: dict) -> None:
        if metrics["total_updates"] == self.at:
            raise self.error


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, TrainingResult]:
    trainer = make_trainer(tmp_path_factory.mktemp("whole"))
    return trainer, trainer.fit()


def assert_same_end(
    trainer: Trainer, result: TrainingResult, expected: tuple[Trainer, TrainingResult]
) -> None:
    whole, whole_result = expected
    assert torch.equal(weights(trainer), weights(whole))
    assert trainer.rng.bit_generator.state == whole.rng.bit_generator.state
    for one, two in (
        (result.simulated, whole_result.simulated),
        (result.measured, whole_result.measured),
    ):
        assert one is not None and two is not None
        assert np.array_equal(one.devices, two.devices)
        assert np.array_equal(one.order, two.order)  # type: ignore[arg-type]
        assert one.info == two.info
    assert result.stages == whole_result.stages
    assert (result.episodes, result.evaluations) == (
        whole_result.episodes,
        whole_result.evaluations,
    )


def test_two_runs_of_one_seed_are_bit_equal(
    uninterrupted: tuple[Trainer, TrainingResult], tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path)
    assert_same_end(trainer, trainer.fit(), uninterrupted)
    other = make_trainer(None, seed=1)
    other.fit()
    assert not torch.equal(weights(other), weights(trainer))


def test_a_run_folder_changes_nothing(uninterrupted: tuple[Trainer, TrainingResult]) -> None:
    trainer = make_trainer(None)
    assert_same_end(trainer, trainer.fit(), uninterrupted)
    assert trainer.state.total_updates == sum(UPDATES)


# In the middle of imitation, at its last update, in sim_rl on and off a checkpoint, in real_rl.
@pytest.mark.parametrize("at", [3, 4, 6, 7, 10, 11])
def test_ctrl_c_and_resume_end_like_an_uninterrupted_run(
    uninterrupted: tuple[Trainer, TrainingResult], tmp_path: Path, at: int
) -> None:
    stopped = make_trainer(tmp_path, (CsvMetrics(tmp_path / "m.csv"), Stop(at, KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt):
        stopped.fit()
    # What was measured before is read back; later measurements of the second life come from a
    # generator in the state in which the first one left it.
    resumed = make_trainer(tmp_path, (CsvMetrics(tmp_path / "m.csv"),))
    assert resumed.measured is not None
    skip_measurements(resumed, tmp_path)
    result = resumed.fit(resume=True)
    assert_same_end(resumed, result, uninterrupted)
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert [int(row["total_updates"]) for row in rows] == list(range(1, sum(UPDATES) + 1))


@pytest.mark.parametrize("at", [3, 7, 11, 12])
def test_a_crash_between_checkpoints_and_resume_end_alike(
    uninterrupted: tuple[Trainer, TrainingResult], tmp_path: Path, at: int
) -> None:
    """No checkpoint is written at the crash: the updates since the last one are made again."""
    stopped = make_trainer(tmp_path, (CsvMetrics(tmp_path / "m.csv"), Stop(at, RuntimeError)))
    with pytest.raises(RuntimeError):
        stopped.fit()
    resumed = make_trainer(tmp_path, (CsvMetrics(tmp_path / "m.csv"),))
    skip_measurements(resumed, tmp_path)
    assert_same_end(resumed, resumed.fit(resume=True), uninterrupted)
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert [int(row["total_updates"]) for row in rows] == list(range(1, sum(UPDATES) + 1))
    lines = (tmp_path / JOURNAL_NAME).read_text().splitlines()
    rounds = [line for line in lines if '"round"' in line]
    assert len(rounds) == resumed.state.measured_rounds  # none was measured twice, none is lost


def skip_measurements(trainer: Trainer, folder: Path) -> None:
    """Advances the fake machine past what the first life measured."""
    journal = folder / JOURNAL_NAME
    if journal.exists():
        for line in journal.read_text().splitlines():
            if '"round"' in line:
                count = line.split('"measured_makespans"')[1].count(",") + 1
                fake = np.zeros((count, trainer.problem.num_ops), np.int64)
                trainer.measured(fake, fake)  # type: ignore[misc]


def kill_after(calls: int, function: object) -> object:
    """Lets a function run so often, then kills the process in the middle of an update."""
    left = [calls]

    def wrapped(*arguments: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)  # type: ignore[operator]

    return wrapped


def run_until_killed(folder: Path, where: str, calls: int) -> None:
    trainer = make_trainer(folder, every=2)
    owner = trainer if where in {"simulated", "measured"} else trainer.stages[0]
    setattr(owner, where, kill_after(calls, getattr(owner, where)))
    trainer.fit()


# In imitation's update 3, in sim_rl's update 4 (imitation ends with 2 simulations), in real_rl.
@pytest.mark.parametrize(("where", "calls"), [("update", 2), ("simulated", 5), ("measured", 5)])
def test_kill_9_and_resume_end_like_an_uninterrupted_run(
    uninterrupted: tuple[Trainer, TrainingResult], tmp_path: Path, where: str, calls: int
) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=run_until_killed, args=(tmp_path, where, calls)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    resumed = make_trainer(tmp_path)
    skip_measurements(resumed, tmp_path)
    assert_same_end(resumed, resumed.fit(resume=True), uninterrupted)


def test_a_signal_stops_after_the_present_update(tmp_path: Path) -> None:
    class Interrupt(Callback):
        def on_update(self, trainer: Trainer, metrics: dict) -> None:
            if metrics["total_updates"] == 3:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    trainer = make_trainer(tmp_path, (Interrupt(),), every=1000)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert signal.getsignal(signal.SIGINT) is before
    assert make_resumed_updates(tmp_path) == trainer.state.total_updates == 3


def make_resumed_updates(folder: Path) -> int:
    document = torch.load(folder / "checkpoint.pt", weights_only=True)
    return document["state"]["total_updates"]


def test_a_finished_run_resumes_to_its_result(
    uninterrupted: tuple[Trainer, TrainingResult], tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path)
    trainer.fit()
    again = make_trainer(tmp_path)
    result = again.fit(resume=True)
    assert result.completed
    assert_same_end(again, result, uninterrupted)


def test_budget_stops_early_and_can_be_continued(
    uninterrupted: tuple[Trainer, TrainingResult], tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path)
    trainer.budget_s = 1e-9
    result = trainer.fit()
    assert not result.completed
    assert result.episodes == 4  # one update
    assert result.simulated is not None  # the stage that was cut short still reports
    resumed = make_trainer(tmp_path)
    result = resumed.fit(resume=True)
    assert result.completed
    assert_same_end(resumed, result, uninterrupted)


def test_a_stage_budget_ends_that_stage_only() -> None:
    trainer = make_trainer(None)
    trainer.stages[1].budget_s = 1e-9
    result = trainer.fit()
    assert result.completed
    assert trainer.state.total_updates == UPDATES[0] + 1 + UPDATES[2]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"seed": 5}, r"seed is 0 there, 5 here"),
        ({"config": PolicyConfig(16, 2, 4, 8)}, r"policy\.hidden_width is 8 there, 16 here"),
        ({"sim_episodes": 400}, r"stages\[1\]\.episodes is 20 there, 400 here"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, change: dict, what: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path, (Stop(1, KeyboardInterrupt),)).fit()
    with pytest.raises(CheckpointError, match=what):
        make_trainer(tmp_path, **change).fit(resume=True)


def test_a_checkpoint_of_another_problem_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path).save()
    trainer = make_trainer(tmp_path)
    trainer.problem = layered_dag(16, 2, seed=2)
    with pytest.raises(CheckpointError, match=r"problem\.(name|sha256)"):
        trainer.fit(resume=True)


def test_damaged_and_missing_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        make_trainer(tmp_path).fit(resume=True)
    trainer = make_trainer(tmp_path)
    trainer.save()
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        make_trainer(tmp_path).fit(resume=True)
    with pytest.raises(CheckpointError, match="no run folder"):
        make_trainer(None).fit(resume=True)


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    make_trainer(tmp_path).save()
    with pytest.raises(CheckpointError, match="holds a run already"):
        make_trainer(tmp_path).fit()


def test_metrics_are_complete(tmp_path: Path) -> None:
    make_trainer(tmp_path, (CsvMetrics(tmp_path / "m.csv"),)).fit()
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert list(rows[0]) == list(METRICS)
    by_stage = {stage: [r for r in rows if r["stage"] == stage] for stage in
                ("imitation", "sim_rl", "real_rl")}  # fmt: skip
    assert tuple(map(len, by_stage.values())) == UPDATES
    for column in ("loss", "entropy_sel", "entropy_plc", "learning_rate", "grad_norm", "seconds"):
        assert all(np.isfinite(float(row[column])) for row in rows), column
    for row in by_stage["sim_rl"]:
        assert float(row["simulated_makespan_best"]) <= float(row["simulated_makespan_min"])
        assert float(row["simulated_makespan_min"]) <= float(row["simulated_makespan_mean"])
    for row in by_stage["real_rl"]:
        assert float(row["measured_makespan_incumbent"]) > 0


def test_callbacks_hear_everything_in_order() -> None:
    heard: list[str] = []

    class Listener(Callback):
        def on_start(self, trainer: Trainer, resumed: bool) -> None:
            heard.append(f"start {resumed}")

        def on_stage_start(self, trainer: Trainer, stage: object) -> None:
            heard.append(f"> {trainer.stage.name}")

        def on_update(self, trainer: Trainer, metrics: dict) -> None:
            heard.append(".")

        def on_stage_end(self, trainer: Trainer, stage: object) -> None:
            heard.append(f"< {trainer.stage.name}")

        def on_end(self, trainer: Trainer) -> None:
            heard.append("end")

    make_trainer(None, (Listener(),)).fit()
    expected = ["start False"]
    for name, updates in zip(("imitation", "sim_rl", "real_rl"), UPDATES):
        expected += [f"> {name}", *["."] * updates, f"< {name}"]
    assert heard == [*expected, "end"]


def test_torch_threads_are_put_back() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        make_trainer(None).fit()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_no_stages_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no stages"):
        Trainer(problem(), DualPolicy(SMALL), [])
