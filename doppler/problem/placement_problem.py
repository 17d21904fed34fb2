"""The placement problem: a dataflow graph, a topology and what the one costs on the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from doppler.errors import InvalidPlacementError, InvalidProblemError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Topology


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Everything that a simulator, a scheduler or a policy needs to know.

    Raises:
        InvalidProblemError: if the cost model's shapes do not fit graph and topology.
    """

    graph: DataflowGraph
    topology: Topology
    cost_model: CostModel

    def __post_init__(self) -> None:
        n, d, links = self.graph.num_ops, self.topology.num_devices, self.topology.num_links
        for label, shape in (
            ("op_seconds", (n, d)),
            ("transfer_volume", (n,)),
            ("link_latency", (links,)),
            ("link_seconds_per_unit", (links,)),
        ):
            found = getattr(self.cost_model, label).shape
            if found != shape:
                raise InvalidProblemError(
                    f"problem {self.name!r}, cost model, {label}: shape {found}, expected {shape} "
                    f"for {n} ops, {d} devices and {links} links"
                )

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def num_ops(self) -> int:
        return self.graph.num_ops

    @property
    def num_devices(self) -> int:
        return self.topology.num_devices

    @cached_property
    def mean_op_seconds(self) -> np.ndarray:
        """Duration of each op, averaged over the devices. # (num_ops,) [s]"""
        return self.cost_model.op_seconds.mean(axis=1)

    @cached_property
    def route_latency(self) -> np.ndarray:
        """Latencies summed along each route, 0 on the diagonal. # (D, D) [s]"""
        return self._along_routes(self.cost_model.link_latency)

    @cached_property
    def route_seconds_per_unit(self) -> np.ndarray:
        """Seconds per unit of volume summed along each route. # (D, D) [s/B] or [1]"""
        return self._along_routes(self.cost_model.link_seconds_per_unit)

    @cached_property
    def mean_transfer_seconds(self) -> np.ndarray:
        """Uncontended seconds of each op's output, averaged over device pairs. # (num_ops,) [s]"""
        if self.num_devices == 1:
            return np.zeros(self.num_ops)
        pairs = ~np.eye(self.num_devices, dtype=bool)
        latency = self.route_latency[pairs].mean()
        rate = self.route_seconds_per_unit[pairs].mean()
        return latency + self.cost_model.transfer_volume * rate

    def transfer_seconds(self, op: int, source: int, target: int) -> float:
        """Uncontended seconds to move the output of `op` from one device to another. [s]"""
        return float(
            self.route_latency[source, target]
            + self.cost_model.transfer_volume[op] * self.route_seconds_per_unit[source, target]
        )

    def check_placement(self, devices: object) -> np.ndarray:
        """Returns a placement as an int64 array, or says which op it gets wrong.

        Args:
            devices: a device per op. # (num_ops,)

        Raises:
            InvalidPlacementError: wrong length, not whole numbers, or a device that does not exist.
        """
        array = self._check_ints(devices, "placement")
        bad = np.flatnonzero((array < 0) | (array >= self.num_devices))
        if bad.size:
            raise InvalidPlacementError(
                f"problem {self.name!r}, placement, op {bad[0]}: device {array[bad[0]]}, devices "
                f"are numbered 0 to {self.num_devices - 1}"
            )
        return array

    def check_order(self, order: object) -> np.ndarray:
        """Returns an order as an int64 array, or says where it is no permutation of the ops.

        Raises:
            InvalidPlacementError: wrong length, not whole numbers, or an op missing or repeated.
        """
        array = self._check_ints(order, "order")
        bad = np.flatnonzero((array < 0) | (array >= self.num_ops))
        if bad.size:
            raise InvalidPlacementError(
                f"problem {self.name!r}, order, position {bad[0]}: no op {array[bad[0]]}"
            )
        counts = np.bincount(array, minlength=self.num_ops)
        if (counts != 1).any():
            op = int(np.flatnonzero(counts != 1)[0])
            raise InvalidPlacementError(
                f"problem {self.name!r}, order: op {op} appears {counts[op]} times, not once"
            )
        return array

    def _check_ints(self, values: object, label: str) -> np.ndarray:
        where = f"problem {self.name!r}, {label}"
        try:
            raw = np.asarray(values)
            array = raw.astype(np.int64)
        except (TypeError, ValueError) as error:
            raise InvalidPlacementError(f"{where}: not a list of whole numbers: {error}") from error
        if raw.dtype == bool or not np.array_equal(raw, array):
            raise InvalidPlacementError(f"{where}: not a list of whole numbers")
        if array.shape != (self.num_ops,):
            raise InvalidPlacementError(
                f"{where}: shape {array.shape}, expected ({self.num_ops},), one entry per op"
            )
        return array

    def _along_routes(self, per_link: np.ndarray) -> np.ndarray:
        routes = self.topology.routes
        size = self.num_devices
        return np.array(
            [
                [sum(per_link[link] for link in routes[s][d]) for d in range(size)]
                for s in range(size)
            ],
            dtype=np.float64,
        )
