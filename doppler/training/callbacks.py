"""What training tells the outside: callbacks, and the one that writes metrics to a CSV file."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.errors import CheckpointError
from doppler.files import write_text_atomically

if TYPE_CHECKING:
    from doppler.training.stage import Stage
    from doppler.training.trainer import Trainer

METRICS = (
    "total_updates",
    "stage",
    "update",
    "episodes",
    "evaluations",
    "seconds",
    "loss",
    "entropy_sel",
    "entropy_plc",
    "learning_rate",
    "exploration",
    "grad_norm",
    "simulated_makespan_mean",
    "simulated_makespan_min",
    "simulated_makespan_best",
    "measured_makespan_mean",
    "measured_makespan_min",
    "measured_makespan_incumbent",
    "placements_executed",
    "placements_skipped",
    "shadow_margin",
    "shadow_error",
    "measurement_noise",
    "policy_kl",
    "step_scale",
    "executions",
    "regret_mean",
    "regret_added",
    "regret_explored",
    "regret_incumbent",
    "regret_worst",
    "simulation_error",
    "simulation_error_uncalibrated",
    "entropy",
    "value_loss",
    "clip_fraction",
    "illegal_share",
)
"""Keys of the metrics of an update, in the order of the CSV columns; a stage fills those it has."""


class Callback:
    """Hears of training; override what you need. An exception from it ends training.

    A `KeyboardInterrupt` raised in `on_update` ends it as Ctrl-C does: with a checkpoint.
    """

    def on_start(self, trainer: Trainer, resumed: bool) -> None:
        """Before the first update; `trainer.state` says where training stands."""

    def on_stage_start(self, trainer: Trainer, stage: Stage) -> None:
        """Before a stage's first update; not repeated when the stage is resumed."""

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """After every update; the keys are some of `METRICS`."""

    def on_stage_end(self, trainer: Trainer, stage: Stage) -> None:
        """After a stage's last update."""

    def on_end(self, trainer: Trainer) -> None:
        """Last of all, also after an interruption or an error."""


class CsvMetrics(Callback):
    """Appends one row per update, flushed at once.

    A resumed run continues from its checkpoint: rows of later updates, which will be made again,
    are cut off first.

    Args:
        path: the CSV file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._stream: Any = None

    def on_start(self, trainer: Trainer, resumed: bool) -> None:
        if resumed and self.path.exists():
            self._cut(trainer.state.total_updates)
        elif self.path.is_dir():
            raise CheckpointError(f"{self.path}: is a folder, metrics go there; move it away")
        else:
            write_text_atomically(self.path, ",".join(METRICS) + "\n")
        self._stream = open(self.path, "a", newline="", encoding="utf-8")  # noqa: SIM115
        self._writer = csv.DictWriter(self._stream, METRICS, restval="", lineterminator="\n")

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        self._writer.writerow(metrics)
        self._stream.flush()

    def on_end(self, trainer: Trainer) -> None:
        if self._stream is not None:
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._stream = None

    def _cut(self, total_updates: int) -> None:
        """Keeps the header and the complete rows of updates that the checkpoint holds."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"{self.path}: cannot be read as metrics: {error}; move it away"
            ) from error
        if not lines or lines[0].strip() != ",".join(METRICS):
            raise CheckpointError(f"{self.path}: not the metrics of this version; move it away")
        kept = [lines[0]]
        for line in lines[1:]:
            first = line.split(",", 1)[0]
            if line.endswith("\n") and first.isdigit() and int(first) <= total_updates:
                kept.append(line)
        write_text_atomically(self.path, "".join(kept))
