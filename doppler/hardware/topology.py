"""Devices and the directed links between them, with routes where there is no direct link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

from doppler.checks import LARGEST_INT, name, number, shown, whole_number
from doppler.errors import ConfigurationError, InvalidProblemError

MOST_SLOTS = 1 << 20
"""Run-time memory grows with the compute slots, which no device has more of."""
REFERENCE_BYTES = 1 << 20
"""Routes are the fastest ones for a tensor of this size. [B]"""


@dataclass(frozen=True)
class Device:
    """A placement target.

    Args:
        name: unique within its topology.
        flops_per_second: sustained rate, used by the roofline cost model. [FLOP/s]
        memory_bandwidth: sustained rate of device memory, used by the roofline model. [B/s]
        memory_bytes: capacity, or None where unknown and unchecked. [B]
        compute_slots: how many ops run at a time.
    """

    name: str
    flops_per_second: float = 1e13
    memory_bandwidth: float = 5e11
    memory_bytes: float | None = None
    compute_slots: int = 1

    def __post_init__(self) -> None:
        where = f"device {shown(self.name)}"
        name(self.name, f"{where}, name", InvalidProblemError)
        for label in ("flops_per_second", "memory_bandwidth", "memory_bytes"):
            value = getattr(self, label)
            if value is not None or label != "memory_bytes":
                read = number(value, f"{where}, {label}", InvalidProblemError, above=True)
                object.__setattr__(self, label, read)
        slots = whole_number(
            self.compute_slots, f"{where}, compute_slots", 1, InvalidProblemError, MOST_SLOTS
        )
        object.__setattr__(self, "compute_slots", slots)


@dataclass(frozen=True)
class Link:
    """A directed connection between two endpoints (devices, then hosts, in one numbering).

    Args:
        source: endpoint that sends.
        target: endpoint that receives.
        bandwidth: infinite where a source file gives seconds only. [B/s]
        latency: added once per transfer. [s]
        bus: name of the bus that carries the link, for the `shared_bus` network; the links that
            name none share one bus of their topology.
    """

    source: int
    target: int
    bandwidth: float
    latency: float = 0.0
    bus: str | None = None

    def __post_init__(self) -> None:
        where = f"link {shown(self.source)} -> {shown(self.target)}"
        for label in ("source", "target"):
            end = whole_number(
                getattr(self, label), f"{where}, {label}", 0, InvalidProblemError, LARGEST_INT
            )
            object.__setattr__(self, label, end)
        for label, above in (("bandwidth", True), ("latency", False)):
            read = number(
                getattr(self, label), f"{where}, {label}", InvalidProblemError,
                above=above, infinite=above,
            )  # fmt: skip
            object.__setattr__(self, label, read)
        if self.source == self.target:
            raise InvalidProblemError(f"{where}: a link cannot lead back to its source")
        if self.bus is not None:
            name(self.bus, f"{where}, bus", InvalidProblemError)


@dataclass(frozen=True)
class Topology:
    """Devices plus links; endpoints `num_devices`.. are hosts, which route but run nothing.

    Every device must reach every other one. A transfer takes the fastest route for a tensor of
    `REFERENCE_BYTES` and occupies the links of a longer route one after the other.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        name(self.name, "topology, name", InvalidProblemError)
        if not isinstance(self.hosts, (tuple, list)):
            raise InvalidProblemError(
                f"topology {self.name!r}, hosts: {shown(self.hosts)} is not a list of names"
            )
        for index, host in enumerate(self.hosts):
            name(host, f"topology {self.name!r}, hosts[{index}]", InvalidProblemError)
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "links", tuple(self.links))
        object.__setattr__(self, "hosts", tuple(self.hosts))
        if not self.devices:
            raise InvalidProblemError(f"topology {self.name!r}: no devices")
        names = [device.name for device in self.devices] + list(self.hosts)
        if len(set(names)) != len(names):
            raise InvalidProblemError(
                f"topology {self.name!r}: two endpoints share a name: {names}"
            )
        seen = set()
        for link in self.links:
            ends = (link.source, link.target)
            if not all(0 <= end < len(names) for end in ends):
                raise InvalidProblemError(
                    f"topology {self.name!r}, link {ends[0]} -> {ends[1]}: endpoints are numbered "
                    f"0 to {len(names) - 1}"
                )
            if ends in seen:
                raise InvalidProblemError(
                    f"topology {self.name!r}: link {ends[0]} -> {ends[1]} appears twice"
                )
            seen.add(ends)
        _ = self.routes  # fails here, with names, when a device cannot reach another

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def num_links(self) -> int:
        return len(self.links)

    @property
    def num_endpoints(self) -> int:
        return len(self.devices) + len(self.hosts)

    @cached_property
    def compute_slots(self) -> np.ndarray:
        """How many ops each device runs at a time. # (num_devices,)"""
        return np.array([device.compute_slots for device in self.devices], np.int64)

    @cached_property
    def memory_bytes(self) -> np.ndarray:
        """Capacity of each device, infinite where unknown. # (num_devices,) [B]"""
        return np.array(
            [np.inf if d.memory_bytes is None else d.memory_bytes for d in self.devices]
        )

    @cached_property
    def link_ends(self) -> np.ndarray:
        """(source, target) endpoint of each link. # (num_links, 2)"""
        return np.array([(link.source, link.target) for link in self.links], np.int64).reshape(
            -1, 2
        )

    @cached_property
    def routes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """`routes[s][d]`: ids of the links from device s to device d, empty when s is d."""
        return tuple(self._routes_from(source) for source in range(self.num_devices))

    def endpoint_name(self, endpoint: int) -> str:
        """Name of a device, or of a host for the ids behind the devices."""
        if endpoint < self.num_devices:
            return self.devices[endpoint].name
        return self.hosts[endpoint - self.num_devices]

    def _routes_from(self, source: int) -> tuple[tuple[int, ...], ...]:
        """Dijkstra over seconds for the reference size, ties to fewer hops, then lower links."""
        best: dict[int, tuple[float, int, tuple[int, ...]]] = {}
        heap: list[tuple[float, int, tuple[int, ...], int]] = [(0.0, 0, (), source)]
        while heap:
            seconds, hops, route, endpoint = heappop(heap)
            if endpoint in best:
                continue
            best[endpoint] = (seconds, hops, route)
            if endpoint != source and endpoint < self.num_devices:
                continue  # devices do not relay for one another; hosts do
            for index, link in enumerate(self.links):
                if link.source == endpoint and link.target not in best:
                    step = link.latency + REFERENCE_BYTES / link.bandwidth
                    heappush(heap, (seconds + step, hops + 1, (*route, index), link.target))
        missing = [d for d in range(self.num_devices) if d not in best]
        if missing:
            raise InvalidProblemError(
                f"topology {self.name!r}: no route from {self.devices[source].name!r} to "
                f"{self.devices[missing[0]].name!r}"
            )
        return tuple(best[target][2] for target in range(self.num_devices))


def fully_connected(
    num_devices: int,
    *,
    name: str = "fully_connected",
    flops_per_second: float = 1e13,
    memory_bandwidth: float = 5e11,
    memory_bytes: float | None = None,
    bandwidth: float = 1e10,
    latency: float = 1e-5,
) -> Topology:
    """Equal devices with a direct link each way between any two.

    Raises:
        InvalidProblemError: if a count or a rate is not above 0.
    """
    _check_count(num_devices)
    return Topology(
        name=f"{name}x{num_devices}",
        devices=tuple(
            Device(f"{name}{d}", flops_per_second, memory_bandwidth, memory_bytes)
            for d in range(num_devices)
        ),
        links=tuple(
            Link(s, d, bandwidth, latency)
            for s in range(num_devices)
            for d in range(num_devices)
            if s != d
        ),
    )


def _host_staged(num_devices: int) -> Topology:
    """PCIe cards without peer-to-peer: every transfer goes up to the host and down again."""
    _check_count(num_devices)
    up = tuple(Link(d, num_devices, 1.2e10, 8e-6) for d in range(num_devices))
    down = tuple(Link(num_devices, d, 1.2e10, 8e-6) for d in range(num_devices))
    return Topology(
        name=f"host_stagedx{num_devices}",
        devices=tuple(Device(f"gpu{d}", 9e12, 5.5e11, 16e9) for d in range(num_devices)),
        links=up + down,
        hosts=("host",),
    )


def _p100(num_devices: int) -> Topology:
    """P100 16 GB, fp32 at about 85 % of the 10.6 TFLOP/s peak, PCIe 3.0 x16 peer-to-peer."""
    return fully_connected(
        num_devices, name="p100", flops_per_second=9e12, memory_bandwidth=5.5e11,
        memory_bytes=16e9, bandwidth=1.1e10, latency=1e-5,
    )  # fmt: skip


def _v100(num_devices: int) -> Topology:
    """V100 32 GB, fp32 at about 85 % of the 15.7 TFLOP/s peak, one NVLink 2 between any two."""
    return fully_connected(
        num_devices, name="v100", flops_per_second=1.3e13, memory_bandwidth=8e11,
        memory_bytes=32e9, bandwidth=2.3e10, latency=8e-6,
    )  # fmt: skip


def _cpu(num_devices: int) -> Topology:
    """CPU cores as devices: one thread each, copies through shared memory (uncalibrated)."""
    return fully_connected(
        num_devices, name="cpu", flops_per_second=1e11, memory_bandwidth=1e10,
        bandwidth=1e10, latency=3e-5,
    )  # fmt: skip


def _ideal(num_devices: int) -> Topology:
    """Links of no latency and unbounded bandwidth: communication is free."""
    return fully_connected(num_devices, name="ideal", bandwidth=np.inf, latency=0.0)


PRESETS: dict[str, Callable[[int], Topology]] = {
    "cpu": _cpu,
    "host_staged": _host_staged,
    "ideal": _ideal,
    "p100": _p100,
    "v100": _v100,
}
"""Topologies by name; each takes the number of devices. Rates are data-sheet estimates."""


def make_topology(preset: str, num_devices: int) -> Topology:
    """Returns a preset topology.

    Raises:
        ConfigurationError: if no preset has that name.
    """
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigurationError(
            f"topology {preset!r} is unknown; the presets are {', '.join(sorted(PRESETS))}"
        )
    return PRESETS[preset](num_devices)


def _check_count(num_devices: int) -> None:
    whole_number(num_devices, "num_devices", 1, InvalidProblemError)
