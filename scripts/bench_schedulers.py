"""Compares all schedulers at equal seconds: makespans, gaps to bounds and to the best known.

python scripts/bench_schedulers.py                      # everything, 50 minutes on two cores
python scripts/bench_schedulers.py --sections published given
python scripts/bench_schedulers.py --checkpoint runs/x/checkpoint.pt   # a policy joins the tables

Sections: `published`, the tie-free published graphs under fifo; `given`, the same with the order
of the ops searched too; `own`, our workloads on 2, 4 and 8 devices; `large`, graphs of about 1 000
and 10 000 ops on 8; `stg`, graphs of known optimum. Finished cells are kept in a journal: a run
that was interrupted goes on where it stopped. Placements better than the best known are kept in the
results file, and said so. Searches have the seconds that the table says on all cores; schedulers
that restart have as many, the others need what they need.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler import Placement, load_problem
from doppler.errors import DopplerError
from doppler.files import write_text_atomically
from doppler.hardware import make_topology
from doppler.schedule import lower_bounds
from doppler.simulator import Simulator
from doppler.workloads import layered_dag, make_workload
from scripts.bench_journal import Cell, Journal, is_number
from scripts.bench_methods import (
    HEURISTICS,
    SEARCHES,
    Case,
    Method,
    restarted,
    scheduled,
    with_policy,
)
from scripts.bench_simulator import machine
from scripts.bench_stg import run_stg
from scripts.best_known import BestKnown
from scripts.progress import ProgressDisplay

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
TIE_FREE = {
    # name: file, best makespan known under fifo and under given when this benchmark was made
    "ChainMM": ("chain_mm_112nodes.txt", 1205.66, 1205.7),
    "FFNN": ("ffnn_192nodes.txt", 56.979, 56.98),
    "Llama-block": ("transformer_block_215nodes.txt", 167.61, 149.27),
    "Llama-layer": ("full_transformer_layer_261nodes.txt", 123.42, 123.3),
}
TARGETS = {
    "published": {"ChainMM": 1.001, "FFNN": 1.003, "Llama-block": 1.005, "Llama-layer": 1.05},
    "given": dict.fromkeys(TIE_FREE, 1.01),
}
OWN = ("chainmm", "ffnn", "llama_block", "llama_layer")
SECTIONS = ("published", "given", "own", "large", "stg")
ANNEALING = "annealing from random"
RESTARTED = "critical path, restarted"


@dataclass(frozen=True)
class Settings:
    """What a run is asked for; see `main`."""

    seconds: dict[str, float]
    seeds: int
    search_seeds: int
    checkpoint: Path | None
    stg_instances: int

    def methods(self, section: str) -> dict[str, tuple[Method, int]]:
        """Methods of a section by name, with how many seeds each has."""
        seconds = self.seconds[section]
        methods: dict[str, tuple[Method, int]] = {}
        if section != "given":
            for label, (name, options) in HEURISTICS.items():
                methods[label] = (partial(scheduled, name, options), 1)
        methods[RESTARTED] = (partial(restarted, seconds), 1)
        for label, (name, options) in SEARCHES.items():
            budget = {"budget_s": seconds, **options}
            methods[label] = (partial(scheduled, name, budget), self.search_seeds)
        budget = {"budget_s": seconds, "begin": "random"}
        seeds = self.seeds if section == "published" else self.search_seeds
        methods[ANNEALING] = (partial(scheduled, "annealing", budget), seeds)
        if self.checkpoint is not None:
            label = f"policy {self.checkpoint.parent.name}"
            methods[label] = (partial(with_policy, self.checkpoint, seconds), 1)
        return methods


def cases(section: str) -> Iterator[Case]:
    """The columns of a section's table."""
    if section in ("published", "given"):
        choose = "fifo" if section == "published" else "given"
        for name, (file, fifo, given) in TIE_FREE.items():
            problem = load_problem(DATA / "doppler" / "tiefree" / file, num_devices=4)
            best = fifo if section == "published" else given
            yield Case(name, problem, Simulator(problem, "contention_free", choose), best)
    elif section == "own":
        for workload in OWN:
            for num_devices in (2, 4, 8):
                topology = make_topology("v100", num_devices)
                problem = make_workload(workload, scale="paper").problem(topology)
                yield Case(f"{workload}, {num_devices}", problem, Simulator(problem))
    else:
        topology = make_topology("v100", 8)
        for num_shards in (64, 512):
            problem = make_workload("llama_layer", "paper", num_shards).problem(topology)
            yield Case(f"llama_layer, {problem.num_ops} ops", problem, Simulator(problem))
        for num_ops in (1_000, 10_000):
            problem = layered_dag(num_ops, num_devices=8)
            yield Case(f"random layers, {num_ops} ops", problem, Simulator(problem))


def usable(cell: Cell) -> bool:
    """Whether a journal's cell is one of ours, whole."""
    return "refused" in cell or all(
        is_number(cell.get(name)) for name in ("makespan", "seconds", "evaluations")
    )


def run_section(
    section: str,
    settings: Settings,
    journal: Journal,
    known: BestKnown,
    display: ProgressDisplay,
) -> tuple[list[str], list[list[str]]]:
    """Fills a section's table; returns its header and rows."""
    columns = list(cases(section))
    methods = settings.methods(section)
    total = sum(seeds for _, seeds in methods.values()) * len(columns)
    table: dict[str, list[str]] = {label: [label] for label in methods}
    with display.step(section, total) as advance:
        done = 0
        for case in columns:
            reference, before = case.reference, known.makespan(case.problem, case.simulator)
            for label, (method, seeds) in methods.items():
                cells = []
                for seed in range(seeds):
                    advance(done, f"{case.name}: {label}")
                    key = f"{section}/{settings.seconds[section]:g} s/{case.name}/{label}/{seed}"
                    cells.append(
                        journal.cells.get(key)
                        or run_cell(key, case, partial(method, case, seed), journal, known)
                    )
                    done += 1
                table[label].append(show(cells, reference))
            announce(case, before or case.best, known, display.console)
        advance(done, "")
    header = ["scheduler", *(case.name for case in columns)]
    rows = list(table.values())
    bests = [known.makespan(case.problem, case.simulator) for case in columns]
    best_row = ["best known now"]
    for case, best in zip(columns, bests, strict=True):
        bound = lower_bounds(case.problem).best
        best_row.append("" if best is None else f"{best:.6g} s (bound {bound:.6g} s)")
    rows.append(best_row)
    rows += target_rows(section, columns, methods, journal, settings)
    return header, rows


def run_cell(
    key: str,
    case: Case,
    method: Callable[[], Placement],
    journal: Journal,
    known: BestKnown,
) -> dict[str, Any]:
    """Runs one method once, and keeps what it found."""
    try:
        placement = method()
    except DopplerError as error:
        return journal.add(key, refused=str(error))
    known.offer(case.problem, case.simulator, placement)
    info = placement.info
    return journal.add(
        key,
        makespan=info["simulated_makespan"],
        seconds=info["seconds"],
        evaluations=info["evaluations"],
    )


def announce(case: Case, before: float | None, known: BestKnown, console: Console) -> None:
    """Says so if there is a better placement than the best known before."""
    after = known.makespan(case.problem, case.simulator)
    if before is not None and after is not None and after < before * (1 - 1e-9):
        console.print(
            f"{case.name}: {after:.9g} s, better than the best known {before:.9g} s; kept in "
            f"{known.path.name}",
            highlight=False,
            soft_wrap=True,
        )


def show(cells: list[dict[str, Any]], reference: float) -> str:
    """A cell of the table: ratio to the reference, spread over seeds, seconds, evaluations."""
    if "refused" in cells[0]:
        return "refuses"
    ratios = np.array([cell["makespan"] for cell in cells]) / reference
    seconds = float(np.median([cell["seconds"] for cell in cells]))
    spread = f" [{ratios.min():.4f}, {ratios.max():.4f}]" if len(cells) > 1 else ""
    evaluations = float(np.median([cell["evaluations"] for cell in cells]))
    work = f", {evaluations / 1e6:.1f} M" if evaluations >= 50_000 else ""
    return f"{np.median(ratios):.4f}{spread} ({seconds:.2g} s{work})"


def target_rows(
    section: str,
    columns: list[Case],
    methods: dict[str, tuple[Method, int]],
    journal: Journal,
    settings: Settings,
) -> list[list[str]]:
    """Whether annealing from random placements reaches what is expected of it."""
    if section not in TARGETS:
        return []
    row = [f"{ANNEALING}: median, target"]
    for case in columns:
        values = []
        for seed in range(methods[ANNEALING][1]):
            key = f"{section}/{settings.seconds[section]:g} s/{case.name}/{ANNEALING}/{seed}"
            values.append(journal.cells[key]["makespan"] / case.reference)
        target = TARGETS[section][case.name]
        met = "met" if np.median(values) <= target else "MISSED"
        row.append(f"{np.median(values):.4f} <= {target:g}: {met}")
    return [row]


def print_table(console: Console, title: str, header: list[str], rows: list[list[str]]) -> None:
    """On the terminal; wide tables are split by columns."""
    width = 5
    for first in range(1, len(header), width - 1):
        part = slice(first, first + width - 1)
        table = Table(*[header[0], *header[part]], title=title)
        for row in rows:
            table.add_row(row[0], *row[part])
        console.print(table)


def markdown(title: str, header: list[str], rows: list[list[str]]) -> str:
    """The table as Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return f"### {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def titles(settings: Settings) -> dict[str, str]:
    """What each section's table says above it."""
    searches = "ratio [best, worst of seeds] (seconds, evaluations)"
    s = settings.seconds
    return {
        "published": "Tie-free published graphs, contention_free, fifo, 4 devices, "
        f"{s['published']:g} s a search: makespan / best known, {searches}",
        "given": "The same with the order searched (given), "
        f"{s['given']:g} s a search: makespan / best known",
        "own": "Workloads at paper scale, serial_links, v100 preset, "
        f"{s['own']:g} s a search: makespan / lower bound",
        "large": "Large graphs, serial_links, 8 devices, "
        f"{s['large']:g} s a search: makespan / lower bound",
        "stg": "Standard Task Graphs: mean excess over the best known makespan",
    }


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="all by default"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="of each search, of CP-SAT in `stg`; by default 20, given 30, own 10",
    )
    parser.add_argument(
        "--seeds", type=int, default=5, help="of annealing from random placements, in `published`"
    )
    parser.add_argument(
        "--search-seeds", type=int, default=1, help="of the other searches and sections"
    )
    parser.add_argument("--checkpoint", type=Path, help="a trained policy that joins the tables")
    parser.add_argument("--stg-instances", type=int, default=30, help="how many of the 30")
    parser.add_argument("--fresh", action="store_true", help="forget finished cells")
    parser.add_argument(
        "--journal",
        type=Path,
        default=ROOT / "runs" / "bench_schedulers.jsonl",
        help="finished cells (runs/bench_schedulers.jsonl)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "docs" / "results" / "best_known.json",
        help="the best placements known (docs/results/best_known.json)",
    )
    parser.add_argument("--output", type=Path, help="also write the tables here, as Markdown")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.search_seeds < 1 or options.stg_instances < 1:
        parser.error("--seeds, --search-seeds and --stg-instances must be 1 or more")
    if options.seconds is not None and not 0 < options.seconds < math.inf:
        parser.error("--seconds must be a number above 0")
    if options.checkpoint is not None and not options.checkpoint.is_file():
        parser.error(f"--checkpoint: {options.checkpoint} is no file")
    try:
        run(options)
    except DopplerError as error:
        parser.exit(1, f"error: {error}\n")


def run(options: argparse.Namespace) -> None:
    """As `main`, with checked options."""
    defaults = {"published": 20.0, "given": 30.0, "own": 10.0, "large": 20.0, "stg": 20.0}
    settings = Settings(
        seconds={name: options.seconds or seconds for name, seconds in defaults.items()},
        seeds=options.seeds,
        search_seeds=options.search_seeds,
        checkpoint=options.checkpoint,
        stg_instances=options.stg_instances,
    )
    console = Console(markup=False)
    display = ProgressDisplay(console)
    journal, known = Journal(options.journal, options.fresh, usable), BestKnown(options.results)
    parts = [f"{machine()}."]
    for section in options.sections:
        if section in ("published", "given", "stg") and not DATA.is_dir():
            console.print(f"{section}: skipped, {DATA} is absent", highlight=False)
            continue
        if section == "stg":
            header, rows = run_stg(
                settings.seconds["stg"], settings.stg_instances, journal, display
            )
        else:
            header, rows = run_section(section, settings, journal, known, display)
        title = titles(settings)[section]
        print_table(console, title, header, rows)
        parts.append(markdown(title, header, rows))
        if options.output is not None:
            write_text_atomically(options.output, "\n".join(parts))


if __name__ == "__main__":
    main()
