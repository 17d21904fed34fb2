"""Seconds of an op on a device and of a transfer over a link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.checks import amounts, restore_frozen
from doppler.errors import InvalidProblemError
from doppler.graph import DataflowGraph
from doppler.hardware.topology import Topology


@dataclass(frozen=True, eq=False)
class CostModel:
    """What one graph costs on one topology.

    One hop of a transfer of op `v` over link `l` takes
    `link_latency[l] + transfer_volume[v] * link_seconds_per_unit[l]`. The unit of volume is the
    byte, except for sources that give transfer seconds directly: there the volume is in seconds and
    every link has latency 0 and one second per unit.

    Args:
        op_seconds: duration of each op on each device. # (num_ops, num_devices) [s]
        transfer_volume: what an op's output puts on a link. # (num_ops,) [B] or [s]
        link_latency: # (num_links,) [s]
        link_seconds_per_unit: inverse bandwidth. # (num_links,) [s/B] or [1]
        source: where the numbers come from, shown beside results.
    """

    op_seconds: np.ndarray
    transfer_volume: np.ndarray
    link_latency: np.ndarray
    link_seconds_per_unit: np.ndarray
    source: str

    def __post_init__(self) -> None:
        for label in ("op_seconds", "transfer_volume", "link_latency", "link_seconds_per_unit"):
            where = f"cost model ({self.source}), {label}"
            array = amounts(getattr(self, label), where, InvalidProblemError)
            bad = np.argwhere(~(np.isfinite(array) & (array >= 0)))
            if bad.size:
                entry = ", ".join(str(i) for i in bad[0])
                raise InvalidProblemError(
                    f"{where}[{entry}]: {array[tuple(bad[0])]} is not finite and >= 0"
                )
            object.__setattr__(self, label, array)

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_frozen(self, state)

    def scaled(self, factor: float) -> CostModel:
        """The same costs, every one multiplied by `factor`."""
        return CostModel(
            op_seconds=self.op_seconds * factor,
            transfer_volume=self.transfer_volume,
            link_latency=self.link_latency * factor,
            link_seconds_per_unit=self.link_seconds_per_unit * factor,
            source=f"{self.source}, times {factor:g}",
        )


def roofline_cost_model(
    graph: DataflowGraph, topology: Topology, op_overhead: float = 1e-5
) -> CostModel:
    """Costs from data-sheet rates: an op takes the longer of its arithmetic and its memory traffic.

    Memory traffic is the op's output plus its predecessors' outputs; inputs of the workload are
    left out because the graph does not know them.

    Args:
        graph: must know `flops` and `output_bytes`.
        topology: gives the rates.
        op_overhead: launch overhead of every op. [s]

    Raises:
        UnknownQuantityError: if the graph does not know FLOPs or bytes.

    Source: the roofline model, Williams, Waterman and Patterson (2009).
    """
    flops = graph.require("flops")
    output_bytes = graph.require("output_bytes")
    traffic = output_bytes.copy()
    producers, consumers = graph.edges.T
    np.add.at(traffic, consumers, output_bytes[producers])
    rates = np.array([device.flops_per_second for device in topology.devices])
    bandwidths = np.array([device.memory_bandwidth for device in topology.devices])
    return CostModel(
        op_seconds=op_overhead + np.maximum(flops[:, None] / rates, traffic[:, None] / bandwidths),
        transfer_volume=output_bytes,
        link_latency=np.array([link.latency for link in topology.links]),
        link_seconds_per_unit=np.array([1.0 / link.bandwidth for link in topology.links]),
        source=f"roofline estimate for {topology.name}",
    )
