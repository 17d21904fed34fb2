"""One policy over (op, device) pairs: what DOPPLER is without its split into SEL and PLC.

At every step one softmax over all pairs of a candidate op and a device that may take it. A pair is
scored by PLC's head from all that either of the two policies reads: the op's features and
embedding, the pooled embeddings of both its longest paths, its situation among the candidates, the
ops on the device and the features of the device for this op. A step costs as much as PLC
would need for every candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from doppler.policies.base import PolicyTables, Shape, nothing_to_select
from doppler.policies.dual_policy import (
    EncoderPolicy,
    PolicyConfig,
    plc_tables,
    require_one_encoder,
)
from doppler.policies.features import ProblemFeatures
from doppler.policies.heads import PlcHead

OP_PARTS = 4
"""The op's features and embedding, and its longest paths to an exit and from an entry."""


@dataclass(frozen=True)
class JointConfig(PolicyConfig):
    """As of `PolicyConfig`, with one encoder.

    `sel_state_features` says whether a pair's score depends on the op's situation among the
    candidates.
    """

    kind: str = field(default="joint", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_encoder(self, self.kind)


class JointPolicy(EncoderPolicy):
    """One policy over pairs; `plc` scores them. See the module."""

    kind: ClassVar[str] = "joint"
    config_type: ClassVar[type[Shape]] = JointConfig
    episodes: ClassVar[str] = "pairs"

    plc: PlcHead

    def build_heads(self) -> list[nn.Linear]:
        shape = self.config
        columns = self.num_device_features + self.num_state_features
        self.plc = PlcHead(shape.hidden_width, shape.head_width, columns, OP_PARTS)
        return [self.plc.last]

    def encode(self, features: ProblemFeatures) -> PolicyTables:
        raw, (embedded,) = self.embed(features)
        paths = [features.to_exit.mean(embedded), features.to_entry.mean(embedded)]
        return PolicyTables(
            *nothing_to_select(features.num_ops),
            *plc_tables(self.plc, [raw, embedded, *paths], embedded),
        )
