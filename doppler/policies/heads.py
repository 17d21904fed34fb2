"""The heads: what turns rows of the tables and the state of an episode into logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from doppler.policies.features import ProblemFeatures


class SelHead(nn.Module):
    """Scores ops from their embedding, the pooled embeddings of both longest paths and features.

    The paper's head plus, for each op, gains for the few features of the op's situation. The
    logit is linear in them, with coefficients from the static part, so that a step costs a few
    multiplications per candidate.
    """

    def __init__(self, width: int, head_width: int, num_state_features: int) -> None:
        super().__init__()
        self.first = nn.Linear(4 * width, head_width)
        self.last = nn.Linear(head_width, 1 + num_state_features)

    def forward(self, embedded: Tensor, raw: Tensor, features: ProblemFeatures) -> Tensor:
        """Returns score and gains of every op. # (num_ops, 1 + state features)"""
        parts = [embedded, features.to_exit.mean(embedded), features.to_entry.mean(embedded), raw]
        return self.last(nn.functional.leaky_relu(self.first(torch.cat(parts, dim=1))))


class PlcHead(nn.Module):
    """Scores devices from their features, the op's features and embedding, and the ops on them.

    Args:
        width: of the embeddings.
        head_width: of the hidden layer.
        num_device_features: columns of the device features.
        op_parts: how many rows of `width` describe the op.
    """

    def __init__(
        self, width: int, head_width: int, num_device_features: int, op_parts: int = 2
    ) -> None:
        super().__init__()
        self.embed_device = nn.Linear(num_device_features, width)
        self.of_device = nn.Linear(width, head_width, bias=False)
        self.of_op = nn.Linear(op_parts * width, head_width)
        self.of_pool = nn.Linear(width, head_width, bias=False)
        self.last = nn.Linear(head_width, 1)

    def forward(self, op_rows: Tensor, pooled: Tensor, device_features: Tensor) -> Tensor:
        """Returns the devices' logits.

        Args:
            op_rows: the chosen ops' rows of `plc_ops`. # (..., head_width)
            pooled: mean `plc_pool` row over each device's ops, 0 if it has none.
                # (..., num_devices, head_width)
            device_features: # (..., num_devices, device features)
        """
        device = self.of_device(nn.functional.leaky_relu(self.embed_device(device_features)))
        first = device + pooled + op_rows[..., None, :]  # (..., num_devices, head_width)
        return self.last(nn.functional.leaky_relu(first)).squeeze(-1)


class NoPlcHead(nn.Module):
    """Stands in for PLC where a rule places: all devices alike, without anything to learn."""

    def forward(self, op_rows: Tensor, pooled: Tensor, device_features: Tensor) -> Tensor:
        """Zeros in place of logits. # (..., num_devices)"""
        return device_features.new_zeros(device_features.shape[:-1])


class LogitRows(nn.Module):
    """Stands in for PLC where `plc_ops` holds the devices' logits themselves."""

    def forward(self, op_rows: Tensor, pooled: Tensor, device_features: Tensor) -> Tensor:
        """The rows. # (..., num_devices)"""
        return op_rows
