"""The best placements known, in a file that anyone can check: each is simulated again when read."""

from __future__ import annotations

import json
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from doppler import Placement, PlacementProblem
from doppler.errors import DopplerError, FileFormatError
from doppler.files import parse_json, write_text_atomically
from doppler.simulator import Simulator

FORMAT, VERSION = "doppler-best-known", 1
_SAME = 1e-9
"""Relative difference up to which two makespans are the same."""


class BestKnown:
    """A file of placements, one for each problem and way of simulating it.

    Args:
        path: a file that may not exist yet.

    Raises:
        FileFormatError: a file that is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, dict[str, Any]] = {}
        if path.exists():
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise FileFormatError(f"{path}: cannot be read: {error}") from error
            document = parse_json(text, path)
            if (
                not isinstance(document, dict)
                or document.get("format") != FORMAT
                or document.get("version") != VERSION
                or not isinstance(document.get("entries"), dict)
            ):
                raise FileFormatError(f'{path}: not a file of best placements ("{FORMAT}")')
            self._entries = document["entries"]

    def placement(self, problem: PlacementProblem, simulator: Simulator) -> Placement | None:
        """The best placement known, None if there is none.

        Raises:
            FileFormatError: an entry that does not simulate to what it says.
        """
        key = entry_key(problem, simulator)
        entry = self._entries.get(key)
        if entry is None:
            return None
        where = f"{self.path}, {key}"
        try:
            found = Placement(entry["placement"], entry["order"], {"found_by": entry["found_by"]})
            makespan = simulator.run(found).makespan
        except (DopplerError, KeyError, TypeError) as error:
            raise FileFormatError(f"{where}: {error}") from error
        if not np.isclose(makespan, entry["simulated_makespan"], rtol=_SAME, atol=0.0):
            raise FileFormatError(
                f"{where}, simulated_makespan: {entry['simulated_makespan']!r}, but the placement "
                f"simulates to {makespan!r}"
            )
        return found

    def makespan(self, problem: PlacementProblem, simulator: Simulator) -> float | None:
        """Of the best placement known. [s]"""
        found = self.placement(problem, simulator)
        return None if found is None else simulator.run(found).makespan

    def offer(self, problem: PlacementProblem, simulator: Simulator, placement: Placement) -> bool:
        """Keeps a placement if it is better than the best known; whether it is."""
        makespan = simulator.run(placement).makespan
        known = self.makespan(problem, simulator)
        if known is not None and makespan >= known * (1 - _SAME):
            return False
        given = simulator.choose == "given" and placement.order is not None
        self._entries[entry_key(problem, simulator)] = {
            "simulated_makespan": makespan,
            "found_by": placement.info.get("scheduler", "unknown"),
            "found_on": str(date.today()),
            "placement": placement.devices.tolist(),
            "order": placement.order.tolist() if given and placement.order is not None else None,
        }
        self._save()
        return True

    def _save(self) -> None:
        lines = [
            f"  {json.dumps(key)}: {json.dumps(self._entries[key], separators=(',', ':'))}"
            for key in sorted(self._entries)
        ]
        head = f'{{"format": "{FORMAT}", "version": {VERSION}, "entries": {{\n'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(self.path, head + ",\n".join(lines) + "\n}}\n")


def entry_key(problem: PlacementProblem, simulator: Simulator) -> str:
    """Names a problem, with a digest of its numbers, and how it is simulated."""
    costs = problem.cost_model
    digest = sha256()
    for array in (
        problem.graph.succ_ptr,
        problem.graph.succ_ops,
        costs.op_seconds,
        costs.transfer_volume,
        costs.link_latency,
        costs.link_seconds_per_unit,
    ):
        digest.update(np.ascontiguousarray(array).tobytes())
    return (
        f"{problem.name}, {problem.num_devices} devices, {simulator.network}, {simulator.choose}, "
        f"{digest.hexdigest()[:12]}"
    )
