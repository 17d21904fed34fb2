"""A step of the optimiser that changes the policy too much is taken back by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

MOST_HALVINGS = 10
"""After so many, the step is not taken at all."""


def estimated_kl(before: np.ndarray, after: np.ndarray) -> float:
    """KL(before || after) per decision from log-likelihoods of choices that `before` made.

    The mean of r - 1 - log r, with r the likelihood after over the one before: unbiased, as the
    mean of - log r is, but every term is at least 0, so that few choices do not make it negative.

    Args:
        before: log-likelihoods. # any shape
        after: of the same choices.

    Source: Schulman, Approximating KL Divergence (2020), estimator k3.
    """
    change = after.astype(np.float64) - before
    return float((np.expm1(change) - change).mean())


@torch.no_grad()
def backtrack(
    parameters: Sequence[Tensor],
    before: Sequence[Tensor],
    divergence: Callable[[], float],
    limit: float,
) -> tuple[float, float]:
    """Halves the step from `before` to where the parameters are until it diverges little enough.

    Args:
        parameters: changed in place.
        before: copies from before the step.
        divergence: of the policy with the present parameters from the one before.
        limit: the most that it may be, at least 0.

    Returns:
        The part of the step that was taken, 1, 1/2, 1/4 ... or 0, and its divergence.
    """
    after = [parameter.clone() for parameter in parameters]
    scale, value = 1.0, divergence()
    for _ in range(MOST_HALVINGS):
        if value <= limit:
            return scale, value
        scale /= 2.0
        for parameter, old, new in zip(parameters, before, after, strict=True):
            parameter.copy_(old + scale * (new - old))
        value = divergence()
    if value <= limit:
        return scale, value
    for parameter, old in zip(parameters, before, strict=True):
        parameter.copy_(old)
    return 0.0, 0.0
