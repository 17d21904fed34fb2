"""The GPU check, run on CPU devices: steps, time limits, the report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from doppler.errors import DopplerError
from doppler.executor.result_check import ResultCheck
from doppler.hardware import make_topology
from doppler.workloads import WORKLOADS, make_workload
from scripts import gpu_check, gpu_check_steps
from scripts.gpu_check_steps import SIZES, STEPS, Settings, choose_placements


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two CPU devices and the two workloads that are quickest."""
    few = {name: SIZES["cpu"][name] for name in ("chainmm", "ffnn")}
    monkeypatch.setitem(gpu_check_steps.SIZES, "cpu", few)
    monkeypatch.setattr(gpu_check_steps, "EMPTY_OPS", 50)
    monkeypatch.setattr("doppler.executor.calibration.calibrate.EMPTY_OPS", 50)
    monkeypatch.setattr("doppler.executor.calibration.calibrate.RELAY_SIZES", (1 << 12, 1 << 18))
    return Settings("cpu", 2, tmp_path, placements=6, repeats=2)


def test_sizes_fit_the_workloads() -> None:
    for backend in ("cuda", "cpu"):
        assert set(SIZES[backend]) == set(WORKLOADS)
        for name, sizes in SIZES[backend].items():
            assert make_workload(name, **sizes).graph.num_ops > 10


def test_the_steps_say_what_they_find(
    settings: Settings, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    printed = {}
    for name, step in STEPS.items():
        step.run(settings)
        printed[name] = capsys.readouterr().out
    assert "backend: cpu" in printed["environment"]
    assert printed["results"].count(": right, ") == 2 * 3
    assert printed["dispatch"].count("us per op") == 1
    assert "GB/s" in printed["calibration"]
    assert printed["fidelity"].count("MAPE") == 2
    assert printed["fidelity"].count("random 0: simulated") == 2
    assert "measured" in printed["trace"] and "simulated" in printed["trace"]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) > 20


def test_a_wrong_result_fails_its_step(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    wrong = ResultCheck(False, 0.5, 1e-4, "y")
    monkeypatch.setattr("doppler.executor.CpuExecutor.check", lambda *_: wrong)
    with pytest.raises(DopplerError, match="wrong results: chainmm, queues of 2; chain"):
        STEPS["results"].run(settings)
    assert capsys.readouterr().out.count("WRONG") == 6


def test_what_needs_a_profile_says_so(settings: Settings) -> None:
    for name in ("fidelity", "trace"):
        with pytest.raises(DopplerError, match="left no profile"):
            STEPS[name].run(settings)


def test_placements_differ_and_repeat() -> None:
    problem = make_workload("ffnn", **SIZES["cpu"]["ffnn"]).problem(make_topology("v100", 3))
    found = choose_placements(problem, 9, seed=1)
    assert len(found) == 9 and "heft" in found and "random 3" in found
    again = choose_placements(problem, 9, seed=1)
    for label, placement in found.items():
        np.testing.assert_array_equal(placement.devices, again[label].devices)
    assert not np.array_equal(found["random 0"].devices, found["random 1"].devices)


def run_with(tmp_path: Path, programs: dict[str, str], *arguments: str) -> list[gpu_check.Outcome]:
    """Runs small programs in place of the steps."""
    args = gpu_check.parse(["--steps", *programs, *arguments])
    return list(
        gpu_check.run_all(
            args, str(tmp_path), lambda _, name, __: [sys.executable, "-c", programs[name]]
        )
    )


def test_steps_that_fail_or_hang_leave_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "LEAST_SECONDS", 0.0)
    hang = "import time; print('so far', flush=True); time.sleep(60)"
    programs = {"results": "1 / 0", "dispatch": hang, "trace": "print('fine')"}
    outcomes = run_with(tmp_path, programs, "--minutes", "0.2")
    assert [outcome.title for outcome in outcomes] == [STEPS[name].title for name in programs]
    failed, ended, done = outcomes
    assert failed.status == "FAILED with status 1" and "ZeroDivisionError" in failed.output
    assert ended.status == "ENDED at its time limit of 2 s" and ended.output == "so far"
    assert 1.5 < ended.seconds < 10
    assert (done.status, done.output) == ("done", "fine")


def test_no_step_begins_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 59.0])
    monkeypatch.setattr("scripts.gpu_check.time.monotonic", lambda: next(clock))
    (outcome,) = run_with(tmp_path, {"trace": "print('never')"}, "--minutes", "1")
    assert outcome.status == "not run, the time was over" and outcome.output == ""


def test_the_report_has_every_step_and_the_status_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    written_before_the_end: list[str] = []

    def steps(args, scratch: str):
        (Path(scratch) / "trace.json").write_text("{}")
        yield gpu_check.Outcome(STEPS["environment"].title, "done", 1.0, "cards: 1")
        (report,) = tmp_path.glob("*.md")
        written_before_the_end.append(report.read_text())
        yield gpu_check.Outcome(STEPS["trace"].title, "FAILED with status 2", 2.0, "")

    monkeypatch.setattr(gpu_check, "run_all", steps)
    status = gpu_check.main(["--backend", "cpu", "--output", str(tmp_path)])
    assert status == gpu_check.EXIT_FAILED
    (report,) = tmp_path.glob("cpu-*.md")
    text = report.read_text()
    assert "| Devices | done | 1 |" in text and "cards: 1" in text
    assert "| Perfetto trace | FAILED with status 2 | 2 |" in text
    assert report.with_suffix(".trace.json").name in text
    assert report.with_suffix(".trace.json").exists()
    assert "cards: 1" in written_before_the_end[0]
    assert "Perfetto" not in written_before_the_end[0]
    assert f"PyTorch {torch.__version__}" in text and str(report) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no GPU: PyTorch"),
        (["--devices", "0"], "--devices: 0"),
        (["--minutes", "0"], "--minutes: 0.0"),
        (["--minutes", "nan"], "--minutes: nan"),
        (["--backend", "cpu"], "needs --output"),
    ],
)
def test_what_cannot_be_checked_ends_with_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err
    assert len(printed.err.splitlines()) == 1


def test_names_of_cards_become_names_of_files() -> None:
    assert gpu_check.sanitised("NVIDIA A100-SXM4/40GB (rev. 1)") == "nvidia-a100-sxm4-40gb-rev-1"
    assert gpu_check.sanitised("***") == "unknown"


def test_a_step_in_this_process_ends_with_its_status(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    child = ["--step", "trace", "--scratch", str(tmp_path), "--backend", "cpu", "--devices", "2"]
    assert gpu_check.main(child) == 2
    assert "left no profile" in capsys.readouterr().out
    args = gpu_check.parse(["--backend", "cpu", "--devices", "3"])
    command = gpu_check.child_command(args, "trace", "here")
    again = gpu_check.parse(command[2:])
    assert (again.step, again.scratch, again.backend, again.devices) == ("trace", "here", "cpu", 3)
