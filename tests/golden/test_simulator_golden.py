"""Schedules worked out by hand. Every case runs on the kernel and on the oracle.

In the drawings `3:d1(4)` is op 3, placed on device 1, taking 4 seconds. Unless a case says
otherwise links have no latency and take one second per unit of volume.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Topology
from doppler.errors import CapacityError, InvalidPlacementError, InvalidProblemError
from doppler.problem import InputTensor
from doppler.schedule import validate_schedule
from doppler.simulator import CHOOSE_RULES, NETWORKS, Simulator
from doppler.simulator.oracle import OracleSimulator

SIMULATORS = (Simulator, OracleSimulator)


def make_problem(
    seconds, edges, volumes, *, num_devices=2, slots=1, links=None, hosts=(), latency=None,
    rate=None, output_bytes=None, memory_bytes=None,
):  # fmt: skip
    """A problem whose ops take the same time on every device; fully connected by default."""
    graph = DataflowGraph.from_edges("golden", len(seconds), edges, output_bytes=output_bytes)
    if links is None:
        links = [(s, d) for s in range(num_devices) for d in range(num_devices) if s != d]
    topology = Topology(
        "golden",
        tuple(
            Device(f"d{d}", memory_bytes=capacity, compute_slots=slots)
            for d, capacity in enumerate(np.broadcast_to(memory_bytes, num_devices))
        ),
        tuple(Link(source, target, 1.0) for source, target in links),
        hosts,
    )
    costs = CostModel(
        op_seconds=np.repeat(np.array(seconds, float)[:, None], num_devices, axis=1),
        transfer_volume=np.array(volumes, float),
        link_latency=np.zeros(len(links)) if latency is None else latency,
        link_seconds_per_unit=np.ones(len(links)) if rate is None else rate,
        source="by hand",
    )
    return PlacementProblem(graph, topology, costs)


def check(
    problem, devices, starts, makespan, *, network, choose="fifo", order=None, seed=0,
    execution="work_conserving",
):  # fmt: skip
    """Asserts the starts of all ops and the makespan, however it is computed."""
    options = {"network": network, "choose": choose, "seed": seed, "execution": execution}
    for simulator_type in SIMULATORS:
        simulator = simulator_type(problem, **options)
        schedule = simulator.run(devices, order)
        assert schedule.start.tolist() == starts
        assert schedule.makespan == makespan
        assert simulator.makespan(devices, order) == makespan
        validate_schedule(schedule)
    orders = None if order is None else [order]
    assert Simulator(problem, **options).makespans([devices], orders) == [makespan]


# --- network models ------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
def test_fork_join_without_contention(network):
    """
    0:d0(2) --> 1:d0(3) --> 3:d0(1)      volumes: op 0: 1, op 2: 2
       \\--(1)-> 2:d1(4) --(2)--/

    op 0 [0, 2], op 1 [2, 5]; its tensor reaches d1 at 3: op 2 [3, 7]; back at 9: op 3 [9, 10].
    """
    problem = make_problem([2, 3, 4, 1], [(0, 1), (0, 2), (1, 3), (2, 3)], [1, 1, 2, 1])
    check(problem, [0, 0, 1, 0], [0.0, 2.0, 3.0, 9.0], 10.0, network=network)


@pytest.mark.parametrize(
    ("network", "starts", "makespan"),
    [
        # 0->d1 [1, 5], 0->d2 [1, 5], 1->d1 [2, 4]: op 4 [4, 5], op 2 [5, 6], op 3 [5, 6]
        ("contention_free", [0, 1, 5, 5, 4], 6.0),
        # link d0->d1 carries 0 in [1, 5] and 1 in [5, 7]: op 2 [5, 6], op 4 [7, 8]
        ("serial_links", [0, 1, 5, 5, 7], 8.0),
        # d0 sends 0->d1 [1, 5], 0->d2 [5, 9], 1->d1 [9, 11]: op 3 [9, 10], op 4 [11, 12]
        ("one_port", [0, 1, 5, 9, 11], 12.0),
        ("shared_bus", [0, 1, 5, 9, 11], 12.0),
    ],
)
def test_three_transfers_leave_one_device(network, starts, makespan):
    """
    0:d0(1) --(4)--> 2:d1(1)
        \\----(4)--> 3:d2(1)
    1:d0(1) --(2)--> 4:d1(1)
    """
    problem = make_problem(
        [1, 1, 1, 1, 1], [(0, 2), (0, 3), (1, 4)], [4, 2, 0, 0, 0], num_devices=3
    )
    check(problem, [0, 0, 1, 2, 1], starts, makespan, network=network)


@pytest.mark.parametrize(
    ("network", "starts", "makespan"),
    [
        # 1->d2 has its own link: [2, 3], op 4 [3, 4]; 0->d2 [1, 6]: op 3 [6, 7]
        ("serial_links", [0, 0, 2, 6, 3, 6], 7.0),
        # d2 receives 0 in [1, 6], which blocks 1->d2 from 2 to 6; 2->d0, eligible later at 5,
        # overtakes it: [5, 6], op 5 [6, 7]. 1->d2 [6, 7]: op 4 [7, 8].
        ("one_port", [0, 0, 2, 6, 7, 6], 8.0),
        # one after the other: 0->d2 [1, 6], 1->d2 [6, 7], 2->d0 [7, 8]
        ("shared_bus", [0, 0, 2, 6, 7, 8], 9.0),
    ],
)
def test_a_blocked_transfer_is_overtaken(network, starts, makespan):
    """
    0:d0(1) --(5)--> 3:d2(1)
    1:d1(2) --(1)--> 4:d2(1)
    2:d1(3) --(1)--> 5:d0(1)
    """
    problem = make_problem(
        [1, 2, 3, 1, 1, 1], [(0, 3), (1, 4), (2, 5)], [5, 1, 1, 0, 0, 0], num_devices=3
    )
    check(problem, [0, 1, 1, 2, 2, 0], starts, makespan, network=network)


@pytest.mark.parametrize(
    ("network", "starts", "makespan"),
    [
        # tensor 0: up [1, 2.5], down [2.5, 4.5]; tensor 1: up [2, 3.5], down [3.5, 5.5]
        ("contention_free", [0, 1, 4.5, 5.5], 6.5),
        # tensor 1: up [2.5, 4], waits for the link down until 4.5, down [4.5, 6.5]
        ("serial_links", [0, 1, 4.5, 6.5], 7.5),
        ("one_port", [0, 1, 4.5, 6.5], 7.5),
        # tensor 0 up [1, 2.5]; tensor 1, eligible before tensor 0's second hop, up [2.5, 4];
        # tensor 0 down [4, 6], tensor 1 down [6, 8]
        ("shared_bus", [0, 1, 6, 8], 9.0),
    ],
)
def test_store_and_forward_through_a_host(network, starts, makespan):
    """
    0:d0(1) --> 2:d1(1)      d0 --(0.5 + v)--> host --(2 v)--> d1, volumes 1
    1:d0(1) --> 3:d1(1)
    """
    problem = make_problem(
        [1, 1, 1, 1], [(0, 2), (1, 3)], [1, 1, 0, 0], hosts=("host",),
        links=[(0, 2), (2, 1), (1, 2), (2, 0)], latency=[0.5, 0, 0, 0], rate=[1, 2, 1, 1],
    )  # fmt: skip
    check(problem, [0, 0, 1, 1], starts, makespan, network=network)


def two_buses(buses):
    """
    0:d0(1) --(3)--> 2:d1(1)      links d0 -> d1 and d1 -> d0 on the named buses
    1:d1(1) --(2)--> 3:d0(1)
    """
    problem = make_problem([1, 1, 1, 1], [(0, 2), (1, 3)], [3, 2, 0, 0])
    topology = problem.topology
    links = [replace(link, bus=bus) for link, bus in zip(topology.links, buses, strict=True)]
    return replace(problem, topology=replace(topology, links=tuple(links)))


@pytest.mark.parametrize(
    ("buses", "starts", "makespan"),
    [
        ((None, None), [0, 0, 4, 6], 7.0),  # 0->d1 [1, 4], then 1->d0 [4, 6]
        (("pcie", "pcie"), [0, 0, 4, 6], 7.0),
        (("pcie", None), [0, 0, 4, 3], 5.0),  # both at once: [1, 4] and [1, 3]
        (("up", "down"), [0, 0, 4, 3], 5.0),
    ],
)
def test_every_bus_carries_one_transfer_at_a_time(buses, starts, makespan):
    check(two_buses(buses), [0, 1, 1, 0], starts, makespan, network="shared_bus")


# --- inputs and constraints ----------------------------------------------------------------------


def with_inputs(*inputs, **options):
    """
    0:d0(2)      1:d1(1) --(1)--> 3:d0(1)
    2:d1(1)

    The inputs are drawn in each case.
    """
    problem = make_problem([2, 1, 1, 1], [(1, 3)], [0, 1, 0, 0], **options)
    return replace(problem, inputs=inputs).with_explicit_inputs()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("choose", ["fifo", "b_level"])
def test_an_input_on_a_device_moves_once_to_every_other_reader(network, choose):
    """Input x, 3 s to move, lies on d0 for ops 0, 1 and 2.

    Op 0 has it at once: [0, 2]. One transfer [0, 3] serves op 1 [3, 4] and op 2 [4, 5]. Tensor 1
    [4, 5], op 3 [5, 6]. On a bus both transfers are apart anyway.
    """
    problem = with_inputs(InputTensor("x", 3.0, (0, 1, 2), 0))
    assert problem.num_ops == 5
    check(problem, [0, 1, 1, 0, 0], [0, 3, 4, 5, 0], 6.0, network=network, choose=choose)


@pytest.mark.parametrize(
    ("network", "starts", "makespan"),
    [
        # x and y both [0, 3] and [0, 1]; op 1 [3, 4], op 2 [1, 2]; tensor 1 [4, 5]; op 3 [5, 6]
        ("contention_free", [0, 3, 1, 5, 0, 0], 6.0),
        # link d0->d1: y is as urgent as op 2, x as op 1, whose b-level is larger: x [0, 3],
        # y [3, 4]; op 1 [3, 4], op 2 [4, 5]
        ("serial_links", [0, 3, 4, 5, 0, 0], 6.0),
        ("one_port", [0, 3, 4, 5, 0, 0], 6.0),
        # tensor 1 waits for the bus as well, at no cost: x [0, 3], y [3, 4], tensor 1 [4, 5]
        ("shared_bus", [0, 3, 4, 5, 0, 0], 6.0),
    ],
)
def test_the_more_urgent_input_moves_first(network, starts, makespan):
    """y, 1 s to move, is declared first, for op 2; x, 3 s to move, for op 1; both on d0.

    Neither takes a compute slot or a turn, so that op 0 starts at 0 on the same device.
    """
    problem = with_inputs(InputTensor("y", 1.0, (2,), 0), InputTensor("x", 3.0, (1,), 0))
    check(problem, [0, 1, 1, 0, 0, 0], starts, makespan, network=network, choose="b_level")


@pytest.mark.parametrize("network", NETWORKS)
def test_an_input_follows_its_first_consumer(network):
    """Input x, 3 s to move, for ops 3 and 2: by level op 2 comes first, so x is on d1.

    Op 2 needs no transfer: fifo runs op 1 [0, 1], op 2 [1, 2]. x reaches d0 at 3 and tensor 1 by
    then, at 2 or after x at 4: op 3 starts at 3 without contention, else at 4.
    """
    problem = with_inputs(InputTensor("x", 3.0, (3, 2), "first_consumer"))
    begin = 3.0 if network == "contention_free" else 4.0
    devices = problem.conform([0, 1, 1, 0, 0])
    assert devices.tolist() == [0, 1, 1, 0, 1]
    check(problem, devices, [0, 0, 1, begin, 0], begin + 1, network=network)


@pytest.mark.parametrize("network", NETWORKS)
def test_replicated_inputs_cost_nothing(network):
    problem = with_inputs(InputTensor("w", 100.0, (0, 1, 2, 3)))
    check(problem, [0, 1, 1, 0], [0, 0, 1, 2], 3.0, network=network)


@pytest.mark.parametrize("network", NETWORKS)
def test_inputs_belong_to_the_first_level(network):
    """x, 3 s to move, lies on d0 for op 1: exchanged when level 0 (ops 0 and 2) is done, at 2.

    Op 1 [5, 6] is level 1, tensor 1 [6, 7], op 3 [7, 8].
    """
    problem = with_inputs(InputTensor("x", 3.0, (1,), 0))
    check(
        problem, [0, 1, 1, 0, 0], [0, 5, 0, 7, 0], 8.0, network=network,
        execution="bulk_synchronous",
    )  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("simulator_type", SIMULATORS)
def test_inputs_take_memory_until_their_last_use(simulator_type, network):
    """x, 8 B and 1 s to move, lies on d0 for op 0 (4 B out) and op 2 (2 B out) on d1.

    d0: 8 + 4 B from 0, and tensor 1 on its way in [1, 2]: 13 B. d1: op 1 (1 B out) and x from 0:
    9 B; op 2 [1, 2] beside tensor 1, which is being sent: 8 + 2 + 1 B. Op 3 [2, 3].
    """
    problem = replace(
        make_problem(
            [2, 1, 1, 1], [(1, 3)], [0, 8, 0, 0], output_bytes=[4, 1, 2, 1], rate=[1 / 8] * 2
        ),
        inputs=(InputTensor("x", 8.0, (0, 2), 0),),
    ).with_explicit_inputs()
    schedule = simulator_type(problem, network).run([0, 1, 1, 0, 0])
    assert schedule.start.tolist() == [0.0, 0.0, 1.0, 2.0, 0.0]
    assert schedule.peak_bytes.tolist() == [13.0, 11.0]


@pytest.mark.parametrize("simulator_type", SIMULATORS)
def test_inputs_without_ops_are_refused(simulator_type):
    problem = make_problem([2, 1, 1, 1], [(1, 3)], [0, 1, 0, 0])
    with pytest.raises(InvalidProblemError, match="with_explicit_inputs"):
        simulator_type(replace(problem, inputs=(InputTensor("x", 3.0, (0,), 0),)))


def pinned_case():
    """
    0:d0(1) --> 1:d1(2) --> 2:d0(1)      op 1 is pinned to d1, ops 0 and 2 go together;
                                         transfers take 1 s: op 1 [2, 4], op 2 [5, 6]
    """
    problem = make_problem([1, 2, 1], [(0, 1), (1, 2)], [1, 1, 1])
    return replace(problem, pinned=[-1, 1, -1], colocation=[6, -1, 6])


@pytest.mark.parametrize("network", NETWORKS)
def test_placements_that_keep_pins_and_groups_run(network):
    problem = pinned_case()
    check(problem, [0, 1, 0], [0.0, 2.0, 5.0], 6.0, network=network)
    check(problem, [1, 1, 1], [0.0, 1.0, 3.0], 4.0, network=network)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([0, 0, 0], "op 1: device 0, but it is pinned to device 1"),
        ([0, 1, 1], "op 2: device 1, but the ops of its colocation group 6 are on device 0"),
        ([0, 1, 2], "op 2: device 2, devices are numbered 0 to 1"),
    ],
)
def test_placements_that_break_them_are_refused(devices, message):
    for simulator_type in SIMULATORS:
        for call in (simulator_type(pinned_case()).run, simulator_type(pinned_case()).makespan):
            for given in (devices, np.array(devices)):
                with pytest.raises(InvalidPlacementError, match=message):
                    call(given)
    with pytest.raises(InvalidPlacementError, match="row 1: .*" + message):
        Simulator(pinned_case()).makespans([[0, 1, 0], devices])


# --- choose-task rules ---------------------------------------------------------------------------


def late_branch():
    """
    0:d0(1) --> 1:d0(3)
       \\-----> 2:d0(2) --(0)--> 3:d1(6)

    Op 1 first: op 2 [4, 6], op 3 [6, 12]. Op 2 first: [1, 3], op 3 [3, 9], op 1 [3, 6].
    """
    return make_problem([1, 3, 2, 6], [(0, 1), (0, 2), (2, 3)], [0, 0, 0, 0]), [0, 0, 0, 1]


LATE_BRANCH_ONE_FIRST = ([0.0, 1.0, 4.0, 6.0], 12.0)
LATE_BRANCH_TWO_FIRST = ([0.0, 3.0, 1.0, 3.0], 9.0)


def shared_link():
    """
    0:d0(1) --(2)--> 2:d1(1)      d0 has two slots; both transfers want the same link at 1
    1:d0(1) --(2)--> 3:d1(4)

    0 first: op 2 [3, 4], op 3 [5, 9]. 1 first: op 3 [3, 7], and op 2, there at 5, [5, 6].
    """
    edges = [(0, 2), (1, 3)]
    return make_problem([1, 1, 1, 4], edges, [2, 2, 0, 0], slots=2), [0, 0, 1, 1]


SHARED_LINK_ZERO_FIRST = ([0.0, 0.0, 3.0, 5.0], 9.0)
SHARED_LINK_ONE_FIRST = ([0.0, 0.0, 5.0, 3.0], 7.0)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("choose", "order", "expected"),
    [
        ("fifo", None, LATE_BRANCH_ONE_FIRST),  # both ready at 1: the lower id
        ("b_level", None, LATE_BRANCH_TWO_FIRST),  # b-levels 3 and 2 + 6
        ("given", [0, 1, 2, 3], LATE_BRANCH_ONE_FIRST),
        ("given", [3, 2, 1, 0], LATE_BRANCH_TWO_FIRST),
    ],
)
def test_rules_choose_among_ready_ops(network, choose, order, expected):
    problem, devices = late_branch()
    check(problem, devices, *expected, network=network, choose=choose, order=order)


@pytest.mark.parametrize("network", ["serial_links", "one_port", "shared_bus"])
@pytest.mark.parametrize(
    ("choose", "order", "expected"),
    [
        ("fifo", None, SHARED_LINK_ZERO_FIRST),
        ("b_level", None, SHARED_LINK_ONE_FIRST),  # consumers' b-levels 1 and 4
        ("given", [0, 1, 2, 3], SHARED_LINK_ZERO_FIRST),
        ("given", [0, 1, 3, 2], SHARED_LINK_ONE_FIRST),  # the consumers' order counts
    ],
)
def test_transfers_are_as_urgent_as_their_consumers(network, choose, order, expected):
    problem, devices = shared_link()
    check(problem, devices, *expected, network=network, choose=choose, order=order)


@pytest.mark.parametrize("seed", range(6))
def test_random_priorities_come_from_the_seed(seed):
    keys = np.random.default_rng(seed).random(4)
    problem, devices = late_branch()
    expected = LATE_BRANCH_ONE_FIRST if keys[1] < keys[2] else LATE_BRANCH_TWO_FIRST
    check(problem, devices, *expected, network="contention_free", choose="random", seed=seed)
    problem, devices = shared_link()
    expected = SHARED_LINK_ZERO_FIRST if keys[2] < keys[3] else SHARED_LINK_ONE_FIRST
    check(problem, devices, *expected, network="serial_links", choose="random", seed=seed)


def test_seeds_of_the_random_rule_cover_both_outcomes():
    keys = np.array([np.random.default_rng(seed).random(4) for seed in range(6)])
    assert len(set(keys[:, 1] < keys[:, 2])) == len(set(keys[:, 2] < keys[:, 3])) == 2


@pytest.mark.parametrize("network", NETWORKS)
def test_given_never_waits_for_an_op_that_is_not_ready(network):
    """
    0:d1(2) --(0)--> 2:d0(1)      1:d0(3)

    Op 2 comes first in the order, but is ready only at 2; op 1 runs [0, 3], then op 2 [3, 4].
    """
    problem = make_problem([2, 3, 1], [(0, 2)], [0, 0, 0])
    check(
        problem, [1, 0, 0], [0.0, 0.0, 3.0], 4.0, network=network, choose="given", order=[2, 0, 1]
    )


# --- bulk-synchronous execution -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "starts", "makespan"),
    [
        # all at the barrier at 2: 0->d1 [2, 6], 0->d2 [2, 6], 1->d1 [2, 4]; level 1 from 6
        ("contention_free", [0, 1, 6, 6, 7], 8.0),
        # link d0->d1 carries 0 in [2, 6] and 1 in [6, 8]; level 1, op 3 too, from 8
        ("serial_links", [0, 1, 8, 8, 9], 10.0),
        # [2, 6], [6, 10] and [10, 12]; level 1 from 12
        ("one_port", [0, 1, 12, 12, 13], 14.0),
        ("shared_bus", [0, 1, 12, 12, 13], 14.0),
    ],
)
def test_levels_wait_for_the_exchange(network, starts, makespan):
    """
    0:d0(1) --(4)--> 2:d1(1)
        \\----(4)--> 3:d2(1)
    1:d0(1) --(2)--> 4:d1(1)
    """
    problem = make_problem(
        [1, 1, 1, 1, 1], [(0, 2), (0, 3), (1, 4)], [4, 2, 0, 0, 0], num_devices=3
    )
    check(
        problem, [0, 0, 1, 2, 1], starts, makespan, network=network,
        execution="bulk_synchronous",
    )  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("choose", "order", "starts"),
    [
        ("fifo", None, [0, 1, 4, 6]),
        ("b_level", None, [0, 3, 1, 6]),
        ("given", [0, 2, 1, 3], [0, 3, 1, 6]),
    ],
)
def test_rules_choose_inside_a_level_only(network, choose, order, starts):
    """`late_branch` again: whatever goes first, op 3 waits for both ops of the level before it."""
    problem, devices = late_branch()
    check(
        problem, devices, starts, 12.0, network=network, choose=choose, order=order,
        execution="bulk_synchronous",
    )  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_an_edge_that_skips_a_level_is_sent_at_once(network):
    """
    0:d0(1) --> 1:d0(2) --> 2:d1(1)      every transfer takes 3 s
        \\---------------------/

    Tensor 0 goes to d1 in the exchange after level 0 [1, 4]: op 1 [4, 6], tensor 1 [6, 9], op 2.
    """
    problem = make_problem([1, 2, 1], [(0, 1), (0, 2), (1, 2)], [3, 3, 3])
    check(problem, [0, 0, 1], [0.0, 4.0, 9.0], 10.0, network=network, execution="bulk_synchronous")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("simulator_type", SIMULATORS)
def test_bulk_synchronous_memory(simulator_type, network):
    """`memory_case` with barriers: tensor 0 is on d1 from 1, tensor 1 from 3.

    d0: 8 B from 0; op 1 [2, 3] holds 8 + 4 B; 4 B until 4. Op 2 [4, 5] holds 14 B on d1.
    """
    problem, devices = memory_case()
    schedule = simulator_type(problem, network, execution="bulk_synchronous").run(devices)
    assert schedule.start.tolist() == [0.0, 2.0, 4.0]
    assert schedule.peak_bytes.tolist() == [12.0, 14.0]
    problem, devices = memory_case(memory_bytes=13.0)
    with pytest.raises(CapacityError, match=r"device 1 \(d1\) holds 14 B at 4 s"):
        simulator_type(problem, network, execution="bulk_synchronous").run(devices)


# --- rounds, slots, anomalies --------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
def test_a_local_op_of_no_duration_is_taken_in_before_the_next_start(network):
    """
    0:d0(0) --> 1:d0(1)      2:d0(1)

    Op 0 starts and completes at 0; then ops 1 and 2 wait since 0, and the lower id goes first.
    """
    problem = make_problem([0, 1, 1], [(0, 1)], [0, 0, 0])
    check(problem, [0, 0, 0], [0.0, 0.0, 1.0], 2.0, network=network)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_transfer_of_no_duration_arrives_a_round_later(network):
    """
    0:d1(0) --(0)--> 1:d0(1)      2:d0(1)

    Device 0 starts op 2 at 0, before the completions of op 0 and of its transfer, also at 0.
    """
    problem = make_problem([0, 1, 1], [(0, 1)], [0, 0, 0])
    check(problem, [1, 0, 0], [0.0, 1.0, 0.0], 2.0, network=network)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("choose", CHOOSE_RULES)
def test_every_hop_of_no_duration_costs_a_round(network, choose):
    """
    0:d0(1) --> host --> 3:d1(1)      1:d1(1) --> 2:d1(1)      all volumes 0

    Both producers finish at 1. Op 2 is ready at once, op 3 two rounds later, whatever the rule.
    """
    problem = make_problem(
        [1, 1, 1, 1], [(0, 3), (1, 2)], [0, 0, 0, 0], hosts=("host",),
        links=[(0, 2), (2, 1), (1, 2), (2, 0)],
    )  # fmt: skip
    order = [0, 1, 3, 2] if choose == "given" else None
    check(
        problem, [0, 1, 1, 1], [0.0, 0.0, 1.0, 2.0], 3.0,
        network=network, choose=choose, order=order,
    )  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_compute_slots_run_ops_side_by_side(network):
    """
    0:d0(3)  1:d0(1)  2:d0(1)  3:d0(2)   two slots: 0 [0, 3]; 1 [0, 1], 2 [1, 2], 3 [2, 4]
    """
    problem = make_problem([3, 1, 1, 2], [], [0, 0, 0, 0], slots=2)
    check(problem, [0, 0, 0, 0], [0.0, 0.0, 1.0, 2.0], 4.0, network=network)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("seconds_of_op_0", "starts", "makespan"),
    [(2.0, [0, 0, 2, 1, 2], 8.0), (0.5, [0, 0, 0.5, 5.5, 6.5], 12.5)],
)
def test_a_faster_op_can_make_the_run_slower(network, seconds_of_op_0, starts, makespan):
    """
    0:d1(2 or 0.5) --> 2:d0(5)
    1:d2(1) ---------> 3:d0(1) --> 4:d1(6)

    A list-scheduling anomaly (Graham 1969), not a defect: the faster op 0 lets op 2 take device 0
    before op 3, on which op 4 waits.
    """
    problem = make_problem(
        [seconds_of_op_0, 1, 5, 1, 6], [(0, 2), (1, 3), (3, 4)], [0] * 5, num_devices=3
    )
    check(problem, [1, 2, 0, 0, 1], starts, makespan, network=network)


# --- memory --------------------------------------------------------------------------------------


def memory_case(memory_bytes=None):
    """
    0:d0(1) 8 B --> 1:d0(1) 4 B --> 2:d1(1) 2 B      every transfer takes 1 s
        \\------------------------------/

    d0: 8 B from 0, 12 B in [1, 2]; at 2 op 1 is done and tensor 0 is sent: 4 B; at 3 nothing.
    d1: tensor 0 from 1, tensor 1 from 2 (12 B), output of op 2 from 3: 14 B; the 2 B stay.
    """
    problem = make_problem(
        [1, 1, 1], [(0, 1), (0, 2), (1, 2)], [1, 1, 1],
        output_bytes=[8, 4, 2], memory_bytes=memory_bytes,
    )  # fmt: skip
    return problem, [0, 0, 1]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("simulator_type", SIMULATORS)
@pytest.mark.parametrize("memory_bytes", [None, 14.0, 1e9])
def test_peak_memory(simulator_type, network, memory_bytes):
    problem, devices = memory_case(memory_bytes)
    schedule = simulator_type(problem, network).run(devices)
    assert schedule.peak_bytes.tolist() == [12.0, 14.0]
    assert schedule.makespan == 4.0


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("simulator_type", SIMULATORS)
def test_over_capacity_names_device_time_and_tensors(simulator_type, network):
    problem, devices = memory_case(memory_bytes=13.0)
    simulator = simulator_type(problem, network)
    with pytest.raises(
        CapacityError, match=r"device 1 \(d1\) holds 14 B at 3 s.*13 B.*op 0 .*8 B, op 1 .*4 B"
    ):
        simulator.run(devices)
    assert simulator.makespan(devices) == np.inf


@pytest.mark.parametrize("network", NETWORKS)
def test_a_batch_gives_infinity_only_to_rows_over_capacity(network):
    # Op 2 needs 14 B wherever it runs, and only device 0 has them.
    problem, devices = memory_case(memory_bytes=[14.0, 13.0])
    makespans = Simulator(problem, network).makespans([devices, [0, 0, 0], [1, 1, 1], [1, 1, 0]])
    assert makespans.tolist() == [np.inf, 3.0, np.inf, 4.0]
