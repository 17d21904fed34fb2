"""The ENUMERATIVE OPTIMIZER: meta-op by meta-op, balanced shards, least communication.

Source: Yao et al. (2026), DOPPLER. They enumerate the balanced assignments of a meta-op's shards;
the communication is a sum over shards, so the best of them is a linear assignment problem, solved
exactly by scipy.optimize.linear_sum_assignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from doppler.errors import InvalidGraphError
from doppler.graph import DataflowGraph
from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler

if TYPE_CHECKING:
    from doppler.simulator import Simulator

LOAD_WEIGHT = 1e-6
"""Weight of a device's load against communication: it only decides ties."""


@dataclass(frozen=True)
class EnumerativeOptimizer(Scheduler):
    """Walks the meta-ops in topological order and places each one's ops layer by layer.

    A layer is the shards of a meta-op, then the reductions of these, then the re-assemblies (ops
    at equal depth inside the meta-op). Its ops are spread evenly, every device getting as many
    as any other or one more, with the least communication from what is already placed: the
    uncontended transfer seconds of every input that is not on the device and was not sent there
    for an earlier layer. Among equals, less loaded devices come first.

    Pinned ops and ops whose colocation group has a device are placed first; the rest of the layer
    is spread as above, a group's ops in it as one.

    Two ops of a layer on one device that share an input pay for it twice: with at most one op
    per device the assignment is exact, with more it is the exact optimum of that upper bound.

    Raises:
        UnknownQuantityError: on `schedule`, if the graph does not know its meta-ops.
        InvalidGraphError: on `schedule`, if meta-ops depend on one another in a cycle.
    """

    name: ClassVar[str] = "enumerative"

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        graph = problem.graph
        state = _Placed(problem)
        order: list[int] = []
        for layer in meta_op_layers(graph):
            order.extend(layer)
            open_ops = [op for op in layer if state.devices[op] < 0 and not problem.is_input_op[op]]
            for op in layer:
                if state.devices[op] >= 0:
                    state.run(op)
            units = state.units(open_ops)
            if not units:
                continue
            costs = _communication(problem, open_ops, state.devices, state.resident)
            row = {op: index for index, op in enumerate(open_ops)}
            communication = np.stack(
                [costs[[row[op] for op in unit]].sum(axis=0) for unit in units]
            )
            for unit, device in zip(units, balanced_assignment(communication, state.load)):
                for op in unit:
                    state.place(op, int(device))
        return Proposal(state.devices, np.array(order))


class _Placed:
    """What is placed so far; an op of a block brings the rest of its block along.

    Attributes:
        devices: -1 where open. # (num_ops,)
        resident: whether an op's output is on a device, home or sent. # (num_ops, num_devices)
        load: work on each device. # (num_devices,) [s]
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._block = problem.constraints.block
        self.devices = np.full(problem.num_ops, -1, np.int64)
        self.resident = np.zeros((problem.num_ops, problem.num_devices), bool)
        self.load = np.zeros(problem.num_devices)
        for block, device in enumerate(problem.constraints.block_device):
            if device >= 0:
                self._settle(np.flatnonzero(self._block == block), int(device))

    def place(self, op: int, device: int) -> None:
        """Puts an op, and what must be with it, on a device, and runs the op."""
        if self.devices[op] < 0:
            block = self._block[op]
            self._settle(
                np.array([op]) if block < 0 else np.flatnonzero(self._block == block), device
            )
        self.run(op)

    def run(self, op: int) -> None:
        """Fetches the inputs of a placed op."""
        self.resident[self._problem.graph.predecessors(op), self.devices[op]] = True

    def units(self, ops: list[int]) -> list[list[int]]:
        """Ops that must go together, in order of their first."""
        together: dict[int, list[int]] = {}
        for op in ops:
            block = int(self._block[op])
            together.setdefault(-1 - op if block < 0 else block, []).append(op)
        return list(together.values())

    def _settle(self, ops: np.ndarray, device: int) -> None:
        self.devices[ops] = device
        self.resident[ops, device] = True
        self.load[device] += self._problem.cost_model.op_seconds[ops, device].sum()


def meta_op_layers(graph: DataflowGraph) -> list[list[int]]:
    """Layers of all meta-ops, in an order in which every op comes after its predecessors.

    Raises:
        UnknownQuantityError: if the graph does not know its meta-ops.
        InvalidGraphError: if meta-ops depend on one another in a cycle.
    """
    meta_op = graph.require("meta_op")
    depth = np.zeros(graph.num_ops, np.int64)
    for op in graph.topological_order:
        same = [v for v in graph.predecessors(op) if meta_op[v] == meta_op[op]]
        depth[op] = max((depth[v] + 1 for v in same), default=0)
    layers: dict[int, dict[int, list[int]]] = {}
    for op in range(graph.num_ops):
        layers.setdefault(int(meta_op[op]), {}).setdefault(int(depth[op]), []).append(op)
    return [
        layers[meta][level]
        for meta in _meta_op_order(graph, meta_op)
        for level in sorted(layers[meta])
    ]


def balanced_assignment(communication: np.ndarray, load: np.ndarray) -> np.ndarray:
    """Spreads k ops over D devices, floor(k / D) or one more on each, at the least cost.

    Args:
        communication: cost of each op on each device. # (k, D)
        load: work already on each device; decides between equals. # (D,)

    Returns:
        device of each op. # (k,)
    """
    count, size = communication.shape
    each, extra = divmod(count, size)
    per_device = each + (extra > 0)
    cost = communication / max(float(communication.max()), np.finfo(float).tiny)
    cost = cost + LOAD_WEIGHT * load / max(float(load.max()), np.finfo(float).tiny)
    columns = np.tile(np.arange(size), per_device)  # slot-major; the last round is optional
    table = np.zeros((size * per_device, size * per_device))
    table[:count] = cost[:, columns]
    # A surplus row stands for an optional slot that stays empty; it must not take another one.
    table[count:, : size * each] = np.inf
    rows, slots = linear_sum_assignment(table)
    return columns[slots[np.argsort(rows)][:count]]


def _communication(
    problem: PlacementProblem, layer: list[int], devices: np.ndarray, resident: np.ndarray
) -> np.ndarray:
    """Seconds of the transfers that each op would need on each device. # (len(layer), D) [s]"""
    volume = problem.cost_model.transfer_volume
    cost = np.zeros((len(layer), problem.num_devices))
    for row, op in enumerate(layer):
        preds = problem.graph.predecessors(op)
        sources = devices[preds]
        seconds = (
            problem.route_latency[sources]
            + volume[preds, None] * problem.route_seconds_per_unit[sources]
        )
        free = resident[preds] | (sources < 0)[:, None]  # open inputs will follow their consumer
        cost[row] = np.where(free, 0.0, seconds).sum(axis=0)
    return cost


def _meta_op_order(graph: DataflowGraph, meta_op: np.ndarray) -> list[int]:
    """Topological order of the meta-ops, ties to the lower id."""
    pairs = np.unique(meta_op[graph.edges].reshape(-1, 2), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    missing = {int(meta): 0 for meta in np.unique(meta_op)}
    consumers: dict[int, list[int]] = {}
    for producer, consumer in pairs.tolist():
        missing[consumer] += 1
        consumers.setdefault(producer, []).append(consumer)
    heap = [meta for meta, count in missing.items() if count == 0]
    heapify(heap)
    order = []
    while heap:
        meta = heappop(heap)
        order.append(meta)
        for consumer in consumers.get(meta, []):
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heappush(heap, consumer)
    if len(order) < len(missing):
        stuck = sorted(meta for meta, count in missing.items() if count > 0)
        raise InvalidGraphError(
            f"graph {graph.name!r}, meta_op: meta-ops {stuck[:8]} depend on one another in a "
            "cycle, so there is no order to walk them in"
        )
    return order
