"""A workload of small additions that satisfies the executor's needs without doppler.workloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch

from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Topology, roofline_cost_model
from doppler.problem import PlacementProblem


@dataclass
class FakeWorkload:
    """Op v computes (v + 1) + the sum of its operands; every op reads input tile v % num_tiles."""

    graph: DataflowGraph
    shape: tuple[int, ...] = (8, 8)
    num_tiles: int = 2
    kernels: list[SimpleNamespace] = field(default_factory=list)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self.name = self.graph.name
        self.operands = tuple(
            (("input", op % self.num_tiles), *(("op", int(p)) for p in self.graph.predecessors(op)))
            for op in range(self.graph.num_ops)
        )
        self.output_ops = tuple(np.flatnonzero(self.graph.out_degrees == 0).tolist())
        if not self.kernels:
            self.kernels = [self.kernel(op, adder(op + 1.0)) for op in range(self.graph.num_ops)]

    def kernel(self, op: int, run: Callable[[Sequence[torch.Tensor]], torch.Tensor]):
        shapes = (self.shape,) * len(self.operands[op])
        return SimpleNamespace(
            signature=f"add{len(shapes)}", run=run, operand_shapes=shapes, output_shape=self.shape
        )

    def make_inputs(self, seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.rand(self.shape, generator=generator) for _ in range(self.num_tiles)]

    def reference(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        values: dict[int, torch.Tensor] = {}
        for op in self.graph.topological_order.tolist():
            total = inputs[op % self.num_tiles] + (op + 1.0)
            for producer in self.graph.predecessors(op).tolist():
                total = total + values[producer]
            values[op] = total
        return self.collect(values)

    def collect(self, outputs: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"out{op}": outputs[op] for op in self.output_ops}

    def problem(self, topology: Topology, cost_model: CostModel | None = None) -> PlacementProblem:
        cost_model = cost_model or roofline_cost_model(self.graph, topology)
        return PlacementProblem(self.graph, topology, cost_model)


def adder(constant: float) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    def run(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        total = operands[0] + constant
        for operand in operands[1:]:
            total += operand
        return total

    return run


def random_graph(num_ops: int, seed: int, density: float = 0.15, nbytes: float = 256.0):
    """A seeded random DAG whose ops know FLOPs and bytes."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((num_ops, num_ops)) < density, k=1)
    return DataflowGraph.from_edges(
        f"random{seed}",
        num_ops,
        np.argwhere(upper),
        flops=np.full(num_ops, 64.0),
        output_bytes=np.full(num_ops, nbytes),
    )


class VirtualClock:
    """Jumps to every deadline: nobody waits and nothing is late."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep_until(self, deadline: float) -> None:
        self.time = max(self.time, deadline)
