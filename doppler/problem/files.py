"""Reading and writing problem files; the format is told by the file's content."""

from __future__ import annotations

from pathlib import Path

from doppler.errors import FileFormatError
from doppler.problem.json_format import problem_from_json, write_json_problem
from doppler.problem.placement_problem import PlacementProblem
from doppler.problem.published_format import problem_from_published_text


def load_problem(path: str | Path, num_devices: int | None = None) -> PlacementProblem:
    """Reads a problem from this project's JSON format or from the published DOPPLER text format.

    Args:
        path: the file.
        num_devices: needed for the published format, which names no devices; for JSON, which does,
            a number that differs from the file's is refused.

    Returns:
        The validated problem.

    Raises:
        FileFormatError: the file is missing, truncated or malformed; the message names the file and
            the line, op or field.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileFormatError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: cannot be read as text: {error}") from error
    if not text.strip():
        raise FileFormatError(f"{path}: the file is empty")
    if text.lstrip().startswith(("{", "[")):
        return problem_from_json(text, str(path), num_devices)
    return problem_from_published_text(text, str(path), num_devices)


def save_problem(problem: PlacementProblem, path: str | Path) -> None:
    """Writes a problem in this project's JSON format; `load_problem` reads the same arrays back."""
    write_json_problem(problem, Path(path))
