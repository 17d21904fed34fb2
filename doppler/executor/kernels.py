"""Running the kernels of a workload on the tensors of a device."""

from __future__ import annotations

import torch

from doppler.executor.base import Executable


def operand_keys(workload: Executable) -> list[tuple[int, ...]]:
    """Per op, its operands in a device's tensors: an op id, or ~tile for an input tile."""
    return [
        tuple(index if kind == "op" else ~index for kind, index in operands)
        for operands in workload.operands
    ]


class KernelRunner:
    """Runs kernels whose operands' memory is used again: no output is a view of an operand.

    Attributes:
        kernels: by op.
    """

    def __init__(self, workload: Executable) -> None:
        self.kernels = [kernel.run for kernel in workload.kernels]
        # Whether an op's output shares memory with an operand, known after its first run.
        self._aliasing: list[bool | None] = [None] * len(self.kernels)

    def run(self, op: int, operands: list[torch.Tensor]) -> torch.Tensor:
        """The output of an op, which shares memory with none of its operands."""
        output = self.kernels[op](operands)
        aliasing = self._aliasing[op]
        if aliasing is None:
            storage = output.untyped_storage().data_ptr()
            aliasing = any(storage == x.untyped_storage().data_ptr() for x in operands)
            self._aliasing[op] = aliasing
        return output.clone() if aliasing else output
