"""Small comparators, and problems for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from doppler.policies import (
    GdpConfig,
    GdpPolicy,
    JointConfig,
    JointPolicy,
    PlacetoConfig,
    PlacetoPolicy,
    PlcOnlyConfig,
    PlcOnlyPolicy,
    Policy,
    SelOnlyConfig,
    SelOnlyPolicy,
)
from doppler.problem import InputTensor, PlacementProblem
from doppler.training import (
    Episodes,
)
from doppler.workloads.random_dags import layered_dag

SIZES = {"hidden_width": 16, "message_rounds": 2, "head_width": 16}
MAKERS: dict[str, Callable[[], Policy]] = {
    "sel_only": lambda: SelOnlyPolicy(SelOnlyConfig(**SIZES)),
    "plc_only": lambda: PlcOnlyPolicy(PlcOnlyConfig(**SIZES)),
    "placeto": lambda: PlacetoPolicy(PlacetoConfig(**SIZES)),
    "gdp": lambda: GdpPolicy(GdpConfig(16, 2, 2, 2, segment_ops=16)),
    "joint": lambda: JointPolicy(JointConfig(**SIZES)),
}
every_comparator = pytest.mark.parametrize("name", MAKERS)


def sharp(name: str) -> Policy:
    """A policy whose choices depend on what it sees."""
    policy = MAKERS[name]()
    with torch.no_grad():
        for label, weights in policy.named_parameters():
            if label.endswith(("last.weight", "of_op.weight")):
                weights.mul_(10.0)
    return policy


def constrained() -> PlacementProblem:
    """Pins, groups and inputs, among them one that may be anywhere."""
    problem = layered_dag(40, 3, seed=2)
    rng = np.random.default_rng(5)
    groups = np.where(rng.random(40) < 0.4, rng.integers(0, 4, 40), -1)
    return replace(
        problem,
        colocation=groups,
        pinned=np.where((rng.random(40) < 0.3) & (groups < 0), rng.integers(0, 3, 40), -1),
        inputs=(
            InputTensor("x", 1e6, (0, 7, 20), 1),
            InputTensor("y", 1e6, (3, 9), "first_consumer"),
        ),
    ).with_explicit_inputs()


PROBLEMS = {"free": layered_dag(40, 3, seed=2), "constrained": constrained()}


def check_legal(problem: PlacementProblem, batch: Episodes) -> None:
    for ops, devices in zip(batch.ops, batch.placements):
        problem.check_order(ops)
        problem.check_placement(devices)
