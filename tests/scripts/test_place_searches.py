"""Searches through `place.py`: budgets, starts, Ctrl-C, curves, what is said, sweeps."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doppler import Placement, PlacementProblem
from doppler.schedulers import CpSat, SimulatedAnnealing
from doppler.simulator import Simulator
from scripts import evaluate, place, searching, train
from scripts.place_report import describe
from scripts.searching import (
    MOST_POINTS,
    format_count,
    gap_percent,
    interrupted_once,
    kept,
    thinned,
    with_budget,
)

Command = Callable[..., int]
ANNEALING = ["problem=uneven.json", "scheduler=annealing"]
TINY = ["policy.config.hidden_width=8", "policy.config.message_rounds=1", "logger=none"]


def document(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as soon as a search has something to show."""

    def press(run: object, bound: float) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "run_note", press)


def test_given_budgets_replace_the_scheduler_s_own() -> None:
    own = SimulatedAnnealing(budget_s=3.0, budget_evals=7, chains=3)
    assert with_budget(own, None, None) is own
    assert with_budget(own, 5, None) == SimulatedAnnealing(budget_s=5, chains=3)
    both = SimulatedAnnealing(budget_s=5, budget_evals=9, chains=3)
    assert with_budget(own, 5, 9) == both
    alone = with_budget(own, None, 9)
    assert alone == SimulatedAnnealing(budget_s=None, budget_evals=9, chains=3)
    assert with_budget(CpSat(), 4.0, None) == CpSat(budget_s=4.0)


def test_evaluations_alone_make_a_search_repeatable(
    command: Command, uneven: PlacementProblem, tmp_path: Path
) -> None:
    for name in ("a.json", "b.json"):
        assert command(place, *ANNEALING, "budget_evals=500", "seed=3", f"output={name}") == 0
    one, other = document(tmp_path / "a.json"), document(tmp_path / "b.json")
    assert one["evaluations"] == other["evaluations"] == 500
    assert one["placement"] == other["placement"]
    assert one["order"] == other["order"]
    assert one["simulated_makespan"] == other["simulated_makespan"]


def test_seconds_end_a_search(command: Command, uneven: PlacementProblem, tmp_path: Path) -> None:
    assert command(place, *ANNEALING, "budget_evals=50") == 0  # kernels are compiled now
    assert command(place, *ANNEALING, "budget_s=0.3") == 0
    seconds = document(tmp_path / "uneven.placement.json")["seconds"]
    assert 0.25 < seconds < 5  # not the scheduler's own 10 s


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["budget_s=-1"], "scheduler 'annealing', budget_s: -1 is not a finite number above 0"),
        (["budget_s=long"], "scheduler 'annealing', budget_s: 'long'"),
        (["budget_evals=0"], "scheduler 'annealing', budget_evals: 0"),
        (["budget_evals=2.5"], "scheduler 'annealing', budget_evals: 2.5"),
        (["scheduler=cp_sat", "budget_evals=9"], "'cp_sat', budget_evals: 9; its budget is"),
        (["start=none.json"], "none.json: cannot be read"),
        (["start=none.pt"], "none.pt"),
        (["start=other.json"], "other.json, num_ops: 2, but problem 'uneven' has 8"),
        (["start=device.json"], "device.json: problem 'uneven', placement, op 1: device 3"),
        (["start=unpinned.json"], "op 0: device 0, but it is pinned to device 2"),
        (["curve=c.xyz"], "c.xyz: no picture format"),
        (["gantt=gantt"], "gantt: no picture format"),
        (["output=uneven.json"], "would be written over what is read"),
        (["output=x.png", "gantt=x.png"], "would be written over what is written as output"),
        (["output=."], "is a folder"),
        (["output=uneven.json/p.json"], "cannot be written"),
        (["checkpoint=x.pt"], "checkpoint= lets a policy place alone, scheduler= goes with"),
    ],
)
def test_what_a_search_cannot_use_is_one_line_and_writes_nothing(
    command: Command, uneven: PlacementProblem, tmp_path: Path, capsys: pytest.CaptureFixture,
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    good = {"format": "doppler-placement", "version": 1, "num_ops": 8, "num_devices": 3}
    for name, change in (
        ("other", {"num_ops": 2, "placement": [0, 0]}),
        ("device", {"placement": [2, 3, 0, 0, 0, 0, 0, 0]}),
        ("unpinned", {"placement": [0] * 8}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({**good, **change}))
    before = sorted(tmp_path.iterdir())
    scheduler = [] if arguments[0].startswith("scheduler") else ["scheduler=annealing"]
    assert command(place, "problem=uneven.json", *scheduler, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("option", ["start=s.json", "budget_s=1", "budget_evals=1", "curve=c.png"])
def test_a_policy_alone_takes_no_options_of_searches(
    command: Command, uneven: PlacementProblem, capsys: pytest.CaptureFixture, option: str
) -> None:
    assert command(place, "problem=uneven.json", "checkpoint=x.pt", option) == 2
    message = capsys.readouterr().err
    assert f"{option.split('=')[0]}= goes with a scheduler" in message
    assert "start=x.pt" in message


def test_ctrl_c_writes_the_best_so_far_and_says_how_to_go_on(
    command: Command,
    uneven: PlacementProblem,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: None,
) -> None:
    assert command(place, "problem=uneven.json", "output=first.json") == 0
    more = ["budget_s=60", "output=p.json", "curve=c.png"]
    assert command(place, *ANNEALING, "start=first.json", *more) == 130
    printed = capsys.readouterr()
    path = tmp_path / "p.json"
    assert printed.err.endswith("interrupted\n")
    assert "interrupted: this is the best so far" in printed.out
    assert (tmp_path / "c.png").exists()
    first = Placement.load(path, uneven).info
    assert first["interrupted"] is True
    assert first["seconds"] < 30
    *options, last = printed.out.splitlines()[-1].split("scripts/place.py ")[1].split()
    assert last == f"start={path}"
    assert options == [*ANNEALING, *more]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    options[options.index("budget_s=60")] = "budget_evals=200"
    assert command(place, *options, last) == 0
    second = Placement.load(path, uneven).info
    assert "interrupted" not in second
    assert second["simulated_makespan"] <= first["simulated_makespan"]


def test_a_search_improves_a_policy_s_placement(
    command: Command, uneven: PlacementProblem, tmp_path: Path
) -> None:
    assert command(
        train, "workload=file", "workload.path=uneven.json", *TINY, "stages=[imitation]",
        "imitation.episodes=2", "imitation.batch_size=2", "imitation.trials=1", "run_dir=run",
        "~scheduler@schedulers.enumerative",
    ) == 0  # fmt: skip
    policy = ["problem=uneven.json", "samples=3", "seed=4", "output=alone.json"]
    assert command(place, *policy, "checkpoint=run/checkpoint.pt") == 0
    assert command(
        place, *ANNEALING, "start=run/checkpoint.pt", "samples=3", "seed=4", "budget_evals=200"
    ) == 0  # fmt: skip
    alone = document(tmp_path / "alone.json")["simulated_makespan"]
    refined = document(tmp_path / "uneven.placement.json")
    assert refined["scheduler"] == "annealing"
    assert refined["start"] == {
        "file": "checkpoint.pt",
        "scheduler": "doppler",
        "simulated_makespan": alone,
    }
    assert refined["simulated_makespan"] <= alone


def test_the_result_says_what_was_found_and_proven(
    command: Command,
    uneven: PlacementProblem,
    pair: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    assert command(place, "problem=pair.json", "scheduler=heft") == 0
    assert "with 1 evaluation in" in capsys.readouterr().out

    def said(*arguments: str) -> str:
        assert command(place, "problem=uneven.json", *arguments) == 0
        return capsys.readouterr().out

    text = said("scheduler=annealing", "budget_evals=1000", "curve=c.png", "gantt=g.png")
    assert "with 1000 evaluations in" in text
    assert "a second" in text
    assert "gap to bound" in text
    assert f"curve: {tmp_path / 'c.png'}" in text
    for name in ("c.png", "g.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    info = document(tmp_path / "uneven.placement.json")
    assert info["curve"][-1][2] == info["simulated_makespan"]
    text = said("scheduler=heft")
    assert "planned makespan" in text
    assert "a second" not in text
    assert "planned_makespan" in document(tmp_path / "uneven.placement.json")
    for exact in ("exhaustive", "cp_sat"):
        text = said(f"scheduler={exact}", "simulator.choose=given")
        info = document(tmp_path / "uneven.placement.json")
        assert info["bound"] <= info["simulated_makespan"] * (1 + 1e-9)
        proven = info["simulated_makespan"] <= info["bound"] * (1 + 1e-6)
        assert ("optimal: no schedule is shorter, proven" in text) == proven
        assert "optimal" in text or "proven" in text


@pytest.mark.parametrize(
    ("proof", "text"),
    [
        (
            {"optimum": "optimal", "free_makespan": 20.0, "bound": 20.0, "gap": 0.0},
            "no schedule is",
        ),
        ({"optimum": "optimal", "free_makespan": 16.0, "bound": 16.0, "gap": 0.0}, "takes 16.00 s"),
        ({"optimum": "gap", "free_makespan": 20.0, "bound": 16.0, "gap": 0.2}, "25.00 % more"),
        ({"optimum": "gap", "free_makespan": None, "bound": 16.0, "gap": None}, "below 16.00 s"),
    ],
)
def test_a_proven_bound_is_the_one_that_counts(
    uneven: PlacementProblem, proof: dict[str, Any], text: str
) -> None:
    info = {"scheduler": "x", "simulated_makespan": 20.0, "evaluations": 1, "seconds": 0.1}
    first, *others = describe(Simulator(uneven), Placement([2] * 8, None, {**info, **proof}))
    gap = 100 * (20 / proof["bound"] - 1)
    assert f"lower bound {proof['bound']:.2f} s (gap to bound {gap:.2f} %)" in first
    assert len(others) == 1
    assert text in others[0]


def test_every_job_of_a_sweep_writes_files_of_its_own(
    command: Command, uneven: PlacementProblem, tmp_path: Path
) -> None:
    assert command(
        place, "-m", "problem=uneven.json", "scheduler=heft,metis", "seed=0,1", "gantt=made/g.png",
    ) == 0  # fmt: skip
    jobs = ["heft_0", "heft_1", "metis_2", "metis_3"]
    for job in jobs:
        made = Placement.load(tmp_path / f"uneven.{job}.placement.json", uneven)
        assert made.info["scheduler"] == job.rsplit("_", 1)[0]
        assert (tmp_path / "made" / f"g.{job}.png").exists()
    assert not (tmp_path / "uneven.placement.json").exists()
    assert command(place, "-m", "problem=uneven.json", "seed=0,1", "output=x.json") == 0
    assert {path.name for path in tmp_path.glob("x*")} == {
        "x.critical_path_0.json",
        "x.critical_path_1.json",
    }


def test_a_failed_job_of_a_sweep_leaves_the_others(
    command: Command, uneven: PlacementProblem, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command(
        place, "-m", "problem=uneven.json", "scheduler=heft,annealing", "budget_evals=50",
        "curve=curve.png",
    ) == 1  # fmt: skip
    assert "curve: scheduler 'heft'" in capsys.readouterr().err
    assert [p.name for p in tmp_path.glob("*.placement.json")] == [
        "uneven.annealing_1.placement.json"
    ]


def test_the_budget_of_a_sweep_is_for_its_searches(
    command: Command, uneven: PlacementProblem, tmp_path: Path
) -> None:
    assert command(
        place, "-m", "problem=uneven.json", "scheduler=heft,annealing,metis", "budget_evals=50"
    ) == 0  # fmt: skip
    assert sorted(p.name for p in tmp_path.glob("*.placement.json")) == [
        "uneven.annealing_1.placement.json",
        "uneven.heft_0.placement.json",
        "uneven.metis_2.placement.json",
    ]


def test_interrupts_right_after_the_first_do_not_hurt_the_result() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupted_once():
        signal.raise_signal(signal.SIGINT)
    try:
        for _ in range(2):  # a process manager that repeats itself
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    with interrupted_once():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


EVALUATE = [
    "workload=file", "workload.path=uneven.json", "~scheduler@schedulers.enumerative",
    "+scheduler@schedulers.annealing=annealing", "schedulers.annealing.budget_s=0.2",
    "run_dir=out",
]  # fmt: skip


def test_tables_take_searches_with_a_budget(
    command: Command, uneven: PlacementProblem, tmp_path: Path
) -> None:
    assert command(evaluate, *EVALUATE) == 0
    with (tmp_path / "out" / "results.csv").open() as stream:
        rows = [row["scheduler"] for row in csv.DictReader(stream)]
    assert rows[-1] == "annealing"
    assert len(rows) == 5


def test_ctrl_c_in_a_search_of_a_table_ends_all_of_it(
    command: Command, uneven: PlacementProblem, tmp_path: Path, interrupted: None
) -> None:
    assert command(evaluate, *EVALUATE) == 130
    assert not (tmp_path / "out" / "results.csv").exists()


def test_curves_are_thinned_to_their_first_and_last_points() -> None:
    short = [[0.1 * i, i, 9.0] for i in range(MOST_POINTS)]
    assert thinned(short) is short
    curve = [[0.1 * i, i, 9.0 - i / 1e6] for i in range(12345)]
    kept = thinned(curve)
    assert len(kept) == MOST_POINTS
    assert kept[0] is curve[0]
    assert kept[-1] is curve[-1]
    assert (np.diff([point[1] for point in kept]) > 0).all()


def test_what_no_json_file_can_hold_is_none() -> None:
    assert kept("work_conserving_makespan", np.inf) is None
    assert kept("work_conserving_makespan", 2.0) == 2.0
    assert kept("optimum", "gap") == "gap"
    assert len(kept("free_curve", [(0.0, 1.0, 1.0)] * 2000)) == MOST_POINTS


def test_counts_and_gaps_are_short() -> None:
    assert [format_count(n) for n in (0, 7, 999, 1234, 12345, 999999, 4.25e6, 2e9)] == [
        "0", "7", "999", "1.23 k", "12.3 k", "1.00 M", "4.25 M", "2.00 G",
    ]  # fmt: skip
    assert gap_percent(12.0, 10.0) == pytest.approx(20)
    assert gap_percent(10.0, 10.0 * (1 + 1e-15)) == 0
