"""Whether a placed run computed the right thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from doppler.errors import ConfigurationError

TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}
"""Largest accepted relative error by dtype: sums of shards round in another order."""


@dataclass(frozen=True)
class ResultCheck:
    """A placed run's results against the unsharded computation on one device.

    Args:
        passed: whether every result is within the tolerance.
        max_relative_error: largest ||result - reference|| / ||reference|| (Frobenius norms) of any
            result; infinite where a result is missing, not finite, or of the wrong shape.
        tolerance: of the workload's dtype.
        worst: name of the result with the largest error.
    """

    passed: bool
    max_relative_error: float
    tolerance: float
    worst: str


def compare_results(
    results: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor], dtype: str
) -> ResultCheck:
    """Compares results by name.

    Raises:
        ConfigurationError: if no tolerance is known for `dtype`.
    """
    if dtype not in TOLERANCES:
        raise ConfigurationError(
            f"dtype {dtype!r}: no tolerance is known; known are {', '.join(TOLERANCES)}"
        )
    errors = {name: _relative_error(results.get(name), reference[name]) for name in reference}
    worst = max(errors, key=errors.__getitem__)
    tolerance = TOLERANCES[dtype]
    return ResultCheck(errors[worst] <= tolerance, errors[worst], tolerance, worst)


def _relative_error(result: torch.Tensor | None, reference: torch.Tensor) -> float:
    if result is None or result.shape != reference.shape:
        return float("inf")
    difference = torch.linalg.vector_norm(result.double() - reference.double()).item()
    scale = torch.linalg.vector_norm(reference.double()).item()
    if difference == 0.0:
        return 0.0
    error = difference / scale if scale > 0 else float("inf")
    return error if error == error else float("inf")  # NaN must not compare as small
