"""Network models: which channels a link occupies while it carries a transfer.

A channel carries one transfer at a time; a hop starts only when every channel of its link is free.
That one table is all that the simulator and the validation of schedules know about a network, so
that another model is another function here and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from doppler.errors import ConfigurationError
from doppler.hardware import Topology

Channels = list[tuple[int, ...]]
"""For each link the ids of the channels that it occupies."""


def _contention_free(topology: Topology) -> Channels:
    """As many transfers at once as like; the published simulator's world."""
    return [() for _ in topology.links]


def _serial_links(topology: Topology) -> Channels:
    """A directed link carries one transfer at a time."""
    return [(link,) for link in range(topology.num_links)]


def _one_port(topology: Topology) -> Channels:
    """An endpoint sends one and receives one transfer at a time."""
    receive = topology.num_endpoints
    return [(link.source, receive + link.target) for link in topology.links]


def _shared_bus(topology: Topology) -> Channels:
    """A bus carries one transfer at a time, as PCIe without peer-to-peer copies.

    Links that name a bus share it; all others share the topology's one unnamed bus, so that where
    no link names one, one transfer is under way at a time. A route through a host occupies the bus
    hop by hop.
    """
    buses: dict[str | None, int] = {}
    return [(buses.setdefault(link.bus, len(buses)),) for link in topology.links]


_MODELS: dict[str, Callable[[Topology], Channels]] = {
    "contention_free": _contention_free,
    "serial_links": _serial_links,
    "one_port": _one_port,
    "shared_bus": _shared_bus,
}

NETWORKS = tuple(_MODELS)
"""Names of the network models."""


def link_channels(topology: Topology, network: str) -> Channels:
    """Channels of every link under a network model.

    Raises:
        ConfigurationError: if no network model has that name.
    """
    if not isinstance(network, str) or network not in _MODELS:
        raise ConfigurationError(f"network {network!r} is unknown; known: {', '.join(NETWORKS)}")
    return _MODELS[network](topology)
