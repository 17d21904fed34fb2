"""The section `stg` of `scripts/bench_schedulers.py`: distance from known optima.

The Standard Task Graphs have 50 tasks each and no communication, so that the optimum of P|prec|Cmax
is known for nearly all of them (Kasahara Laboratory, Waseda University). Schedulers are run with
`choose=given`: their order is the priority among ready ops.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler import PlacementProblem, load_problem
from doppler.errors import DopplerError
from doppler.schedule import lower_bounds
from doppler.schedulers import make_scheduler
from doppler.simulator import Simulator
from scripts.bench_journal import Journal
from scripts.bench_methods import HEURISTICS, SEARCHES
from scripts.progress import ProgressDisplay

STG = Path(__file__).resolve().parents[2] / "shared" / "data" / "stg"
PROCESSORS = (2, 4, 8, 16)
SEARCH_EVALUATIONS = 20_000
LEFT_OUT = ("single device", "enumerative")
"""One tells nothing here, the other needs meta-ops."""
PROVEN_TARGET, PROVEN_OF = 116, 120
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{label: HEURISTICS[label] for label in HEURISTICS if label not in LEFT_OUT},
    "critical path": ("critical_path", {}),
    "critical path, best of 100": ("critical_path", {"restarts": 100}),
    **{
        f"{label}, 20 000 evaluations": (
            name,
            {**options, "budget_s": None, "budget_evals": SEARCH_EVALUATIONS},
        )
        for label, (name, options) in SEARCHES.items()
    },
}
CP_SAT = "CP-SAT"
EXACT = ("optimum", "bound", "method")
"""What is kept of an exact scheduler's report."""


@dataclass(frozen=True)
class Instance:
    """A task graph on some processors, and its best makespan known. [s]"""

    name: str
    processors: int
    problem: PlacementProblem
    best: float


def instances(count: int) -> Iterator[Instance]:
    """The first instances on all numbers of processors."""
    with (STG / "known_makespans.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if int(row["processors"]) in PROCESSORS]
    names = sorted({row["instance"] for row in rows})[:count]
    for row in rows:
        if row["instance"] in names:
            processors = int(row["processors"])
            problem = load_problem(STG / f"{row['instance']}.stg", num_devices=processors)
            yield Instance(row["instance"], processors, problem, float(row["best_makespan"]))


def run_stg(
    seconds: float, count: int, journal: Journal, display: ProgressDisplay
) -> tuple[list[str], list[list[str]]]:
    """Fills the table; returns its header and rows.

    Raises:
        RuntimeError: a makespan below a lower bound, which would be a fault of ours.
    """
    known = list(instances(count))
    methods: dict[str, tuple[str, dict[str, Any]]] = {
        **SCHEDULERS,
        CP_SAT: ("cp_sat", {"budget_s": seconds}),
    }
    cells: dict[str, list[dict[str, Any]]] = {label: [] for label in methods}
    with display.step("stg", len(known) * len(methods)) as advance:
        done = 0
        for instance in known:
            for label, (name, options) in methods.items():
                advance(done, f"{instance.name}, {instance.processors}: {label}")
                budget = f"{seconds:g} s/" if label == CP_SAT else ""
                key = f"stg/{budget}{instance.name}/{instance.processors}/{label}"
                cells[label].append(
                    journal.cells.get(key)
                    or journal.add(key, **run_instance(instance, name, options))
                )
                done += 1
        advance(done, "")
    header = ["scheduler", *(f"{p} processors" for p in PROCESSORS), "all", "at the best known"]
    rows = [_row(label, known, cells[label]) for label in methods]
    return header, [*rows, *_proof_rows(known, cells[CP_SAT])]


def run_instance(instance: Instance, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """One scheduler on one instance."""
    simulator = Simulator(instance.problem, "contention_free", "given")
    scheduler = make_scheduler(name, **options)
    try:
        placement = scheduler.schedule(instance.problem, simulator, np.random.default_rng(0))
    except DopplerError as error:
        return {"refused": str(error)}
    info = placement.info
    bound = lower_bounds(instance.problem).best
    makespan = info.get("free_makespan", info["simulated_makespan"])
    if makespan < bound * (1 - 1e-9):
        raise RuntimeError(f"{instance.name}: {name} found {makespan} s, below the bound {bound} s")
    exact = {key: value for key, value in info.items() if key in EXACT}
    cell = {"makespan": makespan, "seconds": info["seconds"], "evaluations": info["evaluations"]}
    return {**cell, **exact}


def _row(label: str, known: list[Instance], cells: list[dict[str, Any]]) -> list[str]:
    if any("refused" in cell for cell in cells):
        return [label, *["refuses"] * (len(PROCESSORS) + 2)]
    gaps = np.array([c["makespan"] / i.best - 1 for c, i in zip(cells, known, strict=True)])
    processors = np.array([instance.processors for instance in known])
    columns = [gaps[processors == p] for p in PROCESSORS]
    hits = int((gaps < 1e-9).sum())
    means = [f"{column.mean():.2%}" for column in [*columns, gaps]]
    return [label, *means, f"{hits} of {len(gaps)}"]


def _proof_rows(known: list[Instance], cells: list[dict[str, Any]]) -> list[list[str]]:
    """What CP-SAT proved, by processors."""

    def proven(select: Callable[[Instance], bool]) -> str:
        chosen = [cell for cell, i in zip(cells, known, strict=True) if select(i)]
        optimal = sum(cell["optimum"] == "optimal" for cell in chosen)
        seconds = np.array([cell["seconds"] for cell in chosen])
        return f"{optimal} of {len(chosen)}, {np.median(seconds):.2f} s [{seconds.max():.1f} s]"

    row = [f"{CP_SAT}: proven, median seconds [worst]"]
    row += [proven(lambda i, p=p: i.processors == p) for p in PROCESSORS]  # type: ignore[misc]
    optimal = sum(cell["optimum"] == "optimal" for cell in cells)
    target = ""
    if len(cells) == PROVEN_OF:
        target = f">= {PROVEN_TARGET}: {'met' if optimal >= PROVEN_TARGET else 'MISSED'}"
    return [[*row, proven(lambda _: True), target]]
