"""What a benchmark has finished, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doppler.errors import DopplerError

Cell = dict[str, Any]
"""What one finished part of a benchmark found; `key` names it."""


class Journal:
    """Finished cells, a line of JSON each; lines that are none, of a run that was killed, are left.

    Args:
        path: a file that may not exist yet.
        fresh: whether to begin anew.
        usable: whether a cell has what the benchmark reads of it; others are left as well.

    Raises:
        DopplerError: a file that cannot be read or written.
    """

    def __init__(self, path: Path, fresh: bool, usable: Callable[[Cell], bool]) -> None:
        self.path = path
        self.cells: dict[str, Cell] = {}
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
            if cell is not None and usable(cell):
                self.cells[cell["key"]] = cell

    def add(self, key: str, **cell: Any) -> Cell:
        """Keeps a cell."""
        self.cells[key] = {"key": key, **cell}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.cells[key]) + "\n")
        return self.cells[key]


def _parsed(line: str) -> Cell | None:
    try:
        cell = json.loads(line)
    except ValueError:
        return None
    return cell if isinstance(cell, dict) and isinstance(cell.get("key"), str) else None


def is_number(value: Any) -> bool:
    """Whether a value of a cell is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
