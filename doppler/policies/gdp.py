"""GDP: a graph embedding, then attention over segments of ops, all devices in one pass.

Source: Zhou et al. (2019), "GDP: Generalized device placement for dataflow graphs". A GraphSAGE
network with max pooling embeds the ops; a Transformer with segment-level recurrence reads them in
topological order, each segment with the layer's input on the segment before as a memory through
which no gradient flows; a softmax per op gives its device. Nothing that was decided is fed
back: all ops are placed at once.

What differs here: messages go both ways along an edge; a GraphSAGE layer adds to its input,
or four of them leave ops hardly different; the op features are those that this
project's other policies read, where GDP has the op's type, the size of its output and the ids of
its inputs, and the op's position in the walk, which stands in for these ids and, as they do, tells
look-alikes apart; the logit of a device is a product with a sinusoidal embedding of its number,
which exists for any number of devices, where GDP has a layer with an output per device. So GDP
knows a device by its number, and renumbering equal devices changes its outputs; other policies here
do not, and cannot say "the third device" either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from doppler.errors import ConfigurationError
from doppler.policies.base import Policy, PolicyTables, Shape, nothing_to_select, padded
from doppler.policies.features import EXTRA_OP_COLUMNS, PAPER_OP_COLUMNS, ProblemFeatures
from doppler.policies.heads import LogitRows
from doppler.policies.rules import critical_path_order
from doppler.policies.walking import WalkFeatures
from doppler.problem import PlacementProblem

LONGEST_WAVE = 10_000.0
"""Of the sinusoids, over 2 pi; beyond so many positions they are no longer sure to differ."""


@dataclass(frozen=True)
class GdpConfig(Shape):
    """Shape of a GDP policy.

    Args:
        hidden_width: of the embeddings; a multiple of `attention_heads`.
        message_rounds: GraphSAGE layers.
        attention_layers: of the placement network.
        attention_heads: in each of them.
        segment_ops: ops in a segment, which see each other and the segment before.
        extended_features: op features beyond the paper's five.

    Raises:
        ConfigurationError: a width or count out of range, a switch that is no bool, or heads that
            do not divide the width.
    """

    hidden_width: int = 64
    message_rounds: int = 4
    attention_layers: int = 2
    attention_heads: int = 4
    segment_ops: int = 128
    extended_features: bool = True
    kind: str = field(default="gdp", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_width % self.attention_heads:
            raise ConfigurationError(
                f"policy, attention_heads: {self.attention_heads} do not divide the hidden_width "
                f"{self.hidden_width}"
            )


class SegmentLayer(nn.Module):
    """Attention of each segment's ops to one another and to the segment before, then two layers.

    Args:
        width: of the embeddings.
        heads: of the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_and_value = nn.Linear(width, 2 * width)
        self.join = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, hidden: Tensor, present: Tensor) -> Tensor:
        """Returns the next layer's input.

        Args:
            hidden: # (segments, segment_ops, width)
            present: which keys, of the segment before and of this one, are ops and not padding.
                # (segments, 1, 1, 2 * segment_ops) bool
        """
        own = self.before_attention(hidden)
        memory = torch.cat([torch.zeros_like(own[:1]), own[:-1]]).detach()
        keys, values = self.key_and_value(torch.cat([memory, own], dim=1)).chunk(2, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(
            self._split(self.query(own)),
            self._split(keys),
            self._split(values),
            attn_mask=present,
        )  # (segments, heads, segment_ops, width / heads)
        hidden = hidden + self.join(attended.transpose(1, 2).flatten(2))
        return hidden + self.feed(hidden)

    def _split(self, rows: Tensor) -> Tensor:
        return rows.unflatten(2, (self.heads, -1)).transpose(1, 2)


class GdpPolicy(Policy):
    """Logits of all devices for all ops from one pass over the graph; see the module."""

    kind: ClassVar[str] = "gdp"
    config_type: ClassVar[type[Shape]] = GdpConfig
    episodes: ClassVar[str] = "walk_at_once"

    config: GdpConfig

    def build(self) -> list[nn.Linear]:
        shape, width = self.config, self.config.hidden_width
        num_op_features = len(PAPER_OP_COLUMNS)
        if shape.extended_features:
            num_op_features += len(EXTRA_OP_COLUMNS)
        self.embed = nn.Linear(num_op_features, width)
        self.sage = nn.ModuleList(
            SAGEConv(width, width, aggr="max", project=True) for _ in range(shape.message_rounds)
        )
        self.attention = nn.ModuleList(
            SegmentLayer(width, shape.attention_heads) for _ in range(shape.attention_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.of_device = nn.Linear(width, width)
        self.of_op = nn.Linear(width, width)
        self.plc = LogitRows()
        return []  # nothing to shrink: logits of equal devices have to come apart

    def features(self, problem: PlacementProblem) -> WalkFeatures:
        return WalkFeatures.from_problem(problem, extended=self.config.extended_features)

    def encode(self, features: ProblemFeatures) -> PolicyTables:
        assert isinstance(features, WalkFeatures)
        hidden = nn.functional.leaky_relu(self.embed(features.op_features))
        for layer in self.sage:
            hidden = hidden + nn.functional.leaky_relu(layer(hidden, features.edge_ends))
        walked = self._attend(hidden[features.order] + sinusoids(len(hidden), hidden.shape[1]))
        ops = self.of_op(self.norm(walked))[features.position]
        devices = self.of_device(sinusoids(features.num_devices, hidden.shape[1]))
        logits = ops @ devices.T / math.sqrt(hidden.shape[1])  # (num_ops, num_devices)
        return PolicyTables(
            *nothing_to_select(features.num_ops), padded(logits), torch.zeros(len(hidden) + 1, 1)
        )

    def order(self, problem: PlacementProblem) -> np.ndarray:
        return critical_path_order(problem)

    def _attend(self, walked: Tensor) -> Tensor:
        """The placement network on the ops as the walk visits them. # (num_ops, width)"""
        num_ops, width = walked.shape
        length = min(self.config.segment_ops, num_ops)
        missing = -num_ops % length
        segments = nn.functional.pad(walked, (0, 0, 0, missing)).view(-1, length, width)
        real = (torch.arange(num_ops + missing) < num_ops).view(-1, length)
        before = torch.cat([torch.zeros_like(real[:1]), real[:-1]])
        present = torch.cat([before, real], dim=1)[:, None, None, :]
        for layer in self.attention:
            segments = layer(segments, present)
        return segments.reshape(-1, width)[:num_ops]


def sinusoids(count: int, width: int) -> Tensor:
    """Embeds the numbers 0 to count - 1 (Vaswani et al. 2017). # (count, width)"""
    half = -(-width // 2)
    rates = LONGEST_WAVE ** (-torch.arange(half) / half)
    angles = torch.arange(count)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]
