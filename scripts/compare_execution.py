"""Compares work-conserving with bulk-synchronous execution, as the paper's first table does.

python scripts/compare_execution.py
python scripts/compare_execution.py workloads=[ffnn] topology=v100 simulator.network=one_port
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from doppler import PlacementProblem, Schedule
from doppler.errors import ConfigurationError
from doppler.files import write_text_atomically
from doppler.schedule.schedule import EXECUTIONS
from doppler.schedulers import Scheduler
from doppler.viz import plot_bars, write_trace
from doppler.viz.figure import format_seconds
from doppler.workloads import make_workload
from scripts import report, run_folder
from scripts.entry import entry_point
from scripts.problems import Builder, SimulatorSettings
from scripts.progress import ProgressDisplay
from scripts.run_folder import RunFolder

BEST = "best"
PUBLISHED = {"chainmm": 185.3 / 139.0, "ffnn": 76.9 / 50.2}
"""Bulk-synchronous over work-conserving, measured on four P100s (Yao et al. 2026, first table)."""


@dataclass(frozen=True)
class Comparison:
    """One workload under one scheduler.

    Args:
        workload: its name.
        num_ops: ops of its graph.
        scheduler: what placed it for either execution, or `BEST`.
        makespans: simulated, in the order of `EXECUTIONS`. [s]
    """

    workload: str
    num_ops: int
    scheduler: str
    makespans: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Bulk-synchronous over work-conserving."""
        return self.makespans[1] / self.makespans[0]


def run(config: DictConfig) -> RunFolder:
    """Compares as configured; returns the folder with table, chart and trace."""
    console = Console()
    settings: SimulatorSettings = instantiate(config.simulator)
    schedulers = report.build_schedulers(config)
    if not schedulers or not config.workloads:
        raise ConfigurationError("at least one of workloads and one of schedulers is needed")
    builder = Builder(ProgressDisplay(console))
    topology = instantiate(config.topology)
    comparisons: list[Comparison] = []
    schedules: list[tuple[str, Schedule]] = []
    for name in config.workloads:
        workload = make_workload(name, scale=config.scale, num_shards=config.num_shards)
        problem, _ = settings.cost.problem(workload, topology, builder)
        rows, best = compare(name, problem, settings, schedulers, config.seed)
        comparisons += rows
        schedules += best
    folder = run_folder.create_run_folder(config, "compare_execution")
    run_folder.save_config(config, folder)
    where = f"{topology.name}, network {settings.network}, choose {settings.choose}"
    write_text_atomically(folder.results_csv, to_csv(comparisons))
    panels: dict[str, dict[str, tuple[float, ...]]] = {}
    for item in comparisons:
        panels.setdefault(item.workload, {})[item.scheduler] = item.makespans
    names = [execution.replace("_", "-") for execution in EXECUTIONS]
    chart = plot_bars(panels, names, folder.path / "compare_execution.png", f"simulated, {where}")
    trace = write_trace(schedules, folder.trace)
    folder.write_summary(
        "finished",
        {"where": where, "ratios": {c.workload: c.ratio for c in comparisons if _is_best(c)}},
    )
    print_table(console, comparisons, where)
    console.print(
        f"folder: {folder.path}\nin it: {folder.results_csv.name}, {chart.name}, {trace.name}",
        highlight=False,
        soft_wrap=True,
    )
    return folder


def compare(
    name: str,
    problem: PlacementProblem,
    settings: SimulatorSettings,
    schedulers: Mapping[str, Scheduler],
    seed: int,
) -> tuple[list[Comparison], list[tuple[str, Schedule]]]:
    """Places one workload for either execution; every scheduler plans for the one it is judged by.

    Returns:
        A row per scheduler and one of the best, and the best schedule of either execution.

    Raises:
        ConfigurationError: a scheduler cannot place this workload.
    """
    columns: list[dict[str, float]] = []
    schedules = []
    for execution in EXECUTIONS:
        simulator = replace(settings, execution=execution).build(problem)
        column: dict[str, float] = {}
        best = None
        for row in report.scheduler_rows(schedulers, simulator, seed):
            if row.placement is None:
                raise ConfigurationError(f"{name}, {row.label}: {row.reason}")
            column[row.label] = report.simulate(simulator, row.placement)
            if column[row.label] == min(column.values()):
                best = row.placement
        columns.append({**column, BEST: min(column.values())})
        schedules.append((f"{name}, {execution}", simulator.run(best)))
    rows = [
        Comparison(name, problem.num_ops, label, tuple(column[label] for column in columns))
        for label in columns[0]
    ]
    return rows, schedules


def print_table(console: Console, comparisons: list[Comparison], where: str) -> None:
    """Prints a row per workload and scheduler, and what was published."""
    table = Table(title=f"simulated makespans, {where}", title_justify="left", header_style="bold")
    for index, header in enumerate(
        (
            "workload",
            "ops",
            "scheduler",
            "work-conserving",
            "bulk-synchronous",
            "ratio",
            "published",
        )
    ):
        table.add_column(header, justify="right" if index in (1, 3, 4, 5, 6) else "left")
    for item in comparisons:
        published = PUBLISHED.get(item.workload)
        table.add_row(
            item.workload,
            str(item.num_ops),
            item.scheduler,
            *(format_seconds(seconds) for seconds in item.makespans),
            f"{item.ratio:.2f}",
            f"{published:.2f}" if published is not None and _is_best(item) else "-",
            end_section=_is_best(item),
        )
    if not console.is_terminal:  # a pipe has no width: do not fold at the assumed 80 columns
        console = Console(file=console.file, width=120, highlight=False)
    console.print(table)
    console.print(
        "  ratio: bulk-synchronous over work-conserving, each with placements made for it; "
        "published: measured on four P100s (ChainMM 185.3 ms over 139 ms, FFNN 76.9 ms over "
        "50.2 ms, Yao et al. 2026)",
        highlight=False,
    )


def to_csv(comparisons: list[Comparison]) -> str:
    """Full precision, units in the column names."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    seconds = [f"{execution}_simulated_makespan_s" for execution in EXECUTIONS]
    writer.writerow(["workload", "num_ops", "scheduler", *seconds, "ratio"])
    for c in comparisons:
        writer.writerow([c.workload, c.num_ops, c.scheduler, *c.makespans, c.ratio])
    return stream.getvalue()


def _is_best(comparison: Comparison) -> bool:
    return comparison.scheduler == BEST


@hydra.main(version_base=None, config_path="../configs", config_name="compare_execution")
@entry_point
def main(config: DictConfig) -> None:
    """Hydra's entry point."""
    run(config)


if __name__ == "__main__":
    main()
