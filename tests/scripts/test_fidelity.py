"""Statistics of simulated against measured makespans, on numbers worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from doppler.executor.calibration import calibrate as calibration
from doppler.hardware import make_topology
from doppler.simulator import Simulator
from doppler.workloads import Workload, make_workload
from scripts import fidelity_study
from scripts.bench_fidelity import TARGETS, goal, main, table_rows, worst_placements
from scripts.fidelity import Candidate, candidates, fidelity, rank_agreement, repeatability
from scripts.fidelity_study import Study


def test_the_statistics_of_four_placements() -> None:
    # errors +10 %, -20 %, 0, +20 %
    measured = np.array([10.0, 20.0, 30.0, 40.0])
    simulated = np.array([11.0, 16.0, 30.0, 48.0])
    f = fidelity(simulated, measured)
    assert f.mape == pytest.approx(0.125) and f.bias == pytest.approx(0.025)
    assert (f.tau, f.rho, f.regret, f.placements) == (1.0, 1.0, 0.0, 4)


def test_ranks_and_regret() -> None:
    # pairs of (2 1 4 3): 1 before 2 and 3 before 4 disagree, 4 agree: tau (4 - 2) / 6
    # rank differences 1 1 1 1: rho 1 - 6 * 4 / (4 * 15)
    measured = np.array([10.0, 12.0, 30.0, 40.0])
    simulated = np.array([2.0, 1.0, 4.0, 3.0])
    f = fidelity(simulated, measured)
    assert f.tau == pytest.approx(1 / 3) and f.rho == pytest.approx(0.6)
    assert f.regret == pytest.approx(0.2)  # likes the one of 12 s, 10 s is the best


def test_the_best_quarter_is_that_of_the_measured() -> None:
    # ceil(9 / 4) = 3 best measured: 1 2 3, simulated 3 2 1, all others agree
    measured = np.arange(1.0, 10.0)
    simulated = np.array([3.0, 2.0, 1.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    f = fidelity(simulated, measured)
    assert (f.best_tau, f.best_rho) == (-1.0, -1.0)
    assert f.tau == pytest.approx((33 - 3) / 36)


def test_ties_and_what_ranks_nothing() -> None:
    # tau-b: 5 agree, 1 tied in the first: 5 / sqrt(5 * 6)
    tau, rho = rank_agreement(np.array([1.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert tau == pytest.approx(5 / np.sqrt(30)) and rho == pytest.approx(np.sqrt(0.9))
    assert np.isnan(rank_agreement(np.ones(4), np.arange(4.0))).all()
    alone = fidelity(np.array([2.0]), np.array([1.0]))
    assert alone.mape == 1.0 and np.isnan(alone.tau) and alone.regret == 0.0


def test_repeatability_compares_even_with_odd_rounds() -> None:
    # even rounds 0 and 2: medians 2 10; odd round: 1 20
    runs = np.array([[1.0, 10.0], [1.0, 20.0], [3.0, 10.0]])
    tau, difference = repeatability(runs)
    assert tau == 1.0 and difference == pytest.approx((1.0 + 0.5) / 2)
    assert np.isnan(repeatability(runs[:1])).all()


@pytest.fixture(scope="module")
def ffnn() -> Simulator:
    return Simulator(make_workload("chainmm", "paper").problem(make_topology("v100", 3)))


def test_candidates_are_different_and_of_all_kinds(
    ffnn: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.fidelity.SEARCH_EVALUATIONS", 200)
    monkeypatch.setattr("scripts.fidelity.EXACT_SECONDS", 0.2)
    tried: list[str] = []
    found = candidates(ffnn.problem, ffnn, 40, 0, tried.append)
    assert len(found) == len({c.devices.tobytes() for c in found}) == 40
    kinds = [candidate.kind for candidate in found]
    assert kinds.count("random") == 10 and kinds.count("mutation") >= 10
    assert {"single device", "critical path", "heft", "annealing"} <= {c.label for c in found}
    assert {"exhaustive", "cp_sat"} <= set(tried)
    assert all(((c.devices >= 0) & (c.devices < 3)).all() for c in found)
    schedulers = np.array([c.devices for c in found if c.kind != "mutation"])
    best = schedulers[np.argmin(ffnn.makespans(schedulers))]
    moved = [int((c.devices != best).sum()) for c in found if c.kind == "mutation"]
    assert 1 <= min(moved) <= 3 and max(moved) <= 19  # a quarter of 76 ops


def test_few_candidates_still_have_every_kind_and_a_seed(ffnn: Simulator) -> None:
    first, again, other = (candidates(ffnn.problem, ffnn, 8, seed) for seed in (3, 3, 4))
    kinds = [candidate.kind for candidate in first]
    assert [kinds.count(kind) for kind in ("scheduler", "random", "mutation")] == [4, 2, 2]
    assert [c.devices.tolist() for c in first] == [c.devices.tolist() for c in again]
    assert [c.devices.tolist() for c in first] != [c.devices.tolist() for c in other]


def study() -> Study:
    found = [Candidate(name, "random", np.zeros(1, np.int64)) for name in "abcd"]
    runs = np.array([[10.0, 20.0, 30.0, 40.0]] * 5)
    runs[3, 1] = 99.0
    simulated = {"busy": np.array([13.0, 26.0, 39.0, 52.0]), "contention": runs[0] * 1.05}
    return Study("toy", found, simulated, runs, [])


def test_the_table_has_both_simulations_and_says_what_is_missed() -> None:
    # medians of b: 20 in the even rounds, 59.5 in the odd ones: two pairs of six change order
    busy, contention, targets = table_rows(study(), TARGETS["cpu"])
    assert busy[:4] == ["toy", "busy", "30.0%", "+30.0%"]
    assert contention[:5] == ["toy", "contention", "5.0%", "+5.0%", "1.00"]
    assert contention[8:] == ["0.0%", "0.33, 16.6%", "1 of 20 runs"]
    assert targets[1:5] == ["target", "<= 7%: met", "<= 4%: MISSED", ">= 0.80: met"]
    assert targets[8] == "<= 2%: met"
    assert table_rows(study(), TARGETS["emulated"])[2][2:5] == ["<= 3%: MISSED", "", ">= 0.90: met"]
    assert goal(">=", 0.8, float("nan")).endswith("MISSED")
    assert worst_placements(study(), 1) == "toy: contention errs most on a +5.0%"


FAST = ["--workloads", "chainmm", "--placements", "4", "--warmup", "0"]


def test_an_interrupted_study_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fidelity_study, "EMULATED_SECONDS", 0.02)
    journal, picture, output = (tmp_path / name for name in ("j.jsonl", "p.png", "t.md"))
    emulated = ["--executor", "emulated", "--devices", "2", *FAST, "--journal", str(journal)]
    (first,) = main([*emulated, "--repeats", "2"])
    lines = journal.read_text().splitlines()
    assert len(lines) == 3  # the plan and two rounds
    journal.write_text("\n".join(lines[:2]) + "\n" + lines[2][:40])  # killed while writing
    (second,) = main(
        [*emulated, "--repeats", "3", "--picture", str(picture), "--output", str(output)]
    )
    assert second.runs.shape == (3, 4)
    assert second.runs[0].tolist() == first.runs[0].tolist()
    assert second.runs[1].tolist() != first.runs[1].tolist()
    assert second.simulated["simulated"] == pytest.approx(second.measured, rel=0.5)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert re.search(r"\| chainmm, 2 devices \| simulated \| \d+\.\d%", output.read_text())
    assert "median lateness" in capsys.readouterr().out
    (fresh,) = main([*emulated, "--repeats", "1", "--fresh"])
    assert fresh.runs.shape == (1, 4) and len(journal.read_text().splitlines()) == 2


def test_cpu_devices_are_calibrated_and_simulated_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(name: str, scale: str) -> Workload:
        assert scale == "host"
        return make_workload(name, block=64)

    monkeypatch.setattr(fidelity_study, "make_workload", small)
    monkeypatch.setattr(calibration, "RELAY_SIZES", (4096, 65536))
    monkeypatch.setattr(calibration, "EMPTY_OPS", 100)
    journal = tmp_path / "j.jsonl"
    arguments = [*FAST, "--repeats", "1", "--calibration-repeats", "1", "--journal", str(journal)]
    (found,) = main(arguments)
    kinds = ["busy", "contention", "busy, now", "contention, now"]
    assert list(found.simulated) == kinds
    assert (found.measured > 0).all() and found.runs.shape == (1, 4)
    alone = [c.label for c in found.candidates].index("single device")
    assert found.simulated["busy"][alone] != found.simulated["contention"][alone]
    assert found.notes == ["0 of 76 ops' seconds were estimated"]
    rounds = [line for line in journal.read_text().splitlines() if '/now"' not in line]
    journal.write_text("\n".join(rounds) + "\n")  # killed before it was simulated again
    (again,) = main(arguments)
    assert list(again.simulated) == kinds and (again.runs == found.runs).all()
    monkeypatch.setattr(fidelity_study, "make_executor", None)  # nothing is left to be run
    (third,) = main(arguments)
    assert (third.simulated["contention, now"] == again.simulated["contention, now"]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "must be 1 or more"),
        (["--devices", "0"], "must be 1 or more"),
        (["--placements", "3"], "must be 4 or more"),
        (["--warmup", "-1"], "must be 0 or more"),
    ],
)
def test_impossible_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
