"""Where the numbers of a run go: nowhere, into a CSV file, or to Weights & Biases.

A logger is a training callback that can also take pictures, tables and files. `CsvLogger` writes
the run folder's metrics file; `WandbLogger` does that too and mirrors everything into a W&B run,
offline unless told otherwise. wandb is imported when such a run starts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.errors import ConfigurationError
from doppler.files import write_text_atomically
from doppler.training.callbacks import Callback, CsvMetrics

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer

METRICS_FILE = "metrics.csv"
WANDB_MODES = ("offline", "online", "disabled")


class NoLogger(Callback):
    """Records nothing; the base of the others, with the methods that a run calls on its logger.

    `start` comes first, `finish` last and always, also after Ctrl-C.
    """

    def start(
        self, folder: Path, name: str, config: Mapping[str, Any], resuming: bool = False
    ) -> None:
        """Opens the log of one run.

        Args:
            folder: the run's own folder, which exists.
            name: of the run, for people.
            config: the resolved configuration, plain containers only.
            resuming: whether the folder holds an earlier part of the same run.
        """

    def log_summary(self, values: Mapping[str, Any]) -> None:
        """Records final numbers of the run."""

    def log_picture(self, name: str, path: Path) -> None:
        """Records a picture file."""

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Records a table; all rows have the same keys."""

    def log_file(self, path: Path, kind: str) -> None:
        """Records a file as an artifact of a kind ("checkpoint", "placement")."""

    def finish(self, exit_code: int = 0) -> None:
        """Closes the log; `exit_code` other than 0 marks the run as failed."""


class CsvLogger(NoLogger):
    """Writes the training metrics into the run folder's `metrics.csv`; see `CsvMetrics`."""

    def __init__(self) -> None:
        self._metrics: CsvMetrics | None = None

    def start(
        self, folder: Path, name: str, config: Mapping[str, Any], resuming: bool = False
    ) -> None:
        self._metrics = CsvMetrics(folder / METRICS_FILE)

    def on_start(self, trainer: Trainer, resumed: bool) -> None:
        if self._metrics is None:
            raise ConfigurationError("a logger was used before it was started")
        self._metrics.on_start(trainer, resumed)

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.on_update(trainer, metrics)

    def on_end(self, trainer: Trainer) -> None:
        if self._metrics is not None:
            self._metrics.on_end(trainer)


class WandbLogger(CsvLogger):
    """Mirrors a run into Weights & Biases, besides the CSV file.

    Everything is kept under `<run folder>/wandb`, artifact staging and caches included, and nothing
    in the user's home. A resumed run continues under the same W&B run id.

    Args:
        project: W&B project.
        mode: "offline" (no account, no network; upload later with `wandb sync`), "online" or
            "disabled".
        entity: W&B team or user, None for the account's default.
        group: joins runs, for example those of a sweep.
        tags: labels.
        name: display name; None: as the run is called.

    Raises:
        ConfigurationError: an unknown mode.
    """

    def __init__(
        self,
        project: str = "doppler",
        mode: str = "offline",
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        super().__init__()
        if mode not in WANDB_MODES:
            raise ConfigurationError(
                f"logger.mode: {mode!r} is unknown; the modes are {', '.join(WANDB_MODES)}"
            )
        self.project, self.mode, self.entity = project, mode, entity
        self.group, self.tags, self.name = group, tuple(tags), name
        self._run: Any = None
        self._environment: list[str] = []

    def start(
        self, folder: Path, name: str, config: Mapping[str, Any], resuming: bool = False
    ) -> None:
        """See `NoLogger.start`.

        Raises:
            ConfigurationError: wandb is not installed, or does not start (no account online).
        """
        super().start(folder, name, config, resuming)
        home = (folder / "wandb").resolve()
        home.mkdir(parents=True, exist_ok=True)
        self._enter_environment(home)
        try:
            import wandb
        except ImportError as error:
            self._leave_environment()
            raise ConfigurationError(
                "logger=wandb needs wandb: pip install wandb, or use logger=csv"
            ) from error
        id_file = home / "run_id.txt"
        run_id = id_file.read_text().strip() if resuming and id_file.exists() else None
        try:
            self._run = wandb.init(
                project=self.project,
                entity=self.entity,
                group=self.group,
                tags=self.tags,
                name=self.name or name,
                id=run_id,
                resume=None if run_id is None else "allow",
                mode=self.mode,  # type: ignore[arg-type]
                dir=str(folder),
                config=dict(config),
                reinit="create_new",
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            self._leave_environment()
            raise ConfigurationError(f"logger=wandb, mode={self.mode}: {error}") from error
        write_text_atomically(id_file, self._run.id + "\n")
        self._run.define_metric("total_updates")
        self._run.define_metric("*", step_metric="total_updates")

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """Writes the CSV row and logs its numbers as `<stage>/<name>` over all updates."""
        super().on_update(trainer, metrics)
        numbers = {
            f"{metrics['stage']}/{name}": value
            for name, value in metrics.items()
            if name not in ("stage", "total_updates")
            and isinstance(value, int | float)
            and math.isfinite(value)
        }
        self._run.log({**numbers, "total_updates": metrics["total_updates"]})

    def log_summary(self, values: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(values))

    def log_picture(self, name: str, path: Path) -> None:
        import wandb

        self._run.log({name: wandb.Image(str(path))})

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        import wandb

        columns: list[str | int] = list(rows[0]) if rows else []
        data = [list(row.values()) for row in rows]
        self._run.log({name: wandb.Table(columns=columns, data=data, allow_mixed_types=True)})

    def log_file(self, path: Path, kind: str) -> None:
        import wandb

        artifact = wandb.Artifact(f"{path.stem}-{self._run.id}", type=kind)
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def finish(self, exit_code: int = 0) -> None:
        """Finishes the W&B run; several runs in one process stay apart because each is finished."""
        try:
            if self._run is not None:
                self._run.finish(exit_code=exit_code)
        finally:
            self._run = None
            self._leave_environment()

    def _enter_environment(self, home: Path) -> None:
        """Points wandb's folders into the run folder; what the user has set stays as it is."""
        folders = {
            "WANDB_DATA_DIR": home / "data",
            "WANDB_CACHE_DIR": home / "cache",
            "WANDB_CONFIG_DIR": home / "config",
            "WANDB_ARTIFACT_DIR": home / "artifacts",
        }
        for variable, folder in folders.items():
            if variable not in os.environ:
                self._environment.append(variable)
                os.environ[variable] = str(folder)

    def _leave_environment(self) -> None:
        for variable in self._environment:
            os.environ.pop(variable, None)
        self._environment = []
