"""Trace files, read back: tracks, slices and arrows are those of the schedule."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, PlacementProblem, Schedule, load_problem
from doppler.errors import ConfigurationError
from doppler.hardware import Device, Link, Topology, make_topology
from doppler.schedulers import RandomPlacement
from doppler.simulator import NETWORKS, Simulator
from doppler.viz import write_trace
from doppler.viz.lanes import assign_lanes


def random_problem(topology: Topology, known: bool, num_ops: int = 60) -> PlacementProblem:
    rng = np.random.default_rng(5)
    edges = np.argwhere(np.triu(rng.random((num_ops, num_ops)) < 0.08, 1))
    graph = DataflowGraph.from_edges(
        "random",
        num_ops,
        edges,
        output_bytes=np.full(num_ops, 4.0) if known else None,
        meta_op=np.arange(num_ops) // 4 if known else None,
        roles=["shard"] * num_ops if known else None,
    )
    links = topology.num_links
    costs = CostModel(
        rng.choice([0.0, 1e-3, 2.5e-3], (num_ops, topology.num_devices)),
        rng.uniform(0, 1e-3, num_ops),
        np.zeros(links),
        np.ones(links),
        "random",
    )
    return PlacementProblem(graph, topology, costs)


def slots_topology() -> Topology:
    devices = (Device("wide", compute_slots=2), Device("narrow"))
    return Topology("pair", devices, (Link(0, 1, 1.0), Link(1, 0, 1.0)))


def read(path: Path) -> tuple[dict[tuple[str, str], list[dict]], list[dict[str, Any]]]:
    """Slices by (process, track), with tracks that have none, and all events."""
    events = json.loads(path.read_text())["traceEvents"]
    processes, threads = {}, {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        if event["ph"] == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    assert len({tid for _, tid in threads}) == len(threads)
    tracks: dict = {(processes[pid], name): [] for (pid, _), name in threads.items()}
    assert len(tracks) == len(threads)
    for event in events:
        if event["ph"] == "X":
            where = (processes[event["pid"]], threads[event["pid"], event["tid"]])
            tracks[where].append(event)
    return tracks, events


def check_no_overlap(tracks: dict[tuple[str, str], list[dict]]) -> None:
    """As Perfetto keeps time: whole nanoseconds, cut off."""
    for name, slices in tracks.items():
        times = sorted((int(e["ts"] * 1000), int(e["dur"] * 1000)) for e in slices)
        for (begin, length), (following, _) in pairwise(times):
            assert begin + length <= following, name


def run(problem: PlacementProblem, network: str) -> Schedule:
    devices = np.random.default_rng(1).integers(0, problem.num_devices, problem.num_ops)
    return Simulator(problem, network).run(devices)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("topology", [slots_topology(), make_topology("host_staged", 3)])
def test_tracks_and_slices_are_those_of_the_schedule(
    tmp_path: Path, topology: Topology, known: bool, network: str
) -> None:
    problem = random_problem(topology, known)
    schedule = run(problem, network)
    tracks, events = read(write_trace([("A", schedule)], tmp_path / "trace.json"))
    check_no_overlap(tracks)
    expected = []
    for device in topology.devices:
        slots = device.compute_slots
        expected += [device.name] if slots == 1 else [f"{device.name} slot {k}" for k in (0, 1)]
    assert [name for process, name in tracks if process == "A: devices"] == expected
    link_tracks = [name for process, name in tracks if process == "A: links"]
    names = [
        f"{topology.endpoint_name(link.source)} → {topology.endpoint_name(link.target)}"
        for link in topology.links
    ]
    if network == "contention_free":
        assert {name.split(" lane ")[0] for name in link_tracks} == set(names)
        assert len(link_tracks) > len(names)
    else:
        assert link_tracks == names

    found = {}
    for (process, track), slices in tracks.items():
        for event in slices:
            args = event["args"]
            index = args["op"]
            if process == "A: devices":
                assert track.split(" slot ")[0] == topology.devices[schedule.devices[index]].name
                begin, end = schedule.start[index], schedule.finish[index]
                assert event["name"] == problem.graph.op_name(index)
                assert ("output_bytes" in args) == ("meta_op" in args) == ("role" in args) == known
                key = ("op", index)
            else:
                link = names.index(track.split(" lane ")[0])
                target = [d.name for d in topology.devices].index(args["destination"])
                hop = np.flatnonzero(
                    (schedule.transfer_ops == index)
                    & (schedule.transfer_targets == target)
                    & (schedule.transfer_links == link)
                )
                assert len(hop) == 1
                begin, end = schedule.transfer_start[hop[0]], schedule.transfer_finish[hop[0]]
                assert args.get("bytes") == (4.0 if known else None)
                key = ("hop", int(hop[0]))
            assert key not in found
            assert args["start_s"] == begin
            assert args["duration_s"] == end - begin
            assert event["ts"] == pytest.approx(begin * 1e6, abs=1e-3)
            assert event["dur"] == pytest.approx((end - begin) * 1e6, abs=2e-3)
            found[key] = (event, args["on_critical_chain"])
    assert len(found) == problem.num_ops + len(schedule.transfer_ops)
    chain = {(step.kind, step.index) for step in schedule.critical_chain()}
    assert {key for key, (_, critical) in found.items() if critical} == chain

    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    producers, consumers = problem.graph.edges.T
    remote = int((schedule.devices[producers] != schedule.devices[consumers]).sum())
    assert starts.keys() == ends.keys()
    assert len(starts) == len(schedule.transfer_ops) + remote
    places = {(e["pid"], e["tid"], e["ts"]) for e, _ in found.values()}
    for arrow, start in starts.items():
        assert start["ts"] <= ends[arrow]["ts"]
        for end in (start, ends[arrow]):
            assert (end["pid"], end["tid"], end["ts"]) in places


def test_a_published_layer_and_two_schedules_in_one_file(tmp_path: Path, shared_data: Path) -> None:
    file = shared_data / "doppler" / "gdp_full_transformer_layer_261nodes.txt"
    problem = load_problem(file, num_devices=4)
    pair = []
    for network in ("serial_links", "contention_free"):
        simulator = Simulator(problem, network)
        placement = RandomPlacement().schedule(problem, simulator, np.random.default_rng(0))
        pair.append((network, simulator.run(placement)))
    path = write_trace(pair, tmp_path / "trace.json", flows=False)
    tracks, events = read(path)
    check_no_overlap(tracks)
    assert {process for process, _ in tracks} == {
        f"{network}: {what}" for network, _ in pair for what in ("devices", "links")
    }
    assert not [event for event in events if event["ph"] in "sf"]
    others = json.loads(path.read_text())["otherData"]
    assert others["0: serial_links"]["simulated_makespan"] == pair[0][1].makespan
    assert sum(e["ph"] == "X" for e in events) == sum(
        problem.num_ops + len(schedule.transfer_ops) for _, schedule in pair
    )


def test_nothing_to_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        write_trace([], tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_lanes_are_reused_as_soon_as_they_are_free() -> None:
    """Lane 0: [0, 3] [3, 4]; lane 1: [1, 2] then the instant [2, 2], then [2, 5]."""
    start = np.array([1.0, 0.0, 2.0, 2.0, 3.0])
    finish = np.array([2.0, 3.0, 5.0, 2.0, 4.0])
    assert assign_lanes(start, finish).tolist() == [1, 0, 1, 1, 0]
