"""Reading and writing problem files; the format is told by the file's content."""

from __future__ import annotations

from pathlib import Path

from doppler.checks import whole_number
from doppler.errors import FileFormatError
from doppler.problem.json_format import problem_from_json, write_json_problem
from doppler.problem.placement_problem import PlacementProblem
from doppler.problem.published_format import problem_from_published_text
from doppler.problem.stg_format import is_stg_text, problem_from_stg_text


def load_problem(path: str | Path, num_devices: int | None = None) -> PlacementProblem:
    """Reads a problem: this project's JSON, the published DOPPLER text format, or an STG file.

    Args:
        path: the file.
        num_devices: needed for the text formats, which name no devices; for JSON, which does, a
            number that differs from the file's is refused.

    Returns:
        The validated problem.

    Raises:
        FileFormatError: the file is missing, truncated or malformed; the message names the file and
            the line, op or field.
    """
    if not isinstance(path, (str, Path)):
        raise FileFormatError(f"path: {path!r} is not the path of a problem file")
    path = Path(path)
    if num_devices is not None:
        whole_number(num_devices, "num_devices", 1)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a byte order mark in front
    except FileNotFoundError as error:
        raise FileFormatError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file has
        raise FileFormatError(f"{str(path)!r}: cannot be read as text: {error}") from error
    if not text.strip():
        raise FileFormatError(f"{path}: the file is empty")
    if text.lstrip().startswith(("{", "[")):
        return problem_from_json(text, str(path), num_devices)
    if is_stg_text(text, str(path)):
        return problem_from_stg_text(text, str(path), num_devices)
    return problem_from_published_text(text, str(path), num_devices)


def save_problem(problem: PlacementProblem, path: str | Path) -> None:
    """Writes a problem in this project's JSON format; `load_problem` reads the same arrays back."""
    write_json_problem(problem, Path(path))
