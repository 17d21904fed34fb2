"""Op, edge and path features against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.policies import ProblemFeatures
from doppler.policies.features import (
    POSITION_COLUMNS,
    PathTable,
    position_waves,
    z_normalise,
)
from doppler.problem import PlacementProblem


def diamond() -> PlacementProblem:
    """0 -> 1 -> 3, 0 -> 2 -> 3; op seconds 1, 2, 4, 1; transfers of 1, 3, 1, 5 seconds.

    b-levels: 3: 1; 1: 2+3+1 = 6; 2: 4+1+1 = 6; 0: 1+1+6 = 8. t-levels: 0: 0; 1 and 2: 1+1 = 2;
    3: 2+4+1 = 7 (by op 1: 2+2+3 = 7 too).
    """
    graph = DataflowGraph.from_edges("diamond", 4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    topology = make_topology("ideal", 2)
    costs = CostModel(
        op_seconds=np.repeat(np.array([[1.0], [2.0], [4.0], [1.0]]), 2, axis=1),
        transfer_volume=np.array([1.0, 3.0, 1.0, 5.0]),
        link_latency=np.zeros(2),
        link_seconds_per_unit=np.ones(2),
        source="test",
    )
    return PlacementProblem(graph, topology, costs)


def test_op_features_are_the_papers_five_z_normalised() -> None:
    raw = np.array(
        [  # seconds, b-level, t-level, in-communication, out-communication
            [1.0, 8.0, 0.0, 0.0, 2.0],
            [2.0, 6.0, 2.0, 1.0, 3.0],
            [4.0, 6.0, 2.0, 1.0, 1.0],
            [1.0, 1.0, 7.0, 4.0, 0.0],
        ]
    )
    expected = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    features = ProblemFeatures.from_problem(diamond(), extended=False)
    assert features.op_features.numpy() == pytest.approx(expected, abs=1e-6)


def test_extended_features_are_degrees_and_depth() -> None:
    features = ProblemFeatures.from_problem(diamond()).op_features
    raw = np.array(
        [  # log(1 + fan-in), log(1 + fan-out), depth / 2
            [0.0, np.log(3), 0.0],
            [np.log(2), np.log(2), 0.5],
            [np.log(2), np.log(2), 0.5],
            [np.log(3), 0.0, 1.0],
        ]
    )
    expected = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    assert features[:, 5:].numpy() == pytest.approx(expected, abs=1e-6)


def test_edges_appear_in_both_directions() -> None:
    features = ProblemFeatures.from_problem(diamond())
    assert features.edge_ends.tolist() == [[0, 0, 1, 2, 1, 2, 3, 3], [1, 2, 3, 3, 0, 0, 1, 2]]
    seconds = np.array([1.0, 1.0, 3.0, 1.0])
    along = (seconds - seconds.mean()) / seconds.std()
    assert features.edge_features[:, 0].numpy() == pytest.approx(np.tile(along, 2), abs=1e-6)
    assert features.edge_features[:, 1].tolist() == [1.0] * 4 + [-1.0] * 4


def test_scale_is_the_lower_bound() -> None:
    assert ProblemFeatures.from_problem(diamond()).scale == 6.0  # 0 -> 2 -> 3 without transfers


def test_constant_columns_become_zero() -> None:
    columns = np.array([[0.1 + 0.2, 1.0, 0.0], [0.3, 3.0, 0.0]])
    assert z_normalise(columns).tolist() == [[0.0, -1.0, 0.0], [0.0, 1.0, 0.0]]


def test_features_do_not_depend_on_the_unit_of_time() -> None:
    problem = diamond()
    costs = problem.cost_model
    slower = CostModel(
        op_seconds=costs.op_seconds * 1e-9,
        transfer_volume=costs.transfer_volume * 1e-9,
        link_latency=costs.link_latency,
        link_seconds_per_unit=costs.link_seconds_per_unit,
        source="test",
    )
    same = ProblemFeatures.from_problem(PlacementProblem(problem.graph, problem.topology, slower))
    features = ProblemFeatures.from_problem(problem)
    assert torch.allclose(same.op_features, features.op_features, atol=1e-6)


def test_path_means_are_indexed_by_op_id() -> None:
    # Longest paths to an exit: 0 -> 1 -> 3 (tie of 1 and 2 to the lower id), 1 -> 3, 2 -> 3, 3.
    features = ProblemFeatures.from_problem(diamond())
    rows = torch.tensor([[1.0], [10.0], [100.0], [1000.0]])
    to_exit = features.to_exit.mean(rows)
    assert to_exit[:, 0].tolist() == pytest.approx([1011 / 3, 505.0, 550.0, 1000.0])
    # Backwards: 3 -> 1 -> 0 (7 by both; tie to the lower id), 1 -> 0, 2 -> 0, 0.
    to_entry = features.to_entry.mean(rows)
    assert to_entry[:, 0].tolist() == pytest.approx([1.0, 5.5, 50.5, 1011 / 3])


def test_path_table_equals_walking_on_random_trees() -> None:
    rng = np.random.default_rng(0)
    for num_ops in (1, 2, 17, 64):
        relabel = rng.permutation(num_ops)
        following = np.full(num_ops, -1)
        for op in range(num_ops - 1):
            following[relabel[op]] = relabel[rng.integers(op + 1, num_ops)]
        rows = rng.normal(size=(num_ops, 3)).astype(np.float32)
        found = PathTable.from_successors(following).mean(torch.from_numpy(rows))
        for op in range(num_ops):
            path = [op]
            while following[path[-1]] >= 0:
                path.append(following[path[-1]])
            assert found[op].numpy() == pytest.approx(rows[path].mean(axis=0), abs=1e-5)


def test_long_chains_need_no_recursion() -> None:
    num_ops = 20_000
    table = PathTable.from_successors(np.append(np.arange(1, num_ops), -1))
    assert len(table.jumps) == 15  # ceil(log2(20 000))
    means = table.mean(torch.ones(num_ops, 1))
    assert torch.allclose(means, torch.ones(num_ops, 1))


def test_an_op_without_edges_has_features() -> None:
    graph = DataflowGraph.from_edges("single", 1, [])
    topology = make_topology("ideal", 1)
    costs = CostModel(np.ones((1, 1)), np.ones(1), np.zeros(0), np.zeros(0), "test")
    features = ProblemFeatures.from_problem(PlacementProblem(graph, topology, costs))
    assert features.op_features.isfinite().all()
    assert features.edge_ends.shape == (2, 0)


def test_positions_are_places_in_the_critical_path_s_order() -> None:
    # B-levels of the diamond: 0 first, 3 last, 1 and 2 tie to the lower id.
    places = (np.arange(4) + 0.5) / 4
    found = ProblemFeatures.from_problem(diamond(), positions=True).op_features[:, 8:].numpy()
    assert found.shape == (4, len(POSITION_COLUMNS))
    assert found[:, 0] == pytest.approx(np.sin(np.pi * places), abs=1e-6)
    assert found[:, 1] == pytest.approx(np.sin(2 * np.pi * places), abs=1e-6)
    assert found[:, 8] == pytest.approx(np.cos(np.pi * places), abs=1e-6)
    assert position_waves(np.array([1.0, 3.0, 2.0]))[:, 0] == pytest.approx(
        np.sin(np.pi * np.array([5, 1, 3]) / 6)
    )
