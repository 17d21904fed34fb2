"""What a benchmark has finished, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from doppler.errors import DopplerError

_NUMBERS = ("makespan", "seconds", "evaluations")


class Journal:
    """Finished cells, a line of JSON each; lines that are none, of a run that was killed, are left.

    Args:
        path: a file that may not exist yet.
        fresh: whether to begin anew.

    Raises:
        DopplerError: a file that cannot be read or written.
    """

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        self.cells: dict[str, dict[str, Any]] = {}
        try:
            if fresh:
                path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            if text and not text.endswith("\n"):
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n")
        except OSError as error:
            raise DopplerError(f"{path}: cannot be used as a journal: {error.strerror}") from error
        for line in text.splitlines():
            cell = _parsed(line)
            if cell is not None:
                self.cells[cell["key"]] = cell

    def add(self, key: str, **cell: Any) -> dict[str, Any]:
        """Keeps a cell."""
        self.cells[key] = {"key": key, **cell}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.cells[key]) + "\n")
        return self.cells[key]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        cell = json.loads(line)
    except ValueError:
        return None
    if not isinstance(cell, dict) or not isinstance(cell.get("key"), str):
        return None
    for name in _NUMBERS:
        value = cell.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
    return cell if "refused" in cell or "makespan" in cell else None
