"""A calibration profile: what kernels, dispatch and copies cost on one machine."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from doppler.checks import shown
from doppler.errors import ConfigurationError, FileFormatError, ProfileError
from doppler.executor.base import Executable
from doppler.executor.environment import describe_environment
from doppler.files import write_text_atomically
from doppler.hardware import CostModel, Device, Link, Topology
from doppler.simulator.noise import EmpiricalNoise

FORMAT = "doppler-profile"
VERSION = 1
CONDITIONS = ("busy", "alone")
"""Whether the other devices work at the same time; `busy` is the default of a cost model."""

MOST_FACTORS = 64
"""How many quantiles of a kernel's durations a profile keeps at most."""

BACKENDS = ("cpu",)
"""Executors that profiles may be of."""

LEAST_BANDWIDTH = 1.0
"""Slower links make seconds that overflow, and are no measurement. [B/s]"""

PROFILE_FIELDS = (
    "format",
    "version",
    "workloads",
    "environment",
    "dispatch_gap",
    "dispatch_empty",
    "copies",
    "kernels",
    "info",
)

IDENTITY = ("cpu_model", "architecture", "num_cpus", "torch_version")
"""Entries of the environment that must agree with the present ones."""


@dataclass(frozen=True)
class KernelTiming:
    """Duration of a kernel signature.

    Args:
        busy: while all other devices work too. [s]
        alone: while all other devices idle. [s]
        variation: coefficient of variation of the busy durations.
        samples: how many busy durations there were.
        factors: evenly spaced quantiles of the busy durations over their mean; empty in profiles
            that were written before there were any.
    """

    busy: float
    alone: float
    variation: float
    samples: int
    factors: tuple[float, ...] = ()

    def spread(self) -> np.ndarray:
        """Busy durations over their mean, as measured; else lognormal ones of equal variation."""
        if self.factors:
            return np.array(self.factors)
        sigma = math.sqrt(math.log1p(self.variation**2))
        normal = NormalDist()
        quantiles = [normal.inv_cdf((i + 0.5) / MOST_FACTORS) for i in range(MOST_FACTORS)]
        factors = np.exp(sigma * np.array(quantiles))
        return factors / factors.mean()


@dataclass(frozen=True)
class CopyTiming:
    """Seconds of a copy between two devices: `latency + bytes / bandwidth`.

    Args:
        latency: from the end of the producing op to the start of the copy, while devices work. [s]
        latency_alone: the same while they idle, with the hand-over to the consumer. [s]
        bandwidth: [B/s]
        sweep: (bytes, seconds) from end of producer to start of consumer, devices idle. [B], [s]
    """

    latency: float
    latency_alone: float
    bandwidth: float
    sweep: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Profile:
    """What one machine's devices cost; made by `calibrate`, kept as a JSON file.

    Args:
        workloads: names of the workloads whose kernels were timed.
        environment: see `describe_environment`.
        kernels: timing of each kernel signature.
        dispatch_gap: from the end of an op to the start of the next one on its device, in runs of
            the workloads; part of every op's seconds in `cost_model`. [s]
        dispatch_empty: device time per op on empty kernels, the executor's least overhead. [s]
        copies: None for one device.
    """

    workloads: tuple[str, ...]
    environment: Mapping[str, Any]
    kernels: Mapping[str, KernelTiming]
    dispatch_gap: float
    dispatch_empty: float
    copies: CopyTiming | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        return int(self.environment["num_devices"])

    @property
    def renew_command(self) -> str:
        """What to type to measure again."""
        return _renew_command(self.workloads, self.num_devices)

    def save(self, path: str | Path) -> None:
        """Writes a JSON file."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "workloads": list(self.workloads),
            "environment": dict(self.environment),
            "dispatch_gap": self.dispatch_gap,
            "dispatch_empty": self.dispatch_empty,
            "copies": None if self.copies is None else vars(self.copies),
            "kernels": {signature: vars(timing) for signature, timing in self.kernels.items()},
            "info": dict(self.info),
        }
        write_text_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path, strict: bool = True) -> Profile:
        """Reads a profile.

        Args:
            path: of the JSON file.
            strict: refuse a profile that was measured on another machine or with another torch.

        Raises:
            FileFormatError: naming file and field, if it is not a profile.
            ProfileError: if it is stale or foreign; the message has the command that renews it.
        """
        profile = _Reader(path).profile()
        if strict:
            profile.check_environment(str(path))
        return profile

    def check_environment(self, where: str = "profile") -> None:
        """Raises `ProfileError` unless machine and software are those that were measured."""
        present = describe_environment(self.environment["backend"], self.num_devices)
        for entry in IDENTITY:
            if self.environment.get(entry) != present[entry]:
                raise ProfileError(
                    f"{where}: measured with {entry} {self.environment.get(entry)!r}, but here it "
                    f"is {present[entry]!r}; renew it with: {self.renew_command}"
                )

    def topology(self, num_devices: int | None = None) -> Topology:
        """The devices with the measured links between them.

        Args:
            num_devices: must be the profile's; None takes it.

        Raises:
            ProfileError: if the profile is for another number of devices.
        """
        count = self.num_devices if num_devices is None else num_devices
        self._check_devices(count)
        backend = self.environment["backend"]
        links: tuple[Link, ...] = ()
        if self.copies is not None:
            links = tuple(
                Link(source, target, self.copies.bandwidth, self.copies.latency)
                for source in range(count)
                for target in range(count)
                if source != target
            )
        return Topology(
            name=f"calibrated_{backend}x{count}",
            devices=tuple(Device(f"{backend}{device}") for device in range(count)),
            links=links,
        )

    def cost_model(
        self, workload: Executable, topology: Topology, condition: str = "busy"
    ) -> CostModel:
        """Seconds of every op as measured, seconds of transfers from the topology's links.

        Args:
            workload: its kernel signatures are looked up.
            topology: usually `topology()` of this profile.
            condition: one of `CONDITIONS`.

        Raises:
            ProfileError: a signature was not measured, or another number of devices.
            ConfigurationError: an unknown condition.
        """
        if condition not in CONDITIONS:
            raise ConfigurationError(
                f"condition {condition!r} is unknown; known: {', '.join(CONDITIONS)}"
            )
        self._check_devices(topology.num_devices)
        seconds = np.empty(workload.graph.num_ops)
        for op, kernel in enumerate(workload.kernels):
            timing = self._timing(workload, kernel.signature)
            seconds[op] = getattr(timing, condition) + self.dispatch_gap
        return CostModel(
            op_seconds=np.repeat(seconds[:, None], topology.num_devices, axis=1),
            transfer_volume=workload.graph.require("output_bytes"),
            link_latency=np.array([link.latency for link in topology.links]),
            link_seconds_per_unit=np.array([1.0 / link.bandwidth for link in topology.links]),
            source=f"calibrated {condition} on {self.environment.get('cpu_model')}, "
            f"{self.environment.get('date')}",
        )

    def noise(self, workload: Executable) -> EmpiricalNoise:
        """The measured spread of every op's seconds around those of `cost_model`.

        Each op's factor is drawn from those of its kernel signature; transfers have none.

        Raises:
            ProfileError: a signature was not measured.
        """
        samples = {}
        for kernel in workload.kernels:
            timing = self._timing(workload, kernel.signature)
            total = timing.busy + self.dispatch_gap
            seconds = timing.busy * timing.spread() + self.dispatch_gap
            samples[kernel.signature] = (seconds / total if total > 0 else seconds + 1.0).tolist()
        return EmpiricalNoise(samples, tuple(kernel.signature for kernel in workload.kernels))

    def _timing(self, workload: Executable, signature: str) -> KernelTiming:
        timing = self.kernels.get(signature)
        if timing is None:
            op = [kernel.signature for kernel in workload.kernels].index(signature)
            raise ProfileError(
                f"workload {workload.name!r}, op {op} ({workload.graph.op_name(op)}): kernel "
                f"{signature!r} was not measured (the profile is about "
                f"{', '.join(self.workloads)}); measure it with: "
                f"{_renew_command((workload.name,), self.num_devices)}"
            )
        return timing

    def _check_devices(self, num_devices: int) -> None:
        if num_devices != self.num_devices:
            raise ProfileError(
                f"the profile was measured with {self.num_devices} devices at work, not "
                f"{num_devices}; measure with: {_renew_command(self.workloads, num_devices)}"
            )


def _renew_command(workloads: tuple[str, ...], num_devices: int) -> str:
    names = ",".join(workloads)
    multirun = " -m" if len(workloads) > 1 else ""
    return (
        f"python scripts/calibrate.py{multirun} workload={names} topology.num_devices={num_devices}"
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

    def profile(self) -> Profile:
        try:
            document = json.loads(Path(self.path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{self.path}: cannot be read as a calibration profile: {error}"
            ) from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise self._error("format", f'not a calibration profile ("{FORMAT}" expected)')
        if document.get("version") != VERSION:
            raise self._error("version", f"{document.get('version')!r} is not {VERSION}")
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
        return Profile(
            workloads=tuple(str(name) for name in workloads),
            environment=environment,
            kernels={signature: self._kernel(signature, kernels) for signature in kernels},
            dispatch_gap=self._seconds(document, "dispatch_gap"),
            dispatch_empty=self._seconds(document, "dispatch_empty"),
            copies=None if copies is None else self._copies(copies),
            info=self._get(document, "info", dict),
        )

    def _kernel(self, signature: str, kernels: dict[str, Any]) -> KernelTiming:
        where = f"kernels[{signature!r}]."
        entry = self._get(kernels, signature, dict, "kernels.")
        self._known(entry, {field.name for field in fields(KernelTiming)}, where)
        if self._get(entry, "samples", int, where) < 0:
            raise self._error(where + "samples", f"{entry['samples']} is below 0")
        return KernelTiming(
            busy=self._seconds(entry, "busy", where),
            alone=self._seconds(entry, "alone", where),
            variation=self._seconds(entry, "variation", where),
            samples=self._get(entry, "samples", int, where),
            factors=self._factors(entry, where),
        )

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
        bandwidth = self._seconds(entry, "bandwidth", "copies.")
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
            latency=self._seconds(entry, "latency", "copies."),
            latency_alone=self._seconds(entry, "latency_alone", "copies."),
            bandwidth=bandwidth,
            sweep=tuple((int(size), float(seconds)) for size, seconds in sweep),
        )

    def _seconds(self, table: dict[str, Any], key: str, where: str = "") -> float:
        value = self._get(table, key, (int, float), where)
        if not _is_amount(value):
            raise self._error(where + key, f"{shown(value)} is not finite and >= 0")
        return float(value)

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
