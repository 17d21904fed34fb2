"""`compare_execution.py`: work-conserving against bulk-synchronous, in one command."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from scripts import compare_execution


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs the script in this process from an empty folder; returns the exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["compare_execution", *arguments])
        try:
            compare_execution.main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return run


def test_the_paper_s_first_table_comes_out_as_published(
    command, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Barriers cost time on all four workloads, most on FFNN, as measured on four P100s."""
    assert command("run_dir=out") == 0
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    assert len(rows) == 4 * 3
    best = {row["workload"]: float(row["ratio"]) for row in rows if row["scheduler"] == "best"}
    assert list(best) == ["chainmm", "ffnn", "llama_block", "llama_layer"]
    assert all(ratio > 1 for ratio in best.values())
    assert 1.05 < best["chainmm"] < best["ffnn"]
    assert best["ffnn"] > 1.25
    for name in best:
        mine = [row for row in rows if row["workload"] == name]
        for execution in ("work_conserving", "bulk_synchronous"):
            *alone, least = [float(row[f"{execution}_simulated_makespan_s"]) for row in mine]
            assert least == min(alone)
    assert (tmp_path / "out" / "compare_execution.png").read_bytes().startswith(b"\x89PNG")
    others = json.loads((tmp_path / "out" / "trace.json").read_text())["otherData"]
    assert [other["execution"] for other in others.values()] == [
        "work_conserving", "bulk_synchronous",
    ] * 4  # fmt: skip
    printed = capsys.readouterr().out
    assert "published" in printed
    assert "1.53" in printed


def test_groups_and_workloads_can_be_chosen(command, tmp_path: Path) -> None:
    assert command(
        "workloads=[chainmm]", "scale=host", "num_shards=4", "topology=host_staged",
        "topology.num_devices=2", "simulator.network=shared_bus", "run_dir=out",
        "~scheduler@schedulers.critical_path", "~schedulers.critical_path",
    ) == 0  # fmt: skip
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["where"] == "host_stagedx2, network shared_bus, choose fifo"
    assert list(summary["ratios"]) == ["chainmm"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("simulator.network=token_ring", "token_ring"),
        ("workloads=[bert]", "bert"),
        ("workloads=[]", "at least one"),
        ("topology=from_file", "topology="),
    ],
)
def test_bad_options_are_one_message(
    command, capsys: pytest.CaptureFixture, argument: str, message: str
) -> None:
    assert command(argument) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
