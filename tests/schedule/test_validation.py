"""The checker of schedules: accepts what the simulator makes, refuses every kind of corruption."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Schedule, Topology
from doppler.errors import ConfigurationError, ScheduleError
from doppler.hardware import make_topology
from doppler.schedule import validate_schedule
from doppler.schedule.intervals import first_overlap, free_stretches
from doppler.simulator import NETWORKS, Simulator


def staged_problem() -> PlacementProblem:
    """
    0:d0(1) --(1)--> 2:d1(2) --> 4:d1(1)      d0 and d1 exchange tensors through the host
    1:d0(2) --(1)--> 3:d1(1) --/
    5:d0(1)

    op 0 [0, 1], op 1 [1, 3], op 5 [3, 4] on d0. Tensor 0: up [1, 2], down [2, 3]; tensor 1: up
    [3, 4], down [4, 5]. op 2 [3, 5], op 3 [5, 6], op 4 [6, 7] on d1.
    """
    graph = DataflowGraph.from_edges(
        "staged", 6, [(0, 2), (1, 3), (2, 4), (3, 4)], output_bytes=[1] * 6
    )
    topology = Topology(
        "staged",
        (Device("d0", memory_bytes=100.0), Device("d1", memory_bytes=100.0)),
        tuple(Link(s, d, 1.0) for s, d in [(0, 2), (2, 1), (1, 2), (2, 0)]),
        ("host",),
    )
    seconds = np.array([1.0, 2.0, 2.0, 1.0, 1.0, 1.0])
    costs = CostModel(
        np.repeat(seconds[:, None], 2, axis=1), np.ones(6), np.zeros(4), np.ones(4), "by hand"
    )
    return PlacementProblem(graph, topology, costs)


def valid_schedule(network: str = "serial_links") -> Schedule:
    schedule = Simulator(staged_problem(), network).run([0, 0, 1, 1, 1, 0])
    assert schedule.start.tolist() == [0, 1, 3, 5, 6, 3]
    assert schedule.transfer_links.tolist() == [0, 1, 0, 1]
    return schedule


def shifted(schedule: Schedule, op: int, seconds: float) -> Schedule:
    start, finish = schedule.start.copy(), schedule.finish.copy()
    start[op] += seconds
    finish[op] += seconds
    return replace(schedule, start=start, finish=finish)


def hop_shifted(schedule: Schedule, hop: int, seconds: float) -> Schedule:
    start, finish = schedule.transfer_start.copy(), schedule.transfer_finish.copy()
    start[hop] += seconds
    finish[hop] += seconds
    return replace(schedule, transfer_start=start, transfer_finish=finish)


def hops(schedule: Schedule, keep) -> Schedule:
    return replace(
        schedule,
        **{
            name: getattr(schedule, name)[keep]
            for name in (
                "transfer_ops",
                "transfer_targets",
                "transfer_links",
                "transfer_start",
                "transfer_finish",
            )
        },
    )


def with_entry(schedule: Schedule, name: str, index: int, value: float) -> Schedule:
    array = getattr(schedule, name).copy()
    array[index] = value
    return replace(schedule, **{name: array})


CORRUPTIONS = {
    "op too early": (
        lambda s: shifted(s, 2, -0.5),
        r"op 2 starts on device 1 at 2.5 s, before the output of op 0 is there at 3 s",
    ),
    "op before a local input": (
        lambda s: shifted(s, 4, -0.5),
        "op 4 starts on device 1 at 5.5 s, before the output of op 3",
    ),
    "ops overlap": (
        lambda s: shifted(s, 5, -1.0),
        r"op 5 starts on device 0 at 2 s, while all 1 slots are taken by ops \[1\]",
    ),
    "op of no length inside another": (
        lambda s: with_entry(with_entry(s, "start", 5, 2.0), "finish", 5, 2.0),
        r"op 5 starts on device 0 at 2 s, while all 1 slots are taken by ops \[1\]",
    ),
    "device idles": (
        lambda s: shifted(s, 5, 0.5),
        "device 0 idles for 0.5 s while op 5 waits: eligible at 0 s, started at 3.5 s",
    ),
    "device idles at the end": (
        lambda s: shifted(s, 4, 2.0),
        "device 1 idles for 2 s while op 4 waits",
    ),
    "negative time": (lambda s: with_entry(s, "start", 0, -0.1), "op 0: runs from -0.1 s"),
    "finish before start": (lambda s: with_entry(s, "finish", 4, 5.0), "op 4: runs from 6.0 s"),
    "nan": (lambda s: with_entry(s, "finish", 4, np.nan), "op 4: runs from 6.0 s to nan"),
    "endless hop": (
        lambda s: with_entry(s, "transfer_finish", 3, np.inf),
        r"transfer of op 1 to device 1 on link 1 \(host -> d1\): runs from 4.0 s to inf",
    ),
    "transfer missing": (
        lambda s: hops(s, [0, 1]),
        "the output of op 1 is never sent to device 1, where op 3 needs it",
    ),
    "transfer twice": (
        lambda s: hops(s, [0, 1, 0, 1, 2, 3]),
        r"op 0 reaches device 1 over links \[0, 1, 0, 1\]; its route is \[0, 1\]",
    ),
    "hop missing": (lambda s: hops(s, [0, 1, 2]), r"over links \[0\]; its route is \[0, 1\]"),
    "hops swapped": (lambda s: hops(s, [1, 0, 2, 3]), r"over links \[1, 0\]"),
    "needless transfer": (
        lambda s: with_entry(with_entry(s, "transfer_ops", 2, 5), "transfer_ops", 3, 5),
        "the output of op 1 is never sent",
    ),
    "transfer nobody needs": (
        lambda s: with_entry(with_entry(hops(s, [0, 1, 2, 3, 2, 3]), "transfer_ops", 4, 5),
                             "transfer_ops", 5, 5),
        "the output of op 5 is sent to device 1, where nobody needs it",
    ),
    "transfer before its producer": (
        lambda s: hop_shifted(s, 2, -0.5),
        r"op 1 to device 1 on link 0 \(d0 -> host\) starts at 2.5 s, before the tensor is there",
    ),
    "hop before the hop before it": (
        lambda s: hop_shifted(s, 1, -0.5),
        r"op 0 to device 1 on link 1 \(host -> d1\) starts at 1.5 s, before the tensor is there",
    ),
    "link idles": (
        lambda s: hop_shifted(hop_shifted(shifted(shifted(s, 4, 0.5), 3, 0.5), 3, 0.5), 2, 0.5),
        r"op 1 to device 1 on link 0 .* could carry it for 0.5 s: eligible at 3 s",
    ),
    "no such op": (lambda s: with_entry(s, "transfer_ops", 1, 6), "transfer_ops, entry 1: 6"),
    "no such target": (
        lambda s: with_entry(s, "transfer_targets", 1, 2), "transfer_targets, entry 1: 2"
    ),
    "no such link": (lambda s: with_entry(s, "transfer_links", 1, -1), "transfer_links, entry 1"),
    "no such device": (lambda s: with_entry(s, "devices", 1, 2), "devices: .*op 1: device 2"),
    "wrong shape": (lambda s: replace(s, start=s.start[:-1]), r"start: shape \(5,\)"),
    "over memory": (
        lambda s: with_entry(s, "peak_bytes", 1, 101.0), "device 1 holds 101 B at its peak"
    ),
}  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_simulated_schedules_pass(network):
    validate_schedule(valid_schedule(network))
    validate_schedule(valid_schedule(network), tolerance=0.0)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corrupted_schedules_are_refused(name):
    corrupt, message = CORRUPTIONS[name]
    with pytest.raises(ScheduleError, match=message):
        validate_schedule(corrupt(valid_schedule()))


def one_link_at_once(network: str) -> Schedule:
    """Ops 0 and 1 on d0 finish at 1 (two slots) and send to ops 2 and 3 on d1 and d2."""
    graph = DataflowGraph.from_edges("pair", 4, [(0, 2), (1, 3)])
    topology = Topology(
        "three",
        tuple(Device(f"d{d}", compute_slots=2) for d in range(3)),
        tuple(Link(s, d, 1.0) for s in range(3) for d in range(3) if s != d),
    )
    costs = CostModel(np.ones((4, 3)), np.ones(4), np.zeros(6), np.ones(6), "by hand")
    problem = PlacementProblem(graph, topology, costs)
    return Simulator(problem, network).run([0, 0, 1, 2])


def test_ports_count_only_under_one_port():
    free = one_link_at_once("serial_links")
    assert free.transfer_start.tolist() == [1.0, 1.0]
    validate_schedule(free)
    with pytest.raises(ScheduleError, match="occupies channel 0 of network one_port"):
        validate_schedule(replace(free, network="one_port"))
    ported = one_link_at_once("one_port")
    assert ported.transfer_start.tolist() == [1.0, 2.0]
    validate_schedule(ported)
    for network in ("serial_links", "contention_free"):
        with pytest.raises(ScheduleError, match=r"op 1 to device 2.* could carry it for 1 s"):
            validate_schedule(replace(ported, network=network))


def test_unknown_network_is_refused():
    with pytest.raises(ConfigurationError, match="token_ring"):
        validate_schedule(replace(valid_schedule(), network="token_ring"))


@pytest.mark.parametrize("corrupt", [lambda s: shifted(s, 4, 0.2), lambda s: shifted(s, 2, -0.2)])
def test_tolerance_forgives_measured_times(corrupt):
    schedule = replace(corrupt(valid_schedule()), origin="measured")
    validate_schedule(schedule, tolerance=0.21)
    with pytest.raises(ScheduleError):
        validate_schedule(schedule, tolerance=0.19)


def test_durations_are_free():
    schedule = valid_schedule()
    validate_schedule(with_entry(schedule, "finish", 4, 17.0))


def test_overlap_of_intervals():
    start, finish = np.array([0.0, 1.0, 2.0, 2.0]), np.array([2.0, 3.0, 4.0, 2.0])
    assert first_overlap(start, finish, 1) == 1
    assert first_overlap(start, finish, 2) is None
    assert first_overlap(start[[0, 2]], finish[[0, 2]], 1) is None
    # An instant may sit on the border of a busy stretch, not inside it.
    assert first_overlap(np.array([0.0, 2.0, 2.0]), np.array([2.0, 2.0, 3.0]), 1) is None
    assert first_overlap(np.array([0.0, 1.0]), np.array([2.0, 1.0]), 1) == 1


def test_free_stretches_of_intervals():
    start, finish = np.array([1.0, 2.0, 6.0, 4.0]), np.array([3.0, 4.0, 7.0, 4.0])
    opens, closes = free_stretches(start, finish, 1)
    assert opens.tolist() == [0.0, 4.0, 7.0]
    assert closes.tolist() == [1.0, 6.0, np.inf]
    opens, closes = free_stretches(start, finish, 2)
    assert opens.tolist() == [0.0, 3.0]
    assert closes.tolist() == [2.0, np.inf]


@pytest.mark.parametrize("network", NETWORKS)
def test_ten_thousand_ops_take_seconds(network):
    num_ops = 10_000
    rng = np.random.default_rng(0)
    producers = rng.integers(np.maximum(np.arange(1, num_ops) - 200, 0), np.arange(1, num_ops))
    graph = DataflowGraph.from_edges(
        "large", num_ops, np.stack([producers, np.arange(1, num_ops)], axis=1)
    )
    topology = make_topology("host_staged", 8)
    costs = CostModel(
        rng.uniform(1, 2, (num_ops, 8)),
        rng.uniform(0, 1, num_ops),
        np.zeros(topology.num_links),
        np.ones(topology.num_links),
        "random",
    )
    problem = PlacementProblem(graph, topology, costs)
    schedule = Simulator(problem, network).run(rng.integers(0, 8, num_ops))
    began = time.perf_counter()
    validate_schedule(schedule)
    assert time.perf_counter() - began < 10
    with pytest.raises(ScheduleError, match="idles for"):
        validate_schedule(shifted(schedule, int(np.argmax(schedule.start)), 1.0))
