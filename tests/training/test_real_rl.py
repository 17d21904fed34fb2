"""Measured training: the incumbent is safe, and no measurement is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from doppler.errors import CheckpointError, ConfigurationError
from doppler.policies import DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.simulator import Simulator
from doppler.training import Checkpoints, RealRL, Trainer, measured_objective
from doppler.training.journal import JOURNAL_NAME, MeasurementJournal
from doppler.training.real_rl import sign_test

SMALL = PolicyConfig(hidden_width=8, message_rounds=2, head_width=8)


class FakeMachine:
    """True makespans from the simulator, times log-normal noise and a drift over time."""

    def __init__(self, simulator: Simulator, noise: float, seed: int = 0) -> None:
        self.simulator = simulator
        self.noise = noise
        self.rng = np.random.default_rng(seed)
        self.runs = 0

    def __call__(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        seconds = self.simulator.makespans(placements)
        drift = 1.0 + 0.2 * np.sin((self.runs + np.arange(len(seconds))) / 50.0)
        self.runs += len(seconds)
        return seconds * drift * self.rng.lognormal(0.0, self.noise, len(seconds))


def train(
    problem: PlacementProblem,
    machine: FakeMachine,
    incumbent: Placement | None,
    folder: Path | None = None,
    **options: object,
) -> Trainer:
    stage = RealRL(incumbent=incumbent, **{"episodes": 40, "batch_size": 4, **options})  # type: ignore[arg-type]
    trainer = Trainer(
        problem,
        DualPolicy(SMALL, seed=1),
        [stage],
        measured=machine,
        network="contention_free",
        checkpoints=None if folder is None else Checkpoints(folder),
    )
    trainer.fit()
    return trainer


def final(trainer: Trainer) -> Placement:
    assert trainer.state.incumbent is not None
    return trainer.state.incumbent


def test_the_optimum_is_never_given_up(
    six_ops: PlacementProblem, six_ops_simulator: Simulator, six_ops_optimum: float
) -> None:
    optimum = Placement(np.array([0, 1, 0, 1, 0, 0]))
    assert six_ops_simulator.makespan(optimum.devices) == six_ops_optimum
    for seed in range(5):
        machine = FakeMachine(six_ops_simulator, noise=0.3, seed=seed)
        trainer = train(six_ops, machine, optimum)
        assert six_ops_simulator.makespan(final(trainer).devices) == six_ops_optimum


def test_a_bad_start_is_improved(
    six_ops: PlacementProblem, six_ops_simulator: Simulator, six_ops_optimum: float
) -> None:
    start = Placement(np.zeros(6, np.int64))  # 14 s
    trainer = train(six_ops, FakeMachine(six_ops_simulator, noise=0.03), start, episodes=80)
    assert six_ops_simulator.makespan(final(trainer).devices) <= 10.0
    result = trainer.state.results["real_rl"]
    assert result["improved"]
    assert result["final_measured_makespan"] < result["initial_measured_makespan"]
    assert final(trainer).info["measured_makespan"] == result["final_measured_makespan"]


def test_the_last_comparison_can_take_the_incumbent_back(
    six_ops: PlacementProblem, six_ops_simulator: Simulator
) -> None:
    """A machine that flatters everything but the start, until the final comparison."""
    start = Placement(np.array([0, 1, 0, 1, 0, 0]))

    class Flatterer(FakeMachine):
        def __call__(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
            seconds = self.simulator.makespans(placements)
            self.runs += 1
            if trainer_rounds_left() > 0:
                seconds = np.where((placements == start.devices).all(axis=1), seconds, 1.0)
            return seconds

    machine = Flatterer(six_ops_simulator, 0.0)
    stage = RealRL(episodes=8, batch_size=4, incumbent=start, final_repeats=5)
    trainer = Trainer(
        six_ops, DualPolicy(SMALL, seed=1), [stage], measured=machine, network="contention_free"
    )

    def trainer_rounds_left() -> int:
        return stage.num_updates - trainer.state.update

    result = trainer.fit()
    assert result.measured is not None
    assert np.array_equal(result.measured.devices, start.devices)
    assert result.stages["real_rl"]["improved"] is False
    assert result.measured.info["measured_makespan"] == 9.0


def test_the_report_is_never_worse_than_the_start(
    six_ops: PlacementProblem, six_ops_simulator: Simulator
) -> None:
    for seed in range(4):
        machine = FakeMachine(six_ops_simulator, noise=1.0, seed=seed)
        result = train(six_ops, machine, Placement(np.array([0, 0, 0, 1, 1, 0]))).state.results
        values = result["real_rl"]
        assert values["final_measured_makespan"] <= values["initial_measured_makespan"]


def test_without_a_start_the_greedy_placement_is_it(
    six_ops: PlacementProblem, six_ops_simulator: Simulator
) -> None:
    trainer = train(six_ops, FakeMachine(six_ops_simulator, 0.0), None, episodes=4)
    assert trainer.state.initial is not None
    assert trainer.state.initial.order is not None


def test_sign_test_by_hand() -> None:
    assert sign_test(3, 3) == 1 / 8
    assert sign_test(0, 3) == 1.0
    assert sign_test(8, 9) == 10 / 512


def test_every_run_of_every_row_is_in_the_journal(
    six_ops: PlacementProblem, six_ops_simulator: Simulator, tmp_path: Path
) -> None:
    machine = FakeMachine(six_ops_simulator, 0.1)
    train(six_ops, machine, None, tmp_path, episodes=8, repeats=2)
    records = [json.loads(line) for line in (tmp_path / JOURNAL_NAME).read_text().splitlines()]
    rounds = [record for record in records if "round" in record]
    assert sum(len(record["measured_makespans"]) for record in rounds) == machine.runs
    assert [record["round"] for record in rounds] == list(range(len(rounds)))
    named = {r["placement"]: r["devices"] for r in records if "placement" in r}
    for record in rounds:
        for name in record["placements"]:
            assert len(named[name]) == 6


def one_round(journal: MeasurementJournal, index: int, device: int = 0) -> list[float]:
    placements = np.full((2, 3), device)
    orders = np.tile(np.arange(3), (2, 1))
    return journal.round(index, placements, orders, stage="real_rl").makespans.tolist()


def counting(values: list[float]) -> object:
    def objective(placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        values.append(float(len(values)))
        return np.full(len(placements), values[-1])

    return objective


def test_the_journal_replays_what_it_knows_and_cuts_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    calls: list[float] = []
    journal = MeasurementJournal(path, counting(calls))  # type: ignore[arg-type]
    assert one_round(journal, 0) == [0.0, 0.0]
    assert one_round(journal, 1) == [1.0, 1.0]
    journal.close()
    whole = path.read_text()
    path.write_text(whole + '{"round": 2, "placem')
    journal = MeasurementJournal(path, counting(calls))  # type: ignore[arg-type]
    assert path.read_text() == whole
    assert one_round(journal, 1) == [1.0, 1.0]
    assert len(calls) == 2
    assert one_round(journal, 0, device=1) == [2.0, 2.0]  # another placement: measured anew
    assert one_round(journal, 2) == [3.0, 3.0]
    journal.close()
    again = MeasurementJournal(path, counting(calls))  # type: ignore[arg-type]
    assert one_round(again, 0, device=1) == [2.0, 2.0]
    again.close()


def test_a_measurement_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = MeasurementJournal(path, counting([]))  # type: ignore[arg-type]
    for index in range(3):
        one_round(journal, index)
        assert path.read_text().count('"round"') == index + 1
    journal.close()


def test_a_foreign_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"round": 0}\n')
    with pytest.raises(CheckpointError, match=r"journal\.jsonl, line 1"):
        MeasurementJournal(path, counting([]))  # type: ignore[arg-type]


def test_an_executor_becomes_an_objective(
    six_ops: PlacementProblem, six_ops_simulator: Simulator
) -> None:
    class Executor:
        def run(self, placement: Placement) -> object:
            return six_ops_simulator.run(placement.devices)

    objective = measured_objective(Executor())  # type: ignore[arg-type]
    placements = np.array([[0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0]])
    assert objective(placements, np.tile(np.arange(6), (2, 1))).tolist() == [14.0, 9.0]


def test_impossible_options_are_refused(six_ops: PlacementProblem) -> None:
    with pytest.raises(ConfigurationError, match="repeats"):
        RealRL(repeats=0)
    with pytest.raises(ConfigurationError, match="confidence"):
        RealRL(confidence=1.0)
    with pytest.raises(ConfigurationError, match="no measured objective"):
        Trainer(six_ops, DualPolicy(SMALL), [RealRL()]).fit()


@pytest.mark.parametrize(("wins", "improved"), [(3, False), (4, False), (5, True)])
def test_the_final_incumbent_must_win_clearly(
    six_ops: PlacementProblem, wins: int, improved: bool
) -> None:
    """Its median is lower each time; of 5 rounds, 4 won have a chance of 6/32, 5 one of 1/32."""
    start, other = (Placement(np.full(6, device), np.arange(6)) for device in (0, 1))
    challengers = [0.9] * wins + [1.1] * (5 - wins)

    def objective(placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return np.where(placements[:, 0] == 0, 1.0, challengers.pop())

    stage = RealRL(incumbent=start, final_repeats=5)
    trainer = Trainer(six_ops, DualPolicy(SMALL), [stage], measured=objective)
    stage.prepare(trainer)
    stage.start(trainer)
    trainer.state.incumbent = other
    assert stage.end(trainer)["improved"] is improved
    assert final(trainer).devices[0] == int(improved)


def test_a_budget_of_executions_ends_the_stage(
    six_ops: PlacementProblem, six_ops_simulator: Simulator
) -> None:
    start = Placement(np.zeros(6, np.int64), np.arange(6))
    limited, free = (
        train(
            six_ops,
            FakeMachine(six_ops_simulator, 0.01),
            start,
            budget_executions=budget,
        )
        for budget in (20, None)
    )
    counts = [trainer.state.measuring.regret.executions for trainer in (limited, free)]  # type: ignore[union-attr]
    assert 20 <= counts[0] < counts[1]
    assert limited.state.total_updates < free.state.total_updates
    assert "improved" in limited.state.results["real_rl"]  # it still reports
    assert limited.identity() == free.identity()  # a resumed run may have another budget
