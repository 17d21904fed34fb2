"""Numbers from outside: what counts as whole, and who asks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from doppler import CostModel, DataflowGraph, Placement, PlacementProblem
from doppler.checks import whole_number, whole_numbers
from doppler.errors import ConfigurationError, InvalidPlacementError, InvalidProblemError
from doppler.hardware import make_topology
from doppler.simulator import Simulator

RECORDS = np.zeros(2, [("a", int)])
BAD: list[tuple[Any, str]] = [
    ([0.5, 1], "entry 0: 0.5 is not a whole number"),
    ([0, True], "entry 1: a bool is not a whole number"),
    (np.array([False, True]), "not a list of whole numbers but of bool"),
    (["0", "1"], "not a list of whole numbers but of <U1"),
    ([0, float("nan")], "entry 1: nan is not a whole number"),
    ([0, float("inf")], "entry 1: inf is not a whole number"),
    ([1, 2**70], f"entry 1: {2**70} is not a whole number"),
    ([0.0, 1e300], "entry 1: 1e\\+300 is not a whole number"),
    ([0, None], "entry 1: None is not a whole number"),
    ([0, 1 + 0j], "not a list of whole numbers but of complex128"),
    (torch.zeros(2, requires_grad=True), "not a list of whole numbers"),
    (RECORDS, "not a list of whole numbers but of"),
    ([[0], [0, 1]], "not a list of whole numbers"),
    (np.array([0, 2**63], np.uint64), f"entry 1: {2**63} is not a whole number"),
    (10**5000, "entry 0: a very long int is not a whole number"),
    (None, "entry 0: None is not a whole number"),
]


def two_ops() -> PlacementProblem:
    topology = make_topology("ideal", 2)
    return PlacementProblem(
        DataflowGraph.from_edges("pair", 2, [(0, 1)]),
        topology,
        CostModel([[1, 1], [2, 2]], [0, 0], np.zeros(2), np.ones(2), "by hand"),  # type: ignore[arg-type]
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("values", "message"), BAD, ids=range(len(BAD)))
def test_what_is_not_whole_is_refused_wherever_placements_come_in(
    values: Any, message: str
) -> None:
    problem = two_ops()
    simulator = Simulator(problem, choose="given")
    devices = np.array([0, 1])
    ways: list[Callable[[Any], Any]] = [
        Placement,
        problem.check_placement,
        problem.check_order,
        lambda v: simulator.makespan(v, [0, 1]),
        lambda v: simulator.makespans([v], [[0, 1]]),
    ]
    if values is not None:
        ways += [lambda v: Placement(devices, v), lambda v: simulator.makespan(devices, v)]
    for ask in ways:
        with pytest.raises(InvalidPlacementError, match="whole number"):
            ask(values)
    with pytest.raises(InvalidPlacementError, match=message):
        whole_numbers(values, "here")


def test_whole_floats_and_every_integer_type_are_read() -> None:
    for values in ([0.0, 1.0], np.array([0, 1], np.uint8), (np.int32(0), 1), torch.tensor([0, 1])):
        read = whole_numbers(values, "here")
        assert read.dtype == np.int64 and read.tolist() == [0, 1]


def test_a_placement_is_independent_of_the_array_it_was_made_from() -> None:
    devices, order = np.array([0, 1]), np.array([1, 0])
    placement = Placement(devices, order)
    devices[0], order[0] = 1, 0
    assert placement.devices.tolist() == [0, 1] and placement.order is not None
    assert placement.order.tolist() == [1, 0]
    with pytest.raises(ValueError, match="read-only"):
        placement.devices[0] = 1
    with pytest.raises(InvalidPlacementError, match="devices: shape"):
        Placement(np.zeros((1, 2)))  # a batch is no placement


def test_placements_and_lists_mix_in_a_batch() -> None:
    simulator = Simulator(two_ops())
    batch = [Placement(np.array([0, 1])), [0, 0], np.array([1, 1])]
    assert simulator.makespans(batch).tolist() == [3.0, 3.0, 3.0]
    assert Simulator(two_ops(), choose="given").makespan(Placement([0, 0], [0, 1])) == 3.0  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, float("nan"), [1]])
def test_a_count_is_an_int_above_its_lowest(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="seed: "):
        whole_number(value, "seed", 0)
    assert whole_number(np.int64(3), "seed", 0) == 3
    assert whole_number(2**64 - 1, "seed", 0) == 2**64 - 1  # seeds need not fit into an array


@pytest.mark.parametrize(
    "values", [[["1"]], [[None]], [[True]], [[1j]], [[1], [1, 2]], [[10**400]]]
)
def test_costs_are_numbers(values: Any) -> None:
    with pytest.raises(InvalidProblemError, match=r"\(by hand\), op_seconds: not an array of num"):
        CostModel(values, [1], [], [], "by hand")  # type: ignore[arg-type]


def test_copies_stay_read_only() -> None:
    problem, placement = two_ops(), Placement(np.array([0, 1]), np.array([0, 1]))
    for copied, placed in (
        (pickle.loads(pickle.dumps(problem)), pickle.loads(pickle.dumps(placement))),
        (copy.deepcopy(problem), copy.deepcopy(placement)),
    ):
        graph, costs = copied.graph, copied.cost_model
        arrays = (graph.succ_ops, graph.topological_order, costs.op_seconds, placed.devices)
        assert not any(array.flags.writeable for array in (*arrays, placed.order))
        assert Simulator(copied).makespan(placed) == 3.0
