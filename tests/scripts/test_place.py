"""`place.py`, `evaluate.py` and `calibrate.py` from the command line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from doppler import Placement, load_problem
from doppler.simulator import Simulator
from scripts import calibrate, evaluate, place, train
from scripts.bench_methods import Case, with_policy

Command = Callable[..., int]
SMALL = ["workload=chainmm", "workload.block=8", "workload.num_shards=4"]


def test_a_placement_file_says_what_who_how_good_and_how_long(command: Command, pair: Path) -> None:
    assert command(place, "problem=pair.json", "scheduler.ties=id") == 0
    document = json.loads((pair.parent / "pair.placement.json").read_text())
    assert document["placement"] == [0, 0]
    assert sorted(document["order"]) == [0, 1]
    assert document["simulated_makespan"] == pytest.approx(0.003)
    assert document["scheduler"] == "critical_path"
    assert document["evaluations"] == 1
    assert document["seconds"] > 0


@pytest.mark.parametrize("scheduler", ["single_device", "round_robin", "random", "critical_path"])
def test_published_files_are_placed_as_the_simulator_says(
    command: Command, shared_data: Path, tmp_path: Path, scheduler: str
) -> None:
    graph = shared_data / "doppler" / "tiefree" / "chain_mm_112nodes.txt"
    assert command(
        place, f"problem={graph}", "topology.num_devices=4", f"scheduler={scheduler}",
        "simulator.network=contention_free", "output=made/p.json", "seed=3",
    ) == 0  # fmt: skip
    problem = load_problem(graph, num_devices=4)
    placement = Placement.load(tmp_path / "made" / "p.json", problem)
    simulated = Simulator(problem, network="contention_free").makespan(placement.devices)
    assert placement.info["simulated_makespan"] == simulated


def test_workloads_are_placed_on_preset_devices(command: Command, tmp_path: Path) -> None:
    assert command(place, *SMALL, "topology=v100", "scheduler=enumerative", "output=p.json") == 0
    assert json.loads((tmp_path / "p.json").read_text())["num_devices"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to place: pass problem="),
        (["problem=none.txt"], "none.txt: no such file"),
        (["problem=pair.json", "workload=ffnn", "topology=p100"], "both given"),
        (["problem=pair.json", "topology.num_devices=3"], "holds 2 devices, num_devices=3"),
        (["problem=pair.json", "scheduler=enumerative"], "meta_op"),
        (["problem=pair.json", "scheduler.ties=coin"], "coin"),
        (["problem=pair.json", "scheduler.restarts=0"], "restarts"),
        (["problem=pair.json", "checkpoint=none.pt"], "none.pt"),
        (["problem=pair.json", "samples=0"], "samples is 0"),
        (["workload=ffnn"], "choose topology="),
    ],
)
def test_what_cannot_be_placed_is_one_message(
    command: Command, pair: Path, capsys: pytest.CaptureFixture, arguments: list[str], message: str
) -> None:
    assert command(place, *arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert len(printed.splitlines()) <= 4
    assert list(pair.parent.iterdir()) == [pair]


def test_a_run_is_evaluated_and_its_checkpoint_places_other_problems(
    command: Command, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    tiny = ["policy.config.hidden_width=8", "policy.config.message_rounds=1", "logger=none"]
    assert command(
        train, *SMALL, *tiny, "topology=p100", "topology.num_devices=2", "stages=[imitation]",
        "imitation.episodes=4", "imitation.batch_size=4", "imitation.trials=1", "run_dir=run",
        "seed=1",
    ) == 0  # fmt: skip
    (tmp_path / "run").rename(tmp_path / "moved")
    assert command(evaluate, "run=moved", "run_dir=out") == 0
    rows = {r["scheduler"]: r for r in csv.DictReader((tmp_path / "out" / "results.csv").open())}
    assert float(rows["DOPPLER-IMITATION"]["simulated_makespan_s"]) > 0
    assert len(rows) == 6
    assert (tmp_path / "out" / "gantt_doppler_imitation.png").exists()
    assert (tmp_path / "out" / "trace.json").exists()
    assert (tmp_path / "moved" / "trace.json").exists()
    capsys.readouterr()
    assert command(evaluate, "run=moved", "topology=v100") == 2
    assert "brings its own topology" in capsys.readouterr().err
    assert command(place, "problem=pair.json", "checkpoint=moved/checkpoint.pt", "samples=4") == 0
    document = json.loads((tmp_path / "pair.placement.json").read_text())
    assert document["scheduler"] == "doppler"
    assert document["evaluations"] == 4
    problem = load_problem(pair)
    simulated = Simulator(problem).makespan(document["placement"])
    assert document["simulated_makespan"] == simulated
    # The same policy as a row of the schedulers' benchmark, where it samples for some seconds.
    simulator = Simulator(problem, choose="given")
    row = with_policy(
        tmp_path / "moved" / "checkpoint.pt", 0.2, Case("pair", problem, simulator), seed=0
    )
    assert row.info["simulated_makespan"] == simulator.makespan(row.devices, row.order)
    assert row.info["evaluations"] > 1 and (row.info["evaluations"] - 1) % 16 == 0
    assert 0.2 <= row.info["seconds"] < 5.0


def test_placement_files_are_evaluated_on_real_devices(command: Command, tmp_path: Path) -> None:
    assert command(place, *SMALL, "topology=cpu", "simulator=preset", "output=p.json") == 0
    assert command(
        evaluate, *SMALL, "topology=cpu", "simulator=preset", "placements=[p.json]",
        "~scheduler@schedulers.enumerative", "executor.repeats=3", "run_dir=out", "overlay=true",
    ) == 0  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    overlays = {path.name for path in (tmp_path / "out").glob("overlay_*.png")}
    assert {"overlay_single_device.png", "overlay_critical_path.png"} <= overlays
    assert [row["result_check"] for row in rows] == ["passed"] * 5
    assert {row["measured_runs"] for row in rows} == {"3"}


def test_a_placement_of_another_problem_is_refused(
    command: Command, pair: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command(place, "problem=pair.json") == 0
    assert command(evaluate, *SMALL, "topology=p100", "placements=[pair.placement.json]") == 2
    assert "pair.placement.json, num_ops" in capsys.readouterr().err


def test_a_calibration_profile_is_written_and_used(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command(calibrate, *SMALL, "repeats=3", "output=profile.json") == 0
    printed = capsys.readouterr().out
    assert "simulator.cost.profile=" in printed
    assert re.search(r"kernels: \d+ measured, 0 estimated", printed)
    assert re.search(r"other kernels: estimated by regression .* over \d+ measured", printed)
    assert command(
        place, *SMALL, "topology=cpu", "simulator.cost.profile=profile.json", "output=p.json"
    ) == 0  # fmt: skip
    assert command(
        evaluate, *SMALL, "simulator.cost.profile=profile.json", "placements=[p.json]",
        "executor.repeats=3", "run_dir=out",
    ) == 0  # fmt: skip
    table = (tmp_path / "out" / "results.md").read_text()
    assert "calibrated" in table
    assert re.search(r"as slow as the other devices .*: single device [+-]\d+\.\d%, ", table)
    assert json.loads((tmp_path / "p.json").read_text())["simulated_makespan"] > 0


def test_calibrating_refuses_executors_without_devices(
    command: Command, capsys: pytest.CaptureFixture
) -> None:
    assert command(calibrate, *SMALL, "executor=emulated") == 2
    assert "executor=emulated cannot be calibrated; known: cpu, cuda" in capsys.readouterr().err


def test_the_default_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.problems import default_cache

    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/doppler")


def test_a_trace_is_written_where_asked_for(
    command: Command, pair: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command(place, "problem=pair.json", "trace=made/trace.json") == 0
    assert "made/trace.json" in capsys.readouterr().out.replace("\n", "")
    events = json.loads((pair.parent / "made" / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    makespan = json.loads((pair.parent / "pair.placement.json").read_text())["simulated_makespan"]
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(makespan * 1e6, rel=1e-6)


@pytest.mark.parametrize("name", ["../escaped", "/abs/name", ".hidden", "a b$\\frac$[/red]"])
def test_the_default_file_name_stays_in_this_folder(name: str) -> None:
    from scripts.run_folder import safe_name

    safe = safe_name(name)
    assert safe == Path(safe).name
    assert not safe.startswith(".")
