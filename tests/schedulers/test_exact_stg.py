"""The published instances of the Standard Task Graph set, whose best makespans are known."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from doppler import load_problem
from doppler.graph import b_levels
from doppler.schedulers.exact import SolverOptions, solve


def stg(shared_data: Path) -> list[tuple[str, int, float, float]]:
    """Instance, devices, published lower bound and best known makespan."""
    with (shared_data / "stg" / "known_makespans.csv").open() as stream:
        return [
            (row["instance"], int(row["processors"]), float(row["lower_bound"]),
             float(row["best_makespan"]))
            for row in csv.DictReader(stream)
        ]  # fmt: skip


def check_stg(folder: Path, instance: str, processors: int, bound: float, best: float) -> bool:
    """Solves an instance for at most 20 s and compares; returns whether it is proven optimal."""
    problem = load_problem(folder / f"{instance}.stg", processors)
    result = solve(problem, "serial_links", SolverOptions(budget_s=20.0, num_workers=2))
    assert result.makespan == best, (instance, processors)
    assert result.bound <= best and result.makespan >= bound
    assert result.schedule is not None
    longest = b_levels(problem.graph, problem.cost_model.op_seconds[:, 0]).max()
    assert result.bound >= max(longest, problem.cost_model.op_seconds[:, 0].sum() / processors)
    return result.optimal


def test_stg_quick(shared_data: Path) -> None:
    """Every tenth of the 120; among them some whose bound no list schedule meets."""
    rows = stg(shared_data)
    assert len(rows) == 120
    proven = [check_stg(shared_data / "stg", *row) for row in rows[1::10]]
    assert all(proven)


@pytest.mark.slow
def test_stg(shared_data: Path) -> None:
    proven = [check_stg(shared_data / "stg", *row) for row in stg(shared_data)]
    assert len(proven) == 120 and sum(proven) >= 116
