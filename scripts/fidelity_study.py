"""One study of fidelity: calibrates, places, simulates and measures a workload, and resumes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from doppler import PlacementProblem
from doppler.executor import CpuExecutor, Executor, Profile, calibrate, predict
from doppler.executor.calibration.calibrate import WorkloadSampler, resampled
from doppler.executor.measurement import find_outliers
from doppler.hardware import make_topology
from doppler.simulator import Simulator
from doppler.workloads import Workload, make_workload
from scripts.bench_journal import Cell, Journal, is_number
from scripts.bench_simulator import machine
from scripts.fidelity import Candidate, Fidelity, as_placement, candidates, fidelity
from scripts.progress import Advance, ProgressDisplay

EMULATED_SECONDS = 0.3
"""What the middle one of the placements shall last on emulated devices. [s]"""


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
            label = f"{name}, {num_devices} devices"
            with display.step(label, settings.repeats) as advance:
                sampler = measure_rounds(executor, found, keys, settings, journal, advance)
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
    advance: Advance,
) -> WorkloadSampler:
    """Makes the rounds that the journal lacks; returns what else was run in them."""
    sampler = WorkloadSampler(executor, np.random.default_rng([settings.seed, 1]))
    for _ in range(settings.warmup):
        one_round(executor, found, np.random.default_rng(settings.seed))
    missing = [key for key in keys if key not in journal.cells]
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
