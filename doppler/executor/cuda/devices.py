"""Which GPU each device is, what it is called, and how tensors get from one GPU to another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch

from doppler.checks import whole_number
from doppler.errors import ConfigurationError
from doppler.executor.cuda.streams import Event, Streams
from doppler.executor.environment import name_devices
from doppler.hardware import Device, Link, Topology, fully_connected

PEER_TEST_ELEMENTS = 1 << 18
"""Enough to be cut into several packets, on which broken switches have been seen to fail."""
PEER_TEST_SECONDS = 5.0
COPIES = ("auto", "staged")
"""Whether GPUs that pass the self-test write to each other directly, or all copies go by host."""


@dataclass(frozen=True)
class CudaDevices:
    """Devices on GPUs. Several may share one: these are logical devices, with streams of their own.

    Args:
        gpus: GPU of each device. # (num_devices,)
        gpu_names: name of each device's GPU. # (num_devices,)
    """

    gpus: tuple[int, ...]
    gpu_names: tuple[str, ...]

    @classmethod
    def find(cls, cuda: Streams, num_devices: int, gpus: Sequence[int] | None) -> CudaDevices:
        """Deals devices to GPUs in turn.

        Args:
            cuda: knows the GPUs.
            num_devices: how many devices.
            gpus: those to use, in this order; None: all.

        Raises:
            ConfigurationError: no GPU, or one that is not there.
        """
        chosen = tuple(range(cuda.num_gpus)) if gpus is None else tuple(gpus)
        if not chosen:
            raise ConfigurationError("executor=cuda, gpus: names no GPU")
        for gpu in chosen:
            whole_number(gpu, "executor=cuda, gpus", 0)
            if gpu >= cuda.num_gpus:
                raise ConfigurationError(
                    f"executor=cuda, gpus: there is no GPU {gpu}; they are numbered 0 to "
                    f"{cuda.num_gpus - 1}"
                )
        dealt = tuple(chosen[device % len(chosen)] for device in range(num_devices))
        return cls(dealt, tuple(cuda.gpu_name(gpu) for gpu in dealt))

    @property
    def logical(self) -> bool:
        """Whether some devices share a GPU."""
        return len(set(self.gpus)) < len(self.gpus)

    @property
    def names(self) -> tuple[str, ...]:
        """`cuda1` for a GPU of its own, `cuda1.logical0` for a share of one."""
        names, seen = [], dict.fromkeys(self.gpus, 0)
        for gpu in self.gpus:
            shared = self.gpus.count(gpu) > 1
            names.append(f"cuda{gpu}.logical{seen[gpu]}" if shared else f"cuda{gpu}")
            seen[gpu] += 1
        return tuple(names)

    def topology(self) -> Topology:
        """These devices with a link each way between any two, of uncalibrated rates."""
        plain = fully_connected(len(self.gpus), name="cuda")
        return Topology(
            name=f"cudax{len(self.gpus)}{'_logical' if self.logical else ''}",
            devices=tuple(Device(name) for name in self.names),
            links=tuple(
                Link(link.source, link.target, link.bandwidth, link.latency) for link in plain.links
            ),
        )

    def describe(self) -> dict[str, Any]:
        """Entries of a measurement's environment."""
        names = dict(zip(self.gpus, self.gpu_names, strict=True))
        card_names = [names.get(gpu, "") for gpu in range(max(names) + 1)]
        entries: dict[str, Any] = {
            "device_names": name_devices(list(self.gpus), card_names),
            "devices": list(self.names),
            "logical_devices": self.logical,
        }
        if self.logical:
            entries["note"] = "logical devices: some devices share a GPU and its memory bandwidth"
        return entries


def find_peers(cuda: Streams, gpus: Sequence[int]) -> frozenset[tuple[int, int]]:
    """Pairs (source, target) of different GPUs between which a direct copy arrived unharmed.

    What the driver says is not enough: behind some switches copies that it allows arrive wrong.
    """
    return frozenset(
        pair for pair in permutations(sorted(set(gpus)), 2) if _copies_unharmed(cuda, *pair)
    )


def _copies_unharmed(cuda: Streams, source: int, target: int) -> bool:
    try:
        if not cuda.can_reach(source, target):
            return False
        pattern = torch.arange(PEER_TEST_ELEMENTS, dtype=torch.int32)
        streams = [cuda.make_stream(gpu, urgent=True) for gpu in (target, source)]
        sent = cuda.upload(pattern, source)
        arrived = cuda.upload(torch.zeros_like(pattern), target)
        cuda.copy(arrived, sent, streams)
        event = cuda.make_event()
        cuda.record(event, streams[1])
        if not becomes_reached(cuda, [event], PEER_TEST_SECONDS):
            return False
        return torch.equal(cuda.download(arrived), pattern)
    except RuntimeError:
        return False


def becomes_reached(cuda: Streams, events: Sequence[Event], seconds: float) -> bool:
    """Waits until all events are reached, but no longer than so many seconds."""
    deadline = time.monotonic() + seconds
    for event in events:
        while not cuda.reached(event):
            if time.monotonic() > deadline:
                return False
            time.sleep(1e-4)
    return True
