"""The tensors of a CPU device or of a host that passes them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


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
        self._buffers: dict[torch.Size, list[torch.Tensor]] = {}

    def take_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """A buffer for an arriving tensor, from an earlier arrival of that shape if there is one.

        Fresh pages would cost more than the copy into them.
        """
        buffers = self._buffers.get(like.shape)
        if buffers:
            return buffers.pop()
        return torch.empty(like.shape, dtype=like.dtype)

    def give_buffer(self, buffer: torch.Tensor) -> None:
        self._buffers.setdefault(buffer.shape, []).append(buffer)

    def clear(self) -> None:
        """Drops everything but the input tiles and the idle buffers."""
        if len(self.tensors) > self._num_inputs:
            self.tensors = {
                key: tensor
                for key, tensor in self.tensors.items()
                if isinstance(key, int) and key < 0
            }
