"""Reads calibration profiles and names file and field of whatever is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from doppler.checks import shown
from doppler.errors import FileFormatError, ProfileError
from doppler.executor.calibration.timings import CopyTiming, KernelTiming

FORMAT = "doppler-profile"
VERSION = 3

BACKENDS = ("cpu", "cuda")
"""Executors that profiles may be of."""

LEAST_BANDWIDTH = 1.0
"""Slower links make seconds that overflow, and are no measurement. [B/s]"""

PROFILE_FIELDS = (
    "format",
    "version",
    "workloads",
    "environment",
    "dispatch_gap",
    "dispatch_gap_alone",
    "dispatch_empty",
    "copies",
    "kernels",
    "info",
)


def read_profile(path: str | Path) -> dict[str, Any]:
    """The fields of a `Profile`, checked.

    Raises:
        FileFormatError: naming file and field, if it is not a profile.
        ProfileError: if it is of another version; the message has the command that renews it.
    """
    return _Reader(path).profile()


def renew_command(workloads: tuple[str, ...], num_devices: int, backend: str = "cpu") -> str:
    """What to type to measure workloads again."""
    names = ",".join(workloads)
    multirun = " -m" if len(workloads) > 1 else ""
    executor = "" if backend == "cpu" else f" executor={backend}"
    return (
        f"python scripts/calibrate.py{multirun} workload={names} "
        f"topology.num_devices={num_devices}{executor}"
    )


def _is_amount(value: Any) -> bool:
    """Whether it is a finite number >= 0; an int beyond every float is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(0 <= value <= sys.float_info.max)


class _Reader:
    """Reads a profile and names file and field of whatever is wrong."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def profile(self) -> dict[str, Any]:
        try:
            document = json.loads(Path(self.path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{self.path}: cannot be read as a calibration profile: {error}"
            ) from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise self._error("format", f'not a calibration profile ("{FORMAT}" expected)')
        if document.get("version") != VERSION:
            raise self._stale(document)
        self._known(document, PROFILE_FIELDS, "")
        environment = self._get(document, "environment", dict)
        backend = self._get(environment, "backend", str, "environment.")
        if backend not in BACKENDS:
            raise self._error(
                "environment.backend", f"{backend!r} is unknown; known: {', '.join(BACKENDS)}"
            )
        num_devices = self._get(environment, "num_devices", int, "environment.")
        if num_devices < 1:
            raise self._error("environment.num_devices", "is below 1")
        kernels = self._get(document, "kernels", dict)
        copies = self._get(document, "copies", dict, optional=True)
        if copies is None and num_devices > 1:
            raise self._error("copies", f"is null, but there are {num_devices} devices")
        workloads = self._get(document, "workloads", list)
        return {
            "workloads": tuple(str(name) for name in workloads),
            "environment": environment,
            "kernels": {signature: self._kernel(signature, kernels) for signature in kernels},
            "dispatch_gap": self._amount(document, "dispatch_gap"),
            "dispatch_gap_alone": self._optional(document, "dispatch_gap_alone"),
            "dispatch_empty": self._amount(document, "dispatch_empty"),
            "copies": None if copies is None else self._copies(copies),
            "info": self._get(document, "info", dict),
        }

    def _stale(self, document: dict[str, Any]) -> ProfileError | FileFormatError:
        """The error about a profile of an earlier version, or one whose version cannot be."""
        version = document.get("version")
        if isinstance(version, bool) or not isinstance(version, int) or not 0 < version < VERSION:
            return self._error("version", f"{shown(version)} is not {VERSION}")
        workloads = self._get(document, "workloads", list)
        environment = self._get(document, "environment", dict)
        command = renew_command(
            tuple(str(name) for name in workloads),
            self._get(environment, "num_devices", int, "environment."),
        )
        return ProfileError(
            f"{self.path}, version: {version}, measured by an earlier version of this software, "
            f"which writes {VERSION}; renew it with: {command}"
        )

    def _kernel(self, signature: str, kernels: dict[str, Any]) -> KernelTiming:
        where = f"kernels[{signature!r}]."
        entry = self._get(kernels, signature, dict, "kernels.")
        self._known(entry, {field.name for field in fields(KernelTiming)}, where)
        if self._get(entry, "samples", int, where) < 0:
            raise self._error(where + "samples", f"{entry['samples']} is below 0")
        return KernelTiming(
            busy=self._amount(entry, "busy", where),
            alone=self._amount(entry, "alone", where),
            variation=self._amount(entry, "variation", where),
            samples=self._get(entry, "samples", int, where),
            factors=self._factors(entry, where),
            share=self._share(entry, where),
            transfers=self._amount(entry, "transfers", where),
            flops=self._optional(entry, "flops", where),
            traffic=self._optional(entry, "traffic", where),
        )

    def _share(self, entry: dict[str, Any], where: str) -> float:
        share = self._amount(entry, "share", where) if "share" in entry else 1.0
        if share > 1:
            raise self._error(where + "share", f"{share:g} is above 1")
        return share

    def _factors(self, entry: dict[str, Any], where: str) -> tuple[float, ...]:
        if "factors" not in entry:
            return ()
        values = self._get(entry, "factors", list, where)
        for value in values:
            if not _is_amount(value):
                raise self._error(where + "factors", f"{shown(value)} is not finite and >= 0")
        return tuple(float(value) for value in values)

    def _copies(self, entry: dict[str, Any]) -> CopyTiming:
        self._known(entry, {field.name for field in fields(CopyTiming)}, "copies.")
        bandwidth = self._amount(entry, "bandwidth", "copies.")
        if bandwidth < LEAST_BANDWIDTH:
            raise self._error("copies.bandwidth", f"{bandwidth:g} is below {LEAST_BANDWIDTH:g} B/s")
        sweep = self._get(entry, "sweep", list, "copies.")
        for number, point in enumerate(sweep):
            pair = isinstance(point, list) and len(point) == 2
            if not (pair and _is_amount(point[0]) and _is_amount(point[1])):
                raise self._error(
                    f"copies.sweep[{number}]",
                    f"{shown(point)} is not [bytes, seconds], both finite and >= 0",
                )
        return CopyTiming(
            latency=self._amount(entry, "latency", "copies."),
            latency_alone=self._amount(entry, "latency_alone", "copies."),
            bandwidth=bandwidth,
            interruption=self._amount(entry, "interruption", "copies."),
            sweep=tuple((int(size), float(seconds)) for size, seconds in sweep),
        )

    def _amount(self, table: dict[str, Any], key: str, where: str = "") -> float:
        value = self._get(table, key, (int, float), where)
        if not _is_amount(value):
            raise self._error(where + key, f"{shown(value)} is not finite and >= 0")
        return float(value)

    def _optional(self, table: dict[str, Any], key: str, where: str = "") -> float | None:
        return None if table.get(key) is None else self._amount(table, key, where)

    def _get(
        self,
        table: dict[str, Any],
        key: str,
        kind: type | tuple[type, ...],
        where: str = "",
        optional: bool = False,
    ) -> Any:
        if key not in table:
            raise self._error(where + key, "is missing")
        value = table[key]
        if optional and value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self._error(where + key, f"{shown(value)} has the wrong type")
        return value

    def _known(self, table: dict[str, Any], names: Collection[str], where: str) -> None:
        for key in table:
            if key not in names:
                raise self._error(where + key, "is unknown")

    def _error(self, entry: str, message: str) -> FileFormatError:
        return FileFormatError(f"{self.path}, {entry}: {message}")
