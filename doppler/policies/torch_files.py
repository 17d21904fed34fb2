"""Reading files of tensors: whole, of the right kind, and fitting, or refused with one message."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from doppler.errors import CheckpointError
from doppler.files import write_atomically

_COMMENT_LENGTH = 2
"""A zip archive without a comment ends with its comment's length, 0. [B]"""


def write_torch_file(path: str | Path, document: Mapping[str, Any]) -> None:
    """Writes a dict with `torch.save`, under a temporary name, and its digest behind it.

    The digest is the comment of the zip archive, which readers of such files pass over.
    """

    def write(temporary: Path) -> None:
        torch.save(dict(document), temporary)
        with open(temporary, "r+b") as stream:
            comment = _digest(stream.read())
            stream.seek(-_COMMENT_LENGTH, os.SEEK_END)
            stream.write(len(comment).to_bytes(_COMMENT_LENGTH, "little") + comment)

    write_atomically(path, write)


def read_torch_file(path: str | Path, kind: str, file_format: str, version: int) -> dict[str, Any]:
    """Reads a dict that `torch.save` wrote, after checking that no byte of it has changed.

    `torch.load` itself does not look at the checksums that `torch.save` writes, and so takes
    damaged weights for good ones. A file without a digest is checked by those checksums alone.

    Args:
        path: the file.
        kind: what it should be, for messages: "checkpoint".
        file_format, version: expected in the entries `format` and `version`.

    Raises:
        CheckpointError: missing, damaged, of another kind, or of another version.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such {kind}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged, comment = archive.testzip(), archive.comment
        if damaged is not None:
            raise zipfile.BadZipFile(f"its part {damaged!r} is damaged")
        if comment:
            raw = path.read_bytes()[: -len(comment) - _COMMENT_LENGTH] + bytes(_COMMENT_LENGTH)
            if comment != _digest(raw):
                raise zipfile.BadZipFile("it has changed since it was written")
        document = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile and torch raise many kinds for a damaged file
        raise CheckpointError(f"{path}: cannot be read as a {kind}: {error}") from error
    if not isinstance(document, dict) or document.get("format") != file_format:
        raise CheckpointError(f'{path}, format: not a {kind} ("{file_format}" expected)')
    if document.get("version") != version:
        raise CheckpointError(f"{path}, version: {document.get('version')!r} is not {version}")
    return document


def read_table(document: Mapping[str, Any], key: str, where: str | Path) -> dict[str, Any]:
    """An entry that must be there and be a dict.

    Raises:
        CheckpointError: it is missing or something else.
    """
    if key not in document:
        raise CheckpointError(f"{where}, {key}: is missing")
    if not isinstance(document[key], dict):
        raise CheckpointError(f"{where}, {key}: is no table of values")
    return document[key]


def load_weights(module: nn.Module, weights: Mapping[str, Any], where: str) -> None:
    """Loads weights into a module after checking every one of them.

    Args:
        module: what they are for.
        weights: by name.
        where: file and field, for messages.

    Raises:
        CheckpointError: one is missing, unknown, of another shape, or not finite.
    """
    expected = module.state_dict()
    for name in expected:
        if name not in weights:
            raise CheckpointError(f"{where}.{name}: is missing")
    for name, value in weights.items():
        if name not in expected:
            raise CheckpointError(f"{where}.{name}: this policy has no such weights")
        check_tensor(value, expected[name], f"{where}.{name}")
    module.load_state_dict(dict(weights))


def check_tensor(value: Any, like: Tensor, where: str) -> None:
    """Raises `CheckpointError` unless `value` is a finite tensor of the same shape and dtype."""
    if not isinstance(value, Tensor):
        raise CheckpointError(f"{where}: {type(value).__name__} is no tensor")
    if value.shape != like.shape or value.dtype != like.dtype:
        raise CheckpointError(
            f"{where}: {value.dtype} of shape {tuple(value.shape)}, expected {like.dtype} of shape "
            f"{tuple(like.shape)}"
        )
    if not bool(torch.isfinite(value).all()):
        raise CheckpointError(f"{where}: holds a number that is not finite")


def _digest(raw: bytes) -> bytes:
    return b"sha256:" + hashlib.sha256(raw).hexdigest().encode()
