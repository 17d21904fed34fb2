"""Measures training: its speed, and the quality of learners at equal seconds.

python scripts/bench_training.py                          # speed, a few minutes on two cores
python scripts/bench_training.py --quality --picture curves.png         # a little over an hour
python scripts/bench_training.py --quality --learners doppler gdp --seconds 20 --seeds 1
python scripts/bench_training.py --targets                # the default learner, two hours

*Speed*: sim_rl with the default policy and with the published network on the published Llama-layer,
4 devices; seconds per op, memory and greedy placements on a random graph of 10 000 ops. Rates are
medians with quartiles over stretches of one training run, updates included, kernels loaded.

*Quality* trains each learner for the same seconds on the tie-free published graphs under
contention_free and shows, as ratio to the best known makespan: the best placement that training
found (searches in its loop count); the best of 64 episodes of the trained policy alone; and beside
them the randomised critical path, restarted for as long, and annealing. Mean and quartiles over
seeds. A learner is a configuration of `scripts/train.py`, see `scripts/learners.py`. The seconds
are those of training alone, as the trainer counts them. Schedules of learning rates and searches go
by episodes, so a short run on each graph tells how many fit; the published algorithm keeps its own.

*Targets* trains the default learner on all four graphs under fifo and given, and says what is met;
the targets have two decimals, and medians are rounded to as many.

Finished cells are kept in a journal: a run that was interrupted goes on where it stopped. Other
settings of a learner are another cell. Placements better than the best known are kept in the
results file, and said so. The words quality=true and targets=true do as the flags.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler.errors import DopplerError
from doppler.files import write_text_atomically
from doppler.viz import CurvePanel, TrainingCurve, plot_training_curves
from doppler.viz.figure import check_picture
from scripts import training_speed
from scripts.bench_journal import Cell, Journal
from scripts.bench_schedulers import DATA, markdown
from scripts.bench_simulator import machine
from scripts.best_known import BestKnown
from scripts.entry import EXIT_INTERRUPTED
from scripts.learners import LEARNERS
from scripts.progress import ProgressDisplay
from scripts.training_quality import GRAPHS, SAMPLES, Settings, contestants, run_graph, usable

ROOT = Path(__file__).resolve().parents[1]
SPEED_HEADER = ["what", "measured: median [quartiles]", "target", "ratio", "met"]
ALONE = f"policy alone, best of {SAMPLES}"
TARGETS: dict[str, dict[str, float]] = {
    "best": {"ChainMM": 1.00, "FFNN": 1.00, "Llama-block": 1.01, "Llama-layer": 1.03},
    "policy": {"ChainMM": 1.05, "FFNN": 1.15, "Llama-block": 1.10, "Llama-layer": 1.15},
}
"""Of medians over seeds of makespan / best known."""
DEFAULTS = {
    # mode: seconds, seeds, graphs, learners
    "quality": (60.0, 3, ["chainmm", "llama_block"], list(LEARNERS)),
    "targets": (180.0, 5, list(GRAPHS), ["doppler"]),
}


def show(values: list[float | None], reference: float) -> str:
    """Mean and quartiles of ratios, of those seeds that found something."""
    found = [value for value in values if value is not None]
    if not found:
        return "nothing found"
    ratios = np.array(found) / reference
    low, high = np.percentile(ratios, [25, 75])
    spread = f" [{low:.4f}, {high:.4f}]" if len(ratios) > 1 else ""
    part = f" ({len(found)} of {len(values)} seeds)" if len(found) < len(values) else ""
    return f"{ratios.mean():.4f}{spread}{part}"


def quality_row(label: str, cells: list[Cell], reference: float, learner: bool) -> list[str]:
    """A contestant's line; one that failed with a seed says why."""
    reasons = [cell["refused"] for cell in cells if "refused" in cell]
    if reasons:
        return [label, f"failed {len(reasons)} of {len(cells)}: {reasons[0]}", "", ""]
    return [
        label,
        show([cell["best"] for cell in cells], reference),
        show([cell["policy"] for cell in cells], reference) if learner else "",
        f"{np.mean([cell['episodes'] for cell in cells]):,.0f}",
    ]


def quality_table(
    graph: str, settings: Settings, cells: dict[str, list[Cell]], known: BestKnown
) -> tuple[str, list[str], list[list[str]]]:
    """Title, header and rows of a graph."""
    case = settings.case(graph)
    header = ["learner", "best found", ALONE, "episodes, simulations"]
    rows = [
        quality_row(label, found, case.reference, label in settings.learners)
        for label, found in cells.items()
    ]
    best = known.makespan(case.problem, case.simulator)
    if best is not None:
        rows.append(["best known now", show([best], case.reference), "", ""])
    title = (
        f"{case.name}, contention_free, {settings.choose}, 4 devices, {settings.seconds:g} s, "
        f"{settings.seeds} seeds: makespan / {case.reference:g} s, mean [quartiles]"
    )
    return title, header, rows


def curve_panel(graph: str, settings: Settings, cells: dict[str, list[Cell]]) -> CurvePanel:
    """A graph's learning curves; learners that failed or found nothing have none."""
    case = settings.case(graph)
    curves = [
        TrainingCurve(
            label,
            [np.array(cell["curve"], np.float64) for cell in found],
            label not in settings.learners,
        )
        for label, found in cells.items()
        if all(cell.get("curve") for cell in found)
    ]
    return CurvePanel(f"{case.name}, {settings.choose}", case.reference, curves)


def target_rows(
    by_graph: dict[str, list[Cell]], settings: Settings
) -> tuple[str, list[str], list[list[str]]]:
    """Title, header and rows: medians of the default learner against the targets."""
    cases = {graph: settings.case(graph) for graph in by_graph}
    header = [settings.choose, *(case.name for case in cases.values())]
    rows = []
    for name, label in (("best", "best found"), ("policy", ALONE)):
        row = [label]
        for graph, case in cases.items():
            cells, target = by_graph[graph], TARGETS[name][case.name]
            if any(cell.get(name) is None for cell in cells):
                row.append("failed, or nothing found: MISSED")
                continue
            ratios = np.array([cell[name] for cell in cells]) / case.reference
            median = float(np.median(ratios))
            met = "met" if round(median, 2) <= target else f"MISSED by {median - target:.3f}"
            spread = f"[{ratios.min():.4f}, {ratios.max():.4f}]"
            row.append(f"{median:.4f} {spread} <= {target:.2f}: {met}")
        rows.append(row)
    title = (
        f"The default learner after {settings.seconds:g} s, {settings.choose}: makespan / best "
        f"known, median [best, worst] of {settings.seeds} seeds"
    )
    return title, header, rows


class Report:
    """Tables on the terminal and, where asked for, in a file, which grows table by table.

    Args:
        console: where to.
        output: the Markdown file, or None.
    """

    def __init__(self, console: Console, output: Path | None) -> None:
        wide = Console(file=console.file, width=160, markup=False)
        self.console = console if console.is_terminal else wide
        self._output = output
        self._parts = [f"{machine()}."]

    def add(self, title: str, header: list[str], rows: list[list[str]]) -> None:
        table = Table(*header, title=title)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
        self._parts.append(markdown(title, header, rows))
        if self._output is not None:
            write_text_atomically(self._output, "\n".join(self._parts))


def run_speed(options: argparse.Namespace, report: Report, display: ProgressDisplay) -> None:
    """The speed table."""
    settings = training_speed.Settings(
        folder=options.graphs,
        seconds=options.seconds or 20.0,
        repeats=options.repeats,
        big_ops=options.big_ops,
        big_updates=options.big_updates,
    )
    rows = training_speed.speed_rows(settings, display)
    report.add("Speed of training", SPEED_HEADER, [row.cells() for row in rows])


def quality_settings(options: argparse.Namespace) -> Settings:
    """What quality or targets run on."""
    seconds, seeds, graphs, learners = DEFAULTS[options.mode]
    return Settings(
        folder=options.graphs,
        graphs=tuple(options.graph_names or graphs),
        learners=tuple(options.learners or learners),
        searches=options.mode == "quality",
        choose=(options.choose or ["fifo"])[0],
        seconds=options.seconds or seconds,
        seeds=options.seeds or seeds,
    )


def rules(options: argparse.Namespace) -> list[str]:
    """The choose rules of a run."""
    return list(options.choose or (["fifo", "given"] if options.mode == "targets" else ["fifo"]))


def run_quality(options: argparse.Namespace, report: Report, display: ProgressDisplay) -> None:
    """The tables of learners, and their curves."""
    settings = quality_settings(options)
    journal = Journal(options.journal, options.fresh, usable)
    known = BestKnown(options.results)
    every = [replace(settings, choose=choose) for choose in rules(options)]
    announce(every, journal, display)
    panels = []
    for one in every:
        targets: dict[str, list[Cell]] = {}
        for graph in one.graphs:
            cells = run_graph(graph, one, journal, known, display)
            if options.mode == "quality":
                report.add(*quality_table(graph, one, cells, known))
            else:
                targets[graph] = cells[one.learners[0]]
            panels.append(curve_panel(graph, one, cells))
            draw(panels, one, options.picture)
        if targets:
            report.add(*target_rows(targets, one))
    if options.picture is not None:
        display.console.print(f"picture: {options.picture}", highlight=False, soft_wrap=True)


def draw(panels: Iterable[CurvePanel], settings: Settings, picture: Path | None) -> None:
    """The learning curves so far, if a picture is asked for."""
    drawn = [panel for panel in panels if panel.curves]
    if picture is not None and drawn:
        title = (
            f"{settings.seconds:g} s of training, median and quartiles of {settings.seeds} seeds"
        )
        plot_training_curves(drawn, picture, title)


def announce(every: list[Settings], journal: Journal, display: ProgressDisplay) -> None:
    """Says how long it takes; builds every learner's configuration, so that a bad one fails now."""
    missing = sum(
        f"{contestant.key}/{seed}" not in journal.cells
        for settings in every
        for graph in settings.graphs
        for contestant in contestants(graph, settings, journal, display)
        for seed in range(settings.seeds)
    )
    minutes = missing * every[0].seconds / 60
    display.console.print(
        f"{missing} runs of {every[0].seconds:g} s to go: at least {minutes:.0f} minutes",
        highlight=False,
    )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="quality=true", help="the same as --quality")
    add("--quality", action="store_true", help="compare learners at equal seconds")
    add("--targets", action="store_true", help="hold the default learner against its targets")
    add("--seconds", type=float, help="of each run: 20 (speed), 60 (quality), 180 (targets)")
    add("--seeds", type=int, help="3 (quality), 5 (targets)")
    add("--graph-names", nargs="+", choices=list(GRAPHS), help="chainmm and llama_block; or all")
    add("--learners", nargs="+", choices=list(LEARNERS), help="all of them (quality)")
    add("--choose", nargs="+", choices=["fifo", "given"], help="fifo (quality), both (targets)")
    add("--repeats", type=int, default=15, help="of a greedy placement (speed)")
    add("--big-ops", type=int, default=10_000, help="of the large graph (speed)")
    add("--big-updates", type=int, default=3, help="of training on it (speed)")
    add("--graphs", type=Path, default=DATA / "doppler" / "tiefree", help="their folder")
    add("--fresh", action="store_true", help="forget finished cells")
    add("--journal", type=Path, default=ROOT / "runs" / "bench_training.jsonl")
    add("--results", type=Path, default=ROOT / "docs" / "results" / "best_known.json")
    add("--picture", type=Path, help="learning curves (png, pdf, svg)")
    add("--output", type=Path, help="also write the tables here, as Markdown")
    options = parser.parse_args(arguments)
    for word in options.words:
        if word not in ("quality=true", "targets=true"):
            parser.error(f"{word!r} is unknown; quality=true and targets=true are words")
        setattr(options, word.partition("=")[0], True)
    check(options, parser)
    return options


def check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuses impossible options, and sets the mode."""
    if options.quality and options.targets:
        parser.error("--quality and --targets are two runs")
    options.mode = "quality" if options.quality else "targets" if options.targets else "speed"
    if options.seconds is not None and not 0 < options.seconds < math.inf:
        parser.error("--seconds must be a number above 0")
    if options.seeds is not None and options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    if min(options.repeats, options.big_updates) < 1 or options.big_ops < 2:
        parser.error("--repeats and --big-updates must be 1 or more, --big-ops 2 or more")
    if options.mode == "targets" and options.learners not in (None, ["doppler"]):
        parser.error("--targets is about the learner doppler")
    if options.mode == "speed":
        for name in ("seeds", "graph_names", "learners", "choose", "picture"):
            if getattr(options, name) is not None:
                parser.error(f"--{name.replace('_', '-')} needs --quality or --targets")
    elif not options.graphs.is_dir():
        parser.error(f"--graphs: {options.graphs} is no folder; the published graphs are needed")


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints."""
    options = parse(arguments)
    console = Console(markup=False)
    display = ProgressDisplay(console)
    try:
        if options.picture is not None:
            check_picture(options.picture)
        report = Report(console, options.output)
        (run_speed if options.mode == "speed" else run_quality)(options, report, display)
    except DopplerError as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt:
        print("interrupted; finished runs are kept, the same command goes on", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED) from None


if __name__ == "__main__":
    main()
