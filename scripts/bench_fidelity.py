"""Compares simulated with measured makespans over many placements of each workload.

python scripts/bench_fidelity.py                                   # two CPU devices, half an hour
python scripts/bench_fidelity.py --executor emulated --devices 4 8
python scripts/bench_fidelity.py --workloads ffnn --placements 12 --repeats 5

Placements are those of every scheduler, random ones and mutations of the best (see
`scripts.fidelity`); each is measured in interleaved rounds. On CPU devices the costs are calibrated
first, and two simulations are compared: `busy`, which schedulers and learners minimise, with the
durations of busy devices, and `contention`, which predicts one placement at a time and lets ops be
faster where the other devices idle and little is copied (see `doppler.executor.predict`). A shared
machine's speed drifts between a calibration and the rounds; so every round has runs for another
calibration too, of other placements than those that are judged, and the same two simulations with
its costs (`now`) tell what the simulator errs when it does not have to foretell the machine's
mood. Targets are held against the last one. Emulated devices sleep as long as the data-sheet costs
say: this is how far real-time dispatching, and nothing else, is from the simulator. Finished rounds
are kept in a journal: a study that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler.files import write_text_atomically
from doppler.viz.scatter import ScatterPanel, plot_scatter
from scripts.bench_journal import Journal
from scripts.bench_simulator import machine
from scripts.fidelity import fidelity, repeatability
from scripts.fidelity_study import Settings, Study, run_study, usable
from scripts.progress import ProgressDisplay

WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Targets:
    """What a study of an executor shall reach; None where there is no target."""

    mape: float
    bias: float | None
    tau: float
    regret: float | None


TARGETS = {
    "cpu": Targets(mape=0.07, bias=0.04, tau=0.80, regret=0.02),
    "emulated": Targets(mape=0.03, bias=None, tau=0.90, regret=None),
}


HEADER = [
    "placements of",
    "simulation",
    "MAPE",
    "bias",
    "tau",
    "rho",
    "tau, best quarter",
    "rho, best quarter",
    "top-1 regret",
    "measured again: tau, MAPE",
    "outliers",
]


def table_rows(study: Study, targets: Targets) -> list[list[str]]:
    """A row per kind of simulation and one with the targets."""
    results = study.results()
    again_tau, again_mape = repeatability(study.runs)
    rows = [
        [
            study.name,
            kind,
            f"{r.mape:.1%}",
            f"{r.bias:+.1%}",
            f"{r.tau:.2f}",
            f"{r.rho:.2f}",
            f"{r.best_tau:.2f}",
            f"{r.best_rho:.2f}",
            f"{r.regret:.1%}",
            f"{again_tau:.2f}, {again_mape:.1%}",
            f"{study.outliers} of {study.runs.size} runs",
        ]
        for kind, r in results.items()
    ]
    last = list(results.values())[-1]
    goals = ["", "target"]
    goals.append(goal("<=", targets.mape, last.mape))
    goals.append("" if targets.bias is None else goal("<=", targets.bias, abs(last.bias)))
    goals.append(goal(">=", targets.tau, last.tau, "{:.2f}"))
    goals += ["", "", ""]
    goals.append("" if targets.regret is None else goal("<=", targets.regret, last.regret))
    return [*rows, [*goals, "", ""]]


def goal(sign: str, target: float, value: float, form: str = "{:.0%}") -> str:
    """A target and whether a value reaches it; NaN does not."""
    met = value <= target if sign == "<=" else value >= target
    return f"{sign} {form.format(target)}: {'met' if met else 'MISSED'}"


def worst_placements(study: Study, most: int = 3) -> str:
    """Where the simulation that is held against the targets errs most."""
    kind, simulated = list(study.simulated.items())[-1]
    errors = simulated / study.measured - 1
    worst = np.argsort(-np.abs(errors), kind="stable")[:most]
    parts = [f"{study.candidates[i].label} {errors[i]:+.1%}" for i in worst]
    return f"{study.name}: {kind} errs most on {'; '.join(parts)}"


def markdown(title: str, rows: list[list[str]], notes: list[str]) -> str:
    """The table as Markdown."""
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n" + "\n".join(f"- {note}" for note in [title, *notes]) + "\n"


def draw(studies: list[Study], settings: Settings, path: Path) -> Path:
    """A panel per study, of the simulation that is held against the targets."""
    panels = []
    for study in studies:
        kind, simulated = list(study.simulated.items())[-1]
        result = fidelity(simulated, study.measured)
        panels.append(
            ScatterPanel(
                f"{study.name} ({kind})\nMAPE {result.mape:.1%}, bias {result.bias:+.1%}, "
                f"tau {result.tau:.2f}, regret {result.regret:.1%}",
                simulated,
                study.measured,
                [candidate.kind for candidate in study.candidates],
                np.quantile(study.runs, 0.25, axis=0),
                np.quantile(study.runs, 0.75, axis=0),
            )
        )
    title = f"{settings.executor} devices, medians of {settings.repeats} interleaved rounds"
    return plot_scatter(panels, path, band=TARGETS[settings.executor].mape, title=title)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--executor", choices=list(TARGETS), default="cpu")
    parser.add_argument("--devices", type=int, nargs="+", help="2 on cpu, 4 and 8 if emulated")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--placements", type=int, default=40, help="of each workload")
    parser.add_argument("--repeats", type=int, default=15, help="interleaved rounds")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them, not counted")
    parser.add_argument("--calibration-repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="forget finished rounds")
    parser.add_argument("--journal", type=Path, default=ROOT / "runs" / "bench_fidelity.jsonl")
    parser.add_argument("--picture", type=Path, help="a scatter picture (png, pdf, svg)")
    parser.add_argument("--output", type=Path, help="also write the table here, as Markdown")
    options = parser.parse_args(arguments)
    if min(options.repeats, options.calibration_repeats, *(options.devices or [1])) < 1:
        parser.error("--repeats, --calibration-repeats and --devices must be 1 or more")
    if options.placements < 4:
        parser.error("--placements must be 4 or more")
    if min(options.warmup, options.seed) < 0:
        parser.error("--warmup and --seed must be 0 or more")
    return options


def main(arguments: list[str] | None = None) -> list[Study]:
    """Measures, prints and returns the studies."""
    options = parse(arguments)
    settings = Settings(
        executor=options.executor,
        placements=options.placements,
        repeats=options.repeats,
        warmup=options.warmup,
        calibration_repeats=options.calibration_repeats,
        seed=options.seed,
    )
    console = Console(markup=False)
    journal = Journal(options.journal, options.fresh, usable)
    devices = options.devices or ([2] if options.executor == "cpu" else [4, 8])
    title = (
        f"{settings.executor} devices, {settings.repeats} interleaved rounds after "
        f"{settings.warmup}; {machine()}"
    )
    studies: list[Study] = []
    rows: list[list[str]] = []
    notes: list[str] = []
    for num_devices in devices:
        for name in options.workloads:
            study = run_study(name, num_devices, settings, journal, ProgressDisplay(console))
            studies.append(study)
            rows += table_rows(study, TARGETS[settings.executor])
            notes += [worst_placements(study), *(f"{study.name}: {n}" for n in study.notes)]
            if options.output is not None:
                write_text_atomically(options.output, markdown(title, rows, notes))
    table = Table(*HEADER, title=title)
    for row in rows:
        table.add_row(*row)
    wide = console if console.is_terminal else Console(file=console.file, width=200)
    wide.print(table)
    lines = [f"  {note}" for note in notes]
    if options.picture is not None:
        lines.append(f"picture: {draw(studies, settings, options.picture)}")
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    return studies


if __name__ == "__main__":
    main()
