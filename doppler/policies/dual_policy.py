"""DOPPLER's two policies: SEL picks the next op among the candidates, PLC picks its device.

Both heads' first layers are linear in concatenated parts, so the parts that do not change during an
episode are multiplied once per update (`encode`) and only looked up at every step. Nothing in the
parameters depends on a graph, its size or the number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from doppler.construction.relations import DEVICE_FEATURES, OP_FEATURES, PAPER_DEVICE_FEATURES
from doppler.errors import ConfigurationError
from doppler.policies.base import NEVER, Policy, PolicyTables, Shape, padded
from doppler.policies.encoder import GraphEncoder
from doppler.policies.features import (
    EDGE_COLUMNS,
    EXTRA_OP_COLUMNS,
    PAPER_OP_COLUMNS,
    POSITION_COLUMNS,
    PathTable,
    ProblemFeatures,
)
from doppler.policies.heads import PlcHead, SelHead
from doppler.problem import PlacementProblem


@dataclass(frozen=True)
class PolicyConfig(Shape):
    """Shape of a policy with this project's encoder.

    Args:
        hidden_width: of the embeddings (the paper: 128).
        message_rounds: of the encoder (the paper: 6).
        edge_rank: shared matrices in the encoder's edge mixture.
        head_width: hidden width of both heads (the paper: 64).
        shared_encoder: one encoder for both heads, or one each.
        extended_features: op features and device features beyond the paper's five of each.
        sel_state_features: whether SEL's scores depend on what is placed (the paper's do not).
        positions: whether ops are told apart by their places in the critical path's order
            (`POSITION_COLUMNS`; the paper's are not).

    Raises:
        ConfigurationError: a width or count below 1 or above `MOST`, or a switch that is no bool.
    """

    hidden_width: int = 64
    message_rounds: int = 4
    edge_rank: int = 4
    head_width: int = 64
    shared_encoder: bool = True
    extended_features: bool = True
    sel_state_features: bool = True
    positions: bool = True


class EncoderPolicy(Policy):
    """What the policies share that read this project's encoder: it, and the features."""

    config_type: ClassVar[type[Shape]] = PolicyConfig

    config: PolicyConfig

    def build(self) -> list[nn.Linear]:
        shape = self.config
        num_op_features = len(PAPER_OP_COLUMNS)
        self.num_device_features = PAPER_DEVICE_FEATURES
        if shape.extended_features:
            num_op_features += len(EXTRA_OP_COLUMNS)
            self.num_device_features = len(DEVICE_FEATURES)
        if shape.positions:
            num_op_features += len(POSITION_COLUMNS)
        self.num_state_features = len(OP_FEATURES) if shape.sel_state_features else 0
        self.encoders = nn.ModuleList(
            GraphEncoder(
                num_op_features,
                len(EDGE_COLUMNS),
                shape.hidden_width,
                shape.message_rounds,
                shape.edge_rank,
            )
            for _ in range(1 if shape.shared_encoder else 2)
        )
        self.embed_raw = nn.Linear(num_op_features, shape.hidden_width)
        return self.build_heads()

    def build_heads(self) -> list[nn.Linear]:
        """Makes the heads; returns their last layers."""
        raise NotImplementedError

    def features(self, problem: PlacementProblem) -> ProblemFeatures:
        shape = self.config
        return ProblemFeatures.from_problem(problem, shape.extended_features, shape.positions)

    def embed(self, features: ProblemFeatures) -> tuple[Tensor, list[Tensor]]:
        """The ops' own features, embedded, and each encoder's output. # (num_ops, width) each"""
        raw = nn.functional.leaky_relu(self.embed_raw(features.op_features))
        return raw, [encoder(features) for encoder in self.encoders]


class DualPolicy(EncoderPolicy):
    """Encoder, SEL head and PLC head.

    Args:
        config: its shape; the paper's is `PAPER_POLICY`.
        seed: of the initial weights; the global generator is left as it was.
    """

    kind: ClassVar[str] = "doppler"

    sel: SelHead
    plc: PlcHead

    def build_heads(self) -> list[nn.Linear]:
        shape = self.config
        self.sel = SelHead(shape.hidden_width, shape.head_width, self.num_state_features)
        self.plc = PlcHead(shape.hidden_width, shape.head_width, self.num_device_features)
        return [self.sel.last, self.plc.last]

    def encode(self, features: ProblemFeatures) -> PolicyTables:
        raw, embedded = self.embed(features)
        return PolicyTables(
            *sel_tables(self.sel, embedded[0], raw, features),
            *plc_tables(self.plc, [raw, embedded[-1]], embedded[-1]),
        )


PAPER_POLICY = PolicyConfig(
    hidden_width=128,
    message_rounds=6,
    head_width=64,
    extended_features=False,
    sel_state_features=False,
    positions=False,
)
"""The published network: width 128, 6 rounds, 64 in the heads, the paper's features only."""


def sel_tables(
    head: SelHead, embedded: Tensor, raw: Tensor, features: ProblemFeatures
) -> tuple[Tensor, Tensor]:
    """`sel_scores` and `sel_gains`."""
    scores = head(embedded, raw, features)
    gains = padded(scores)[:, 1:]
    return torch.cat([scores[:, 0], scores.new_full((1,), NEVER)]), gains


def plc_tables(head: PlcHead, op_parts: list[Tensor], embedded: Tensor) -> tuple[Tensor, Tensor]:
    """`plc_ops` and `plc_pool`."""
    ops = head.of_op(torch.cat(op_parts, dim=1))
    return padded(ops), padded(head.of_pool(embedded))


def require_one_encoder(config: PolicyConfig, kind: str) -> None:
    """Raises `ConfigurationError` if a policy with one head is to have an encoder for another."""
    if not config.shared_encoder:
        raise ConfigurationError(
            f"policy {kind!r}, shared_encoder: one head has no use for two encoders; set it to true"
        )


def sel_logits(tables: PolicyTables, candidates: Tensor, state_features: Tensor) -> Tensor:
    """SEL's logits of listed candidates, `NEVER` at padding.

    Args:
        tables: of the policy.
        candidates: op ids, padded with num_ops. # (..., width) int64
        state_features: columns `OP_FEATURES`; unread by a policy without them. # (..., width, 4)
    """
    scores = tables.sel_scores[candidates]
    if tables.sel_gains.shape[1] == 0:
        return scores
    return scores + (tables.sel_gains[candidates] * state_features).sum(-1)


__all__ = [
    "NEVER",
    "PAPER_POLICY",
    "DualPolicy",
    "EncoderPolicy",
    "PathTable",
    "PolicyConfig",
    "PolicyTables",
    "sel_logits",
]
