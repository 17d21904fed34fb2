"""Input tensors: where they are before time 0, and the ops that stand for them where it matters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from doppler.errors import InvalidProblemError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel

if TYPE_CHECKING:
    from doppler.problem.placement_problem import PlacementProblem

REPLICATED = "replicated"
FIRST_CONSUMER = "first_consumer"


@dataclass(frozen=True)
class InputTensor:
    """A tensor that is there before time 0.

    Args:
        name: unique within its problem.
        size: its bytes, which is what it puts on a link; for problems whose transfer volumes are
            seconds, seconds. [B] or [s]
        consumers: ops that read it, at least one.
        location: "replicated" (on every device), a device id, or "first_consumer": on the device
            of the consumer that comes first in topological order, by level and then by id.
    """

    name: str
    size: float
    consumers: tuple[int, ...] = field(default=())
    location: int | str = REPLICATED

    def __post_init__(self) -> None:
        object.__setattr__(self, "consumers", tuple(self.consumers))
        where = f"input {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            raise InvalidProblemError(f"{where}: a name is needed")
        if isinstance(self.size, bool) or not isinstance(self.size, int | float):
            raise InvalidProblemError(f"{where}, size: {self.size!r} is not a number")
        if not (np.isfinite(self.size) and self.size >= 0):
            raise InvalidProblemError(f"{where}, size: {self.size} is not finite and >= 0")
        if not self.consumers:
            raise InvalidProblemError(f"{where}, consumers: at least one op is needed")
        if len(set(self.consumers)) != len(self.consumers):
            raise InvalidProblemError(f"{where}, consumers: an op is repeated")
        named = (REPLICATED, FIRST_CONSUMER)
        if isinstance(self.location, bool) or not (
            isinstance(self.location, int | np.integer) or self.location in named
        ):
            raise InvalidProblemError(
                f"{where}, location: {self.location!r} is neither a device id nor one of "
                f"{', '.join(named)}"
            )

    def check(self, num_ops: int, num_devices: int) -> None:
        """Raises `InvalidProblemError` if a consumer or the device does not exist."""
        for op in self.consumers:
            if not isinstance(op, int | np.integer) or not 0 <= op < num_ops:
                raise InvalidProblemError(
                    f"input {self.name!r}, consumers: {op!r}; ops are numbered 0 to {num_ops - 1}"
                )
        if not isinstance(self.location, str) and not 0 <= self.location < num_devices:
            raise InvalidProblemError(
                f"input {self.name!r}, location: device {self.location}; devices are numbered 0 to "
                f"{num_devices - 1}"
            )


def explicit_graph(graph: DataflowGraph, inputs: list[InputTensor]) -> DataflowGraph:
    """The graph with one more op per input, after the others, in their order."""
    first, more = graph.num_ops, len(inputs)
    edges = [(first + i, op) for i, tensor in enumerate(inputs) for op in tensor.consumers]

    def longer(values: np.ndarray | None, added: list) -> np.ndarray | None:
        return None if values is None else np.concatenate([values, added])

    sizes = [tensor.size for tensor in inputs]
    new_meta = [] if graph.meta_op is None else [graph.meta_op.max() + 1 + i for i in range(more)]
    return DataflowGraph.from_edges(
        graph.name,
        first + more,
        np.concatenate([graph.edges, np.array(edges, np.int64).reshape(-1, 2)]),
        kinds=(*graph.kinds, *["input"] * more),
        flops=longer(graph.flops, [0.0] * more),
        output_bytes=longer(graph.output_bytes, sizes),
        meta_op=longer(graph.meta_op, new_meta),
        roles=None if graph.roles is None else (*graph.roles, *["shard"] * more),
        op_names=(
            *(graph.op_name(op) for op in range(first)),
            *(tensor.name for tensor in inputs),
        ),
        num_inputs=graph.num_inputs,
    )


def explicit_costs(costs: CostModel, inputs: list[InputTensor]) -> CostModel:
    """The costs with rows of no duration for the inputs."""
    devices = costs.op_seconds.shape[1]
    return CostModel(
        op_seconds=np.concatenate([costs.op_seconds, np.zeros((len(inputs), devices))]),
        transfer_volume=np.concatenate([costs.transfer_volume, [i.size for i in inputs]]),
        link_latency=costs.link_latency,
        link_seconds_per_unit=costs.link_seconds_per_unit,
        source=costs.source,
    )


def explicit_constraints(
    problem: PlacementProblem, inputs: list[InputTensor]
) -> tuple[np.ndarray, np.ndarray]:
    """Pins and groups of the ops with those of the inputs. # (num_ops + len(inputs),) each"""
    pinned = np.concatenate([problem.constraints.pinned, np.full(len(inputs), -1)])
    groups = np.concatenate([problem.constraints.colocation, np.full(len(inputs), -1)])
    position = np.argsort(problem.graph.topological_order)
    for op, tensor in enumerate(inputs, problem.num_ops):
        if not isinstance(tensor.location, str):
            pinned[op] = tensor.location
            continue
        first = min(tensor.consumers, key=lambda consumer: int(position[consumer]))
        if groups[first] < 0:
            groups[first] = groups.max() + 1
        groups[op] = groups[first]
    return pinned, groups
