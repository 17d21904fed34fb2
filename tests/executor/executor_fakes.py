"""A workload of small additions that satisfies the executor's needs without doppler.workloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import SimpleNamespace

import numpy as np
import torch

from doppler.executor import Dispatcher, HopTask, OpTask
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Topology, make_topology, roofline_cost_model
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


def random_problem(
    seed: int, topology_name: str, num_devices: int, num_ops: int = 30, density: float = 0.12
) -> PlacementProblem:
    """Durations are small whole numbers, so that many events fall together and ties matter."""
    rng = np.random.default_rng(seed)
    graph = random_graph(num_ops, seed, density)
    topology = make_topology(topology_name, num_devices)
    costs = CostModel(
        op_seconds=rng.integers(0, 5, (num_ops, num_devices)),
        transfer_volume=rng.integers(0, 4, num_ops),
        link_latency=rng.integers(0, 2, topology.num_links),
        link_seconds_per_unit=rng.integers(1, 3, topology.num_links),
        source="test",
    )
    return PlacementProblem(graph, topology, costs)


def drive(
    dispatcher: Dispatcher, depth: int = 1
) -> tuple[dict[int, tuple[float, float]], list[tuple[HopTask, float, float]]]:
    """Runs a plan on devices that are queues of up to `depth`, with the cost model's durations.

    Returns:
        (start, finish) by op, and (hop, start, finish) for each hop.
    """
    costs = dispatcher.plan.problem.cost_model
    num_devices = dispatcher.plan.problem.num_devices
    ops, hops = {}, []
    queued, free_at = [0] * num_devices, [0.0] * num_devices
    pending: list = []
    now, counter = 0.0, 0
    tasks = dispatcher.begin(now)
    while True:
        for task in tasks:
            counter += 1
            if isinstance(task, OpTask):
                queued[task.device] += 1
                assert queued[task.device] <= depth
                start = max(now, free_at[task.device])
                finish = start + costs.op_seconds[task.op, task.device]
                free_at[task.device] = finish
                ops[task.op] = (start, finish)
            else:
                rate = costs.link_seconds_per_unit[task.link]
                seconds = costs.link_latency[task.link] + costs.transfer_volume[task.op] * rate
                finish = now + seconds
                hops.append((task, now, finish))
            heappush(pending, (finish, counter, task))
        if not pending:
            return ops, hops
        now = pending[0][0]
        batch = []
        while pending and pending[0][0] == now:
            batch.append(heappop(pending)[2])
        for task in batch:
            if isinstance(task, HopTask):
                dispatcher.on_hop_finished(task, now)
            else:
                queued[task.device] -= 1
                dispatcher.on_op_finished(task.op, now)
        tasks = dispatcher.start_tasks()


class VirtualClock:
    """Jumps to every deadline: nobody waits and nothing is late."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep_until(self, deadline: float) -> None:
        self.time = max(self.time, deadline)
