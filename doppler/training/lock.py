"""A lock on a run folder, so that no two processes train into it at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from doppler.errors import CheckpointError

LOCK_NAME = ".lock"


@contextmanager
def locked_folder(folder: Path | None) -> Iterator[None]:
    """Holds the lock on a folder, which is made when missing; None locks nothing.

    The system releases it when the process ends, however it ends; the file stays and says nothing.

    Raises:
        CheckpointError: another trainer, of this or another process, holds it, or the folder
            cannot be written to.
    """
    if folder is None:
        yield
        return
    path = folder / LOCK_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{folder}: another process trains in this folder; wait for it or end it"
            ) from error
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be locked: {error.strerror}") from error
        yield
    finally:
        os.close(handle)
