"""The folder of one run: its files, its configuration, and going on with an earlier run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

import doppler
from doppler.errors import CheckpointError, ConfigurationError
from doppler.files import write_text_atomically
from scripts.entry import in_multirun, task_overrides

FORMAT, VERSION = "doppler-run", 1
RESUME_MAY_CHANGE = ("logger", "budget_s")
"""What may differ when a run goes on; anything else would make it another run."""


@dataclass(frozen=True)
class RunFolder:
    """Names of a run's files; `docs/formats.md` describes them."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def profile(self) -> Path:
        return self.path / "profile.json"

    @property
    def problem(self) -> Path:
        return self.path / "problem.json"

    @property
    def results_csv(self) -> Path:
        return self.path / "results.csv"

    @property
    def results_markdown(self) -> Path:
        return self.path / "results.md"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def learning_curve(self) -> Path:
        return self.path / "learning_curve.png"

    @property
    def trace(self) -> Path:
        return self.path / "trace.json"

    def gantt(self, label: str) -> Path:
        return self.path / f"gantt_{file_name(label)}.png"

    def overlay(self, label: str) -> Path:
        return self.path / f"overlay_{file_name(label)}.png"

    def placement(self, label: str) -> Path:
        return self.path / f"placement_{file_name(label)}.json"

    def write_summary(self, status: str, values: Mapping[str, Any]) -> None:
        """Writes `summary.json`: what the run came to, and whether it got there."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "doppler": doppler.__version__,
            "status": status,
            **values,
        }
        write_text_atomically(self.summary, json.dumps(document, indent=1) + "\n")

    def read_summary(self) -> dict[str, Any]:
        """Reads `summary.json`.

        Raises:
            CheckpointError: there is none, it is damaged, or of another version.
        """
        try:
            document = json.loads(self.summary.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise CheckpointError(
                f"{self.path}: not a run folder, {self.summary.name} cannot be read: {reason}"
            ) from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CheckpointError(f'{self.summary}, format: "{FORMAT}" expected')
        if document.get("version") != VERSION:
            raise CheckpointError(
                f"{self.summary}, version: {document.get('version')!r} is not {VERSION}, the "
                "version that this release reads; go on with the release that began the run "
                f"({document.get('doppler', 'unknown')})"
            )
        return document


def file_name(label: str) -> str:
    """A table label as part of a file name."""
    return label.lower().replace(" ", "_").replace("-", "_")


def check_run_folder(config: DictConfig) -> RunFolder | None:
    """The folder that a new run was told to use; None: a new one, named by the time.

    Makes nothing, so it can be asked before anything expensive is done.

    Raises:
        ConfigurationError: the folder holds a run already, or `run_dir` is given with `-m`.
    """
    if in_multirun():
        if config.run_dir is not None:
            raise ConfigurationError(
                "run_dir would be shared by all jobs of -m: set hydra.sweep.dir in its place"
            )
        path = Path(HydraConfig.get().runtime.output_dir)
    elif config.run_dir is not None:
        path = Path(to_absolute_path(str(config.run_dir)))
    else:
        return None
    folder = RunFolder(path)
    if folder.checkpoint.exists():
        raise ConfigurationError(
            f"run_dir={path} holds a run already: pass resume={path} to go on with it, or another "
            "run_dir"
        )
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"run_dir={path} is a file")
    if path.is_dir() and any(path.iterdir()) and not _ended_at_once(folder):
        raise ConfigurationError(
            f"run_dir={path} is not empty, and what it holds is not a run that ended before its "
            "first checkpoint: empty it, or choose another run_dir"
        )
    return folder


def _ended_at_once(folder: RunFolder) -> bool:
    """Whether all a folder holds is a run that failed with nothing to go on with."""
    try:
        return folder.read_summary().get("status") in ("failed", "interrupted")
    except CheckpointError:
        return False


def create_run_folder(config: DictConfig, kind: str) -> RunFolder:
    """Makes the folder of a new run: `run_dir`, Hydra's in a multirun, or runs/<kind>/<time>.

    Raises:
        ConfigurationError: as `check_run_folder`, or the folder cannot be made.
    """
    folder = check_run_folder(config)
    if folder is None:
        return RunFolder(_new_folder(Path(to_absolute_path("runs")) / kind))
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"run_dir={folder.path} cannot be made: {error.strerror}"
        ) from error
    return folder


def resume_run_folder(config: DictConfig) -> tuple[RunFolder, DictConfig]:
    """Opens the run folder that `resume` names and returns it with its own configuration.

    Raises:
        CheckpointError: no run folder, no checkpoint in it, or one of another version.
        ConfigurationError: something besides `RESUME_MAY_CHANGE` was set on the command line.
    """
    folder = RunFolder(Path(to_absolute_path(config.resume)))
    if not folder.path.is_dir():
        raise CheckpointError(f"resume={config.resume}: no such folder")
    changed = [name for name in map(_overridden_key, task_overrides()) if name != "resume"]
    refused = [name for name in changed if name.split(".")[0] not in RESUME_MAY_CHANGE]
    if refused:
        raise ConfigurationError(
            f"resume={config.resume} goes on with that run's own configuration; {refused[0]} "
            f"cannot be set with it (only {', '.join(RESUME_MAY_CHANGE)} can)"
        )
    folder.read_summary()
    if not folder.checkpoint.exists():
        raise CheckpointError(
            f"{folder.path}: no {folder.checkpoint.name}, the run ended before its first "
            f"checkpoint; start it anew (run_dir={folder.path} may be used again if it is not "
            "running any more)"
        )
    stored = load_config(folder)
    for name in {name.split(".")[0] for name in changed}:
        stored[name] = config[name]
    stored.resume = str(folder.path)
    return folder, stored


def load_config(folder: RunFolder) -> DictConfig:
    """Reads the resolved configuration of a run, made to use the folder's own copies of files.

    So a run can be moved or looked at from elsewhere, and is never calibrated a second time.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        stored = OmegaConf.load(folder.config)
    except Exception as error:  # yaml and omegaconf raise many kinds
        raise CheckpointError(f"{folder.config}: cannot be read: {error}") from error
    if not isinstance(stored, DictConfig):
        raise CheckpointError(f"{folder.config}: not a configuration")
    if folder.profile.exists():
        stored.simulator.cost.profile = str(folder.profile.absolute())
    if "path" in stored.workload and folder.problem.exists():
        stored.workload.path = str(folder.problem.absolute())
    return stored


def resolved(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, interpolations resolved; missing values raise."""
    container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def save_config(config: DictConfig, folder: RunFolder) -> None:
    """Writes the resolved configuration into the run folder."""
    write_text_atomically(folder.config, OmegaConf.to_yaml(OmegaConf.create(resolved(config))))


def safe_name(name: str) -> str:
    """A graph's name as part of a file name: no folders, nothing hidden."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".") or "problem"


def placement_files(folder: RunFolder) -> list[Path]:
    """The placements of a run, sorted by name."""
    return sorted(folder.path.glob("placement_*.json"))


def _overridden_key(override: str) -> str:
    """The dotted key of a command-line override: of "+a.b=1" it is "a.b"."""
    return override.lstrip("+~").split("=")[0].split("@")[-1].replace("/", ".")


def _new_folder(parent: Path) -> Path:
    """A folder named by the time, with a number behind it where two begin in one second."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 1000):
        path = parent / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be made: {error.strerror}") from error
        return path
    raise ConfigurationError(f"{parent}: no free name for a run folder")
