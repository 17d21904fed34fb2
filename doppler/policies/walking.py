"""Features of policies that walk the ops in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from torch import Tensor

from doppler.policies.features import ProblemFeatures
from doppler.policies.rules import critical_path_order
from doppler.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class WalkFeatures(ProblemFeatures):
    """A problem's features, and the walk.

    Args:
        order: the op of each step. # (num_ops,) int64
        position: the step of each op. # (num_ops,) int64
        num_devices: of the problem.
    """

    order: Tensor
    position: Tensor
    num_devices: int

    @classmethod
    def from_problem(
        cls, problem: PlacementProblem, extended: bool = True, positions: bool = False
    ) -> Self:
        """Computes the features; the walk is the critical-path scheduler's, ties to the lower id.

        It is a topological order, and the one that serves a rule best which gives urgent ops
        priority in the order of the walk.
        """
        plain = ProblemFeatures.from_problem(problem, extended, positions)
        order = critical_path_order(problem)
        return cls(
            **{each.name: getattr(plain, each.name) for each in fields(plain)},
            order=torch.from_numpy(order),
            position=torch.from_numpy(np.argsort(order)),
            num_devices=problem.num_devices,
        )


def before_and_after(rows: Tensor, features: WalkFeatures) -> tuple[Tensor, Tensor]:
    """Mean row of the ops that the walk visits before each op, 0 at the first, and of the others.

    An op itself is among the others.

    Args:
        rows: by op. # (num_ops, width)

    Returns:
        Both by op. # (num_ops, width) each
    """
    walked = rows[features.order]
    sums = walked.cumsum(0)
    before = sums - walked
    counts = torch.arange(len(rows), dtype=rows.dtype)[:, None]  # (num_ops, 1) ops before
    visited = before / counts.clamp(min=1.0)
    others = (sums[-1:] - before) / (len(rows) - counts)
    return visited[features.position], others[features.position]
