"""The journal of real measurements: every one is on disk before training goes on.

One JSON object per line: a `placement` line the first time a placement is measured, and a `round`
line per round of measurements. A run that was killed reads the journal back when it is resumed, and
takes from it the rounds that its checkpoint does not know of instead of measuring them again, so
it goes exactly where the killed run went and no measurement is wasted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from doppler.errors import CheckpointError
from doppler.schedule import Schedule
from doppler.training.objectives import Objective

JOURNAL_NAME = "measurements.jsonl"


def placement_digest(devices: np.ndarray, order: np.ndarray) -> str:
    """A short name of a placement and its order."""
    digest = hashlib.sha256(np.ascontiguousarray(devices, np.int64).tobytes())
    digest.update(np.ascontiguousarray(order, np.int64).tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Round:
    """One run of each row.

    Args:
        makespans: # (rows,) [s]
        traces: what was kept of each run's schedule, None where there are no schedules. # (rows,)
    """

    makespans: np.ndarray
    traces: list[Any] | None


class MeasurementJournal:
    """Measures rounds and records them.

    Args:
        path: the file, or None to keep nothing (and to replay nothing).
        objective: measures one run of each row.
        summarise: what to keep of the schedule of a run, as JSON can hold it, where the objective
            has a method `schedules`; None keeps nothing.

    Raises:
        CheckpointError: a line of the file is no journal line. A last line without its end, which
            a kill leaves, is cut off.
    """

    def __init__(
        self,
        path: Path | None,
        objective: Objective,
        summarise: Callable[[Schedule], Any] | None = None,
    ) -> None:
        self.path = path
        self._objective = objective
        self._summarise = summarise
        self._known: set[str] = set()
        self._rounds: dict[int, dict[str, Any]] = {}
        self._stream: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._read(path)
            self._stream = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def round(self, index: int, placements: np.ndarray, orders: np.ndarray, **labels: Any) -> Round:
        """One run of each row, measured now or, where the journal has it, read back.

        Args:
            index: number of the round within the run, ascending.
            placements: # (rows, num_ops)
            orders: # (rows, num_ops)
            labels: written beside it (stage, update, what for).
        """
        names = [placement_digest(*row) for row in zip(placements, orders)]
        known = self._rounds.get(index)
        if known is not None and known["placements"] == names:
            return Round(np.array(known["measured_makespans"], np.float64), known.get("traces"))
        measured = self._run(placements, orders)
        for name, devices, order in zip(names, placements, orders):
            if name not in self._known:
                self._known.add(name)
                line = {"placement": name, "devices": devices.tolist(), "order": order.tolist()}
                self._append(line)
        record = {"round": index, **labels, "placements": names}
        if measured.traces is not None:
            record["traces"] = measured.traces
        record["measured_makespans"] = measured.makespans.tolist()
        self._append(record, durable=True)
        return measured

    def _run(self, placements: np.ndarray, orders: np.ndarray) -> Round:
        schedules = getattr(self._objective, "schedules", None)
        if schedules is None or self._summarise is None:
            return Round(np.asarray(self._objective(placements, orders), np.float64), None)
        runs: list[Schedule] = schedules(placements, orders)
        seconds = np.array([run.makespan for run in runs])
        return Round(seconds, [self._summarise(run) for run in runs])

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _append(self, record: dict[str, Any], durable: bool = False) -> None:
        if self._stream is None:
            return
        self._stream.write(json.dumps(record) + "\n")
        if durable:
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        end = raw.rfind(b"\n") + 1
        for number, line in enumerate(raw[:end].split(b"\n")[:-1], start=1):
            try:
                self._take(json.loads(line.decode("utf-8")))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise CheckpointError(
                    f"{path}, line {number}: not a line of a measurement journal ({error}); move "
                    "it away"
                ) from error
        if end < len(raw):
            os.truncate(path, end)

    def _take(self, record: dict[str, Any]) -> None:
        """Takes one record in; raises ValueError, KeyError or TypeError for what is none."""
        if "round" not in record:
            name = record["placement"]
            if not isinstance(name, str):
                raise TypeError(f"placement {name!r} is no name")
            self._known.add(name)
            return
        index, names, makespans = (
            record[key] for key in ("round", "placements", "measured_makespans")
        )
        if not isinstance(index, int) or not isinstance(names, list):
            raise TypeError("round or placements have the wrong type")
        if len(names) != len(makespans):
            raise ValueError(f"{len(makespans)} makespans of {len(names)} placements")
        for value in makespans:
            if not isinstance(value, float | int) or not value >= 0:
                raise ValueError(f"measured makespan {value!r} is not a time >= 0")
        traces = record.get("traces")
        if traces is not None and (not isinstance(traces, list) or len(traces) != len(names)):
            raise ValueError("traces are not one for each placement")
        self._rounds[index] = record  # a later line for the same round replaces an earlier one
