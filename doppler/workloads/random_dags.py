"""Seeded random placement problems, for tests and benchmarks; vectorised up to millions of ops.

Work and sizes are log-normal. The communication-to-computation ratio (CCR) is exact: mean seconds
of moving an output over a link, by mean seconds of an op.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from doppler.errors import ConfigurationError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, fully_connected
from doppler.problem import PlacementProblem

MEAN_FLOPS = 1e9
"""Mean work of an op. [FLOP]"""

SPREAD = 0.7
"""Standard deviation of the logarithm of an op's work and of its output's size."""

FLOPS_PER_SECOND = 1e12
BANDWIDTH = 1e10


def layered_dag(
    num_ops: int,
    num_devices: int = 4,
    *,
    ccr: float = 1.0,
    num_layers: int | None = None,
    mean_degree: float = 2.0,
    seed: int = 0,
) -> PlacementProblem:
    """A graph of layers: each op beyond the first layer consumes ops of the layer before.

    Args:
        num_ops: at least 1.
        num_devices: equal devices, a link each way between any two.
        ccr: mean transfer seconds by mean op seconds.
        num_layers: at most `num_ops`; None for about the square root of `num_ops`.
        mean_degree: mean number of operands drawn per op, at least 1 (repeats count once).
        seed: equal seeds give equal problems.

    Raises:
        ConfigurationError: if a number is out of its range.
    """
    _check(num_ops, num_devices, ccr, mean_degree)
    if num_layers is None:
        num_layers = max(min(2, num_ops), math.isqrt(num_ops))
    if not 1 <= num_layers <= num_ops:
        raise ConfigurationError(f"random DAG, num_layers: {num_layers} is not in 1..{num_ops}")
    if mean_degree < 1:
        raise ConfigurationError(f"random DAG, mean_degree: {mean_degree} is below 1")
    rng = np.random.default_rng(seed)
    # Layer i holds the ops starts[i] to starts[i + 1] - 1, as equally many as may be.
    starts = np.arange(num_layers + 1, dtype=np.int64) * num_ops // num_layers
    layer = np.repeat(np.arange(num_layers), np.diff(starts))
    consumers = np.arange(starts[1], num_ops)
    drawn = np.repeat(consumers, 1 + rng.poisson(mean_degree - 1, len(consumers)))
    before = layer[drawn] - 1
    producers = starts[before] + rng.integers(0, starts[before + 1] - starts[before])
    return _problem(f"layered-{num_ops}-{seed}", num_ops, num_devices, producers, drawn, ccr, rng)


def erdos_renyi_dag(
    num_ops: int,
    num_devices: int = 4,
    *,
    ccr: float = 1.0,
    mean_degree: float = 2.0,
    seed: int = 0,
) -> PlacementProblem:
    """A uniform random graph G(n, m) with every edge directed from the lower to the higher id.

    Args:
        num_ops: at least 1.
        num_devices: equal devices, a link each way between any two.
        ccr: mean transfer seconds by mean op seconds.
        mean_degree: edges per op, so m = mean_degree x num_ops, or all pairs where that is fewer.
        seed: equal seeds give equal problems.

    Raises:
        ConfigurationError: if a number is out of its range.
    """
    _check(num_ops, num_devices, ccr, mean_degree)
    rng = np.random.default_rng(seed)
    pairs = num_ops * (num_ops - 1) // 2
    wanted = min(pairs, round(mean_degree * num_ops))
    if 2 * wanted > pairs:
        codes = rng.permutation(pairs)[:wanted]
    else:
        codes = np.zeros(0, np.int64)
        while len(codes) < wanted:
            more = rng.integers(0, pairs, wanted + wanted // 8 + 8)
            codes = _distinct(np.concatenate([codes, more]))
        codes = rng.permutation(codes)[:wanted]
    producers, consumers = _pairs(codes)
    name = f"erdos_renyi-{num_ops}-{seed}"
    return _problem(name, num_ops, num_devices, producers, consumers, ccr, rng)


RANDOM_DAGS: dict[str, Callable[..., PlacementProblem]] = {
    "erdos_renyi": erdos_renyi_dag,
    "layered": layered_dag,
}
"""The generators by name."""


def _problem(
    name: str,
    num_ops: int,
    num_devices: int,
    producers: np.ndarray,
    consumers: np.ndarray,
    ccr: float,
    rng: np.random.Generator,
) -> PlacementProblem:
    codes = _distinct(producers * num_ops + consumers)
    edges = np.stack([codes // num_ops, codes % num_ops], axis=1)
    flops = rng.lognormal(0.0, SPREAD, num_ops)
    flops *= MEAN_FLOPS / flops.mean()
    output_bytes = rng.lognormal(0.0, SPREAD, num_ops)
    output_bytes *= ccr * MEAN_FLOPS / FLOPS_PER_SECOND * BANDWIDTH / output_bytes.mean()
    graph = DataflowGraph.from_edges(name, num_ops, edges, flops=flops, output_bytes=output_bytes)
    topology = fully_connected(
        num_devices, flops_per_second=FLOPS_PER_SECOND, bandwidth=BANDWIDTH, latency=0.0
    )
    costs = CostModel(
        op_seconds=np.repeat((flops / FLOPS_PER_SECOND)[:, None], num_devices, axis=1),
        transfer_volume=output_bytes,
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.full(topology.num_links, 1.0 / BANDWIDTH),
        source=f"random, CCR {ccr:g}",
    )
    return PlacementProblem(graph, topology, costs)


def _pairs(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs (p, c), p < c, that have the codes c (c - 1) / 2 + p."""
    consumers = ((1 + np.sqrt(1 + 8 * codes.astype(np.float64))) / 2).astype(np.int64)
    # Beyond some 1e8 ops a root just below a whole number is rounded up to it.
    consumers -= consumers * (consumers - 1) // 2 > codes
    return codes - consumers * (consumers - 1) // 2, consumers


def _distinct(codes: np.ndarray) -> np.ndarray:
    """The distinct values, ascending; for millions of them much faster than `np.unique`."""
    ordered = np.sort(codes)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _check(num_ops: int, num_devices: int, ccr: float, mean_degree: float) -> None:
    for label, value in (("num_ops", num_ops), ("num_devices", num_devices)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(
                f"random DAG, {label}: {value!r} is not a whole number above 0"
            )
    for label, amount in (("ccr", ccr), ("mean_degree", mean_degree)):
        if not (amount >= 0 and math.isfinite(amount)):
            raise ConfigurationError(f"random DAG, {label}: {amount!r} is not finite and >= 0")
