"""Seconds of kernels that were not measured, from those that were.

The model is `seconds = launch + flops * per_flop + traffic * per_byte`, no coefficient below 0,
fitted to least *relative* errors, so that a small kernel counts as much as a large one. Kinds with
enough measured signatures have coefficients of their own: a matrix product and an addition reach
very different rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from doppler.executor.base import Executable
from doppler.executor.calibration.timings import KernelTiming

LEAST_SIGNATURES = 4
"""So many must be measured, one more than coefficients; of a kind for coefficients of its own."""

_ANY = ""
"""Key of the coefficients that are not a kind's."""


def kernel_sizes(workload: Executable) -> dict[str, tuple[float, float] | None]:
    """FLOPs and traffic of every kernel signature; None where the workload does not know them.

    Returns:
        signature -> ([FLOP], [B]): bytes of all operands and of the result.
    """
    graph = workload.graph
    sizes: dict[str, tuple[float, float] | None] = {}
    item = getattr(torch, workload.dtype).itemsize
    for op, kernel in enumerate(workload.kernels):
        if kernel.signature in sizes:
            continue
        shapes: Any = getattr(kernel, "operand_shapes", None)
        if graph.flops is None or graph.output_bytes is None or shapes is None:
            sizes[kernel.signature] = None
            continue
        read = sum(item * math.prod(shape) for shape in shapes)
        sizes[kernel.signature] = (float(graph.flops[op]), float(graph.output_bytes[op] + read))
    return sizes


def kind_of(signature: str) -> str:
    """The kind of a kernel, the first part of its signature."""
    return signature.partition("|")[0]


@dataclass(frozen=True)
class KernelRegression:
    """Coefficients by kind of kernel, and for kinds without their own.

    Args:
        busy: kind -> (launch, per_flop, per_byte), other devices at work. # [s], [s/FLOP], [s/B]
        alone: the same, other devices idle.
        typical: variation and share of the measured kernels' medians.
        error: median relative error of each busy timing, estimated from the others.
        signatures: how many were measured.
    """

    busy: Mapping[str, np.ndarray]
    alone: Mapping[str, np.ndarray]
    typical: tuple[float, float]
    error: float
    signatures: int

    def timing(self, signature: str, flops: float, traffic: float) -> KernelTiming:
        """The estimate of a kernel; it has no samples."""
        kind = kind_of(signature)
        row = np.array([1.0, flops, traffic])
        variation, share = self.typical
        busy, alone = (
            float(row @ known.get(kind, known[_ANY])) for known in (self.busy, self.alone)
        )
        return KernelTiming(
            busy, alone, variation, samples=0, share=share, flops=flops, traffic=traffic
        )

    def describe(self) -> str:
        """For output: what it rests on and how far off it is."""
        return (
            f"regression on FLOPs and bytes over {self.signatures} measured kernels, median error "
            f"{self.error:.0%} on kernels left out"
        )


def fit_regression(kernels: Mapping[str, KernelTiming]) -> KernelRegression | None:
    """Fits measured kernels; None if fewer than `LEAST_SIGNATURES` have sizes and take time."""
    known = {
        signature: timing
        for signature, timing in sorted(kernels.items())
        if timing.samples > 0
        and timing.flops is not None
        and timing.traffic is not None
        and timing.busy > 0
        and timing.alone > 0
    }
    if len(known) < LEAST_SIGNATURES:
        return None
    timings = list(known.values())
    kinds = np.array([kind_of(signature) for signature in known])
    sizes = np.array([(1.0, timing.flops, timing.traffic) for timing in timings], np.float64)
    busy = np.array([timing.busy for timing in timings])
    fits = _fit_kinds(kinds, sizes, busy)
    errors = []
    for left_out in range(len(busy)):
        kept = np.arange(len(busy)) != left_out
        fit = _fit_kinds(kinds[kept], sizes[kept], busy[kept])
        guess = sizes[left_out] @ fit.get(str(kinds[left_out]), fit[_ANY])
        errors.append(abs(guess / busy[left_out] - 1))
    return KernelRegression(
        busy=fits,
        alone=_fit_kinds(kinds, sizes, np.array([timing.alone for timing in timings])),
        typical=(
            float(np.median([timing.variation for timing in timings])),
            float(np.median([timing.share for timing in timings])),
        ),
        error=float(np.median(errors)),
        signatures=len(known),
    )


def _fit_kinds(kinds: np.ndarray, sizes: np.ndarray, seconds: np.ndarray) -> dict[str, np.ndarray]:
    fits = {_ANY: _fit(sizes, seconds)}
    for kind in np.unique(kinds).tolist():
        own = kinds == kind
        if own.sum() >= LEAST_SIGNATURES:
            fits[kind] = _fit(sizes[own], seconds[own])
    return fits


def _fit(sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Least squares of relative errors, no coefficient below 0. # (3,)"""
    from scipy.optimize import nnls  # slow to import

    rows = sizes / seconds[:, None]
    scale = np.maximum(rows.max(axis=0), np.finfo(float).tiny)
    # FLOPs and bytes differ by orders of magnitude from 1: scaled columns keep nnls exact.
    coefficients, _ = nnls(rows / scale, np.ones(len(seconds)))
    return np.asarray(coefficients / scale)
