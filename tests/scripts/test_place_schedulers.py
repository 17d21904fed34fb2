"""Every configured scheduler through `place.py`: constraints, budgets, starts, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from doppler import Placement, PlacementProblem
from doppler.schedulers import SCHEDULERS
from doppler.schedulers.anytime import AnytimeScheduler
from doppler.simulator import Simulator
from scripts import place

Command = Callable[..., int]
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "scheduler"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
ANYTIME = [name for name in NAMES if issubclass(SCHEDULERS[name], AnytimeScheduler)]


def budget(name: str) -> list[str]:
    """A short one."""
    return [] if name not in ANYTIME else ["budget_s=2" if name == "cp_sat" else "budget_evals=300"]


@pytest.mark.parametrize("choose", ["fifo", "given"])
@pytest.mark.parametrize("name", NAMES)
def test_every_scheduler_respects_pins_groups_and_memory(
    command: Command, uneven: PlacementProblem, tmp_path: Path, name: str, choose: str
) -> None:
    assert command(
        place, "problem=uneven.json", f"scheduler={name}", f"simulator.choose={choose}",
        "output=p.json", *budget(name),
    ) == 0  # fmt: skip
    placement = Placement.load(tmp_path / "p.json", uneven)
    assert uneven.check_placement(placement.devices)[0] == 2
    assert placement.devices[3] == placement.devices[5]
    schedule = Simulator(uneven, choose=choose).run(placement)
    assert placement.info["simulated_makespan"] == pytest.approx(schedule.makespan, rel=1e-12)
    assert placement.info["scheduler"] == name


@pytest.mark.parametrize("name", ANYTIME)
def test_a_start_is_never_made_worse(
    command: Command, uneven: PlacementProblem, tmp_path: Path, name: str
) -> None:
    best = ["problem=uneven.json", "scheduler=exhaustive", "output=best.json"]
    assert command(place, *best) == 0
    little = budget(name) if name == "cp_sat" else ["budget_evals=1"]  # finds nothing by itself
    assert command(
        place, "problem=uneven.json", f"scheduler={name}", "start=best.json", *little
    ) == 0  # fmt: skip
    optimum = Placement.load(tmp_path / "best.json", uneven).info["simulated_makespan"]
    info = Placement.load(tmp_path / "uneven.placement.json", uneven).info
    assert info["simulated_makespan"] == pytest.approx(optimum, rel=1e-12)
    assert info["start"] == {
        "file": "best.json",
        "scheduler": "exhaustive",
        "simulated_makespan": optimum,
    }


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(ANYTIME)))
@pytest.mark.parametrize("option", ["budget_s=1", "budget_evals=5", "start=s.json", "curve=c.png"])
def test_schedulers_without_budget_refuse_what_belongs_to_searches(
    command: Command,
    uneven: PlacementProblem,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    name: str,
    option: str,
) -> None:
    assert command(place, "problem=uneven.json", f"scheduler={name}", option) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {option.split('=')[0]}: scheduler {name!r} is no search")
    assert "annealing, cp_sat" in message
    assert len(message.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["uneven.json"]
