"""A workload: a sharded program with its dataflow graph, kernels, inputs and reference result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from doppler.errors import ExecutionError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Topology, roofline_cost_model
from doppler.problem import PlacementProblem
from doppler.workloads.inputs import cut_tiles, draw_inputs, join_tiles
from doppler.workloads.kernels import Kernel
from doppler.workloads.program import TensorProgram
from doppler.workloads.sharding import InputTile, Operand, PartitionPlan, Region, shard

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Workload:
    """A dataflow graph that can be executed. Nothing is allocated until tensors are asked for.

    Args:
        name: of the workload, for example "ffnn".
        graph: knows FLOPs, output bytes, meta-ops, roles and op names.
        kernels: the work of each op; equal signatures mean equal work. # (num_ops,)
        operands: ("op", op_id) or ("input", input_tile_id), in argument order. # (num_ops,)
        input_tiles: what is present on every device before time 0. # (graph.num_inputs,)
        output_ops: ops whose outputs `collect` needs, ascending.
        dtype: torch dtype name of every tensor.
        program: the unsharded program.
        plan: how the program was cut.
        output_tiles: (region, op) pairs of each result.
    """

    name: str
    graph: DataflowGraph
    kernels: tuple[Kernel, ...]
    operands: tuple[tuple[Operand, ...], ...]
    input_tiles: tuple[InputTile, ...]
    output_ops: tuple[int, ...]
    dtype: str = "float32"
    program: TensorProgram = field(repr=False, kw_only=True)
    plan: PartitionPlan = field(kw_only=True)
    output_tiles: Mapping[str, tuple[tuple[Region, int], ...]] = field(repr=False, kw_only=True)

    def make_inputs(self, seed: int) -> list[torch.Tensor]:
        """Draws the inputs, so scaled that the results are of order 1, and cuts them.

        Returns:
            One contiguous tensor per input tile; equal seeds give equal bits.
        """
        return cut_tiles(draw_inputs(self.program, self.dtype, seed), self.input_tiles)

    def reference(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Computes the results unsharded, on the device where the inputs lie.

        Args:
            inputs: one tensor per input tile.

        Raises:
            ExecutionError: if the number or a shape of the inputs is wrong.
        """
        if len(inputs) != len(self.input_tiles):
            raise ExecutionError(
                f"workload {self.name!r}: {len(inputs)} inputs for {len(self.input_tiles)} tiles"
            )
        placed: dict[str, list[tuple[Region, torch.Tensor]]] = {}
        for tile, tensor in zip(self.input_tiles, inputs):
            placed.setdefault(tile.input, []).append((tile.region, tensor))
        shapes = {x.name: self.program.shape(x.labels) for x in self.program.inputs}
        return self.program.run(
            {name: join_tiles(shapes[name], tiles, name) for name, tiles in placed.items()}
        )

    def collect(self, op_outputs: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Puts the results together from the outputs of `output_ops`.

        Raises:
            ExecutionError: naming the op, if an output is missing or has a wrong shape.
        """
        missing = [op for op in self.output_ops if op not in op_outputs]
        if missing:
            raise ExecutionError(
                f"workload {self.name!r}: no output of op {missing[0]} "
                f"({self.graph.op_name(missing[0])})"
            )
        return {
            name: join_tiles(
                self.program.shape(self.program.labels[name]),
                [(region, op_outputs[op]) for region, op in tiles],
                name,
            )
            for name, tiles in self.output_tiles.items()
        }

    def problem(self, topology: Topology, cost_model: CostModel | None = None) -> PlacementProblem:
        """The placement problem on a topology, with data-sheet costs where none are given."""
        if cost_model is None:
            cost_model = roofline_cost_model(self.graph, topology)
        return PlacementProblem(self.graph, topology, cost_model)


def build_workload(
    name: str, graph_name: str, program: TensorProgram, plan: PartitionPlan, dtype: str = "float32"
) -> Workload:
    """Cuts a program and makes it a workload.

    Args:
        name: of the workload.
        graph_name: of its dataflow graph, shown in tables.
        program: what to compute.
        plan: how to cut it.
        dtype: torch dtype name of every tensor.

    Raises:
        ConfigurationError: if the plan does not fit the program.
    """
    sharded = shard(program, plan, dtype)
    output_tiles = {out: tuple(sharded.tiles[out].items()) for out in program.outputs}
    graph = DataflowGraph.from_edges(
        graph_name,
        len(sharded.kernels),
        sharded.edges,
        kinds=[kernel.kind for kernel in sharded.kernels],
        flops=[kernel.flops for kernel in sharded.kernels],
        output_bytes=[kernel.output_bytes for kernel in sharded.kernels],
        meta_op=sharded.meta_op,
        roles=sharded.roles,
        op_names=sharded.names,
        num_inputs=len(sharded.input_tiles),
    )
    return Workload(
        name=name,
        graph=graph,
        kernels=tuple(sharded.kernels),
        operands=tuple(sharded.operands),
        input_tiles=tuple(sharded.input_tiles),
        output_ops=tuple(sorted({op for tiles in output_tiles.values() for _, op in tiles})),
        dtype=dtype,
        program=program,
        plan=plan,
        output_tiles=output_tiles,
    )
