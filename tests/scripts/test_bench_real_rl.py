"""The benchmark of fine-tuning: its verdicts, and one tiny run on real devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from doppler.executor.calibration import calibrate as calibration
from doppler.workloads import Workload, make_workload
from scripts import bench_real_rl
from scripts.bench_real_rl import main, slower, table_row, usable, verdict

CELL = {
    "key": "ffnn",
    "executions": 301,
    "placements_executed": 40,
    "regret_mean": 0.06,
    "regret_added": 0.04,
    "regret_incumbent": 0.03,
    "regret_worst": 0.26,
    "kept": False,
    "initial_fresh": [0.100, 0.110, 0.120],
    "final_fresh": [0.090, 0.099, 0.108],
}


def test_a_row_holds_results_against_targets() -> None:
    row = table_row("ffnn", CELL)
    assert row[5] == "4.0% (<= 5%: met)"
    assert row[6] == "26.0% (<= 25%: MISSED)"
    assert row[9] == "0.900 [0.900, 0.900]"
    assert row[10] == "yes"


def test_slower_is_what_a_sign_test_says() -> None:
    ones = np.ones(5)
    assert slower(ones, ones * 1.01)  # 5 of 5 lost: a chance of 1/32
    assert not slower(ones, np.array([1.01, 1.01, 1.01, 1.01, 0.99]))  # 6/32
    assert not slower(ones, ones)
    lost = table_row("ffnn", {**CELL, "final_fresh": [0.2] * 5, "initial_fresh": [0.1] * 5})
    assert lost[10] == "NO"
    kept = table_row("ffnn", {**CELL, "kept": True, "final_fresh": [0.2] * 3})
    assert kept[9:] == ["kept the initial one", "yes"]


def test_what_is_no_number_is_no_success() -> None:
    assert verdict(float("nan"), 0.05).endswith("MISSED)")


@pytest.mark.parametrize("field", ["regret_added", "kept", "final_fresh"])
def test_cells_that_lack_something_are_redone(field: str) -> None:
    assert usable(CELL)
    assert not usable({name: value for name, value in CELL.items() if name != field})


def test_a_tiny_run_and_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(name: str, scale: str) -> Workload:
        return make_workload(name, block=64)

    monkeypatch.setattr(bench_real_rl, "make_workload", small)
    monkeypatch.setattr(calibration, "RELAY_SIZES", (4096, 65536))
    monkeypatch.setattr(calibration, "EMPTY_OPS", 100)
    arguments = ["--workloads", "chainmm", "--executions", "12", "--sim-episodes", "32"]
    arguments += ["--repeats", "3", "--journal", str(tmp_path / "journal.jsonl")]
    cell = main([*arguments, "--output", str(tmp_path / "table.md")])["chainmm"]
    assert cell["executions"] >= 12
    assert len(cell["final_fresh"]) == 3
    assert "| chainmm | " in (tmp_path / "table.md").read_text()
    monkeypatch.setattr(bench_real_rl, "fine_tune", None)  # nothing is measured again
    assert main(arguments)["chainmm"] == cell


def test_impossible_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--executions", "0"])
    assert "--executions must be 1 or more" in capsys.readouterr().err
