"""Trains a placement policy in stages, compares it with schedulers and reports.

python scripts/train.py workload=ffnn seed=1
python scripts/train.py -m workload=chainmm,ffnn seed=0,1
python scripts/train.py resume=runs/train/2026-11-30_12-00-00
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from doppler import save_problem
from doppler.errors import ConfigurationError
from doppler.training import (
    Checkpoints,
    Stage,
    Trainer,
    TrainingResult,
    measured_objective,
    simulated_objective,
)
from doppler.training.loggers import NoLogger
from doppler.viz import plot_learning_curve
from doppler.viz.figure import format_seconds
from scripts import report, run_folder
from scripts.entry import check_positive, entry_point
from scripts.problems import Setup, build_setup, noisy_objective
from scripts.progress import ProgressDisplay
from scripts.results import ResultsTable, Row, evaluate
from scripts.run_folder import RunFolder
from scripts.training_progress import POLICY_LABELS, BestPlacements, TrainingProgress

if TYPE_CHECKING:
    from doppler.executor import CpuExecutor


@dataclass
class Run:
    """What belongs to one training run."""

    config: DictConfig
    folder: RunFolder
    setup: Setup
    logger: NoLogger
    console: Console
    progress: ProgressDisplay
    resuming: bool


def run(config: DictConfig) -> RunFolder:
    """Trains as configured, or goes on with the run that `resume` names; returns the run folder."""
    console = Console()
    progress = ProgressDisplay(console)
    folder = None
    if config.resume is not None:
        folder, config = run_folder.resume_run_folder(config)
    check_options(config)
    logger: NoLogger = instantiate(config.logger)
    setup = build_setup(config, progress)
    resuming = folder is not None
    if folder is None:
        folder = run_folder.create_run_folder(config, "train")
        run_folder.save_config(config, folder)
        save_problem(setup.problem, folder.problem)
        if setup.profile is not None:
            setup.profile.save(folder.profile)
    this = Run(config, folder, setup, logger, console, progress, resuming)
    console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    with logged(this):
        execute(this)
    return folder


def check_options(config: DictConfig) -> None:
    """Refuses what could only fail later.

    Raises:
        ConfigurationError: unknown or repeated stages, or real_rl without an executor.
    """
    stages = list(config.stages)
    for name in stages:
        if name not in POLICY_LABELS:
            raise ConfigurationError(
                f"stages: {name!r} is unknown; the stages are {', '.join(POLICY_LABELS)}"
            )
    if not stages or len(set(stages)) != len(stages):
        raise ConfigurationError(f"stages: {stages} must name at least one stage, each once")
    if "real_rl" in stages and config.executor.repeats == 0:
        raise ConfigurationError(
            "stage real_rl needs real devices, executor=none has none: use "
            "stages=[imitation,sim_rl]"
        )
    check_positive(config.checkpoint_every, "checkpoint_every")
    check_positive(config.budget_s, "budget_s")


@contextmanager
def logged(this: Run) -> Iterator[None]:
    """Opens the log and closes it however the run ends; says how to go on when interrupted."""
    status = "failed"
    this.folder.write_summary("running", {})
    try:
        this.logger.start(
            this.folder.path,
            f"{this.setup.problem.name} seed {this.config.seed}",
            run_folder.resolved(this.config),
            this.resuming,
        )
        yield
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        if status != "finished":
            this.folder.write_summary(status, {})
        this.logger.finish(0 if status == "finished" else 1)
        if status == "interrupted" and this.folder.checkpoint.exists():
            print(f"go on with: python scripts/train.py resume={this.folder.path}", file=sys.stderr)


def execute(this: Run) -> None:
    """Trains, evaluates, compares and reports."""
    config, setup = this.config, this.setup
    simulator = setup.settings.build(setup.problem)
    device_context: Any = config_executor(this) or nullcontext(None)
    with device_context as executor:
        result = train(this, executor)
        rows = report.scheduler_rows(config.schedulers, simulator, config.seed)
        rows += policy_rows(list(config.stages), result)
        table = evaluate(
            rows,
            simulator,
            executor,
            repeats=config.executor.repeats,
            warmup=config.executor.warmup,
            progress=this.progress,
            single_device=report.SINGLE_DEVICE,
        )
    comparison = None
    if result.simulated is not None:
        comparison = report.compare_at_equal_evaluations(
            simulator, result.simulated, result.episodes, result.seconds, config.seed
        )
    finish(this, result, table, comparison)


def config_executor(this: Run) -> CpuExecutor | None:
    """The configured executor, its devices started; None for executor=none."""
    executor: CpuExecutor | None = instantiate(this.config.executor).build(this.setup)
    return executor


def train(this: Run, executor: CpuExecutor | None) -> TrainingResult:
    """Runs the stages, or those that a resumed run has left."""
    config, setup = this.config, this.setup
    stages: list[Stage] = [instantiate(config[name]) for name in config.stages]
    simulator = setup.settings.build(setup.problem, noisy=True)
    objective = simulated_objective if simulator.noise is None else noisy_objective
    trainer = Trainer(
        setup.problem,
        instantiate(config.policy),
        stages,
        simulated=objective(simulator),
        measured=None if executor is None else measured_objective(executor),
        network=simulator.network,
        seed=config.seed,
        callbacks=[
            this.logger,
            TrainingProgress(this.progress),
            BestPlacements(this.folder, setup),
        ],
        checkpoints=Checkpoints(this.folder.path, config.checkpoint_every),
        budget_s=config.budget_s,
    )
    result = trainer.fit(resume=this.resuming)
    if not result.completed:
        this.console.print(f"stopped by budget_s={config.budget_s}", highlight=False)
    return result


def policy_rows(stages: list[str], result: TrainingResult) -> list[Row]:
    """A row per stage that the table names, with the reason where the stage was not run."""
    rows = []
    if stages == ["imitation"]:
        rows.append(Row(POLICY_LABELS["imitation"], result.simulated))
    placements = {
        "sim_rl": result.simulated if "sim_rl" in stages else None,
        "real_rl": result.measured,
    }
    for stage, placement in placements.items():
        reason = None if placement is not None else f"stage {stage} was not run"
        rows.append(Row(POLICY_LABELS[stage], placement, reason))
    return rows


def finish(
    this: Run,
    result: TrainingResult,
    table: ResultsTable,
    comparison: report.EqualEvaluations | None,
) -> None:
    """Writes and logs everything that is left of the run, and prints it."""
    folder, console, logger = this.folder, this.console, this.logger
    if comparison is not None:
        table.footnotes.append(str(comparison))
    table.save(folder.results_csv, folder.results_markdown)
    pictures = draw(this, table)
    summary = {
        "problem": this.setup.problem.name,
        "seed": this.config.seed,
        "episodes": result.episodes,
        "evaluations": result.evaluations,
        "training_seconds": result.seconds,
        "completed": result.completed,
        "results": report.table_summary(table),
        "equal_evaluations": None if comparison is None else vars(comparison),
    }
    folder.write_summary("finished", summary)
    logger.log_table("results", [table.numbers(row) for row in table.rows])
    for picture in pictures:
        logger.log_picture(picture.stem, picture)
    for path in run_folder.placement_files(folder):
        logger.log_file(path, "placement")
    logger.log_file(folder.checkpoint, "checkpoint")
    logger.log_summary({k: v for k, v in summary.items() if k != "results"})
    table.print(console)
    names = ", ".join(picture.name for picture in pictures)
    console.print(
        f"run folder: {folder.path}\npictures in it: {names}", highlight=False, soft_wrap=True
    )


def draw(this: Run, table: ResultsTable) -> list[Path]:
    """Pictures of the best policy's and the best heuristic's schedules and the learning curve."""
    labels = list(POLICY_LABELS.values())
    policies = [row for row in table.rows if row.label in labels and row.simulated is not None]
    heuristic = report.best_heuristic(table, labels)
    chosen = policies[-1:] + ([] if heuristic is None else [heuristic])
    pictures = [report.draw_gantt(row, this.folder) for row in chosen]
    if this.folder.metrics.exists():
        best = min((row.simulated.makespan for row in policies if row.simulated), default=None)
        title = this.setup.problem.name
        if best is not None:
            title += f": best simulated makespan {format_seconds(best)}"
        pictures.append(plot_learning_curve(this.folder.metrics, this.folder.learning_curve, title))
    return pictures


@hydra.main(version_base=None, config_path="../configs", config_name="train")
@entry_point
def main(config: DictConfig) -> None:
    """Hydra's entry point."""
    run(config)


if __name__ == "__main__":
    main()
