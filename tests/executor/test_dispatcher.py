"""The dispatcher core, driven by a fake clock: no threads, no tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import executor_fakes
import numpy as np
import pytest
from executor_fakes import random_problem

from doppler.errors import (
    CapacityError,
    ConfigurationError,
    InvalidPlacementError,
    InvalidProblemError,
)
from doppler.executor import Dispatcher, DispatchPlan, HopTask, OpTask
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, fully_connected
from doppler.problem import InputTensor, PlacementProblem
from doppler.simulator import CHOOSE_RULES, NETWORKS, Simulator


def drive(plan: DispatchPlan) -> tuple[dict[int, tuple], dict[tuple, tuple], Dispatcher]:
    """Runs a plan with the cost model's durations.

    Returns:
        (start, finish) by op and by (op, target, link), and the dispatcher.
    """
    dispatcher = Dispatcher(plan)
    ops, hops = executor_fakes.drive(dispatcher)
    by_link = {(hop.op, hop.target, hop.link): (start, finish) for hop, start, finish in hops}
    return ops, by_link, dispatcher


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("choose", CHOOSE_RULES)
@pytest.mark.parametrize("topology", ["v100", "host_staged"])
def test_it_makes_the_schedule_of_the_simulator(network: str, choose: str, topology: str) -> None:
    for seed in range(6):
        num_devices = 2 + seed % 3
        problem = random_problem(seed, topology, num_devices, num_ops=40, density=0.1)
        rng = np.random.default_rng(100 + seed)
        devices = rng.integers(0, num_devices, problem.num_ops)
        order = rng.permutation(problem.num_ops)
        simulator = Simulator(problem, network=network, choose=choose, seed=seed)
        expected = simulator.run(devices, order)
        plan = DispatchPlan(problem, devices, order, network=network, choose=choose, seed=seed)
        ops, hops, dispatcher = drive(plan)
        assert dispatcher.done
        assert [ops[op][0] for op in range(problem.num_ops)] == expected.start.tolist()
        assert [ops[op][1] for op in range(problem.num_ops)] == expected.finish.tolist()
        keys = zip(
            expected.transfer_ops.tolist(),
            expected.transfer_targets.tolist(),
            expected.transfer_links.tolist(),
            strict=True,
        )
        times = zip(
            expected.transfer_start.tolist(), expected.transfer_finish.tolist(), strict=True
        )
        assert hops == dict(zip(keys, times, strict=True))
        np.testing.assert_array_equal(dispatcher.peak_bytes, expected.peak_bytes)


def test_constraints_and_inputs() -> None:
    problem = random_problem(0, "v100", 2)
    n = problem.num_ops
    pinned = replace(problem, pinned=np.r_[1, np.full(n - 1, -1)])
    with pytest.raises(InvalidPlacementError, match="op 0: device 0, but it is pinned to device 1"):
        DispatchPlan(pinned, np.zeros(n, int))
    DispatchPlan(pinned, np.r_[1, np.zeros(n - 1, int)])
    placed = replace(problem, inputs=(InputTensor("x", 1.0, (0,), 0),))
    with pytest.raises(InvalidProblemError, match="with_explicit_inputs"):
        DispatchPlan(placed, np.zeros(n, int))
    DispatchPlan(placed.with_explicit_inputs(), np.zeros(n + 1, int))
    with pytest.raises(ConfigurationError, match="execution 'lazy' is unknown"):
        DispatchPlan(problem, np.zeros(n, int), execution="lazy")


def line_problem(num_ops: int, edges: list, num_devices: int = 2, **options) -> PlacementProblem:
    """Every op takes 2 s, every transfer 1 s, every output has 8 bytes."""
    graph = DataflowGraph.from_edges("g", num_ops, edges, output_bytes=np.full(num_ops, 8.0))
    topology = fully_connected(num_devices, **options)
    return PlacementProblem(
        graph,
        topology,
        CostModel(
            op_seconds=np.full((num_ops, num_devices), 2.0),
            transfer_volume=np.ones(num_ops),
            link_latency=np.zeros(topology.num_links),
            link_seconds_per_unit=np.ones(topology.num_links),
            source="test",
        ),
    )


def test_a_tensor_moves_once_per_destination_device() -> None:
    # 0 on device 0 feeds 1, 2 and 3 on device 1 and 4 on device 2: two transfers, not four.
    problem = line_problem(5, [(0, 1), (0, 2), (0, 3), (0, 4)], num_devices=3)
    ops, hops, _ = drive(DispatchPlan(problem, [0, 1, 1, 1, 2]))
    assert Counter((op, target) for op, target, _ in hops) == {(0, 1): 1, (0, 2): 1}
    assert [ops[op] for op in range(5)] == [(0, 2), (3, 5), (5, 7), (7, 9), (3, 5)]


def test_tensors_are_released_after_their_last_reader() -> None:
    # 0 (device 0) -> 1 (device 0) and, over the link, 2 (device 1); 1 and 2 -> 3 (device 1).
    problem = line_problem(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    plan = DispatchPlan(problem, [0, 0, 1, 1])
    dispatcher = Dispatcher(plan)

    def released() -> set[tuple[int, int]]:
        places = {plan.copy_place(copy) for copy in dispatcher.released}
        dispatcher.released.clear()
        return places

    (op0,) = dispatcher.begin(0.0)
    dispatcher.on_op_finished(op0.op, 2.0)
    op1, hop0 = dispatcher.start_tasks()
    assert released() == set()
    dispatcher.on_hop_finished(hop0, 3.0)
    (op2,) = dispatcher.start_tasks()
    assert released() == set()  # op 1 still reads it on device 0
    dispatcher.on_op_finished(op1.op, 4.0)
    (hop1,) = dispatcher.start_tasks()
    assert released() == {(0, 0)}
    dispatcher.on_op_finished(op2.op, 5.0)
    assert dispatcher.start_tasks() == []
    assert released() == {(0, 1)}  # the arrived copy
    dispatcher.on_hop_finished(hop1, 5.0)
    assert released() == {(1, 0)}
    (op3,) = dispatcher.start_tasks()
    dispatcher.on_op_finished(op3.op, 7.0)
    assert released() == {(1, 1), (2, 1)}  # the result of op 3 stays
    assert dispatcher.done
    assert dispatcher.peak_bytes.tolist() == [16.0, 24.0]


def test_kept_outputs_are_not_released() -> None:
    problem = line_problem(2, [(0, 1)])
    for keep, expected in (((), [0]), ((0,), [])):
        _, _, dispatcher = drive(DispatchPlan(problem, [0, 0], keep=keep))
        assert dispatcher.released == expected


def test_running_tasks_are_listed() -> None:
    dispatcher = Dispatcher(DispatchPlan(line_problem(3, [(0, 2)]), [0, 1, 1]))
    dispatcher.begin(0.0)
    dispatcher.on_op_finished(0, 2.0)
    dispatcher.start_tasks()
    first, second = dispatcher.running
    assert isinstance(first, OpTask) and first.op == 1
    assert isinstance(second, HopTask) and (second.op, second.target) == (0, 1)


def test_too_small_a_memory_is_an_error_that_names_device_and_op() -> None:
    problem = line_problem(2, [(0, 1)], memory_bytes=12)
    with pytest.raises(CapacityError, match=r"fully_connected0.*16 B of 12 B.*op 1"):
        drive(DispatchPlan(problem, [0, 0]))


def test_wrong_options_and_placements_are_refused() -> None:
    problem = line_problem(2, [(0, 1)])
    with pytest.raises(ConfigurationError, match="network 'token_ring' is unknown"):
        DispatchPlan(problem, [0, 1], network="token_ring")
    with pytest.raises(ConfigurationError, match="choose 'lifo' is unknown"):
        DispatchPlan(problem, [0, 1], choose="lifo")
    with pytest.raises(InvalidPlacementError, match="needs a placement with an order"):
        DispatchPlan(problem, [0, 1], choose="given")
    with pytest.raises(InvalidPlacementError, match="op 1: device 2"):
        DispatchPlan(problem, [0, 2])


def test_an_input_is_there_from_the_start_and_moves_once() -> None:
    r"""The input x (op 3) is on device 0 and read there by 0, on device 1 by 1 and 2.

        device 0   0:[0, 2]
        link 0->1  x:[0, 1]
        device 1           1:[1, 3] 2:[3, 5]
    """  # fmt: skip
    problem = replace(line_problem(3, []), inputs=(InputTensor("x", 4.0, (0, 1, 2), 0),))
    explicit = problem.with_explicit_inputs()
    # An input of 4 B takes 4 s over these links: make it 1.
    costs = replace(explicit.cost_model, transfer_volume=np.ones(4))
    explicit = replace(explicit, cost_model=costs)
    plan = DispatchPlan(explicit, [0, 1, 1, 0])
    assert plan.input_ops == [3]
    ops, hops, dispatcher = drive(plan)
    assert ops == {0: (0, 2), 1: (1, 3), 2: (3, 5)}
    assert hops == {(3, 1, 0): (0, 1)}
    assert dispatcher.done
    # Both copies of the input die, at home when op 0 is done and on device 1 when op 2 is.
    assert [plan.copy_place(copy) for copy in dispatcher.released] == [(3, 0), (3, 1)]
    # Device 0: 4 of x and 8 of op 0; device 1: 4 of x, 8 of op 1 and 8 of op 2.
    assert dispatcher.peak_bytes.tolist() == [12.0, 20.0]


def test_bulk_synchronous_levels_wait_for_all_ops_and_transfers() -> None:
    r"""Level 0: 0, 1 (device 0), 2 (device 1). Level 1: 3 <- 0, 1 (device 0); 4 <- 0, 2 (device 1).

        device 0   0:[0, 2] 1:[2, 4]          3:[5, 7]
        link 0->1                    0:[4, 5]
        device 1   2:[0, 2]                   4:[5, 7]

    Work-conserving, op 0 would be sent at 2, op 4 run from 3 and op 3 from 4.
    """  # fmt: skip
    problem = line_problem(5, [(0, 3), (1, 3), (0, 4), (2, 4)])
    devices = [0, 0, 1, 0, 1]
    ops, hops, dispatcher = drive(DispatchPlan(problem, devices, execution="bulk_synchronous"))
    assert ops == {0: (0, 2), 1: (2, 4), 2: (0, 2), 3: (5, 7), 4: (5, 7)}
    assert hops == {(0, 1, 0): (4, 5)} and dispatcher.done
    ops, hops, _ = drive(DispatchPlan(problem, devices))
    assert (ops[3], ops[4], hops[0, 1, 0]) == ((4, 6), (3, 5), (2, 3))
