"""A placement: a device per op and, optionally, an order of the ops; and its JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from doppler.checks import restore_frozen, whole_numbers
from doppler.errors import FileFormatError, InvalidPlacementError
from doppler.files import parse_json, write_text_atomically
from doppler.problem import PlacementProblem

FORMAT = "doppler-placement"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Placement:
    """Where every op runs; keeps read-only copies of what it is given.

    Args:
        devices: a device per op. # (num_ops,)
        order: a permutation of the ops, most urgent first (SEL's), or None. # (num_ops,)
        info: what made it and how good it is: `scheduler`, `simulated_makespan` [s], `seconds`,
            `evaluations` and the like.

    Raises:
        InvalidPlacementError: an entry that is not a whole number, or not one dimension.
    """

    devices: np.ndarray
    order: np.ndarray | None = None
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for label, values in (("devices", self.devices), ("order", self.order)):
            if values is None and label == "order":
                continue
            array = whole_numbers(values, f"placement, {label}")
            if array.ndim != 1:
                raise InvalidPlacementError(
                    f"placement, {label}: shape {array.shape}, expected one entry per op"
                )
            array.setflags(write=False)
            object.__setattr__(self, label, array)

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_frozen(self, state)

    def save(self, path: str | Path, problem: PlacementProblem) -> None:
        """Writes a JSON file that names the problem it belongs to."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "problem": problem.name,
            "num_ops": problem.num_ops,
            "num_devices": problem.num_devices,
            **self.info,
            "placement": self.devices.tolist(),
            "order": None if self.order is None else self.order.tolist(),
        }
        write_text_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path, problem: PlacementProblem) -> Placement:
        """Reads a placement file and checks it against the problem.

        Raises:
            FileFormatError: not a placement file, or one that does not fit `problem`.
            InvalidPlacementError: an entry out of range.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path}: cannot be read as a placement file: {error}") from error
        document = parse_json(text, path)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise FileFormatError(f'{path}, format: not a placement file ("{FORMAT}" expected)')
        if document.get("version") != VERSION:
            raise FileFormatError(f"{path}, version: {document.get('version')!r} is not {VERSION}")
        for label, expected in (("num_ops", problem.num_ops), ("num_devices", problem.num_devices)):
            if document.get(label) != expected:
                raise FileFormatError(
                    f"{path}, {label}: {document.get(label)!r}, but problem {problem.name!r} has "
                    f"{expected}"
                )
        if "placement" not in document:
            raise FileFormatError(f"{path}: the field 'placement' is missing")
        try:
            devices = problem.check_placement(document["placement"])
            order = document.get("order")
            order = None if order is None else problem.check_order(order)
        except InvalidPlacementError as error:
            raise InvalidPlacementError(f"{path}: {error}") from error
        structural = (
            "format",
            "version",
            "problem",
            "num_ops",
            "num_devices",
            "placement",
            "order",
        )
        return cls(
            devices=devices,
            order=order,
            info={key: value for key, value in document.items() if key not in structural},
        )
