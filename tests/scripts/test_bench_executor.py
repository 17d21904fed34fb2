"""The executor's benchmark: every row is there, and idle shares are those of hand-made runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, PlacementProblem, Schedule
from doppler.hardware import make_topology
from doppler.workloads import Workload, make_workload
from scripts import bench_executor
from scripts.bench_executor import idle_share, main


def two_ops_late() -> Schedule:
    """Op 1 could run from 0 s on, but starts at 1 s; op 0 takes all 4 s.

    device 0: [0: 0-4]
    device 1:   [1: 1-3]
    """
    graph = DataflowGraph.from_edges("two", 2, [], output_bytes=[1, 1])
    topology = make_topology("cpu", 2)
    costs = CostModel(np.ones((2, 2)), np.ones(2), np.zeros(2), np.ones(2), "by hand")
    none = np.empty(0, np.int64)
    return Schedule(
        problem=PlacementProblem(graph, topology, costs),
        devices=np.array([0, 1]),
        start=np.array([0.0, 1.0]),
        finish=np.array([4.0, 3.0]),
        transfer_ops=none,
        transfer_targets=none,
        transfer_links=none,
        transfer_start=np.empty(0),
        transfer_finish=np.empty(0),
        network="serial_links",
        choose="fifo",
        origin="measured",
    )


def test_the_idle_share_is_of_all_devices_time() -> None:
    assert idle_share(two_ops_late()) == pytest.approx(1 / 8)
    prompt = replace(two_ops_late(), start=np.array([0.0, 0.0]))
    assert idle_share(prompt) == 0.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(name: str, scale: str, **sizes: int) -> Workload:
        assert scale == "host" and sizes
        return make_workload(name, block=64)

    monkeypatch.setattr(bench_executor, "make_workload", small)
    monkeypatch.setattr(bench_executor, "WARMUP", 0)
    monkeypatch.setattr(bench_executor, "EMPTY_OPS", 50)
    monkeypatch.setattr(bench_executor, "PARALLEL_OPS", 4)
    monkeypatch.setattr(bench_executor, "MATRIX_SIZE", 16)


def test_the_table_and_the_picture(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, picture = tmp_path / "table.md", tmp_path / "bars.png"
    arguments = ["--workloads", "chainmm", "--repeats", "2"]
    results = main([*arguments, "--output", str(output), "--picture", str(picture)])
    rows = {row.what: row for row in results.rows}
    assert len(rows) == len(results.rows) == 5 + 3
    assert all(np.isfinite(row.values).all() and len(row.values) == 2 for row in results.rows)
    targets = [(row.target, row.at_most) for row in results.rows if row.target is not None]
    assert targets == [(60, True), (60, True), (1.8, False)]  # chainmm is too short for idle time
    bulk, conserving = results.panels["chainmm"]["critical path"][::-1]
    assert bulk > 0 and conserving > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert output.read_text().count("\n| ") == len(rows) + 1
    assert "bulk-synchronous over work-conserving" in capsys.readouterr().out


def test_long_runs_have_a_target_for_idle_time(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_executor, "LEAST_MAKESPAN", 0.0)
    results = main(["--workloads", "chainmm", "--repeats", "1"])
    (idle,) = [row for row in results.rows if "idle" in row.what]
    assert (idle.target, idle.unit) == (5.0, "%")
    assert 0 <= idle.values[0] <= 100


def test_impossible_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--repeats", "0"])
    assert "must be 1 or more" in capsys.readouterr().err
