"""Trains a placement policy in stages, compares it with schedulers and reports.

python scripts/train.py workload=ffnn seed=1
python scripts/train.py -m workload=chainmm,ffnn seed=0,1
python scripts/train.py resume=runs/train/2026-11-30_12-00-00
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import numpy as np
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from doppler import Placement, save_problem
from doppler.errors import ConfigurationError
from doppler.training import (
    Callback,
    Checkpoints,
    Stage,
    Trainer,
    TrainingResult,
    measured_objective,
)
from doppler.training.loggers import NoLogger
from doppler.viz import plot_learning_curve
from doppler.viz.figure import format_seconds
from scripts import report, run_folder
from scripts.entry import (
    EXIT_TERMINATED,
    check_count,
    check_list,
    check_positive,
    entry_point,
    in_multirun,
)
from scripts.problems import Setup, build_setup
from scripts.progress import ProgressDisplay
from scripts.results import ResultsTable, Row, evaluate
from scripts.run_folder import RunFolder
from scripts.training_progress import (
    COMPARATORS,
    POLICY_LABELS,
    BestPlacements,
    TrainingProgress,
    policy_label,
)

if TYPE_CHECKING:
    from doppler.executor import CpuExecutor
    from doppler.policies import Policy
    from doppler.simulator import Simulator


@dataclass
class Run:
    """The parts of one training run, built from its configuration before anything is written."""

    config: DictConfig
    setup: Setup
    simulator: Simulator
    policy: Policy
    stages: list[Stage]
    heuristics: list[Row]
    logger: NoLogger
    executor: CpuExecutor | None
    progress: ProgressDisplay

    @property
    def console(self) -> Console:
        return self.progress.console


def run(config: DictConfig) -> RunFolder:
    """Trains as configured, or goes on with the run that `resume` names; returns the run folder."""
    folder = None
    if config.resume is not None:
        folder, config = run_folder.resume_run_folder(config)
    else:
        run_folder.check_run_folder(config)
    this = build(config, ProgressDisplay(Console(markup=False)))
    devices: Any = this.executor or nullcontext()
    with devices:
        resuming = folder is not None
        if folder is None:
            folder = run_folder.create_run_folder(config, "train")
            run_folder.save_config(config, folder)
            save_problem(this.setup.problem, folder.problem)
            if this.setup.profile is not None:
                this.setup.profile.save(folder.profile)
        this.console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
        with logged(this, folder, resuming):
            result = train(this, folder, resuming)
            finish(this, folder, result, *judge(this, result))
    return folder


def build(config: DictConfig, progress: ProgressDisplay) -> Run:
    """Builds all parts, calibrating the devices if so configured.

    Raises:
        DopplerError: an option that does not exist, is impossible or does not go with the others.
    """
    check_options(config)
    if in_multirun() and "group" in config.logger and config.logger.group is None:
        config.logger.group = Path(HydraConfig.get().sweep.dir).name  # a sweep's runs stay together
    logger: NoLogger = instantiate(config.logger)
    stages: list[Stage] = [instantiate(config[name]) for name in config.stages]
    policy: Policy = instantiate(config.policy)
    schedulers = report.build_schedulers(config)
    setup = build_setup(config, progress)
    setup.training_objective()  # refuses impossible noise and objectives now, not after hours
    simulator, judge = setup.settings.build(setup.problem), setup.scheduling_simulator()
    return Run(
        config=config,
        setup=setup,
        simulator=simulator,
        policy=policy,
        stages=stages,
        heuristics=report.scheduler_rows(schedulers, judge, config.seed, progress),
        logger=logger,
        executor=instantiate(config.executor).build(setup),
        progress=progress,
    )


def check_options(config: DictConfig) -> None:
    """Refuses what could only fail later.

    Raises:
        ConfigurationError: unknown or repeated stages, or real_rl without an executor.
    """
    stages = check_list(config.stages, "stages")
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
    if "real_rl" in stages and not instantiate(config.executor).measures:
        raise ConfigurationError(
            "stage real_rl needs real devices, those of executor=emulated only sleep: use "
            "executor=cpu or stages=[imitation,sim_rl]"
        )
    check_count(config.checkpoint_every, "checkpoint_every")
    check_count(config.seed, "seed", least=0)
    check_positive(config.budget_s, "budget_s")


@contextmanager
def logged(this: Run, folder: RunFolder, resuming: bool) -> Iterator[None]:
    """Opens the log and closes it however the run ends; says how to go on when interrupted."""
    status = "failed"
    folder.write_summary("running", {})
    try:
        name = f"{this.setup.problem.name} seed {this.config.seed}"
        this.logger.start(folder.path, name, run_folder.resolved(this.config), resuming)
        yield
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except SystemExit as ending:
        status = "interrupted" if ending.code == EXIT_TERMINATED else status
        raise
    finally:
        if status != "finished":
            folder.write_summary(status, {})
        this.logger.finish(0 if status == "finished" else 1)
        if status == "interrupted" and folder.checkpoint.exists():
            print(f"go on with: python scripts/train.py resume={folder.path}", file=sys.stderr)


def make_trainer(
    this: Run, callbacks: Sequence[Callback], checkpoints: Checkpoints | None = None
) -> Trainer:
    """The trainer of a run; without checkpoints it keeps nothing on disk."""
    setup = this.setup
    return Trainer(
        setup.problem,
        this.policy,
        this.stages,
        simulated=setup.training_objective(),
        measured=None if this.executor is None else measured_objective(this.executor),
        network=setup.settings.network,
        seed=this.config.seed,
        callbacks=callbacks,
        checkpoints=checkpoints,
        budget_s=this.config.budget_s,
    )


def train(this: Run, folder: RunFolder, resuming: bool) -> TrainingResult:
    """Runs the stages, or those that a resumed run has left."""
    config = this.config
    callbacks = [
        this.logger,
        TrainingProgress(this.progress),
        BestPlacements(folder, this.setup.problem, this.simulator),
    ]
    trainer = make_trainer(this, callbacks, Checkpoints(folder.path, config.checkpoint_every))
    result = trainer.fit(resume=resuming)
    if not result.completed:
        this.console.print(f"stopped by budget_s={config.budget_s}", highlight=False)
    return result


def judge(this: Run, result: TrainingResult) -> tuple[ResultsTable, report.EqualEvaluations | None]:
    """Evaluates the policy beside the schedulers, and against as many critical-path runs."""
    config = this.config
    table = evaluate(
        this.heuristics + policy_rows(list(config.stages), result, this.policy),
        this.simulator,
        this.executor,
        repeats=config.executor.repeats,
        warmup=config.executor.warmup,
        progress=this.progress,
        single_device=report.SINGLE_DEVICE,
    )
    report.add_contention_note(table, this.setup)
    if result.simulated is None or result.episodes == 0:
        return table, None
    comparison = report.compare_at_equal_evaluations(
        this.simulator, result.simulated, result.episodes, result.seconds, config.seed
    )
    table.footnotes.append(str(comparison))
    return table, comparison


def policy_rows(stages: list[str], result: TrainingResult, policy: Policy) -> list[Row]:
    """A row per stage that the table names, with the reason where the stage was not run."""
    rows = []
    if stages == ["imitation"]:
        rows.append(Row(policy_label("imitation", policy), result.simulated))
    placements = {
        "sim_rl": result.simulated if "sim_rl" in stages else None,
        "real_rl": result.measured,
    }
    for stage, placement in placements.items():
        reason = None
        if placement is None:
            ran = stage in stages
            reason = (
                result.reason or "no placement was found" if ran else (f"stage {stage} was not run")
            )
        elif stage == "real_rl" and same_placement(placement, result.simulated):
            reason = (
                f"nothing measured faster, so this is {policy_label('sim_rl', policy)}'s "
                "placement; the two rows differ by noise alone"
            )
        rows.append(Row(policy_label(stage, policy), placement, reason))
    for stage in COMPARATORS:
        if stage in stages:
            found = result.simulated
            reason = None if found else result.reason or "no placement was found"
            rows.append(Row(policy_label(stage, policy), found, reason))
    return rows


def same_placement(one: Placement, other: Placement | None) -> bool:
    """Whether two placements put every op on the same device."""
    return other is not None and np.array_equal(one.devices, other.devices)


def finish(
    this: Run,
    folder: RunFolder,
    result: TrainingResult,
    table: ResultsTable,
    comparison: report.EqualEvaluations | None,
) -> None:
    """Writes and logs everything that is left of the run, and prints it."""
    console, logger = this.console, this.logger
    table.save(folder.results_csv, folder.results_markdown)
    labels = [policy_label(stage, this.policy) for stage in POLICY_LABELS]
    pictures, shown = draw(folder, table, this.setup.problem.name, labels)
    if shown:
        report.write_traces(shown, folder)
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
    table.print(console)
    names = ", ".join(picture.name for picture in pictures)
    trace = f"\ntrace in it (for ui.perfetto.dev): {folder.trace.name}" if shown else ""
    console.print(
        f"run folder: {folder.path}\npictures in it: {names}{trace}",
        highlight=False,
        soft_wrap=True,
    )
    logger.log_table("results", [table.numbers(row) for row in table.rows])
    for picture in pictures:
        logger.log_picture(picture.stem, picture)
    for path in run_folder.placement_files(folder):
        logger.log_file(path, "placement")
    for path, kind in (
        (folder.checkpoint, "checkpoint"),
        (folder.problem, "problem"),
        (folder.profile, "profile"),
        (folder.trace, "trace"),
    ):
        if path.exists():
            logger.log_file(path, kind)
    logger.log_summary(summary)


def draw(
    folder: RunFolder, table: ResultsTable, title: str, labels: list[str]
) -> tuple[list[Path], list[Row]]:
    """Pictures of the best policy's and the best heuristic's schedules and the learning curve.

    Args:
        folder: gets the pictures.
        table: the results.
        title: of the learning curve.
        labels: of the policy's rows.

    Returns:
        The pictures, and the rows whose schedules they show.
    """
    policies = [row for row in table.rows if row.label in labels and row.simulated is not None]
    heuristic = report.best_heuristic(table, labels)
    chosen = policies[-1:] + ([] if heuristic is None else [heuristic])
    pictures = [report.draw_gantt(row, folder) for row in chosen]
    if folder.metrics.exists():
        best = min((row.simulated.makespan for row in policies if row.simulated), default=None)
        if best is not None:
            title += f": best simulated makespan {format_seconds(best)}"
        pictures.append(plot_learning_curve(folder.metrics, folder.learning_curve, title))
    return pictures, chosen


@hydra.main(version_base=None, config_path="../configs", config_name="train")
@entry_point
def main(config: DictConfig) -> None:
    """Hydra's entry point."""
    run(config)


if __name__ == "__main__":
    main()
