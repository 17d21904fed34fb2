"""The schedulers' benchmark: its cells, its journal, and the file of best placements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from doppler import CostModel, DataflowGraph, Placement, PlacementProblem
from doppler.errors import FileFormatError
from doppler.hardware import make_topology
from doppler.simulator import Simulator
from scripts import bench_schedulers, bench_stg
from scripts.bench_journal import Journal
from scripts.bench_methods import Case
from scripts.bench_schedulers import Settings, main, run_section, show, usable
from scripts.best_known import BestKnown, entry_key
from scripts.progress import ProgressDisplay


@pytest.fixture
def problem() -> PlacementProblem:
    """Two chains of two ops: 3 s on two devices, 6 s on one."""
    topology = make_topology("ideal", 2)
    graph = DataflowGraph.from_edges("chains", 4, np.array([[0, 1], [2, 3]]))
    costs = CostModel(
        op_seconds=np.repeat([[1.0], [2.0], [1.0], [2.0]], 2, axis=1),
        transfer_volume=np.full(4, 0.5),
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="test",
    )
    return PlacementProblem(graph, topology, costs)


GOOD, BAD = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0])


def test_only_better_placements_are_kept(tmp_path: Path, problem: PlacementProblem) -> None:
    simulator = Simulator(problem, "contention_free")
    known = BestKnown(tmp_path / "best.json")
    assert known.makespan(problem, simulator) is None
    assert known.offer(problem, simulator, Placement(BAD, None, {"scheduler": "bad"}))
    assert known.makespan(problem, simulator) == 6.0
    assert known.offer(problem, simulator, Placement(GOOD, None, {"scheduler": "good"}))
    assert not known.offer(problem, simulator, Placement(GOOD[::-1], None, {"scheduler": "same"}))
    again = BestKnown(tmp_path / "best.json")
    found = again.placement(problem, simulator)
    assert found is not None
    assert found.devices.tolist() == GOOD.tolist()
    assert found.info["found_by"] == "good"
    assert again.makespan(problem, simulator) == 3.0


def test_other_numbers_or_rules_are_other_entries(problem: PlacementProblem) -> None:
    costs = problem.cost_model
    slower = PlacementProblem(problem.graph, problem.topology, costs.scaled(2.0))
    keys = {
        entry_key(one, Simulator(one, network, choose))
        for one in (problem, slower)
        for network in ("contention_free", "serial_links")
        for choose in ("fifo", "given")
    }
    assert len(keys) == 8


def test_an_order_is_kept_where_it_is_searched(tmp_path: Path, problem: PlacementProblem) -> None:
    known = BestKnown(tmp_path / "best.json")
    order = np.array([2, 3, 0, 1])
    for choose in ("fifo", "given"):
        simulator = Simulator(problem, "contention_free", choose)
        known.offer(problem, simulator, Placement(GOOD, order))
        found = known.placement(problem, simulator)
        assert found is not None
        assert (found.order is None) == (choose == "fifo")


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("simulated_makespan", 2.0, "simulates to 3"),
        ("placement", [0, 0, 1], "shape"),
        ("placement", [0, 0, 1, 7], "device 7"),
        ("found_by", None, None),
    ],
)
def test_an_entry_that_is_wrong_is_refused(
    tmp_path: Path,
    problem: PlacementProblem,
    field: str,
    value: object,
    complaint: str | None,
) -> None:
    simulator, path = Simulator(problem, "contention_free"), tmp_path / "best.json"
    BestKnown(path).offer(problem, simulator, Placement(GOOD))
    document = json.loads(path.read_text())
    document["entries"][entry_key(problem, simulator)][field] = value
    path.write_text(json.dumps(document))
    if complaint is None:
        assert BestKnown(path).makespan(problem, simulator) == 3.0
        return
    with pytest.raises(FileFormatError, match=complaint) as error:
        BestKnown(path).placement(problem, simulator)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "text", ["[]", "{}", "{", '{"format": "doppler-best-known", "version": 2}']
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "best.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=r"best\.json"):
        BestKnown(path)


CELL = {"makespan": 1.0, "seconds": 2.0, "evaluations": 3}


def test_a_journal_survives_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, fresh=False, usable=usable).add("a", **CELL)
    with path.open("a") as file:
        file.write('{"key": "b", "make')
    journal = Journal(path, fresh=False, usable=usable)
    assert journal.cells == {"a": {"key": "a", **CELL}}
    journal.add("b", **{**CELL, "makespan": 2.0})
    assert Journal(path, fresh=False, usable=usable).cells["b"]["makespan"] == 2.0
    assert Journal(path, fresh=True, usable=usable).cells == {}


def test_a_cell_tells_the_median_and_the_spread() -> None:
    cells = [
        {"makespan": makespan, "seconds": 2.0, "evaluations": 3_000_000}
        for makespan in (11.0, 10.0, 12.0)
    ]
    assert show(cells, 10.0) == "1.1000 [1.0000, 1.2000] (2 s, 3.0 M)"
    assert show([{"refused": "no meta-ops"}], 10.0) == "refuses"


def quick(monkeypatch: pytest.MonkeyPatch, problem: PlacementProblem) -> Settings:
    """Settings of a run over the small problem alone."""
    case = Case("chains", problem, Simulator(problem, "contention_free"), 3.0)
    monkeypatch.setattr(bench_schedulers, "cases", lambda section: iter([case]))
    monkeypatch.setattr(
        bench_schedulers, "TARGETS", {"published": {"chains": 1.0}, "given": {"chains": 1.0}}
    )
    seconds = dict.fromkeys(bench_schedulers.SECTIONS, 0.05)
    return Settings(seconds, seeds=2, search_seeds=1, checkpoint=None, stg_instances=1)


def test_a_section_resumes_and_reports(
    tmp_path: Path, problem: PlacementProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = quick(monkeypatch, problem)
    display = ProgressDisplay(Console(markup=False))
    journal = Journal(tmp_path / "journal.jsonl", fresh=False, usable=usable)
    known = BestKnown(tmp_path / "best.json")
    header, rows = run_section("published", settings, journal, known, display)
    assert header == ["scheduler", "chains"]
    by_label = {row[0]: row[1] for row in rows}
    assert by_label["single device"].startswith("2.0000 ")
    assert by_label["annealing from random"].startswith("1.0000 [1.0000, 1.0000]")
    assert by_label["annealing from random: median, target"] == "1.0000 <= 1: met"
    assert by_label["enumerative"] == "refuses"
    assert by_label["best known now"] == "3 s (bound 3 s)"
    # Nothing is run twice.
    monkeypatch.setattr(bench_schedulers, "run_cell", None)
    again = Journal(tmp_path / "journal.jsonl", fresh=False, usable=usable)
    assert run_section("published", settings, again, known, display) == (header, rows)


def test_a_target_that_is_missed_says_so(
    tmp_path: Path, problem: PlacementProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = quick(monkeypatch, problem)
    monkeypatch.setitem(bench_schedulers.TARGETS["published"], "chains", 0.9)
    journal = Journal(tmp_path / "journal.jsonl", fresh=False, usable=usable)
    known = BestKnown(tmp_path / "best.json")
    display = ProgressDisplay(Console(markup=False))
    _, rows = run_section("published", settings, journal, known, display)
    assert rows[-1][1] == "1.0000 <= 0.9: MISSED"


def test_a_policy_joins_and_its_label_tells_the_run(tmp_path: Path) -> None:
    settings = Settings({"own": 1.0}, 1, 1, tmp_path / "my_run" / "checkpoint.pt", 1)
    assert "policy my_run" in settings.methods("own")
    assert "policy my_run" not in replace(settings, checkpoint=None).methods("own")


def test_standard_task_graphs(shared_data: Path, tmp_path: Path) -> None:
    display = ProgressDisplay(Console(markup=False))
    journal = Journal(tmp_path / "journal.jsonl", fresh=False, usable=usable)
    header, rows = bench_stg.run_stg(20.0, 1, journal, display)
    by_label = {row[0]: row[1:] for row in rows}
    assert header[1:5] == ["2 processors", "4 processors", "8 processors", "16 processors"]
    assert by_label["CP-SAT"] == ["0.00%"] * 5 + ["4 of 4"]
    assert by_label["CP-SAT: proven, median seconds [worst]"][4].startswith("4 of 4, ")
    assert float(by_label["round robin"][4].rstrip("%")) > 1.0


@pytest.mark.parametrize(
    "line", ["{}", "[]", "123", '{"a": 1}', '{"key": 1}', '{"key": "a", "makespan": "abc"}', "\x00"]
)
def test_a_journal_leaves_lines_that_are_no_cells(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(line + "\n")
    assert Journal(path, fresh=False, usable=usable).cells == {}


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--seconds", "inf"], 2, "--seconds must be"),
        (["--seconds", "nan"], 2, "--seconds must be"),
        (["--seeds", "0"], 2, "must be 1 or more"),
        (["--checkpoint", "absent.pt"], 2, "absent.pt is no file"),
        (["--journal", "folder"], 1, "folder: cannot be used as a journal"),
        (["--results", "folder"], 1, "folder: cannot be read"),
        (["--results", "bytes"], 1, "bytes: cannot be read"),
    ],
)
def test_bad_arguments_end_in_one_line(
    arguments: list[str],
    code: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    defaults = ["--journal", "journal.jsonl", "--results", "results.json", "--sections", "own"]
    with pytest.raises(SystemExit) as error:
        main([*defaults, *arguments])
    assert error.value.code == code
    assert complaint in capsys.readouterr().err
