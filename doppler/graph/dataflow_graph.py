"""The dataflow graph: ops, edges and what is known about each op, as frozen arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from doppler import checks
from doppler.errors import InvalidGraphError, UnknownQuantityError

ROLES = ("shard", "reduction", "assembly")
"""What an op is to its meta-op: a shard kernel, a sum of partial results, or a re-assembly."""


def frozen_array(values: object, dtype: type, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Copies `values` into a read-only array of one dtype and checks its shape.

    Raises:
        InvalidGraphError: if the values do not convert or have another shape.
    """
    try:
        array: np.ndarray = np.array(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidGraphError(f"{name}: cannot be read as {dtype.__name__}: {error}") from error
    if array.shape != shape:
        raise InvalidGraphError(f"{name}: shape {array.shape}, expected {shape}")
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class DataflowGraph:
    """A directed acyclic graph of ops; an edge says that one op consumes another op's output.

    Build one with `from_edges`, which validates everything. Edges are stored twice in compressed
    sparse rows (CSR): by producer and by consumer; inside a row the ids ascend.

    Args:
        name: shown in tables and messages.
        succ_ptr: row starts by producer. # (num_ops + 1,)
        succ_ops: consumers. # (num_edges,)
        pred_ptr: row starts by consumer. # (num_ops + 1,)
        pred_ops: producers. # (num_edges,)
        kinds: kind of each op, for example "einsum". # (num_ops,)
        flops: floating point operations, None where the source does not say. # (num_ops,) [FLOP]
        output_bytes: size of each op's output, None where unknown. # (num_ops,) [B]
        meta_op: id of the unsharded operation that each op was cut from, or None. # (num_ops,)
        roles: one of `ROLES` for each op, or None. # (num_ops,)
        op_names: names for humans, or None. # (num_ops,)
        num_inputs: how many input tensors the source declares (they are not ops).
    """

    name: str
    succ_ptr: np.ndarray
    succ_ops: np.ndarray
    pred_ptr: np.ndarray
    pred_ops: np.ndarray
    kinds: tuple[str, ...]
    flops: np.ndarray | None = None
    output_bytes: np.ndarray | None = None
    meta_op: np.ndarray | None = None
    roles: tuple[str, ...] | None = None
    op_names: tuple[str, ...] | None = None
    num_inputs: int = 0
    topological_order: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def from_edges(
        cls,
        name: str,
        num_ops: int,
        edges: Sequence[tuple[int, int]] | np.ndarray,
        *,
        kinds: Sequence[str] | None = None,
        flops: Sequence[float] | np.ndarray | None = None,
        output_bytes: Sequence[float] | np.ndarray | None = None,
        meta_op: Sequence[int] | np.ndarray | None = None,
        roles: Sequence[str] | None = None,
        op_names: Sequence[str] | None = None,
        num_inputs: int = 0,
    ) -> DataflowGraph:
        """Validates and freezes a graph.

        Args:
            name: shown in tables and messages.
            num_ops: number of ops, at least 1.
            edges: (producer, consumer) pairs. # (num_edges, 2)
            kinds, flops, output_bytes, meta_op, roles, op_names, num_inputs: see the class.

        Raises:
            InvalidGraphError: no ops, a dangling, repeated or self edge, a cycle (named op by op),
                an array of the wrong length, a negative or non-finite amount, an unknown role.
        """
        checks.name(name, "graph, name", InvalidGraphError)
        num_ops, num_inputs = (
            checks.whole_number(
                count, f"graph {name!r}, {label}", lowest, InvalidGraphError, checks.LARGEST_INT
            )
            for label, count, lowest in (("num_ops", num_ops, 1), ("num_inputs", num_inputs, 0))
        )
        pairs = checks.whole_numbers(edges, f"graph {name!r}, edges", InvalidGraphError)
        if pairs.size and (pairs.ndim != 2 or pairs.shape[1] != 2):
            raise InvalidGraphError(
                f"graph {name!r}, edges: shape {pairs.shape}, expected (num_edges, 2)"
            )
        pairs = pairs.reshape(-1, 2)
        _check_edges(name, num_ops, pairs)
        by_producer = np.lexsort((pairs[:, 1], pairs[:, 0]))
        by_consumer = np.lexsort((pairs[:, 0], pairs[:, 1]))
        succ_ptr, succ_ops = _csr(num_ops, pairs[by_producer, 0], pairs[by_producer, 1])
        pred_ptr, pred_ops = _csr(num_ops, pairs[by_consumer, 1], pairs[by_consumer, 0])
        topological = _topological_order(name, num_ops, succ_ptr, succ_ops, pred_ptr, pred_ops)
        graph = cls(
            name=name,
            succ_ptr=succ_ptr,
            succ_ops=succ_ops,
            pred_ptr=pred_ptr,
            pred_ops=pred_ops,
            kinds=_text_column(name, "kinds", kinds, num_ops) or ("op",) * num_ops,
            flops=_amounts(name, "flops", flops, num_ops),
            output_bytes=_amounts(name, "output_bytes", output_bytes, num_ops),
            meta_op=None
            if meta_op is None
            else frozen_array(meta_op, np.int64, f"graph {name!r}, meta_op", (num_ops,)),
            roles=_text_column(name, "roles", roles, num_ops),
            op_names=_text_column(name, "op_names", op_names, num_ops),
            num_inputs=num_inputs,
            topological_order=topological,
        )
        for op, role in enumerate(graph.roles or ()):
            if role not in ROLES:
                raise InvalidGraphError(
                    f"graph {name!r}, op {op}, roles: {role!r} is not one of {', '.join(ROLES)}"
                )
        return graph

    def __setstate__(self, state: dict[str, Any]) -> None:
        checks.restore_frozen(self, state)

    @property
    def num_ops(self) -> int:
        return len(self.succ_ptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.succ_ops)

    @cached_property
    def edges(self) -> np.ndarray:
        """(producer, consumer) pairs, sorted. # (num_edges, 2)"""
        producers = np.repeat(np.arange(self.num_ops), np.diff(self.succ_ptr))
        return np.stack([producers, self.succ_ops], axis=1)

    @cached_property
    def in_degrees(self) -> np.ndarray:
        """Number of predecessors of each op. # (num_ops,)"""
        return np.diff(self.pred_ptr)

    @cached_property
    def out_degrees(self) -> np.ndarray:
        """Number of successors of each op. # (num_ops,)"""
        return np.diff(self.succ_ptr)

    def successors(self, op: int) -> np.ndarray:
        """Consumers of the output of `op`, ascending ids."""
        return self.succ_ops[self.succ_ptr[op] : self.succ_ptr[op + 1]]

    def predecessors(self, op: int) -> np.ndarray:
        """Producers that `op` consumes, ascending ids."""
        return self.pred_ops[self.pred_ptr[op] : self.pred_ptr[op + 1]]

    def op_name(self, op: int) -> str:
        """A name for humans: the given one, or kind and id."""
        return self.op_names[op] if self.op_names else f"{self.kinds[op]}_{op}"

    def require(self, quantity: str) -> np.ndarray:
        """Returns `flops`, `output_bytes` or `meta_op`, or refuses where the source is silent.

        Raises:
            UnknownQuantityError: if this graph does not know the quantity.
        """
        values = getattr(self, quantity)
        if values is None:
            raise UnknownQuantityError(
                f"graph {self.name!r} does not say {quantity}; its source gives seconds only, and "
                f"what was asked for needs {quantity}; use something that does without, or a "
                f"workload or JSON file that states {quantity}"
            )
        return values


def _check_edges(name: str, num_ops: int, pairs: np.ndarray) -> None:
    outside = np.flatnonzero((pairs < 0) | (pairs >= num_ops))
    if outside.size:
        producer, consumer = pairs[outside[0] // 2]
        raise InvalidGraphError(
            f"graph {name!r}, edge {outside[0] // 2} ({producer} -> {consumer}): dangling, ops are "
            f"numbered 0 to {num_ops - 1}"
        )
    loops = np.flatnonzero(pairs[:, 0] == pairs[:, 1])
    if loops.size:
        raise InvalidGraphError(f"graph {name!r}: op {pairs[loops[0], 0]} consumes its own output")
    codes = pairs[:, 0] * num_ops + pairs[:, 1]
    unique, first, counts = np.unique(codes, return_index=True, return_counts=True)
    if len(unique) != len(codes):
        producer, consumer = pairs[first[counts > 1][0]]
        raise InvalidGraphError(f"graph {name!r}: edge {producer} -> {consumer} appears twice")


def _csr(num_ops: int, rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ptr = np.zeros(num_ops + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_ops), out=ptr[1:])
    ops = np.ascontiguousarray(values, dtype=np.int64)
    ptr.setflags(write=False)
    ops.setflags(write=False)
    return ptr, ops


def _topological_order(
    name: str,
    num_ops: int,
    succ_ptr: np.ndarray,
    succ_ops: np.ndarray,
    pred_ptr: np.ndarray,
    pred_ops: np.ndarray,
) -> np.ndarray:
    """Level by level, ids ascending inside a level; raises with the ops of a cycle."""
    missing = np.diff(pred_ptr)
    order = np.empty(num_ops, np.int64)
    filled = 0
    frontier = np.flatnonzero(missing == 0)
    while frontier.size:
        order[filled : filled + len(frontier)] = frontier
        filled += len(frontier)
        lengths = succ_ptr[frontier + 1] - succ_ptr[frontier]
        starts = np.repeat(
            succ_ptr[frontier] - np.concatenate([[0], lengths.cumsum()[:-1]]), lengths
        )
        touched = succ_ops[starts + np.arange(lengths.sum())]
        consumers, times = np.unique(touched, return_counts=True)
        missing[consumers] -= times
        frontier = consumers[missing[consumers] == 0]
    if filled < num_ops:
        op = int(np.flatnonzero(missing > 0)[0])
        seen: dict[int, int] = {}
        walk: list[int] = []
        while op not in seen:  # walking backwards among unfinished ops must close a loop
            seen[op] = len(walk)
            walk.append(op)
            row = pred_ops[pred_ptr[op] : pred_ptr[op + 1]]
            op = int(row[missing[row] > 0][0])
        cycle = walk[seen[op] :][::-1]
        shown = " -> ".join(
            str(v) for v in [*cycle[:8], *([cycle[0]] if len(cycle) <= 8 else ["..."])]
        )
        raise InvalidGraphError(f"graph {name!r}: cycle through ops {shown}")
    order.setflags(write=False)
    return order


def _amounts(name: str, column: str, values: object, num_ops: int) -> np.ndarray | None:
    if values is None:
        return None
    where = f"graph {name!r}, {column}"
    array = frozen_array(values, np.float64, where, (num_ops,))
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if bad.size:
        raise InvalidGraphError(
            f"graph {name!r}, op {bad[0]}, {column}: {array[bad[0]]} is not a finite amount >= 0"
        )
    return array


def _text_column(
    name: str, column: str, values: Sequence[str] | None, num_ops: int
) -> tuple[str, ...] | None:
    if values is None:
        return None
    if len(values) != num_ops:
        raise InvalidGraphError(f"graph {name!r}, {column}: {len(values)} values for {num_ops} ops")
    return tuple(str(value) for value in values)
