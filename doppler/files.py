"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from doppler.errors import DopplerError


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a temporary file beside `path`, then renames it over `path`.

    Args:
        path: the final name; its folder is made when missing.
        write: called with the temporary path (same suffix as `path`).

    Raises:
        DopplerError: if the folder cannot be written to; `path` is then as it was before.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent
        )
    except OSError as error:
        raise DopplerError(f"{path}: cannot be written: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomically(path: str | Path, text: str) -> None:
    """Writes UTF-8 text under a temporary name and renames it."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)
