"""A calibration profile: what kernels, dispatch and copies cost on one machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError, ProfileError
from doppler.executor.base import Executable
from doppler.executor.calibration.profile_file import FORMAT, VERSION, read_profile, renew_command
from doppler.executor.calibration.regression import KernelRegression, fit_regression, kernel_sizes
from doppler.executor.calibration.timings import CopyTiming, KernelTiming
from doppler.executor.environment import describe_environment
from doppler.files import write_text_atomically
from doppler.hardware import CostModel, Device, Link, Topology
from doppler.simulator.noise import EmpiricalNoise

CONDITIONS = ("busy", "alone")
"""Whether the other devices work at the same time; `busy` is the default of a cost model."""

IDENTITY = (
    "cpu_model",
    "architecture",
    "num_cpus",
    "torch_version",
    "threads_per_device",
    "device_names",
)
"""Entries of the environment that must agree with the present ones."""


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
        info: how it was measured.
        dispatch_gap_alone: as `dispatch_gap`, in runs on one device while the others idle; None
            where that was not measured. [s]
    """

    workloads: tuple[str, ...]
    environment: Mapping[str, Any]
    kernels: Mapping[str, KernelTiming]
    dispatch_gap: float
    dispatch_empty: float
    copies: CopyTiming | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    dispatch_gap_alone: float | None = None

    @property
    def num_devices(self) -> int:
        return int(self.environment["num_devices"])

    @property
    def _backend(self) -> str:
        return str(self.environment["backend"])

    @property
    def renew_command(self) -> str:
        """What to type to measure again."""
        return renew_command(self.workloads, self.num_devices, self._backend)

    def save(self, path: str | Path) -> None:
        """Writes a JSON file."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "workloads": list(self.workloads),
            "environment": dict(self.environment),
            "dispatch_gap": self.dispatch_gap,
            "dispatch_gap_alone": self.dispatch_gap_alone,
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
        profile = cls(**read_profile(path))
        if strict:
            profile.check_environment(str(path))
        return profile

    def check_environment(self, where: str = "profile") -> None:
        """Raises `ProfileError` unless machine and software are those that were measured."""
        present = describe_environment(self._backend, self.num_devices)
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
        names = self.environment.get("devices")  # cards and logical devices have names of their own
        if not isinstance(names, list) or len(names) != count:
            names = [f"{backend}{device}" for device in range(count)]
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
            devices=tuple(Device(name) for name in names),
            links=links,
        )

    def cost_model(
        self, workload: Executable, topology: Topology, condition: str = "busy"
    ) -> CostModel:
        """Seconds of every op as measured, seconds of transfers from the topology's links.

        Ops whose kernel was not measured are estimated from their FLOPs and bytes where enough
        kernels were; the cost model's `source` says how many.

        Args:
            workload: its kernel signatures are looked up.
            topology: usually `topology()` of this profile.
            condition: one of `CONDITIONS`.

        Raises:
            ProfileError: a signature that was not measured and cannot be estimated, or another
                number of devices.
            ConfigurationError: an unknown condition.
        """
        if condition not in CONDITIONS:
            raise ConfigurationError(
                f"condition {condition!r} is unknown; known: {', '.join(CONDITIONS)}"
            )
        share = np.full(workload.graph.num_ops, float(condition == "busy"))
        return self.contended_cost_model(workload, topology, share, f"calibrated {condition}")

    def contended_cost_model(
        self,
        workload: Executable,
        topology: Topology,
        contention: np.ndarray,
        source: str,
        transfers: np.ndarray | None = None,
    ) -> CostModel:
        """As `cost_model`, with every op between `alone` and `busy`.

        Args:
            workload: its kernel signatures are looked up.
            topology: usually `topology()` of this profile.
            contention: 0 for an op that runs alone, 1 for one while the others are as busy as in
                the calibration, see `KernelTiming.contention`. # (num_ops,)
            source: how the costs were come by.
            transfers: how many transfers are under way during each op; None for as many as in the
                calibration, times the contention. # (num_ops,)
        """
        self._check_devices(topology.num_devices)
        timings = self.timings(workload)
        alone = np.array([timing.alone for timing in timings])
        busy = np.array([timing.busy for timing in timings])
        gap = self.dispatch_gap
        gap_alone = gap if self.dispatch_gap_alone is None else self.dispatch_gap_alone
        usual = np.array([timing.transfers for timing in timings])
        interruption = 0.0 if self.copies is None else self.copies.interruption
        if transfers is None:
            transfers = usual * contention
        uninterrupted = busy + gap - interruption * usual
        seconds = alone + gap_alone + (uninterrupted - alone - gap_alone) * contention
        seconds += interruption * transfers
        estimated = sum(timing.samples == 0 for timing in timings)
        if estimated and self.regression is not None:
            source += (
                f" ({estimated} of {len(timings)} ops estimated: {self.regression.describe()})"
            )
        return CostModel(
            # A busy mean below the one alone is noise; extrapolated it must not go below 0.
            op_seconds=np.repeat(np.maximum(seconds, 0.0)[:, None], topology.num_devices, axis=1),
            transfer_volume=workload.graph.require("output_bytes"),
            link_latency=np.array([link.latency for link in topology.links]),
            link_seconds_per_unit=np.array([1.0 / link.bandwidth for link in topology.links]),
            source=f"{source} on {self.environment.get('cpu_model')}, "
            f"{self.environment.get('date')}",
        )

    def noise(self, workload: Executable) -> EmpiricalNoise:
        """The measured spread of every op's seconds around those of `cost_model`.

        Each op's factor is drawn from those of its kernel signature; transfers have none.

        Raises:
            ProfileError: a signature was not measured and cannot be estimated.
        """
        samples = {}
        signatures = tuple(kernel.signature for kernel in workload.kernels)
        for signature, timing in zip(signatures, self.timings(workload), strict=True):
            total = timing.busy + self.dispatch_gap
            seconds = timing.busy * timing.spread() + self.dispatch_gap
            samples[signature] = (seconds / total if total > 0 else seconds + 1.0).tolist()
        return EmpiricalNoise(samples, signatures)

    @cached_property
    def regression(self) -> KernelRegression | None:
        """Estimates kernels that were not measured; None where too few were."""
        return fit_regression(self.kernels)

    def timings(self, workload: Executable) -> list[KernelTiming]:
        """The timing of every op, with 0 samples where it is estimated. # (num_ops,)

        Raises:
            ProfileError: a signature was not measured and cannot be estimated.
        """
        known = dict(self.kernels)
        signatures = [kernel.signature for kernel in workload.kernels]
        if not known.keys() >= set(signatures):
            sizes = kernel_sizes(workload)
            for op, signature in enumerate(signatures):
                if signature not in known:
                    known[signature] = self._estimate(workload, op, sizes[signature])
        return [known[signature] for signature in signatures]

    def _estimate(
        self, workload: Executable, op: int, sizes: tuple[float, float] | None
    ) -> KernelTiming:
        signature = workload.kernels[op].signature
        if self.regression is None or sizes is None:
            raise ProfileError(
                f"workload {workload.name!r}, op {op} ({workload.graph.op_name(op)}): kernel "
                f"{signature!r} was not measured (the profile is about "
                f"{', '.join(self.workloads)}); measure it with: "
                f"{renew_command((workload.name,), self.num_devices, self._backend)}"
            )
        return self.regression.timing(signature, *sizes)

    def _check_devices(self, num_devices: int) -> None:
        if num_devices != self.num_devices:
            raise ProfileError(
                f"the profile was measured with {self.num_devices} devices at work, not "
                f"{num_devices}; measure with: "
                f"{renew_command(self.workloads, num_devices, self._backend)}"
            )
