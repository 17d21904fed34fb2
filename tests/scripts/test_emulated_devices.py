"""executor=emulated from the command line: whatever is shown says emulated, never measured."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import evaluate, place, train

Command = Callable[..., int]
FAST = ["executor=emulated", "executor.target_s=0.02", "executor.repeats=2", "run_dir=out"]


def assert_called_emulated(folder: Path, printed: str) -> None:
    table = (folder / "results.md").read_text()
    (row, *_) = list(csv.DictReader((folder / "results.csv").open()))
    assert float(row["emulated_makespan_median_s"]) > 0 and row["emulated_runs"] == "2"
    assert not [name for name in row if "measured" in name]
    assert "| emulated makespan |" in table and "measured makespan" not in table
    assert "emulated makespan" in printed and "measured makespan" not in printed
    assert "nothing was computed or measured" in table and "late in the median" in table
    trace = json.loads((folder / "trace.json").read_text())["otherData"]
    keys = {key for entry in trace.values() for key in entry if key.endswith("_makespan")}
    assert keys == {"simulated_makespan", "emulated_makespan"}


@pytest.mark.parametrize("execution", ["work_conserving", "bulk_synchronous"])
def test_more_devices_than_this_machine_has(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture, execution: str
) -> None:
    assert command(
        evaluate, "workload=chainmm", "workload.block=8", "workload.num_shards=4",
        "topology=v100", "topology.num_devices=16", "~scheduler@schedulers.enumerative",
        f"simulator.execution={execution}", *FAST,
    ) == 0  # fmt: skip
    assert_called_emulated(tmp_path / "out", capsys.readouterr().out)


def test_problem_files_need_no_kernels(
    command: Command, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command(place, "problem=pair.json", "output=p.json") == 0
    assert command(
        evaluate, "workload=file", "workload.path=pair.json", "placements=[p.json]",
        "~scheduler@schedulers.enumerative", "executor.noise=0.1", *FAST,
    ) == 0  # fmt: skip
    assert_called_emulated(tmp_path / "out", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["executor.time_scale=0"], "time_scale: 0"),
        (["executor.target_s=-1"], "target_s: -1"),
        (["executor.noise=-0.5"], "sigma"),
        (["executor.timeout_s=1e-6"], "Lower time_scale"),
    ],
)
def test_bad_options(
    command: Command, pair: Path, capsys: pytest.CaptureFixture, arguments: list[str], message: str
) -> None:
    assert command(
        evaluate, "workload=file", "workload.path=pair.json", "~scheduler@schedulers.enumerative",
        *FAST, *arguments,
    ) == 2  # fmt: skip
    assert message in capsys.readouterr().err


def test_nothing_is_learnt_from_sleeping_devices(
    command: Command, capsys: pytest.CaptureFixture
) -> None:
    assert command(train, "topology=v100", "executor=emulated") == 2
    assert "those of executor=emulated only sleep" in capsys.readouterr().err
