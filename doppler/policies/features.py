"""What a policy sees of a problem before anything is placed: op, edge and path features.

Everything is z-normalised or divided by a bound of the problem itself, so that one policy reads
graphs of any size and unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from doppler.graph import DataflowGraph, b_levels, hop_depths, path_successors, t_levels
from doppler.problem import PlacementProblem
from doppler.schedule import lower_bounds

PAPER_OP_COLUMNS = (
    "op_seconds",
    "b_level",
    "t_level",
    "input_transfer_seconds",
    "output_transfer_seconds",
)
"""The five op features of the DOPPLER paper."""

EXTRA_OP_COLUMNS = ("fan_in", "fan_out", "depth")
"""Ours: logarithms of the degrees, and hops from an entry over the longest such count."""

POSITION_WAVES = 8
POSITION_COLUMNS = tuple(f"{wave}_{k}" for wave in ("sin", "cos") for k in range(POSITION_WAVES))
"""Ours: waves of 1/2 to 64 periods over an op's place in the critical path's order.

Most ops of a sharded tensor program look alike to any message passing; by its place a policy can
tell each of them from the others, so that it can learn to build one placement. Equal b-levels go by
id, as ties do in the simulator: where there are some, renumbering changes what the policy sees.
"""

EDGE_COLUMNS = ("transfer_seconds", "direction")
"""The paper's edge feature, and +1 along an edge, -1 against it (the graph is made bidirected)."""


def z_normalise(columns: np.ndarray) -> np.ndarray:
    """Subtracts each column's mean and divides by its deviation; a constant column becomes 0.

    Args:
        columns: # (rows, columns)
    """
    if not len(columns):
        return columns.astype(np.float64)
    centred = columns - columns.mean(axis=0)
    deviation = columns.std(axis=0)
    constant = deviation <= 1e-9 * np.abs(columns).max(axis=0)  # rounding of the mean, no signal
    return np.where(constant, 0.0, centred / np.where(constant, 1.0, deviation))


@dataclass(frozen=True, eq=False)
class PathTable:
    """Sums over paths by pointer doubling: after round k an op's sum spans 2^k ops of its path.

    Args:
        jumps: the op 2^k steps along the path; `num_ops` is past its end.
            # (rounds, num_ops + 1) int64
        lengths: ops on each op's path, itself included. # (num_ops, 1) float32
    """

    jumps: Tensor
    lengths: Tensor

    @classmethod
    def from_successors(cls, following: np.ndarray) -> PathTable:
        """Builds the table from each op's next op on its path, -1 at the end. # (num_ops,)"""
        num_ops = len(following)
        jump = np.append(np.where(following < 0, num_ops, following), num_ops)
        lengths = np.append(np.ones(num_ops), 0.0)
        jumps = []
        while (jump[:num_ops] < num_ops).any():
            jumps.append(jump)
            lengths = lengths + lengths[jump]
            jump = jump[jump]
        table = np.array(jumps, np.int64).reshape(-1, num_ops + 1)
        return cls(
            torch.from_numpy(table),
            torch.from_numpy(lengths[:num_ops, None].astype(np.float32)),
        )

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of the rows of the ops on each op's path. # (num_ops, width) -> the same"""
        sums = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])  # (num_ops + 1, width)
        for jump in self.jumps:
            sums = sums + sums[jump]
        return sums[:-1] / self.lengths


@dataclass(frozen=True, eq=False)
class ProblemFeatures:
    """Tensors of one problem, all indexed by op id.

    Args:
        op_features: columns `PAPER_OP_COLUMNS`, then `EXTRA_OP_COLUMNS` where extended, then
            `POSITION_COLUMNS` where wanted. # (num_ops, 5, 8, 21 or 24) float32
        edge_ends: source and target of each message. # (2, 2 * num_edges) int64
        edge_features: columns `EDGE_COLUMNS`. # (2 * num_edges, 2) float32
        to_exit: longest paths to an exit, communication counted.
        to_entry: longest paths from an entry, walked backwards.
        scale: the problem's lower bound, in which device times are expressed. [s]
    """

    op_features: Tensor
    edge_ends: Tensor
    edge_features: Tensor
    to_exit: PathTable
    to_entry: PathTable
    scale: float

    @property
    def num_ops(self) -> int:
        return len(self.op_features)

    @classmethod
    def from_problem(
        cls, problem: PlacementProblem, extended: bool = True, positions: bool = False
    ) -> ProblemFeatures:
        """Computes the features.

        Args:
            problem: any graph on any topology; seconds are averaged over devices and pairs.
            extended: whether to add `EXTRA_OP_COLUMNS`.
            positions: whether to add `POSITION_COLUMNS`.
        """
        graph = problem.graph
        compute, transfer = problem.mean_op_seconds, problem.mean_transfer_seconds
        below = b_levels(graph, compute, transfer)
        above = t_levels(graph, compute, transfer)
        producers, consumers = graph.edges.T
        received = np.bincount(
            consumers, weights=transfer[producers], minlength=graph.num_ops
        )  # a weight-less bincount of an empty graph would be integer; weights keep it float
        columns = [compute, below, above, received, transfer * graph.out_degrees]
        if extended:
            depths = hop_depths(graph)
            columns += [
                np.log1p(graph.in_degrees),
                np.log1p(graph.out_degrees),
                depths / max(depths.max(), 1),
            ]
        op_features = z_normalise(np.stack(columns, axis=1))
        if positions:
            op_features = np.concatenate([op_features, position_waves(below)], axis=1)
        along = z_normalise(transfer[producers][:, None])[:, 0]
        edge_features = np.stack(
            [np.tile(along, 2), np.repeat([1.0, -1.0], graph.num_edges)], axis=1
        )
        bound = lower_bounds(problem).best
        return cls(
            op_features=_float32(op_features),
            edge_ends=torch.from_numpy(
                np.stack(
                    [
                        np.concatenate([producers, consumers]),
                        np.concatenate([consumers, producers]),
                    ]
                )
            ),
            edge_features=_float32(edge_features),
            to_exit=PathTable.from_successors(path_successors(graph, below)),
            to_entry=PathTable.from_successors(_path_predecessors(graph, above, compute, transfer)),
            scale=bound if bound > 0 else 1.0,
        )


def position_waves(priorities: np.ndarray) -> np.ndarray:
    """Waves over each op's place among all, the highest priority first and ties by id.

    Args:
        priorities: # (num_ops,)

    Returns:
        # (num_ops, 2 * POSITION_WAVES)
    """
    num_ops = len(priorities)
    place = np.empty(num_ops)
    place[np.lexsort((np.arange(num_ops), -priorities))] = np.arange(num_ops) + 0.5
    angles = np.pi * place[:, None] / max(num_ops, 1) * 2.0 ** np.arange(POSITION_WAVES)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _path_predecessors(
    graph: DataflowGraph, levels: np.ndarray, compute: np.ndarray, transfer: np.ndarray
) -> np.ndarray:
    """The op before each op on its longest path from an entry (ties to the lower id), else -1."""
    arrival = levels + compute + transfer
    previous = np.full(graph.num_ops, -1, np.int64)
    for op in range(graph.num_ops):
        row = graph.predecessors(op)
        if row.size:
            previous[op] = row[np.argmax(arrival[row])]
    return previous


def _float32(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
