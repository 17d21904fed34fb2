"""Topologies, routes and the roofline cost model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from doppler.errors import ConfigurationError, InvalidProblemError, UnknownQuantityError
from doppler.graph import DataflowGraph
from doppler.hardware import (
    CostModel,
    Device,
    Link,
    Topology,
    fully_connected,
    make_topology,
    roofline_cost_model,
)
from doppler.hardware.topology import PRESETS


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_presets_connect_every_pair(preset: str, num_devices: int) -> None:
    topology = make_topology(preset, num_devices)
    assert topology.num_devices == num_devices
    for source, row in enumerate(topology.routes):
        for target, route in enumerate(row):
            ends = [source, *(topology.links[link].target for link in route)]
            assert ends[-1] == target
            assert all(topology.links[link].source == end for link, end in zip(route, ends))


def test_host_staged_routes_have_two_hops() -> None:
    topology = make_topology("host_staged", 3)
    assert [len(route) for route in topology.routes[0]] == [0, 2, 2]
    assert topology.endpoint_name(3) == "host"


def test_devices_do_not_relay_for_one_another() -> None:
    devices = tuple(Device(name) for name in "abc")
    chain = [Link(0, 1, 1e9), Link(1, 0, 1e9), Link(1, 2, 1e9), Link(2, 1, 1e9)]
    with pytest.raises(InvalidProblemError, match="no route from 'a' to 'c'"):
        Topology("chain", devices, tuple(chain))


def test_the_faster_route_wins() -> None:
    # Direct: 10 s for 1 MiB. Through the host: 2 s.
    direct, staged = 2**20 / 10, float(2**20)
    links = [Link(0, 1, direct), Link(1, 0, direct), Link(0, 2, staged), Link(2, 1, staged)]
    topology = Topology("t", (Device("a"), Device("b")), tuple(links), hosts=("host",))
    assert topology.routes[0][1] == (2, 3)
    assert topology.routes[1][0] == (1,)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fully_connected(0), "num_devices: 0 is below 1"),
        (lambda: fully_connected(-3), "num_devices: -3 is below 1"),
        (lambda: Device("d", flops_per_second=0), "'d', flops_per_second"),
        (lambda: Device("d", memory_bytes=float("nan")), "'d', memory_bytes"),
        (lambda: Device("d", compute_slots=0), "'d', compute_slots"),
        (lambda: Link(0, 0, 1.0), "back to its source"),
        (lambda: Link(0, 1, 0.0), "bandwidth"),
        (lambda: Link(0, 1, float("nan")), "bandwidth"),
        (lambda: Link(0, 1, 1.0, -1.0), "latency"),
        (lambda: Link(0, 1, 1.0, float("inf")), "latency"),
        (lambda: Topology("t", (Device("a"), Device("a"))), "share a name"),
    ],
)
def test_refusals(build: Any, message: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        build()
    assert message in str(caught.value)


def test_unknown_preset_lists_the_choices() -> None:
    with pytest.raises(ConfigurationError, match="cpu, host_staged"):
        make_topology("tpu", 2)


def test_roofline_by_hand() -> None:
    # 100 FLOP/s, 10 B/s: op 0 is bound by arithmetic (5 s), op 1 by memory ((20 + 10) / 10 = 3 s).
    graph = DataflowGraph.from_edges("g", 2, [(0, 1)], flops=[500, 100], output_bytes=[10, 20])
    topology = fully_connected(
        2, flops_per_second=100, memory_bandwidth=10, bandwidth=4, latency=0.5
    )
    costs = roofline_cost_model(graph, topology, op_overhead=1.0)
    assert costs.op_seconds.tolist() == [[6, 6], [4, 4]]
    assert costs.transfer_volume.tolist() == [10, 20]
    assert costs.link_seconds_per_unit.tolist() == [0.25, 0.25]
    assert costs.scaled(2).op_seconds.tolist() == [[12, 12], [8, 8]]
    assert costs.scaled(2).link_latency.tolist() == [1.0, 1.0]


def test_roofline_needs_flops() -> None:
    with pytest.raises(UnknownQuantityError, match="flops"):
        roofline_cost_model(DataflowGraph.from_edges("g", 1, []), fully_connected(1))


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_costs_must_be_finite(value: float) -> None:
    with pytest.raises(InvalidProblemError, match=r"op_seconds\[1, 0\]"):
        CostModel(np.array([[1.0], [value]]), np.zeros(2), np.zeros(0), np.zeros(0), "test")


HUGE = 10**400


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", ["", " ", None, 3, "a\nb", "a\ud800"]),
        ("flops_per_second", [True, "1", None, 0, float("inf"), float("nan"), HUGE]),
        ("memory_bandwidth", [True, [1], -1, float("inf")]),
        ("memory_bytes", [True, "1", float("inf"), HUGE, 0]),
        ("compute_slots", [True, 1.0, "1", None, 0, float("nan"), float("inf"), HUGE, 2**40]),
    ],
)
def test_devices_check_their_types(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidProblemError, match=f"device .*{field}: .* is |{field}: .*hold"):
            Device(**{"name": "d", field: value})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("source", [True, "1", None, [1], 0.0, -1, 2**70]),
        ("target", [True, "1", None, [1], 1.0, -1, 2**70]),
        ("bandwidth", [True, "1", None, 0, float("nan")]),
        ("latency", [True, "1", None, -1, float("inf"), HUGE]),
        ("bus", ["", 3, "a\n"]),
    ],
)
def test_links_check_their_types(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidProblemError, match=f"link .*, {field}: "):
            Link(**{"source": 0, "target": 1, "bandwidth": 1.0, field: value})


@pytest.mark.parametrize("hosts", [None, 5, "ab", [["x"]], [1], [""]])
def test_hosts_are_a_list_of_names(hosts: Any) -> None:
    with pytest.raises(InvalidProblemError, match="topology 't', hosts"):
        Topology("t", (Device("d"),), hosts=hosts)


def test_numpy_numbers_become_plain_ones() -> None:
    device = Device("d", np.float32(2), compute_slots=np.int64(2))  # type: ignore[arg-type]
    assert type(device.compute_slots) is int and type(device.flops_per_second) is float
    link = Link(np.int64(0), np.int64(1), np.float64(3))  # type: ignore[arg-type]
    assert type(link.source) is int and type(link.bandwidth) is float
