"""Kernels: the executable work of one op, with the shapes, FLOPs and bytes that describe it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from doppler.errors import ExecutionError
from doppler.workloads.functions import compute, work

if TYPE_CHECKING:
    import torch

ITEM_BYTES = {"float32": 4, "float64": 8}
"""Bytes per element of the supported dtypes."""


@dataclass(frozen=True)
class Kernel:
    """The work of one op. Kernels of equal `signature` do equal work on equal shapes.

    Args:
        kind: the op's kind, a key of `doppler.workloads.functions.RUNNERS`.
        function: what exactly, within the kind.
        spec: labels of operands and output, for example "bf,fh->bh".
        operand_shapes: one shape per operand, in argument order.
        output_shape: shape of the result.
        options: constants of the function, as (name, value) pairs.
        dtype: torch dtype name of operands and result.
    """

    kind: str
    function: str
    spec: str
    operand_shapes: tuple[tuple[int, ...], ...]
    output_shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float32"

    @cached_property
    def signature(self) -> str:
        """Kernel type, constants, shapes and dtype in one stable string."""
        shapes = ",".join("x".join(map(str, shape)) or "scalar" for shape in self.operand_shapes)
        result = "x".join(map(str, self.output_shape)) or "scalar"
        options = ",".join(f"{key}={value}" for key, value in self.options)
        return "|".join(
            (self.kind, self.function, self.spec, options, f"{shapes}->{result}", self.dtype)
        )

    @cached_property
    def flops(self) -> float:
        """Floating point operations; 0 where data only move. [FLOP]"""
        return work(self.kind, self.function, self.spec, self.operand_shapes, self.output_shape)

    @cached_property
    def output_bytes(self) -> float:
        """Size of the result. [B]"""
        return float(math.prod(self.output_shape) * ITEM_BYTES[self.dtype])

    def run(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """Computes the result as a new contiguous tensor that shares no memory with an operand.

        Raises:
            ExecutionError: if an operand is missing or has another shape than the kernel's.
        """
        found = tuple(tuple(operand.shape) for operand in operands)
        if found != self.operand_shapes:
            raise ExecutionError(
                f"kernel {self.signature}: operands of shapes {found}, expected "
                f"{self.operand_shapes}"
            )
        return compute(self.kind, self.function, self.spec, dict(self.options), operands)
