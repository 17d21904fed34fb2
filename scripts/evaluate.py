"""Evaluates placements: those of a run, those in files, and the schedulers', in one table.

python scripts/evaluate.py run=runs/train/2026-11-30_12-00-00
python scripts/evaluate.py workload=ffnn topology=cpu placements=[a.json,b.json] overlay=true
python scripts/evaluate.py run=runs/train/2026-11-30_12-00-00 \\
    +scheduler@schedulers.annealing=annealing schedulers.annealing.budget_s=5
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig
from rich.console import Console

from doppler import Placement, PlacementProblem
from doppler.errors import ConfigurationError
from scripts import report, run_folder
from scripts.entry import check_count, check_list, entry_point, task_overrides
from scripts.problems import build_setup
from scripts.progress import ProgressDisplay
from scripts.results import Row, evaluate
from scripts.run_folder import RunFolder

FROM_THE_RUN = ("workload", "topology", "simulator")


def run(config: DictConfig) -> RunFolder:
    """Evaluates as configured; returns the folder with table and pictures."""
    console = Console(markup=False)
    progress = ProgressDisplay(console)
    check_count(config.seed, "seed", least=0)
    run_folder.check_run_folder(config)
    given = check_list(config.placements, "placements")
    files = [Path(to_absolute_path(str(path))) for path in given]
    if config.run is not None:
        files = use_run(config) + files
    setup = build_setup(config, progress)
    rows = placement_rows(files, setup.problem)
    simulator = setup.settings.build(setup.problem)
    schedulers = report.build_schedulers(config)
    device_context: Any = instantiate(config.executor).build(setup) or nullcontext(None)
    folder = run_folder.create_run_folder(config, "evaluate")
    run_folder.save_config(config, folder)
    judge = setup.scheduling_simulator()
    rows = report.scheduler_rows(schedulers, judge, config.seed, progress) + rows
    with device_context as executor:
        table = evaluate(
            rows,
            simulator,
            executor,
            repeats=config.executor.repeats,
            warmup=config.executor.warmup,
            progress=progress,
            single_device=report.SINGLE_DEVICE,
        )
    report.add_contention_note(table, setup)
    table.save(folder.results_csv, folder.results_markdown)
    drawn = [row for row in table.rows if row.simulated is not None]
    pictures = [report.draw_gantt(row, folder).name for row in drawn]
    if config.overlay:
        overlays = [report.draw_overlay(row, folder) for row in drawn]
        pictures += [path.name for path in overlays if path is not None]
    if drawn:
        pictures.append(report.write_traces(drawn, folder).name)
    summary = {"problem": setup.problem.name, "results": report.table_summary(table)}
    folder.write_summary("finished", summary)
    table.print(console)
    console.print(
        f"folder: {folder.path}\npictures and trace in it: {', '.join(pictures)}",
        highlight=False,
        soft_wrap=True,
    )
    return folder


def use_run(config: DictConfig) -> list[Path]:
    """Takes problem and costs from the run folder `run`; returns its placement files.

    Raises:
        ConfigurationError: one of `FROM_THE_RUN` is set besides, or the run has no placements.
        CheckpointError: not a run folder.
    """
    folder = RunFolder(Path(to_absolute_path(config.run)))
    folder.read_summary()
    for override in task_overrides():
        group = override.lstrip("+~").split("=")[0].split(".")[0].split("@")[0]
        if group in FROM_THE_RUN:
            raise ConfigurationError(
                f"run={config.run} brings its own {group}: leave {override} out"
            )
    stored = run_folder.load_config(folder)
    for group in FROM_THE_RUN:
        config[group] = stored[group]
    if not any(o.startswith("executor") for o in task_overrides()):
        config.executor = stored.executor
    files = run_folder.placement_files(folder)
    if not files:
        raise ConfigurationError(f"run={config.run}: that folder holds no placements yet")
    return files


def placement_rows(files: Sequence[Path], problem: PlacementProblem) -> list[Row]:
    """A row per placement file, named by its scheduler or, where two share one, by its file.

    Raises:
        DopplerError: a file is no placement of this problem.
    """
    placements = [Placement.load(path, problem) for path in files]
    rows = [
        Row(str(placement.info.get("scheduler", path.stem)), placement)
        for path, placement in zip(files, placements, strict=True)
    ]
    labels = [row.label for row in rows]
    for row, path in zip(rows, files, strict=True):
        if labels.count(row.label) > 1:
            row.label = str(path)
    return rows


@hydra.main(version_base=None, config_path="../configs", config_name="evaluate")
@entry_point
def main(config: DictConfig) -> None:
    """Hydra's entry point."""
    run(config)


if __name__ == "__main__":
    main()
