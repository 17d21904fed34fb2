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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler import PlacementProblem
from doppler.executor import CpuExecutor, Executor, Profile, calibrate, predict
from doppler.executor.calibration.calibrate import WorkloadSampler, resampled
from doppler.executor.measurement import find_outliers
from doppler.files import write_text_atomically
from doppler.hardware import make_topology
from doppler.simulator import Simulator
from doppler.viz.scatter import ScatterPanel, plot_scatter
from doppler.workloads import Workload, make_workload
from scripts.bench_journal import Cell, Journal, is_number
from scripts.bench_simulator import machine
from scripts.fidelity import Candidate, Fidelity, as_placement, candidates, fidelity, repeatability
from scripts.progress import ProgressDisplay

WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
ROOT = Path(__file__).resolve().parents[1]
EMULATED_SECONDS = 0.3
"""What the middle one of the placements shall last on emulated devices. [s]"""


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


@dataclass(frozen=True)
class Settings:
    """What a run is asked for; see `main`."""

    executor: str
    placements: int
    repeats: int
    warmup: int
    calibration_repeats: int
    seed: int

    @property
    def scale(self) -> str:
        """Our CPU runs what it can compute, sleeping devices what data-sheets are about."""
        return "host" if self.executor == "cpu" else "paper"


@dataclass(frozen=True, eq=False)
class Study:
    """One workload on one number of devices, measured.

    Args:
        name: of the study.
        candidates: the placements.
        simulated: by kind of simulation; the last one is held against the targets.
            # (placements,) [s]
        runs: measured makespans. # (rounds, placements) [s]
        notes: what else is to be said.
    """

    name: str
    candidates: list[Candidate]
    simulated: dict[str, np.ndarray]
    runs: np.ndarray
    notes: list[str]

    @property
    def measured(self) -> np.ndarray:
        """Medians of all rounds. # (placements,) [s]"""
        return np.asarray(np.median(self.runs, axis=0))

    @property
    def outliers(self) -> int:
        """Runs that are far from the median of their placement; they count all the same."""
        return sum(len(find_outliers(column)) for column in self.runs.T)

    def results(self) -> dict[str, Fidelity]:
        """Agreement of each kind of simulation with the medians."""
        return {kind: fidelity(values, self.measured) for kind, values in self.simulated.items()}


def run_study(
    name: str, num_devices: int, settings: Settings, journal: Journal, display: ProgressDisplay
) -> Study:
    """Calibrates, places, simulates and measures one workload; what the journal has is not redone.

    Raises:
        DopplerError: the executor cannot run it.
    """
    key = (
        f"{settings.executor}/{num_devices} devices/{name}/{settings.scale}/"
        f"{settings.placements} placements/seed {settings.seed}/"
        f"calibration {settings.calibration_repeats}"
    )
    workload = make_workload(name, scale=settings.scale)
    plan = journal.cells.get(f"{key}/plan")
    if plan is None:
        plan = journal.add(f"{key}/plan", **make_plan(workload, num_devices, settings, display))
    found = [
        Candidate(item["label"], item["kind"], np.array(item["devices"], np.int64))
        for item in plan["candidates"]
    ]
    keys = [f"{key}/round {number}" for number in range(settings.repeats)]
    simulated = dict(plan["simulated"])
    again = journal.cells.get(f"{key}/now") if settings.executor == "cpu" else {"simulated": {}}
    if again is None or not all(round_key in journal.cells for round_key in keys):
        with make_executor(workload, num_devices, settings, plan) as executor:
            sampler = measure_rounds(executor, found, keys, settings, journal, display)
            if again is None:
                profile = resampled(calibrated(workload, num_devices, settings, display), [sampler])
                values = simulate_again(workload, profile, found)
                again = journal.add(f"{key}/now", simulated=values)
    rounds = [journal.cells[round_key] for round_key in keys]
    simulated |= again["simulated"]
    notes = list(plan["notes"])
    late = [cell["lateness_s"] for cell in rounds if cell["lateness_s"] is not None]
    if late:
        notes.append(f"median lateness {1e6 * float(np.median(late)):.1f} us of emulated time")
    return Study(
        f"{name}, {num_devices} devices",
        found,
        {kind: np.array(values) for kind, values in simulated.items()},
        np.array([cell["makespans"] for cell in rounds]),
        notes,
    )


def measure_rounds(
    executor: Executor,
    found: list[Candidate],
    keys: list[str],
    settings: Settings,
    journal: Journal,
    display: ProgressDisplay,
) -> WorkloadSampler:
    """Makes the rounds that the journal lacks; returns what else was run in them."""
    sampler = WorkloadSampler(executor, np.random.default_rng([settings.seed, 1]))
    name = f"{executor.workload.name}, {executor.num_devices} devices"
    for _ in range(settings.warmup):
        one_round(executor, found, np.random.default_rng(settings.seed))
    missing = [key for key in keys if key not in journal.cells]
    with display.step(name, len(keys)) as advance:
        for number, key in enumerate(missing, len(keys) - len(missing)):
            advance(number, f"round {number + 1}")
            rng = np.random.default_rng([settings.seed, 2, number])
            values = one_round(executor, found, rng)
            late = executor.environment().get("lateness_median_s")
            if settings.executor == "cpu":
                sampler.run_alone()
                sampler.run_busy()
            journal.add(key, makespans=values, lateness_s=late)
        advance(len(keys), "")
    while settings.executor == "cpu" and len(sampler.busy) < settings.calibration_repeats:
        sampler.run_alone()  # a study that goes on has lost those of its first rounds
        sampler.run_busy()
    return sampler


def simulate_again(
    workload: Workload, profile: Profile, found: list[Candidate]
) -> dict[str, list[float]]:
    """The simulations with costs from runs beside the measured ones."""
    topology = profile.topology()
    problem = workload.problem(topology, profile.cost_model(workload, topology))
    values = simulations(workload, problem, Simulator(problem), profile, found)
    return {f"{kind}, now": makespans.tolist() for kind, makespans in values.items()}


def usable(cell: Cell) -> bool:
    """Whether a journal's cell is a plan, a round or later simulations, whole."""
    if cell["key"].endswith("/plan"):
        return all(name in cell for name in ("candidates", "simulated", "notes"))
    if cell["key"].endswith("/now"):
        return isinstance(cell.get("simulated"), dict)
    values = cell.get("makespans")
    return isinstance(values, list) and all(map(is_number, values)) and "lateness_s" in cell


def one_round(executor: Executor, found: list[Candidate], rng: np.random.Generator) -> list[float]:
    """A run of every placement, in an order of its own. # (placements,) [s]"""
    order = rng.permutation(len(found)).tolist()
    placements = [as_placement(found[index]) for index in order]
    values = [0.0] * len(found)
    for index, measurement in zip(
        order, executor.measure(placements, repeats=1, warmup=0), strict=True
    ):
        values[index] = measurement.median
    return values


def calibrated(
    workload: Workload, num_devices: int, settings: Settings, display: ProgressDisplay
) -> Profile:
    """Calibrates the CPU devices."""
    with display.step(f"calibration of {workload.name}", 100) as advance:
        return calibrate(
            workload,
            num_devices,
            repeats=settings.calibration_repeats,
            seed=settings.seed,
            progress=lambda done, total: advance(round(100 * done / total), ""),
        )


def make_plan(
    workload: Workload, num_devices: int, settings: Settings, display: ProgressDisplay
) -> dict[str, Any]:
    """Costs, placements and their simulated makespans, as the journal keeps them."""
    profile: Profile | None = None
    notes = []
    if settings.executor == "cpu":
        profile = calibrated(workload, num_devices, settings, display)
        topology = profile.topology()
        problem = workload.problem(topology, profile.cost_model(workload, topology))
        estimated = sum(timing.samples == 0 for timing in profile.timings(workload))
        notes.append(f"{estimated} of {problem.num_ops} ops' seconds were estimated")
    else:
        problem = workload.problem(make_topology("v100", num_devices))
    simulator = Simulator(problem)
    with display.step("placements", settings.placements) as advance:
        found = candidates(
            problem, simulator, settings.placements, settings.seed, lambda who: advance(0, who)
        )
        advance(settings.placements, "")
    simulated = simulations(workload, problem, simulator, profile, found)
    return {
        "candidates": [{**asdict(one), "devices": one.devices.tolist()} for one in found],
        "simulated": {kind: values.tolist() for kind, values in simulated.items()},
        "notes": notes,
        "machine": machine(),
    }


def simulations(
    workload: Workload,
    problem: PlacementProblem,
    simulator: Simulator,
    profile: Profile | None,
    found: list[Candidate],
) -> dict[str, np.ndarray]:
    """Simulated makespans by kind of simulation; the last is held against the targets."""
    makespans = np.array([simulator.makespan(one.devices) for one in found])
    if profile is None:
        return {"simulated": makespans}
    foretold = [predict(profile, workload, problem, as_placement(one)).makespan for one in found]
    return {"busy": makespans, "contention": np.array(foretold)}


def make_executor(
    workload: Workload, num_devices: int, settings: Settings, plan: dict[str, Any]
) -> Executor:
    """The devices to measure on."""
    if settings.executor == "cpu":
        return CpuExecutor(workload, num_devices)
    from doppler.executor.emulated import EmulatedExecutor

    problem = workload.problem(make_topology("v100", num_devices))
    middle = float(np.median(plan["simulated"]["simulated"]))
    return EmulatedExecutor(problem, time_scale=EMULATED_SECONDS / middle)


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
