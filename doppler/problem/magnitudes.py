"""Amounts so large that their sums are no numbers any more."""

from __future__ import annotations

import numpy as np

from doppler.errors import InvalidProblemError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Topology

MOST = 1e200
"""No sum of seconds or bytes may come near the largest float, 1.8e308; noise multiplies it yet."""


def check_finite(graph: DataflowGraph, topology: Topology, costs: CostModel) -> None:
    """Refuses costs under which a makespan could overflow.

    No work-conserving run lasts longer than all ops on their slowest devices plus all transfers to
    all other devices over all links, one after the other.

    Args:
        graph: its name is the problem's.
        topology: says how many devices a tensor may go to.
        costs: finite and not negative each; of the shapes that graph and topology ask for.

    Raises:
        InvalidProblemError: naming the op with the largest amount, and its field.
    """
    name = graph.name
    with np.errstate(over="ignore", invalid="ignore"):
        if graph.output_bytes is not None and not graph.output_bytes.sum() <= MOST:
            op = int(graph.output_bytes.argmax())
            raise InvalidProblemError(
                f"problem {name!r}, op {op}, output_bytes: {graph.output_bytes[op]:g} B; all ops "
                f"together have more than the {MOST:g} B that can be added up"
            )
        slowest = costs.op_seconds.max(axis=1)
        work = float(slowest.sum())
        moves = 0.0
        if topology.num_links:
            latency = float(costs.link_latency.sum())
            rate = float(costs.link_seconds_per_unit.sum())
            largest = float(costs.transfer_volume.max())
            moves = (len(slowest) * latency + float(costs.transfer_volume.sum()) * rate) * (
                topology.num_devices - 1
            )
            _check_hops(name, costs, largest)
    if work > MOST or np.isnan(work):
        op = int(slowest.argmax())
        raise InvalidProblemError(
            f"problem {name!r}, op {op}, op_seconds: {slowest[op]:g} s on its slowest device; all "
            f"ops together take {work:g} s, more than the {MOST:g} s that can be added up"
        )
    if not work + moves <= MOST:
        op = int(costs.transfer_volume.argmax())
        raise InvalidProblemError(
            f"problem {name!r}, op {op}, transfer_volume: {costs.transfer_volume[op]:g}; all "
            f"transfers over all links (latencies add up to {latency:g} s, link_seconds_per_unit "
            f"to {rate:g}) take more than the {MOST:g} s that can be added up"
        )


def _check_hops(name: str, costs: CostModel, largest: float) -> None:
    """Refuses a hop that takes infinitely long; the largest volume tells."""
    hops = costs.link_latency + largest * costs.link_seconds_per_unit
    bad = np.flatnonzero(~np.isfinite(hops))
    if bad.size:
        op = int(costs.transfer_volume.argmax())
        raise InvalidProblemError(
            f"problem {name!r}, op {op}, transfer_volume: {largest:g} over link {bad[0]} "
            f"(link_seconds_per_unit {costs.link_seconds_per_unit[bad[0]]:g}, latency "
            f"{costs.link_latency[bad[0]]:g} s) takes more seconds than a float can hold"
        )
