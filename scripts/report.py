"""From placements to what a run leaves behind: rows, comparison, pictures, files, the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler import Placement, Schedule
from doppler.errors import CapacityError, ConfigurationError, UnknownQuantityError
from doppler.schedulers import CriticalPath, Scheduler
from doppler.simulator import Simulator
from doppler.viz import plot_gantt, plot_overlay, write_trace
from doppler.viz.figure import format_seconds
from scripts.problems import Setup
from scripts.progress import ProgressDisplay
from scripts.results import ResultsTable, Row, tie_note
from scripts.run_folder import RunFolder
from scripts.searching import schedule

SINGLE_DEVICE = "single device"


def build_schedulers(config: DictConfig) -> dict[str, Scheduler]:
    """The schedulers whose rows the table has, by name."""
    if config.schedulers is None:
        raise ConfigurationError("schedulers is null; leave single ones out with ~schedulers.NAME")
    built = {}
    for name, options in config.schedulers.items():
        if options is None:
            raise ConfigurationError(
                f"schedulers.{name} is null; leave it out with ~schedulers.{name}"
            )
        built[str(name)] = instantiate(options)
    return built


def scheduler_rows(
    schedulers: Mapping[str, Scheduler],
    simulator: Simulator,
    seed: int,
    progress: ProgressDisplay | None = None,
) -> list[Row]:
    """Runs schedulers; one that cannot do this problem gets a row with the reason.

    Each has its own generator, so that leaving one out does not change the others.

    Raises:
        KeyboardInterrupt: Ctrl-C, also while a search goes on that could be ended early.
    """
    rows = []
    for name, scheduler in schedulers.items():
        rng = np.random.default_rng([seed, *name.encode()])
        label = name.replace("_", " ")
        try:
            placement = schedule(scheduler, simulator, rng, progress)
            if placement.info.get("interrupted"):
                raise KeyboardInterrupt
            rows.append(Row(label, placement))
        except (UnknownQuantityError, CapacityError) as error:
            rows.append(Row(label, None, reason=str(error)))
    return rows


@dataclass(frozen=True)
class EqualEvaluations:
    """The policy's best against the best of as many randomised critical-path runs.

    Args:
        evaluations: runs of the one, episodes of the other.
        critical_path: best simulated makespan of the critical-path runs. [s]
        critical_path_seconds: what they took. [s]
        policy: best simulated makespan of training. [s]
        policy_seconds: what training took. [s]
    """

    evaluations: int
    critical_path: float
    critical_path_seconds: float
    policy: float
    policy_seconds: float

    def __str__(self) -> str:
        policy = f"policy {format_seconds(self.policy)} in {self.policy_seconds:.1f} s"
        rival = format_seconds(self.critical_path)
        ratio = self.critical_path / self.policy if self.policy > 0 else 1.0
        return (
            f"at equal evaluations ({self.evaluations} episodes, {self.evaluations} randomised "
            f"critical-path runs), best simulated makespan: {policy}, critical path {rival} in "
            f"{self.critical_path_seconds:.1f} s; critical path / policy = "
            f"{ratio:.3f} (above 1: the policy is better)"
        )


def compare_at_equal_evaluations(
    simulator: Simulator, best: Placement, evaluations: int, seconds: float, seed: int
) -> EqualEvaluations:
    """Gives the critical-path scheduler as many randomised runs as training had episodes."""
    began = perf_counter()
    rival = CriticalPath(ties="random", restarts=evaluations).schedule(
        simulator.problem, simulator, np.random.default_rng([seed, evaluations])
    )
    return EqualEvaluations(
        evaluations=evaluations,
        critical_path=rival.info["simulated_makespan"],
        critical_path_seconds=perf_counter() - began,
        policy=simulate(simulator, best),
        policy_seconds=seconds,
    )


def simulate(simulator: Simulator, placement: Placement) -> float:
    """Simulated makespan; the order counts under `choose=given` only. [s]"""
    order = placement.order if simulator.choose == "given" else None
    return simulator.makespan(placement.devices, order)


def add_contention_note(table: ResultsTable, setup: Setup) -> None:
    """Says how far measured makespans are from predictions that know each placement's contention.

    The table's simulated makespans are what schedulers and learners minimise: with the durations
    of busy devices, too slow where a placement lets devices idle. Needs calibrated costs and
    measured rows.
    """
    if setup.profile is None or setup.workload is None:
        return
    from doppler.executor import predict

    errors = []
    for row in table.rows:
        if row.placement is None or row.simulated is None or row.measurement is None:
            continue
        if row.measurement.schedule.origin != "measured":
            continue  # emulated devices take the cost model's seconds, whatever the others do
        foretold = predict(
            setup.profile, setup.workload, setup.problem, row.placement, setup.settings.build
        )
        error = foretold.makespan / float(row.measurement.median) - 1
        errors.append(f"{row.label} {error:+.1%}")
    if errors:
        table.footnotes.append(
            "simulation error with each op as slow as the other devices at work make it in that "
            f"placement: {', '.join(errors)}"
        )


def best_heuristic(table: ResultsTable, policies: Sequence[str]) -> Row | None:
    """The row with the least makespan, measured where measured, that is no policy's."""
    rows = [r for r in table.rows if r.label not in policies and r.simulated is not None]
    return min(rows, key=_makespan, default=None)


def _makespan(row: Row) -> float:
    if row.measurement is not None:
        return float(row.measurement.median)
    return np.inf if row.simulated is None else row.simulated.makespan


def draw_gantt(row: Row, folder: RunFolder) -> Path:
    """Draws a row's simulated and, where there is one, measured schedule side by side."""
    panels = _panels(row)
    notes = [tie_note(row) if schedule is row.simulated else "" for _, schedule in panels]
    return plot_gantt(panels, folder.gantt(row.label), notes=notes)


def draw_overlay(row: Row, folder: RunFolder) -> Path | None:
    """Lays a row's measured schedule under its simulated one; None where one is missing."""
    if row.simulated is None or row.measurement is None:
        return None
    measured = row.measurement.schedule
    return plot_overlay(row.simulated, measured, folder.overlay(row.label), title=row.label)


def write_traces(rows: Sequence[Row], folder: RunFolder) -> Path:
    """Writes the rows' simulated and measured schedules into one trace file."""
    return write_trace([panel for row in rows for panel in _panels(row)], folder.trace)


def _panels(row: Row) -> list[tuple[str, Schedule]]:
    panels: list[tuple[str, Schedule]] = []
    if row.simulated is not None:
        panels.append((row.label, row.simulated))
    if row.measurement is not None:
        panels.append((f"{row.label}, median run", row.measurement.schedule))
    return panels


def table_summary(table: ResultsTable) -> dict[str, Any]:
    """The table's numbers for `summary.json`: a dictionary per row, unknown ones left out."""
    return {
        row.label: {k: v for k, v in table.numbers(row).items() if v is not None}
        for row in table.rows
    }
