"""Policies half of which is a rule of the critical-path scheduler: SEL-only and PLC-only.

DOPPLER's ablation (Yao et al. 2026): one policy is learned while the critical-path rule stands in
for the other. A rule's choice is certain: its log-likelihood and its entropy are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from doppler.policies.base import PolicyTables, Shape, nothing_to_select
from doppler.policies.dual_policy import (
    EncoderPolicy,
    PolicyConfig,
    plc_tables,
    require_one_encoder,
    sel_tables,
)
from doppler.policies.features import ProblemFeatures
from doppler.policies.heads import NoPlcHead, PlcHead, SelHead
from doppler.problem import PlacementProblem
from doppler.schedulers.critical_path import critical_path_episodes


def critical_path_order(problem: PlacementProblem) -> np.ndarray:
    """The candidate with the longest path to an exit first, ties to the lower id. # (num_ops,)

    It is the order of the critical-path scheduler, wherever that one puts the ops.
    """
    rng = np.random.default_rng(0)  # not read: ties go by id
    ops, _ = critical_path_episodes(problem, 1, "contention_free", rng, ties="id")
    return ops[0]


@dataclass(frozen=True)
class SelOnlyConfig(PolicyConfig):
    """As of `PolicyConfig`, with one encoder."""

    kind: str = field(default="sel_only", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_encoder(self, self.kind)


@dataclass(frozen=True)
class PlcOnlyConfig(PolicyConfig):
    """As of `PolicyConfig`, with one encoder; `sel_state_features` means nothing here."""

    kind: str = field(default="plc_only", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_encoder(self, self.kind)


class SelOnlyPolicy(EncoderPolicy):
    """SEL is learned; each op goes on the device where it can start earliest, ties by id."""

    kind: ClassVar[str] = "sel_only"
    config_type: ClassVar[type[Shape]] = SelOnlyConfig
    episodes: ClassVar[str] = "select_only"

    sel: SelHead

    def build_heads(self) -> list[nn.Linear]:
        shape = self.config
        self.num_device_features = 0
        self.sel = SelHead(shape.hidden_width, shape.head_width, self.num_state_features)
        self.plc = NoPlcHead()
        return [self.sel.last]

    def encode(self, features: ProblemFeatures) -> PolicyTables:
        raw, embedded = self.embed(features)
        unread = torch.zeros(features.num_ops + 1, 1)
        return PolicyTables(*sel_tables(self.sel, embedded[0], raw, features), unread, unread)


class PlcOnlyPolicy(EncoderPolicy):
    """PLC is learned; the candidate with the longest path to an exit comes next, ties by id."""

    kind: ClassVar[str] = "plc_only"
    config_type: ClassVar[type[Shape]] = PlcOnlyConfig
    episodes: ClassVar[str] = "walk"

    plc: PlcHead

    def build_heads(self) -> list[nn.Linear]:
        shape = self.config
        self.plc = PlcHead(shape.hidden_width, shape.head_width, self.num_device_features)
        return [self.plc.last]

    def encode(self, features: ProblemFeatures) -> PolicyTables:
        raw, embedded = self.embed(features)
        return PolicyTables(
            *nothing_to_select(features.num_ops),
            *plc_tables(self.plc, [raw, embedded[0]], embedded[0]),
        )

    def order(self, problem: PlacementProblem) -> np.ndarray:
        return critical_path_order(problem)
