"""Pins, colocation groups and inputs: what they mean for placements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.errors import InvalidPlacementError, InvalidProblemError
from doppler.hardware import make_topology
from doppler.problem import InputTensor


def make(**constraints) -> PlacementProblem:
    """
    0 --> 2 --> 4      ids 0 and 1 are entries; 3 reads 0 and 1
    1 --> 3
    """
    graph = DataflowGraph.from_edges(
        "five", 5, [(0, 2), (2, 4), (1, 3), (0, 3)], meta_op=[0, 0, 1, 1, 2], roles=["shard"] * 5
    )
    topology = make_topology("ideal", 3)
    links = topology.num_links
    costs = CostModel(np.ones((5, 3)), np.ones(5), np.zeros(links), np.ones(links), "test")
    return PlacementProblem(graph, topology, costs, **constraints)


def test_placements_that_keep_all_constraints_pass() -> None:
    problem = make(pinned=[-1, 2, -1, -1, 0], colocation=[7, -1, 7, 3, 3])
    assert problem.constrained and not make().constrained
    assert problem.check_placement([1, 2, 1, 0, 0]).tolist() == [1, 2, 1, 0, 0]
    # op 3 follows the pin of op 4; op 2 follows op 0, the first of their group
    assert problem.conform([1, 0, 2, 1, 1]).tolist() == [1, 2, 1, 0, 0]
    batch = np.array([[1, 0, 2, 1, 1], [0, 2, 0, 0, 0]])
    assert problem.conform(batch).tolist() == [[1, 2, 1, 0, 0], [0, 2, 0, 0, 0]]
    assert batch[0, 1] == 0  # a copy
    assert problem.constraints.first_violation(batch[1:]) is None
    assert problem.constraints.first_violation(batch) == (0, 1, 2)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([1, 1, 1, 0, 0], "op 1: device 1, but it is pinned to device 2"),
        ([1, 2, 0, 0, 0], "op 2: device 0, but the ops of its colocation group 7 are on device 1"),
        ([1, 2, 1, 1, 0], "op 3: device 1, but op 4 of its colocation group 3 is pinned to dev"),
        ([3, 2, 1, 0, 0], "op 0: device 3, devices are numbered"),
    ],
)
def test_placements_that_break_one_are_refused(devices: list[int], message: str) -> None:
    problem = make(pinned=[-1, 2, -1, -1, 0], colocation=[7, -1, 7, 3, 3])
    with pytest.raises(InvalidPlacementError, match=message):
        problem.check_placement(devices)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"pinned": [0, 0, 0, 0]}, r"pinned: shape \(4,\)"),
        ({"pinned": [0, 0, 0, 0, 3]}, "pinned, op 4: device 3"),
        ({"pinned": [0.0] * 5}, "pinned: float64, expected int"),
        ({"colocation": [0, 0, 0, 0, -4]}, "colocation, op 4: -4"),
        ({"input_ops": [True, False, True, False, False]}, "input_ops, op 0.* takes no time"),
        ({"input_ops": [1, 0, 0, 0, 0]}, "input_ops: int64, expected bool"),
        (
            {"pinned": [0, -1, 1, -1, -1], "colocation": [2, 2, 2, -1, -1]},
            "colocation group 2: op 0 is pinned to device 0, op 2 to device 1",
        ),
    ],
)
def test_impossible_constraints_are_refused(constraints: dict, message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        make(**constraints)


def test_constraints_of_a_problem_are_frozen_copies() -> None:
    pins = np.array([0, -1, -1, -1, -1])
    problem = make(pinned=pins)
    pins[0] = 1
    assert problem.pinned.tolist() == [0, -1, -1, -1, -1]
    with pytest.raises(ValueError, match="read-only"):
        problem.constraints.leader[0] = 1
    moved = replace(problem, topology=problem.topology)
    assert moved.check_placement([0, 1, 1, 1, 1]).tolist() == [0, 1, 1, 1, 1]


INPUTS = (
    InputTensor("weights", 8.0, (2, 3)),
    InputTensor("x", 4.0, (0, 3), 1),
    InputTensor("y", 2.0, (4, 3, 2), "first_consumer"),
)


def test_inputs_with_places_become_ops() -> None:
    problem = make(colocation=[-1, 5, 5, -1, -1], pinned=[-1, -1, 2, -1, -1], inputs=INPUTS)
    assert problem.has_implicit_inputs
    with pytest.raises(InvalidProblemError, match="with_explicit_inputs"):
        problem.check_explicit()
    explicit = problem.with_explicit_inputs()
    explicit.check_explicit()
    assert explicit.with_explicit_inputs() is explicit
    assert explicit.inputs == INPUTS[:1]
    assert explicit.is_input_op.tolist() == [False] * 5 + [True] * 2
    assert explicit.graph.op_names[5:] == ("x", "y")
    assert explicit.graph.successors(5).tolist() == [0, 3]
    assert explicit.graph.successors(6).tolist() == [2, 3, 4]
    assert explicit.graph.meta_op.tolist() == [0, 0, 1, 1, 2, 3, 4]
    assert explicit.cost_model.transfer_volume[5:].tolist() == [4.0, 2.0]
    assert explicit.cost_model.op_seconds[5:].tolist() == [[0.0] * 3] * 2
    assert explicit.pinned.tolist() == [-1, -1, 2, -1, -1, 1, -1]
    # y's consumers 2 and 3 are at depth 1, 4 at depth 2: the first is 2, in group 5, pinned to 2
    assert explicit.colocation.tolist() == [-1, 5, 5, -1, -1, -1, 5]
    assert explicit.conform([0, 0, 0, 0, 0, 0, 0]).tolist() == [0, 2, 2, 0, 0, 1, 2]


def test_an_input_follows_its_consumer_and_does_not_lead_it() -> None:
    explicit = make(inputs=INPUTS[2:]).with_explicit_inputs()
    assert explicit.colocation.tolist() == [-1, -1, 0, -1, -1, 0]
    assert explicit.conform([0, 0, 1, 0, 0, 2]).tolist() == [0, 0, 1, 0, 0, 1]
    assert make(inputs=INPUTS[:1]).with_explicit_inputs().num_ops == 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("", 1.0, (0,)), "name is needed"),
        (("x", float("nan"), (0,)), "size: nan"),
        (("x", "1", (0,)), "size: '1' is not a number"),
        (("x", 1.0, (0, 0)), "repeated"),
        (("x", 1.0, (0,), True), "location: True"),
        (("x", 1.0, (0,), 1.5), "location: 1.5"),
    ],
)
def test_impossible_inputs_are_refused(fields: tuple, message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        InputTensor(*fields)
