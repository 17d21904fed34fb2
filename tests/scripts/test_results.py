"""The results table: numbers by hand, empty cells with a reason, three ways to write it."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from doppler import CostModel, DataflowGraph, Placement, PlacementProblem
from doppler.executor.measurement import Measurement
from doppler.executor.result_check import ResultCheck
from doppler.hardware import fully_connected
from doppler.schedulers import EnumerativeOptimizer, RoundRobin
from doppler.simulator import Simulator
from scripts.progress import ProgressDisplay
from scripts.report import EqualEvaluations, best_heuristic, scheduler_rows
from scripts.results import CSV_COLUMNS, ResultsTable, Row, evaluate, tie_note


def fork_problem(output_bytes: list[float] | None = None) -> PlacementProblem:
    """0 -> 1, 0 -> 2; ops take 2, 3 and 3 s, op 0's output 1 s over any link.

    On one device 2 + 3 + 3 = 8 s; op 2 elsewhere: 2 + 1 + 3 = 6 s; bounds: chain 5 s, work 4 s.
    """
    graph = DataflowGraph.from_edges("fork", 3, [(0, 1), (0, 2)], output_bytes=output_bytes)
    topology = fully_connected(2, name="cpu")
    costs = CostModel(
        op_seconds=np.repeat([[2.0], [3.0], [3.0]], 2, axis=1),
        transfer_volume=[1.0, 1.0, 1.0],
        link_latency=np.zeros(2),
        link_seconds_per_unit=np.ones(2),
        source="by hand",
    )
    return PlacementProblem(graph, topology, costs)


class FakeExecutor:
    """Runs every placement in 1.25 times its simulated time, spread a little."""

    computes = True

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.measured_at_once = 0

    def check(self, placement: Placement) -> ResultCheck:
        return ResultCheck(passed=True, max_relative_error=2e-6, tolerance=1e-4, worst="y")

    def measure(self, placements, repeats, warmup, progress):  # type: ignore[no-untyped-def]
        self.measured_at_once = len(placements)
        progress((repeats + warmup) * len(placements), (repeats + warmup) * len(placements))
        measurements = []
        for placement in placements:
            schedule = self.simulator.run(placement.devices)
            runs = [
                replace(schedule, finish=schedule.finish * factor, origin="measured")
                for factor in np.linspace(1.15, 1.35, repeats)
            ]
            measurements.append(Measurement.from_schedules(runs, {}))
        return measurements


def table_of(problem: PlacementProblem, measured: bool) -> ResultsTable:
    simulator = Simulator(problem)
    rows = [
        Row("single device", Placement([0, 0, 0])),
        Row("DOPPLER-SIM", Placement([0, 0, 1])),
        Row("DOPPLER-SYS", None, reason="stage real_rl was not run"),
    ]
    return evaluate(
        rows,
        simulator,
        FakeExecutor(simulator) if measured else None,  # type: ignore[arg-type]
        repeats=15,
        warmup=2,
        progress=ProgressDisplay(Console(file=io.StringIO())),
        single_device="single device",
    )


def test_numbers_of_a_measured_table_by_hand() -> None:
    table = table_of(fork_problem([8.0, 8.0, 8.0]), measured=True)
    single, policy = (table.numbers(table.rows[i]) for i in (0, 1))
    assert single["simulated_makespan_s"] == 8
    assert single["measured_makespan_median_s"] == pytest.approx(10)
    assert single["measured_makespan_q1_s"] == pytest.approx(8 * 1.2)
    assert single["measured_makespan_q3_s"] == pytest.approx(8 * 1.3)
    assert single["measured_runs"] == 15
    assert single["simulation_error_percent"] == pytest.approx(-20)
    assert single["bytes_moved"] == 0
    assert policy["simulated_makespan_s"] == 6
    assert policy["speed_up_over_single_device"] == pytest.approx(8 / 6)
    assert policy["gap_to_lower_bound_percent"] == pytest.approx(20)
    assert policy["bytes_moved"] == 8
    assert policy["result_check"] == "passed"
    # ops of 2, 3 and 3 s whose finish is stretched by 1.25: 2.5 + 4.25 and 4.5 s of twice 7.5 s
    assert policy["device_utilisation_percent"] == pytest.approx(100 * 11.25 / 15)


def test_outliers_are_counted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = table_of(fork_problem([8.0, 8.0, 8.0]), measured=True)
    assert plain.numbers(plain.rows[0])["measured_outliers"] == 0
    assert not any("outlier" in note for note in plain.footnotes)
    factors = np.array([1.0, 1.1, 1.0, 1.1, 9.0])
    monkeypatch.setattr(np, "linspace", lambda *_: factors)
    table = table_of(fork_problem([8.0, 8.0, 8.0]), measured=True)
    assert [table.numbers(row)["measured_outliers"] for row in table.rows] == [1, 1, None]
    (note,) = (note for note in table.footnotes if "outlier" in note)
    assert "single device, 1 outlier of 5 runs (run 4); DOPPLER-SIM, 1 outlier" in note


def test_an_unmeasured_table_compares_simulated_makespans() -> None:
    table = table_of(fork_problem([8.0, 8.0, 8.0]), measured=False)
    policy = table.numbers(table.rows[1])
    assert policy["speed_up_over_single_device"] == pytest.approx(8 / 6)
    assert policy["measured_makespan_median_s"] is None
    assert policy["simulation_error_percent"] is None
    assert policy["device_utilisation_percent"] == pytest.approx(100 * 8 / 12)
    assert any("no executor" in note for note in table.footnotes)


def test_unknown_cells_are_dashes_and_a_footnote_says_why() -> None:
    table = table_of(fork_problem(), measured=False)
    texts = table.texts(table.rows[2])
    assert texts == ["DOPPLER-SYS", *["-"] * 8]
    assert table.texts(table.rows[0])[6] == "-"
    notes = "\n".join(table.footnotes)
    assert "bytes moved: the problem's source gives seconds, not bytes" in notes
    assert "DOPPLER-SYS: stage real_rl was not run" in notes


def test_all_placements_are_measured_together_so_that_rounds_interleave() -> None:
    problem = fork_problem()
    simulator = Simulator(problem)
    executor = FakeExecutor(simulator)
    rows = [Row("a", Placement([0, 0, 0])), Row("b", Placement([1, 1, 1])), Row("c", None, "no")]
    evaluate(
        rows, simulator, executor, repeats=15, warmup=2,  # type: ignore[arg-type]
        progress=ProgressDisplay(Console(file=io.StringIO())), single_device="a",
    )  # fmt: skip
    assert executor.measured_at_once == 2
    assert rows[2].measurement is None


def ties_problem() -> PlacementProblem:
    """0 -> 2 and 1 -> 3; ops 0 and 1 tie for device 0 (1 s each), op 2 takes 5 s elsewhere.

    Op 0 first: op 2 1-6, op 3 2-3 on a third device: 6 s. Op 1 first: op 2 2-7: 7 s.
    """
    graph = DataflowGraph.from_edges("ties", 4, [(0, 2), (1, 3)])
    topology = fully_connected(3, name="cpu")
    costs = CostModel(
        np.repeat([[1.0], [1.0], [5.0], [1.0]], 3, axis=1), np.zeros(4), np.zeros(6), np.ones(6),
        "by hand",
    )  # fmt: skip
    return PlacementProblem(graph, topology, costs)


def test_tie_sensitive_placements_are_marked_everywhere() -> None:
    simulator = Simulator(ties_problem())
    rows = [Row("tied", Placement([0, 0, 1, 2])), Row("steady", Placement([0, 0, 0, 0]))]
    table = evaluate(
        rows, simulator, None, repeats=0, warmup=0,
        progress=ProgressDisplay(Console(file=io.StringIO())), single_device="steady",
    )  # fmt: skip
    assert [table.texts(row)[1] for row in rows] == ["6.000 s *", "8.000 s"]
    assert [table.numbers(row)["tie_sensitivity"] for row in rows] == [7 / 6, 1]
    assert any(note.startswith("* tie-sensitive") for note in table.footnotes)
    assert tie_note(rows[0]) == "tie-sensitive: 6.000 s to 7.000 s over tie orders"
    assert tie_note(rows[1]) == ""


def test_csv_holds_full_precision_and_empty_cells() -> None:
    table = table_of(fork_problem(), measured=True)
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert float(rows[1]["simulated_makespan_s"]) == 6.0
    assert rows[0]["bytes_moved"] == ""
    assert rows[2]["simulated_makespan_s"] == ""
    assert len(rows) == 3


def test_markdown_has_every_row_and_every_footnote() -> None:
    table = table_of(fork_problem([8.0, 8.0, 8.0]), measured=True)
    text = table.to_markdown()
    assert "| DOPPLER-SIM | 6.000 s | 7.500 s [7.200 s, 7.800 s] | -20.0 % | 1.33 x |" in text
    for note in table.footnotes:
        assert f"- {note}" in text


def test_the_printed_table_keeps_a_row_on_one_line_in_a_pipe() -> None:
    stream = io.StringIO()
    table_of(fork_problem([8.0, 8.0, 8.0]), measured=True).print(Console(file=stream))
    lines = [line for line in stream.getvalue().splitlines() if "DOPPLER-SIM" in line]
    assert len(lines) == 1
    assert "7.500 s [7.200 s, 7.800 s]" in lines[0]
    assert "passed (2.0e-06)" in lines[0]


def test_a_placement_over_memory_capacity_has_the_reason_in_a_footnote() -> None:
    problem = fork_problem([8.0, 8.0, 8.0])
    small = fully_connected(2, name="cpu", memory_bytes=4.0)
    problem = PlacementProblem(problem.graph, small, problem.cost_model)
    table = table_of(problem, measured=False)
    assert table.texts(table.rows[0])[1] == "-"
    assert any(note.startswith("single device: ") for note in table.footnotes)


def test_a_scheduler_that_cannot_do_a_problem_gets_a_row_with_the_reason() -> None:
    schedulers = {"round_robin": RoundRobin(), "enumerative": EnumerativeOptimizer()}
    first, second = scheduler_rows(schedulers, Simulator(fork_problem()), seed=0)
    assert first.label == "round robin"
    assert first.placement is not None
    assert second.placement is None
    assert "meta_op" in str(second.reason)


def test_best_heuristic_is_the_fastest_row_that_is_no_policy() -> None:
    table = table_of(fork_problem(), measured=False)
    found = best_heuristic(table, ["DOPPLER-SIM", "DOPPLER-SYS"])
    assert found is table.rows[0]


def test_equal_evaluations_are_printed_as_a_ratio_whatever_it_says() -> None:
    text = str(EqualEvaluations(640, 90.0, 2.0, 100.0, 30.0))
    assert "640 episodes, 640 randomised critical-path runs" in text
    assert "critical path / policy = 0.900" in text


def test_a_large_simulation_error_is_explained() -> None:
    # every run takes 1.25 times the simulated time: 1 / 1.25 - 1 = -20 %
    notes = " ".join(table_of(fork_problem(), measured=True).footnotes)
    assert "-20 % in the median row" in notes
    assert "in the median row" not in " ".join(table_of(fork_problem(), False).footnotes)
