"""The ENUMERATIVE OPTIMIZER: meta-op by meta-op, balanced shards, least communication.

Source: Yao et al. (2026), DOPPLER. They enumerate the balanced assignments of a meta-op's shards
and keep the one with the least communication from what is already placed. Where that is a sum over
shards it is a linear assignment problem, solved exactly by scipy.optimize.linear_sum_assignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from doppler.errors import ConfigurationError, InvalidGraphError
from doppler.graph import DataflowGraph
from doppler.problem import PlacementProblem
from doppler.schedulers.balanced import LayerCost, assign_layer
from doppler.schedulers.base import Proposal, Scheduler, check_count

if TYPE_CHECKING:
    from doppler.simulator import Simulator

COSTS = ("seconds", "communication")


@dataclass(frozen=True)
class EnumerativeOptimizer(Scheduler):
    """Walks the meta-ops in topological order and places each one's ops layer by layer.

    A layer is the shards of a meta-op, then the reductions of these, then the re-assemblies (ops
    at equal depth inside the meta-op). Its ops are spread evenly, at the least cost: equal devices
    get as many as any other or one more, others in proportion to their speed on the layer, so that
    equal ops would be done soonest. The cost is the uncontended transfer seconds of every input
    that is not on the device and was not sent there for an earlier layer, once per (tensor,
    device), plus what the ops themselves take there. On equal devices the latter is the same for
    every assignment, so that the communication alone decides, as published. Among equals, less
    loaded devices come first.

    With at most one op per device, or where no two ops share a tensor that has to be sent, the
    cost is a sum over ops and a linear assignment is exact. Otherwise all balanced assignments are
    enumerated if they are few enough; if not, a shared tensor is paid for by every op that reads
    it, and the linear assignment of this upper bound is taken.

    Pinned ops and ops whose colocation group has a device are placed first; the rest of the layer
    is spread as above, a group's ops in it as one. Where memory is known and the result does not
    fit, a second walk gives up the balance: each op in turn takes the cheapest device with room for
    its output and its inputs, of everything that was ever there.

    Args:
        cost: "seconds" (communication and compute) or "communication" (as published: it takes all
            devices for equally fast).
        enumerate_up_to: most balanced assignments of a layer that are enumerated, at least 1.

    Raises:
        ConfigurationError: an unknown cost, or an impossible number.
        UnknownQuantityError: on `schedule`, if the graph does not know its meta-ops.
        InvalidGraphError: on `schedule`, if meta-ops depend on one another in a cycle.
    """

    cost: str = "seconds"
    enumerate_up_to: int = 20_000
    name: ClassVar[str] = "enumerative"

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise ConfigurationError(
                f"scheduler 'enumerative', cost: {self.cost!r} is not one of {', '.join(COSTS)}"
            )
        check_count("scheduler 'enumerative'", "enumerate_up_to", self.enumerate_up_to)

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        layers = meta_op_layers(problem.graph)
        order = np.array([op for layer in layers for op in layer])
        devices = self._walk(problem, layers, balanced=True)
        known = problem.graph.output_bytes is not None
        if not known or not np.isfinite(problem.topology.memory_bytes).any():
            return Proposal(devices, order)
        makespan = float(simulator.makespans(devices[None], order[None])[0])
        if np.isfinite(makespan):
            return Proposal(devices, order, 1, makespan)
        return Proposal(self._walk(problem, layers, balanced=False), order, 1)

    def _walk(
        self, problem: PlacementProblem, layers: list[list[int]], balanced: bool
    ) -> np.ndarray:
        """Places all layers, balanced or where there is room. # (num_ops,)"""
        state = _Placed(problem)
        for layer in layers:
            open_ops = [op for op in layer if state.devices[op] < 0 and not problem.is_input_op[op]]
            for op in layer:
                if state.devices[op] >= 0:
                    state.run(op)
            units = state.units(open_ops)
            if not units:
                continue
            if not balanced:
                for unit in units:
                    cost = state.cost([unit], self.cost == "seconds").upper_bound[0]
                    state.place(unit, state.roomy_device(unit, cost))
                continue
            cost = state.cost(units, self.cost == "seconds")
            pace = state.pace(open_ops) if self.cost == "seconds" else np.ones(problem.num_devices)
            chosen = assign_layer(cost, state.load, pace, self.enumerate_up_to)
            for unit, device in zip(units, chosen.tolist()):
                state.place(unit, device)
        return np.maximum(state.devices, 0)  # what nobody reads may be anywhere


class _Placed:
    """What is placed so far; an op of a block brings the rest of its block along.

    Attributes:
        devices: -1 where open. # (num_ops,)
        resident: whether an op's output is on a device, home or sent. # (num_ops, num_devices)
        load: work on each device. # (num_devices,) [s]
        held: bytes of all that is resident, where known. # (num_devices,) [B]
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._block = problem.constraints.block
        self._capacity = problem.topology.memory_bytes
        known = problem.graph.output_bytes
        self._bytes = np.zeros(problem.num_ops) if known is None else known
        self.devices = np.full(problem.num_ops, -1, np.int64)
        self.resident = np.zeros((problem.num_ops, problem.num_devices), bool)
        self.load = np.zeros(problem.num_devices)
        self.held = np.zeros(problem.num_devices)
        pinned = problem.constraints.block_device
        by_block = np.argsort(self._block, kind="stable")
        ends = np.searchsorted(self._block[by_block], np.arange(len(pinned) + 1))
        self._members = [by_block[a:b] for a, b in pairwise(ends)]
        for members, device in zip(self._members, pinned.tolist()):
            if device >= 0:
                self._settle(members, device)

    def place(self, unit: list[int], device: int) -> None:
        """Puts ops, and what must be with them, on a device, and runs the ops."""
        for op in unit:
            if self.devices[op] < 0:
                block = self._block[op]
                self._settle(np.array([op]) if block < 0 else self._members[block], device)
            self.run(op)

    def run(self, op: int) -> None:
        """Fetches the inputs of a placed op; inputs that may be anywhere are then where it is."""
        preds, device = self._problem.graph.predecessors(op), int(self.devices[op])
        loose = preds[(self.devices[preds] < 0) & (self._block[preds] < 0)]
        if loose.size:
            self._settle(loose, device)
        self.held[device] += self._bytes[preds[~self.resident[preds, device]]].sum()
        self.resident[preds, device] = True

    def units(self, ops: list[int]) -> list[list[int]]:
        """Ops that must go together, in order of their first."""
        together: dict[int, list[int]] = {}
        for op in ops:
            block = int(self._block[op])
            together.setdefault(-1 - op if block < 0 else block, []).append(op)
        return list(together.values())

    def pace(self, ops: list[int]) -> np.ndarray:
        """Mean seconds of ops on each device, by its compute slots. # (D,) [s]"""
        mean = self._problem.cost_model.op_seconds[ops].mean(axis=0)
        return mean / self._problem.topology.compute_slots

    def cost(self, units: list[list[int]], compute: bool) -> LayerCost:
        """What each unit would take on each device; with `compute`, its own seconds too."""
        problem = self._problem
        seconds = problem.cost_model.op_seconds
        own = np.zeros((len(units), problem.num_devices))
        readers: dict[int, list[int]] = {}
        for row, unit in enumerate(units):
            if compute:
                own[row] = seconds[unit].sum(axis=0)
                own[row] -= own[row].min()  # what it takes everywhere decides nothing
            for tensor in np.unique(
                np.concatenate([problem.graph.predecessors(op) for op in unit])
            ).tolist():
                # An input that is still open will follow its consumer.
                if self.devices[tensor] >= 0 and not self.resident[tensor].all():
                    readers.setdefault(tensor, []).append(row)
        tensors = np.array(sorted(readers), np.int64)
        sources = self.devices[tensors]
        volume = problem.cost_model.transfer_volume[tensors, None]
        fetch = problem.route_latency[sources] + volume * problem.route_seconds_per_unit[sources]
        fetch = np.where(self.resident[tensors], 0.0, fetch)
        return LayerCost(own, fetch, [readers[tensor] for tensor in tensors.tolist()])

    def roomy_device(self, unit: list[int], cost: np.ndarray) -> int:
        """The cheapest device with room for a unit, ties to the less loaded; or the roomiest."""
        ops = np.array(unit)
        block = self._block[ops[0]]
        outputs = self._bytes[ops if block < 0 else self._members[block]].sum()
        preds = np.unique(np.concatenate([self._problem.graph.predecessors(op) for op in unit]))
        inputs = self._bytes[preds] @ ~self.resident[preds]
        room = self._capacity - self.held - outputs - inputs
        if (room >= 0).any():
            return int(np.lexsort((self.load, cost, room < 0))[0])
        return int(np.argmax(room))

    def _settle(self, ops: np.ndarray, device: int) -> None:
        self.held[device] += self._bytes[ops[~self.resident[ops, device]]].sum()
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
