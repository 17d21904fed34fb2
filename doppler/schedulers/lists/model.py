"""What the classical list schedulers plan with: seconds of ops and edges, links without contention.

The papers' model: a device runs one op at a time (here: one in each of its compute slots), an
edge between ops on one device is free, and one between devices s and d takes `latency[s, d] +
volume * rate[s, d]`, however many others are under way. Volumes are per edge, as in the papers'
examples; in a `PlacementProblem` an edge's volume is its producer's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.graph import DataflowGraph
from doppler.problem import PlacementProblem

SAME = 1e-12
"""Times that agree to this part of all work are a tie: sums differ by rounding."""


class PlanningModel(NamedTuple):
    """A problem in flat arrays: `N` ops, `E` edges, `D` devices, `B` blocks.

    A block is ops that share a device, as in `doppler.problem.constraints`; every input op in none
    has one of its own, so that placing an input is deciding its block.
    """

    succ_ptr: np.ndarray  # (N + 1,)
    succ_ops: np.ndarray  # (E,)
    volume: np.ndarray  # (E,) by producer, then consumer [B] or [s]
    pred_ptr: np.ndarray  # (N + 1,)
    pred_ops: np.ndarray  # (E,)
    topological_order: np.ndarray  # (N,)
    position: np.ndarray  # (N,) of each op in the topological order
    op_seconds: np.ndarray  # (N, D) [s]
    latency: np.ndarray  # (D, D) 0 on the diagonal [s]
    rate: np.ndarray  # (D, D) 0 on the diagonal [s/B] or [1]
    slots: np.ndarray  # (D,) ops that a device runs at a time
    is_input: np.ndarray  # (N,) bool: there from time 0, without duration or slot
    block: np.ndarray  # (N,) -1: free
    block_device: np.ndarray  # (B,) where each is pinned, or -1
    block_input_ptr: np.ndarray  # (B + 1,) rows of block_inputs
    block_inputs: np.ndarray  # input ops by block
    output_bytes: np.ndarray  # (N,), zeros where unknown [B]
    capacity: np.ndarray  # (D,) infinite where unknown [B]
    mean_seconds: np.ndarray  # (N,) over the devices; a pinned op's own where it is pinned [s]
    edge_seconds: np.ndarray  # (E,) over the pairs of devices [s]
    same: float  # times that differ by less are a tie [s]

    @property
    def num_ops(self) -> int:
        return len(self.position)

    @property
    def num_devices(self) -> int:
        return len(self.capacity)

    @property
    def memory_is_tight(self) -> bool:
        """Whether a device could run out: nowhere can be more than all outputs."""
        return bool((self.capacity < self.output_bytes.sum()).any())


def planning_model(problem: PlacementProblem) -> PlanningModel:
    """The model of a problem; every edge has its producer's transfer volume.

    Raises:
        InvalidProblemError: inputs that are no ops yet (`PlacementProblem.with_explicit_inputs`).
    """
    problem.check_explicit()
    graph, constraints = problem.graph, problem.constraints
    known = graph.output_bytes
    return _model(
        graph,
        problem.cost_model.op_seconds,
        np.repeat(problem.cost_model.transfer_volume, graph.out_degrees),
        (problem.route_latency, problem.route_seconds_per_unit),
        slots=problem.topology.compute_slots,
        is_input=problem.is_input_op,
        blocks=(constraints.block, constraints.block_device),
        output_bytes=np.zeros(graph.num_ops) if known is None else known,
        capacity=problem.topology.memory_bytes,
    )


def edge_model(
    graph: DataflowGraph,
    op_seconds: np.ndarray,
    volume: np.ndarray,
    latency: np.ndarray | None = None,
    rate: np.ndarray | None = None,
) -> PlanningModel:
    """The model of a textbook example, with a volume of its own on each edge and no constraints.

    Args:
        graph: what runs.
        op_seconds: # (N, D) [s]
        volume: in the order of `graph.edges`. # (E,)
        latency: None for none. # (D, D), 0 on the diagonal [s]
        rate: seconds per unit of volume; None for 1 between any two devices. # (D, D)
    """
    n, d = np.shape(op_seconds)
    return _model(
        graph,
        op_seconds,
        volume,
        (
            np.zeros((d, d)) if latency is None else latency,
            1.0 - np.eye(d) if rate is None else rate,
        ),
        slots=np.ones(d, np.int64),
        is_input=np.zeros(n, bool),
        blocks=(np.full(n, -1), np.zeros(0)),
        output_bytes=np.zeros(n),
        capacity=np.full(d, np.inf),
    )


def _model(
    graph: DataflowGraph,
    op_seconds: np.ndarray,
    volume: np.ndarray,
    links: tuple[np.ndarray, np.ndarray],
    *,
    slots: np.ndarray,
    is_input: np.ndarray,
    blocks: tuple[np.ndarray, np.ndarray],
    output_bytes: np.ndarray,
    capacity: np.ndarray,
) -> PlanningModel:
    latency, rate = links
    block, block_device = _copy(blocks[0]), _copy(blocks[1])
    alone = np.flatnonzero(is_input & (block < 0))
    block[alone] = len(block_device) + np.arange(len(alone))
    block_device = np.concatenate([block_device, np.full(len(alone), -1, np.int64)])
    inputs = np.flatnonzero(is_input)
    inputs = inputs[np.argsort(block[inputs], kind="stable")]
    per_block = np.bincount(block[inputs], minlength=len(block_device))
    position = np.empty(graph.num_ops, np.int64)
    position[graph.topological_order] = np.arange(graph.num_ops)
    mean_seconds = _mean_seconds(op_seconds, block, block_device)
    edge_seconds = _mean_over_pairs(latency) + volume * _mean_over_pairs(rate)
    return PlanningModel(
        succ_ptr=_copy(graph.succ_ptr),
        succ_ops=_copy(graph.succ_ops),
        volume=_copy(volume, np.float64),
        pred_ptr=_copy(graph.pred_ptr),
        pred_ops=_copy(graph.pred_ops),
        topological_order=_copy(graph.topological_order),
        position=position,
        op_seconds=_copy(op_seconds, np.float64),
        latency=_copy(latency, np.float64),
        rate=_copy(rate, np.float64),
        slots=_copy(slots),
        is_input=_copy(is_input, np.bool_),
        block=block,
        block_device=block_device,
        block_input_ptr=np.concatenate([np.zeros(1, np.int64), np.cumsum(per_block)]),
        block_inputs=inputs,
        output_bytes=_copy(output_bytes, np.float64),
        capacity=_copy(capacity, np.float64),
        mean_seconds=mean_seconds,
        edge_seconds=edge_seconds,
        same=SAME * float(mean_seconds.sum() + edge_seconds.max(initial=0.0)),
    )


def pins(block: np.ndarray, block_device: np.ndarray) -> np.ndarray:
    """The device of each op's block, or -1; arguments as in `PlanningModel`. # (N,)"""
    return np.append(block_device, -1)[block]  # block -1 is the last


def _mean_seconds(
    op_seconds: np.ndarray, block: np.ndarray, block_device: np.ndarray
) -> np.ndarray:
    mean = np.mean(op_seconds, axis=1)
    pin = pins(block, block_device)
    pinned = np.flatnonzero(pin >= 0)
    mean[pinned] = np.asarray(op_seconds)[pinned, pin[pinned]]
    return mean


def _mean_over_pairs(values: np.ndarray) -> float:
    """Mean off the diagonal, 0 where there is but one device."""
    pairs = ~np.eye(len(values), dtype=bool)
    return float(values[pairs].mean()) if pairs.any() else 0.0


def _copy(values: np.ndarray, dtype: type = np.int64) -> np.ndarray:
    """A writable copy: numba compiles read-only arrays as another type, once more."""
    return np.array(values, dtype=dtype, order="C")
