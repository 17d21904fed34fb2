"""Placeto with a hoisted encoder: one policy walks the ops in a fixed order and places each.

Source: Addanki et al. (2019), "Learning generalizable device placement algorithms for distributed
machine learning". There message passing runs at every step on features that hold each op's current
placement, whether it was visited and whether it is the current one; the head reads the current
op's embedding beside pooled embeddings of the ops above it, below it and beside it.

Here message passing runs once per update, as for every policy of this project, on features that
do not change during an episode. What changes enters at the head:

- *current*: the head reads the row of the op that is placed;
- *visited*: the walk is fixed, so which ops were visited is known beforehand for every step: the
  head reads the mean embedding of those ops and that of all others;
- *current placement*: for each device the head reads the mean embedding of the ops on it, and
  how much of the op's inputs, of the other inputs of its consumers (one and two levels on), of its
  wave and of all work is there. What a message pass would tell of placements farther away is lost.

Above and below the op it pools its producers and its consumers. An op that was not visited has no
placement, where Placeto starts from one that it improves. A device is known by what is on it, not
by its number, so equal devices are interchangeable. Unlike PLC, it sees no times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from doppler.construction.relations import DEVICE_FEATURES
from doppler.policies.base import PolicyTables, Shape, nothing_to_select
from doppler.policies.dual_policy import (
    EncoderPolicy,
    PolicyConfig,
    plc_tables,
    require_one_encoder,
)
from doppler.policies.features import ProblemFeatures
from doppler.policies.heads import PlcHead
from doppler.policies.rules import critical_path_order
from doppler.policies.walking import WalkFeatures, before_and_after
from doppler.problem import PlacementProblem

PLACEMENT_FEATURES = (
    "compute_placed",
    "predecessor_compute",
    "relative_op_seconds",
    "load_above_mean",
    "input_share",
    "co_producers",
    "co_producer_share",
    "second_co_producers",
    "second_co_producer_share",
    "wave_load",
    "empty",
)
"""Device features that follow from graph, costs and placement, without an estimate of times."""
OP_PARTS = 6
"""The op's features and embedding, its producers, its consumers, the visited ops, the others."""


@dataclass(frozen=True)
class PlacetoConfig(PolicyConfig):
    """As of `PolicyConfig`, with one encoder; `sel_state_features` means nothing here."""

    kind: str = field(default="placeto", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_encoder(self, self.kind)


class PlacedHead(PlcHead):
    """PLC's head on the columns that know no times.

    Args:
        width, head_width: as of `PlcHead`.
        num_device_features: columns that it is given, of which it reads some.
    """

    columns: Tensor

    def __init__(self, width: int, head_width: int, num_device_features: int) -> None:
        read = [
            column
            for column, name in enumerate(DEVICE_FEATURES[:num_device_features])
            if name in PLACEMENT_FEATURES
        ]
        super().__init__(width, head_width, len(read), OP_PARTS)
        self.register_buffer("columns", torch.tensor(read), persistent=False)

    def forward(self, op_rows: Tensor, pooled: Tensor, device_features: Tensor) -> Tensor:
        return super().forward(op_rows, pooled, device_features[..., self.columns])


class PlacetoPolicy(EncoderPolicy):
    """One policy over devices for ops in a fixed order; see the module."""

    kind: ClassVar[str] = "placeto"
    config_type: ClassVar[type[Shape]] = PlacetoConfig
    episodes: ClassVar[str] = "walk"

    plc: PlacedHead

    def build_heads(self) -> list[nn.Linear]:
        shape = self.config
        self.plc = PlacedHead(shape.hidden_width, shape.head_width, self.num_device_features)
        return [self.plc.last]

    def features(self, problem: PlacementProblem) -> WalkFeatures:
        shape = self.config
        return WalkFeatures.from_problem(problem, shape.extended_features, shape.positions)

    def encode(self, features: ProblemFeatures) -> PolicyTables:
        assert isinstance(features, WalkFeatures)
        raw, (embedded,) = self.embed(features)
        parts = [
            raw,
            embedded,
            *producers_and_consumers(embedded, features),
            *before_and_after(embedded, features),
        ]
        return PolicyTables(
            *nothing_to_select(features.num_ops), *plc_tables(self.plc, parts, embedded)
        )

    def order(self, problem: PlacementProblem) -> np.ndarray:
        return critical_path_order(problem)


def producers_and_consumers(rows: Tensor, features: ProblemFeatures) -> tuple[Tensor, Tensor]:
    """Mean row of each op's producers and of its consumers, 0 where it has none.

    # (num_ops, width) -> twice the same
    """
    sources, targets = features.edge_ends  # each edge twice: first along it, then against it
    half = len(sources) // 2
    above, below = (
        scatter(rows[sources[part]], targets[part], dim_size=len(rows), reduce="mean")
        for part in (slice(half), slice(half, None))
    )
    return above, below
