"""Reading what W&B writes offline, without W&B."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

BLOCK, FILE_HEADER, RECORD_HEADER = 32768, 7, 7
FULL, LAST = 1, 4


def read_records(stream: Path) -> list[Any]:
    """The records of an offline run file: LevelDB's log format behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at = stream.read_bytes(), FILE_HEADER
    records, parts = [], b""
    while at + RECORD_HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < RECORD_HEADER:  # no header fits in what is left of the block
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + RECORD_HEADER])
        parts += data[at + RECORD_HEADER : at + RECORD_HEADER + length]
        at += RECORD_HEADER + length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


def run_files(folder: Path) -> list[Path]:
    """The offline run files of a run folder, oldest first."""
    return sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))


def exit_records(folder: Path, expected: int, timeout_s: float = 20.0) -> list[int]:
    """Exit codes with which the W&B runs of a run folder were finished, oldest first.

    W&B's own process writes them, a moment after `finish` has returned: waits for `expected`.
    """
    end = time.monotonic() + timeout_s
    while True:
        codes = [
            record.exit.exit_code
            for stream in run_files(folder)
            for record in read_records(stream)
            if record.HasField("exit")
        ]
        if len(codes) >= expected or time.monotonic() > end:
            return codes
        time.sleep(0.1)
