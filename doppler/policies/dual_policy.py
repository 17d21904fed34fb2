"""DOPPLER's two policies: SEL picks the next op among the candidates, PLC picks its device.

Both heads' first layers are linear in concatenated parts, so the parts that do not change during an
episode are multiplied once per update (`encode`) and only looked up at every step. Nothing in the
parameters depends on a graph, its size or the number of devices.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from doppler.construction.relations import DEVICE_FEATURES, OP_FEATURES, PAPER_DEVICE_FEATURES
from doppler.errors import CheckpointError, ConfigurationError
from doppler.policies.encoder import GraphEncoder
from doppler.policies.features import (
    EDGE_COLUMNS,
    EXTRA_OP_COLUMNS,
    PAPER_OP_COLUMNS,
    PathTable,
    ProblemFeatures,
)
from doppler.policies.torch_files import load_weights, read_table, read_torch_file, write_torch_file

FORMAT = "doppler-policy"
VERSION = 1
MOST = 65536
"""Of every width and count; more would only exhaust the memory."""
NEVER = -1e9
"""Logit of what may not be chosen: finite, so that 0 * log 0 stays 0, yet its probability is 0."""


@dataclass(frozen=True)
class PolicyConfig:
    """Shape of a policy.

    Args:
        hidden_width: of the embeddings (the paper: 128).
        message_rounds: of the encoder (the paper: 6).
        edge_rank: shared matrices in the encoder's edge mixture.
        head_width: hidden width of both heads (the paper: 64).
        shared_encoder: one encoder for both heads, or one each.
        extended_features: op features and device features beyond the paper's five of each.
        sel_state_features: whether SEL's scores depend on what is placed (the paper's do not).

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

    def __post_init__(self) -> None:
        for label in ("hidden_width", "message_rounds", "edge_rank", "head_width"):
            value = getattr(self, label)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"policy, {label}: {value!r} is not a whole number >= 1")
            if value > MOST:
                raise ConfigurationError(f"policy, {label}: {value!r} is above {MOST}")
        for label in ("shared_encoder", "extended_features", "sel_state_features"):
            if not isinstance(getattr(self, label), bool):
                raise ConfigurationError(
                    f"policy, {label}: {getattr(self, label)!r} is neither true nor false"
                )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PolicyConfig:
        """Reads a config, refusing unknown names."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigurationError(
                f"policy: unknown option {unknown[0]!r}; the options are {', '.join(sorted(known))}"
            )
        return cls(**values)

    @classmethod
    def from_document(cls, values: dict[str, Any], where: str | Path) -> PolicyConfig:
        """Reads the config that a file holds, which has every option.

        Raises:
            CheckpointError: naming the file, if an option is missing, unknown or impossible.
        """
        for field in fields(cls):
            if field.name not in values:
                raise CheckpointError(f"{where}, policy {field.name}: is missing")
        try:
            return cls.from_dict(values)
        except ConfigurationError as error:
            raise CheckpointError(f"{where}, {error}") from error


class PolicyTables(NamedTuple):
    """All that the heads look up during an episode; the last row belongs to no op (padding)."""

    sel_scores: Tensor  # (num_ops + 1,) state-independent part of SEL's logits
    sel_gains: Tensor  # (num_ops + 1, sel state features) how each op's logit answers to them
    plc_ops: Tensor  # (num_ops + 1, head_width) PLC's first layer, the op's part
    plc_pool: Tensor  # (num_ops + 1, head_width) PLC's first layer, before pooling per device


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
    """Scores devices from their features, the op's features and embedding, and the ops on them."""

    def __init__(self, width: int, head_width: int, num_device_features: int) -> None:
        super().__init__()
        self.embed_device = nn.Linear(num_device_features, width)
        self.of_device = nn.Linear(width, head_width, bias=False)
        self.of_op = nn.Linear(2 * width, head_width)
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


class DualPolicy(nn.Module):
    """Encoder, SEL head and PLC head.

    Args:
        config: its shape; the paper's is `PAPER_POLICY`.
        seed: of the initial weights; the global generator is left as it was.
    """

    def __init__(self, config: PolicyConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config or PolicyConfig()
        shape = self.config
        num_op_features = len(PAPER_OP_COLUMNS)
        self.num_device_features = PAPER_DEVICE_FEATURES
        if shape.extended_features:
            num_op_features += len(EXTRA_OP_COLUMNS)
            self.num_device_features = len(DEVICE_FEATURES)
        self.num_state_features = len(OP_FEATURES) if shape.sel_state_features else 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
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
            self.sel = SelHead(shape.hidden_width, shape.head_width, self.num_state_features)
            self.plc = PlcHead(shape.hidden_width, shape.head_width, self.num_device_features)
        with torch.no_grad():  # near-uniform at first, whatever the graph
            for head in (self.sel.last, self.plc.last):
                head.weight.mul_(0.1)
                head.bias.zero_()

    def features(self, problem: Any) -> ProblemFeatures:
        """The problem's features as this policy reads them; compute once per problem."""
        return ProblemFeatures.from_problem(problem, extended=self.config.extended_features)

    def encode(self, features: ProblemFeatures) -> PolicyTables:
        """Runs message passing and everything else that is the same for a whole episode."""
        raw = nn.functional.leaky_relu(self.embed_raw(features.op_features))
        embedded = [encoder(features) for encoder in self.encoders]
        for_sel, for_plc = embedded[0], embedded[-1]
        scores = self.sel(for_sel, raw, features)
        none = scores.new_zeros(1, scores.shape[1])
        rows = torch.cat([scores, none])
        plc_ops = self.plc.of_op(torch.cat([raw, for_plc], dim=1))
        return PolicyTables(
            sel_scores=torch.cat([scores[:, 0], scores.new_full((1,), NEVER)]),
            sel_gains=rows[:, 1:],
            plc_ops=_padded(plc_ops),
            plc_pool=_padded(self.plc.of_pool(for_plc)),
        )

    def save(self, path: str | Path) -> None:
        """Writes shape and weights."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "config": asdict(self.config),
            "weights": self.state_dict(),
        }
        write_torch_file(path, document)

    @classmethod
    def load(cls, path: str | Path) -> DualPolicy:
        """Reads a file written by `save`.

        Raises:
            CheckpointError: missing, damaged, not a policy file of this version, or with weights
                that do not fit its shape or are not finite.
        """
        document = read_torch_file(path, "policy file", FORMAT, VERSION)
        policy = cls(PolicyConfig.from_document(read_table(document, "config", path), path))
        load_weights(policy, read_table(document, "weights", path), f"{path}, weights")
        return policy


PAPER_POLICY = PolicyConfig(
    hidden_width=128,
    message_rounds=6,
    head_width=64,
    extended_features=False,
    sel_state_features=False,
)
"""The published network: width 128, 6 rounds, 64 in the heads, the paper's features only."""


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


def _padded(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])


__all__ = [
    "NEVER",
    "PAPER_POLICY",
    "DualPolicy",
    "PathTable",
    "PolicyConfig",
    "PolicyTables",
    "sel_logits",
]
