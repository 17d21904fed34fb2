"""Workloads that compute next to nothing: they measure the executor itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Topology, roofline_cost_model
from doppler.problem import PlacementProblem

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class SyntheticKernel:
    """A function in the place of a kernel."""

    signature: str
    run: Callable[[Sequence[torch.Tensor]], torch.Tensor]


@dataclass(frozen=True, eq=False)
class _Nothing:
    """Returns the same tensor every time; picklable, as executors of several processes need."""

    nothing: torch.Tensor

    def __call__(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.nothing


@dataclass(frozen=True)
class _Fill:
    """Writes a fresh tensor of a length where its operands are."""

    length: int

    def __call__(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.ones(self.length, device=operands[0].device)


@dataclass(frozen=True, eq=False)
class SyntheticWorkload:
    """A graph whose ops all do the same; it has no results.

    Entry ops read the only input tile, which tells a kernel what device it is on.

    Args:
        graph: the dataflow graph.
        kernel: of every op.
    """

    graph: DataflowGraph
    kernel: SyntheticKernel
    dtype: str = "float32"
    output_ops: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def kernels(self) -> tuple[SyntheticKernel, ...]:
        return (self.kernel,) * self.graph.num_ops

    @property
    def operands(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        return tuple(
            tuple(("op", op) for op in self.graph.predecessors(consumer).tolist())
            or (("input", 0),)
            for consumer in range(self.graph.num_ops)
        )

    def make_inputs(self, seed: int) -> list[torch.Tensor]:
        return [torch.zeros(1)]

    def reference(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {}

    def collect(self, op_outputs: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {}

    def problem(self, topology: Topology, cost_model: CostModel | None = None) -> PlacementProblem:
        if cost_model is None:
            cost_model = roofline_cost_model(self.graph, topology)
        return PlacementProblem(self.graph, topology, cost_model)


def empty_workload(num_ops: int, num_chains: int) -> SyntheticWorkload:
    """Kernels that do nothing, in chains: op v waits for op v - num_chains."""
    graph = DataflowGraph.from_edges(
        "empty_kernels",
        num_ops,
        [(op, op + num_chains) for op in range(num_ops - num_chains)],
        flops=np.zeros(num_ops),
        output_bytes=np.full(num_ops, float(_FLOAT_BYTES)),
    )
    return SyntheticWorkload(graph, SyntheticKernel("empty", _Nothing(torch.zeros(1))))


def relay_workload(num_hops: int, tensor_bytes: int) -> SyntheticWorkload:
    """A chain whose ops each write a fresh tensor of a size, to be copied from device to device."""
    length = max(1, tensor_bytes // _FLOAT_BYTES)
    graph = DataflowGraph.from_edges(
        f"relay_{tensor_bytes}B",
        num_hops + 1,
        [(op, op + 1) for op in range(num_hops)],
        flops=np.zeros(num_hops + 1),
        output_bytes=np.full(num_hops + 1, float(length * _FLOAT_BYTES)),
    )
    return SyntheticWorkload(graph, SyntheticKernel(f"fill_{length}", _Fill(length)))
