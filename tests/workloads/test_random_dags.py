"""Random placement problems: shapes, exact CCR, seeds, and speed at a million ops."""

from __future__ import annotations

import time

import numpy as np
import pytest

from doppler.errors import ConfigurationError
from doppler.graph.levels import t_levels
from doppler.workloads import RANDOM_DAGS, erdos_renyi_dag, layered_dag
from doppler.workloads.random_dags import _pairs


@pytest.mark.parametrize("num_ops", [1, 2, 3, 5, 200])
@pytest.mark.parametrize("make", RANDOM_DAGS.values(), ids=RANDOM_DAGS)
def test_mean_costs_have_the_asked_ccr(make, num_ops):
    problem = make(num_ops, num_devices=3, ccr=2.5, seed=1)
    assert (problem.num_ops, problem.num_devices) == (num_ops, 3)
    op_seconds = problem.mean_op_seconds.mean()
    assert op_seconds == pytest.approx(1e-3)
    assert problem.mean_transfer_seconds.mean() == pytest.approx(2.5 * op_seconds)
    assert problem.graph.flops.sum() == pytest.approx(1e9 * num_ops)
    assert problem.transfer_seconds(0, 0, 1) == pytest.approx(problem.graph.output_bytes[0] / 1e10)


def test_layers_follow_one_another():
    problem = layered_dag(100, num_layers=10, mean_degree=3.0, seed=2)
    depth = t_levels(problem.graph, np.ones(100))
    assert (depth == np.repeat(np.arange(10), 10)).all()
    assert (problem.graph.in_degrees[:10] == 0).all()
    assert 2.0 < problem.graph.in_degrees[10:].mean() <= 3.5


@pytest.mark.parametrize(
    ("num_ops", "mean_degree", "num_edges"),
    [(100, 2.0, 200), (5, 9.0, 10), (6, 2.0, 12), (1, 2, 0)],
)
def test_erdos_renyi_has_exactly_the_asked_edges(num_ops, mean_degree, num_edges):
    graph = erdos_renyi_dag(num_ops, mean_degree=mean_degree).graph
    assert graph.num_edges == num_edges
    assert (graph.edges[:, 0] < graph.edges[:, 1]).all()


def test_pair_codes_are_exact_where_floating_point_is_not():
    consumers = np.arange(10**9, 10**9 + 2000, dtype=np.int64)
    for producers in (np.zeros_like(consumers), consumers - 1):
        codes = consumers * (consumers - 1) // 2 + producers
        found = _pairs(codes)
        assert np.array_equal(found[0], producers) and np.array_equal(found[1], consumers)


def test_erdos_renyi_draws_pairs_evenly():
    """Each of the 45 pairs of 10 ops is drawn about 1000 x 20 / 45 = 444 times."""
    counts = np.zeros((10, 10))
    for seed in range(1000):
        edges = erdos_renyi_dag(10, mean_degree=2.0, seed=seed).graph.edges
        counts[edges[:, 0], edges[:, 1]] += 1
    drawn = counts[np.triu_indices(10, 1)]
    assert drawn.sum() == 20_000
    assert drawn.min() > 350 and drawn.max() < 540


@pytest.mark.parametrize("make", RANDOM_DAGS.values(), ids=RANDOM_DAGS)
def test_equal_seeds_give_equal_problems(make):
    first, second, other = (make(60, seed=seed) for seed in (7, 7, 8))
    assert np.array_equal(first.graph.edges, second.graph.edges)
    assert np.array_equal(first.cost_model.op_seconds, second.cost_model.op_seconds)
    assert not np.array_equal(first.graph.flops, other.graph.flops)


@pytest.mark.parametrize("make", RANDOM_DAGS.values(), ids=RANDOM_DAGS)
def test_a_million_ops_take_seconds(make):
    started = time.perf_counter()
    problem = make(1_000_000)
    assert time.perf_counter() - started < 20  # about 1.4 s alone on one core
    assert problem.graph.num_edges > 1_900_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ops": 0}, "num_ops: 0 is not a whole number above 0"),
        ({"num_ops": 5, "num_devices": 0}, "num_devices: 0 is not"),
        ({"num_ops": 5, "ccr": float("nan")}, "ccr: nan is not finite"),
        ({"num_ops": 5, "ccr": -1.0}, "ccr: -1.0 is not finite and >= 0"),
        ({"num_ops": 5, "mean_degree": -1.0}, "mean_degree: -1.0 is"),
    ],
)
@pytest.mark.parametrize("make", RANDOM_DAGS.values(), ids=RANDOM_DAGS)
def test_bad_numbers_are_named(make, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 6}, "num_layers: 6 is not in 1..5"),
        ({"num_layers": 0}, "num_layers: 0 is not in 1..5"),
        ({"mean_degree": 0.5}, "mean_degree: 0.5 is below 1"),
    ],
)
def test_bad_layers_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        layered_dag(5, **options)
