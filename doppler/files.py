"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doppler.errors import DopplerError, FileFormatError


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a temporary file beside `path`, then renames it over `path`.

    A symbolic link stays one: the file that it points to is replaced.

    Args:
        path: the final name; its folder is made when missing.
        write: called with the temporary path (same suffix as `path`).

    Raises:
        DopplerError: if the file cannot be written (folder, disk, name, text that is not
            Unicode), or is something else than a file, such as a device or a pipe; `path` is then
            as it was before.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        if path.is_symlink():
            path = path.resolve()
        check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DopplerError(f"{path}: cannot be written: {reason}") from error
    except UnicodeEncodeError as error:  # a lone surrogate, in the name or in what is written
        raise DopplerError(f"{str(path)!a}: cannot be written: {error}") from error
    except ValueError as error:
        if "\0" not in str(path):
            raise
        raise DopplerError(f"{str(path)!a}: cannot be written: {error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Raises `DopplerError` if a device, a pipe or a socket has this name.

    Renaming would put a file in its place, for every other program of the machine too.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DopplerError(f"{path}: cannot be written: it is a device, a pipe or a socket")


def write_text_atomically(path: str | Path, text: str) -> None:
    """Writes UTF-8 text under a temporary name and renames it."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def parse_json(text: str, path: str | Path) -> Any:
    """Parses JSON in which no object names a field twice.

    Raises:
        FileFormatError: naming the file and what is wrong with it.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}: not complete JSON ({error}); is it truncated?") from error
    except RecursionError as error:
        raise FileFormatError(f"{path}: JSON nested too deeply") from error
    except ValueError as error:  # more digits than Python reads, or a repeated field
        raise FileFormatError(f"{path}: JSON that cannot be read: {error}") from error


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r} appears twice in one object")
    return fields
