"""The tensors of a CPU device or of a host that passes them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

KEPT_BYTES = (32 << 20) - 4096
"""The largest block, with its header, that glibc adapts to. [B]"""


def keep_freed_memory() -> None:
    """Lets the C library keep the memory of dead outputs for the next ones.

    Outputs are made anew in every run, and the pages of a fresh block cost more than many a kernel
    on it. glibc maps blocks above a threshold one by one, gives them back when they are freed, and
    cuts free memory off its heaps beyond twice the threshold, which grows with the largest block
    that was ever freed: so one is, which is never touched. On llama_layer this takes page faults
    per run from thousands to next to none, and 4 to 6 % of the processor time. Harmless elsewhere.
    """
    torch.empty(KEPT_BYTES, dtype=torch.uint8)


class EndpointMemory:
    """One device's (or host's) own tensors: input tiles, outputs and arrived copies.

    Args:
        inputs: copied, so that no two devices share a page.

    Attributes:
        tensors: by key: op id for an op's output, ~tile (negative) for an input tile, and
            (op, target) for a tensor that a host passes on.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self.tensors: dict[Any, torch.Tensor] = {
            ~tile: tensor.clone() for tile, tensor in enumerate(inputs)
        }
        self._num_inputs = len(self.tensors)
        self._buffers: dict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = {}

    def take_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """A buffer for an arriving tensor, from an earlier arrival of its kind if there is one.

        Fresh pages would cost more than the copy into them.
        """
        buffers = self._buffers.get((like.shape, like.dtype))
        if buffers:
            return buffers.pop()
        return torch.empty(like.shape, dtype=like.dtype)

    def give_buffer(self, buffer: torch.Tensor) -> None:
        self._buffers.setdefault((buffer.shape, buffer.dtype), []).append(buffer)

    def clear(self) -> None:
        """Drops everything but the input tiles and the idle buffers."""
        if len(self.tensors) > self._num_inputs:
            self.tensors = {
                key: tensor
                for key, tensor in self.tensors.items()
                if isinstance(key, int) and key < 0
            }
