"""The placement problem: a dataflow graph, a topology and what the one costs on the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from doppler.checks import restore_frozen, whole_numbers
from doppler.errors import InvalidGraphError, InvalidPlacementError, InvalidProblemError
from doppler.graph import DataflowGraph
from doppler.graph.dataflow_graph import frozen_array
from doppler.hardware import CostModel, Topology
from doppler.problem.constraints import Constraints, make_constraints
from doppler.problem.inputs import (
    REPLICATED,
    InputTensor,
    explicit_constraints,
    explicit_costs,
    explicit_graph,
)
from doppler.problem.magnitudes import check_finite


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Everything that a simulator, a scheduler or a policy needs to know.

    Args:
        graph: what runs.
        topology: on what.
        cost_model: in which time.
        pinned: the only device that each op may run on, -1 for any; None: all free. # (num_ops,)
        colocation: ops of one group (>= 0) run on one device, -1: in no group; None: no groups.
            # (num_ops,)
        inputs: tensors that are there before time 0. Those with a place of their own take part in
            a run as ops, which `with_explicit_inputs` adds.
        input_ops: ops that stand for inputs: there from time 0, without taking time or a compute
            slot. None: no op does. # (num_ops,) bool

    Raises:
        InvalidProblemError: if the cost model's shapes do not fit graph and topology, if pins,
            groups or inputs name what does not exist, if ops of a group are pinned to several
            devices, if an input op has predecessors or takes time, or if costs add up to more than
            `doppler.problem.magnitudes.MOST`.
    """

    graph: DataflowGraph
    topology: Topology
    cost_model: CostModel
    pinned: np.ndarray | None = None
    colocation: np.ndarray | None = None
    inputs: tuple[InputTensor, ...] = ()
    input_ops: np.ndarray | None = None

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
        for label, dtype in (("pinned", np.int64), ("colocation", np.int64), ("input_ops", bool)):
            if getattr(self, label) is not None:
                object.__setattr__(self, label, self._per_op(label, dtype))
        object.__setattr__(self, "inputs", tuple(self.inputs))
        names = [tensor.name for tensor in self.inputs]
        for tensor in self.inputs:
            tensor.check(n, d)
            if names.count(tensor.name) > 1:
                raise InvalidProblemError(
                    f"problem {self.name!r}: two inputs are called {tensor.name!r}"
                )
        for op in np.flatnonzero(self.is_input_op):
            if self.graph.in_degrees[op] or self.cost_model.op_seconds[op].any():
                raise InvalidProblemError(
                    f"problem {self.name!r}, input_ops, op {op}: an op that stands for an input "
                    "has no predecessors and takes no time"
                )
        check_finite(self.graph, self.topology, self.cost_model)
        _ = self.constraints  # fails here, with ops and devices, where they contradict

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_frozen(self, state)

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
    def constraints(self) -> Constraints:
        """Pins and colocation groups."""
        free = np.full(self.num_ops, -1, np.int64)
        return make_constraints(
            self.name,
            self.num_devices,
            self.graph.topological_order,
            free if self.pinned is None else self.pinned,
            free if self.colocation is None else self.colocation,
            self.is_input_op,
        )

    @property
    def constrained(self) -> bool:
        """Whether a device may be legal for one op and not for another."""
        return self.constraints.any

    @cached_property
    def is_input_op(self) -> np.ndarray:
        """Which ops stand for inputs. # (num_ops,) bool"""
        return np.zeros(self.num_ops, bool) if self.input_ops is None else self.input_ops

    @property
    def has_implicit_inputs(self) -> bool:
        """Whether an input has a place of its own and no op that stands for it yet."""
        return any(tensor.location != REPLICATED for tensor in self.inputs)

    def with_explicit_inputs(self) -> PlacementProblem:
        """The problem in which every input with a place of its own is an op, as a run needs it.

        The new ops come after the others, in the order of `inputs`; they are pinned to their
        device, or colocated with their first consumer. A tensor that they stand for is present
        from time 0 and moves once to every other device with a consumer. Replicated inputs stay as
        they are: no run moves them, and their memory is not counted.
        """
        placed = [tensor for tensor in self.inputs if tensor.location != REPLICATED]
        if not placed:
            return self
        pinned, colocation = explicit_constraints(self, placed)
        return PlacementProblem(
            graph=explicit_graph(self.graph, placed),
            topology=self.topology,
            cost_model=explicit_costs(self.cost_model, placed),
            pinned=pinned,
            colocation=colocation,
            inputs=tuple(tensor for tensor in self.inputs if tensor.location == REPLICATED),
            input_ops=np.concatenate([self.is_input_op, np.ones(len(placed), bool)]),
        )

    def check_explicit(self) -> None:
        """Raises `InvalidProblemError` where inputs with a place of their own are no ops yet."""
        if self.has_implicit_inputs:
            raise InvalidProblemError(
                f"problem {self.name!r}: inputs have places of their own, which a run can only "
                "respect as ops; use problem.with_explicit_inputs()"
            )

    def conform(self, placements: np.ndarray) -> np.ndarray:
        """A copy in which pinned ops are where they must be and groups follow their first op.

        Args:
            placements: a device per op; those of input ops may be anything. # (..., num_ops)
        """
        out = np.array(placements, np.int64)
        if self.constrained:
            members, required = self.constraints.required(out)
            out[..., members] = required
        return out

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
            InvalidPlacementError: wrong length, not whole numbers, a device that does not exist, or
                one that a pin or a colocation group forbids.
        """
        array = self._check_ints(devices, "placement")
        bad = np.flatnonzero((array < 0) | (array >= self.num_devices))
        if bad.size:
            raise InvalidPlacementError(
                f"problem {self.name!r}, placement, op {bad[0]}: device {array[bad[0]]}, devices "
                f"are numbered 0 to {self.num_devices - 1}"
            )
        broken = self.constraints.first_violation(array[None])
        if broken is not None:
            _, op, device = broken
            raise InvalidPlacementError(
                f"problem {self.name!r}, placement, op {op}: device {array[op]}, but "
                f"{self.constraints.reason(op, device)}"
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

    def _per_op(self, label: str, dtype: type) -> np.ndarray:
        raw = np.asarray(getattr(self, label))
        where = f"problem {self.name!r}, {label}"
        if raw.dtype.kind != ("b" if dtype is bool else "i") and raw.size:
            raise InvalidProblemError(f"{where}: {raw.dtype}, expected {dtype.__name__}")
        try:
            return frozen_array(raw, dtype, where, (self.num_ops,))
        except InvalidGraphError as error:
            raise InvalidProblemError(str(error)) from error

    def _check_ints(self, values: object, label: str) -> np.ndarray:
        where = f"problem {self.name!r}, {label}"
        array = whole_numbers(values, where)
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
