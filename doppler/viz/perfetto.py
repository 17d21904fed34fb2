"""Schedules as trace files for https://ui.perfetto.dev and chrome://tracing.

The format is Chrome's JSON trace events: complete slices ("X"), metadata ("M") that names
processes and threads, and flow arrows ("s", "f"). Times there are microseconds; Perfetto keeps
whole nanoseconds and drops slices that overlap on a track by a rounding error. Hence all times are
rounded to 1/1024 of a microsecond, which a float and every sum of such floats hold exactly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.files import write_text_atomically
from doppler.schedule import Schedule
from doppler.schedule.arrivals import find_arrivals
from doppler.viz.lanes import device_lanes, link_lanes

TICKS_PER_SECOND = 1024e6
TICKS_PER_MICROSECOND = 1024

Event = dict[str, Any]


def write_trace(
    schedules: Sequence[tuple[str, Schedule]], path: str | Path, flows: bool = True
) -> Path:
    """Writes schedules into one trace file, a group of device and of link tracks for each.

    Every compute slot of a device is a track, and every link; where transfers of one link overlap
    (under `contention_free`) the link has several. A slice is named by its op and carries, as
    arguments, op id, kind, meta-op, role, bytes, exact seconds, and whether it is on the critical
    chain.

    Args:
        schedules: (title, schedule), at least one.
        path: a .json file.
        flows: whether arrows lead from producers over transfers to consumers.

    Returns:
        The path.

    Raises:
        ConfigurationError: no schedules.
        DopplerError: the file cannot be written.
    """
    if not schedules:
        raise ConfigurationError("a trace needs at least one schedule")
    builder = _Builder()
    for title, schedule in schedules:
        builder.add(title, schedule, flows)
    document = {
        "traceEvents": builder.events,
        "displayTimeUnit": "ns",
        "otherData": {
            f"{number}: {title}": {
                "problem": schedule.problem.name,
                f"{schedule.origin}_makespan": schedule.makespan,
                "network": schedule.network,
                "choose": schedule.choose,
                "execution": schedule.execution,
                "costs": schedule.problem.cost_model.source,
            }
            for number, (title, schedule) in enumerate(schedules)
        },
    }
    write_text_atomically(path, json.dumps(document, allow_nan=False) + "\n")
    return Path(path)


class _Builder:
    """Collects events; processes, threads and flows are numbered over all schedules."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.processes = 0
        self.threads = 0
        self.arrows = 0

    def add(self, title: str, schedule: Schedule, flows: bool) -> None:
        chain = {(step.kind, step.index) for step in schedule.critical_chain()}
        ops = self._ops(title, schedule, chain)
        hops = self._hops(title, schedule, chain)
        if flows:
            self._arrows(schedule, ops, hops)

    def _process(self, name: str) -> int:
        self.processes += 1
        self.events.append(_metadata("process_name", self.processes, 0, name=name))
        self.events.append(
            _metadata("process_sort_index", self.processes, 0, sort_index=self.processes)
        )
        return self.processes

    def _tracks(self, process: int, names: list[str], lanes: np.ndarray, lane: str) -> np.ndarray:
        """Makes the tracks of each name; returns the first one's thread of each. # (num_names,)"""
        first = self.threads + 1 + np.cumsum(lanes) - lanes
        for name, count in zip(names, lanes.tolist(), strict=True):
            for number in range(count):
                self.threads += 1
                label = name if count == 1 else f"{name} {lane} {number}"
                self.events.append(_metadata("thread_name", process, self.threads, name=label))
                self.events.append(
                    _metadata("thread_sort_index", process, self.threads, sort_index=self.threads)
                )
        return first

    def _ops(self, title: str, schedule: Schedule, chain: set[tuple[str, int]]) -> list[Event]:
        problem = schedule.problem
        graph = problem.graph
        process = self._process(f"{title}: devices")
        lane, lanes = device_lanes(schedule)
        names = [device.name for device in problem.topology.devices]
        threads = self._tracks(process, names, lanes, "slot")[schedule.devices] + lane
        begin, length = _ticks(schedule.start, schedule.finish)
        slices: list[Event] = []
        for op in range(graph.num_ops):
            args: Event = {"op": op, "kind": graph.kinds[op]}
            if graph.meta_op is not None:
                args["meta_op"] = int(graph.meta_op[op])
            if graph.roles is not None:
                args["role"] = graph.roles[op]
            if graph.output_bytes is not None:
                args["output_bytes"] = float(graph.output_bytes[op])
            args |= _seconds(schedule.start[op], schedule.finish[op], ("op", op) in chain)
            place = {"pid": process, "tid": int(threads[op])}
            slices.append(_slice(graph.op_name(op), "op", begin[op], length[op], place, args))
        self.events += slices
        return slices

    def _hops(self, title: str, schedule: Schedule, chain: set[tuple[str, int]]) -> list[Event]:
        problem = schedule.problem
        topology = problem.topology
        if not topology.num_links:
            return []
        process = self._process(f"{title}: links")
        lane, lanes = link_lanes(schedule)
        names = [
            f"{topology.endpoint_name(s)} → {topology.endpoint_name(d)}"
            for s, d in topology.link_ends.tolist()
        ]
        threads = self._tracks(process, names, lanes, "lane")[schedule.transfer_links] + lane
        begin, length = _ticks(schedule.transfer_start, schedule.transfer_finish)
        slices: list[Event] = []
        for hop, op in enumerate(schedule.transfer_ops.tolist()):
            args: Event = {
                "op": op,
                "destination": topology.devices[schedule.transfer_targets[hop]].name,
                "link": names[schedule.transfer_links[hop]],
            }
            if problem.graph.output_bytes is not None:
                args["bytes"] = float(problem.graph.output_bytes[op])
            begun, ended = schedule.transfer_start[hop], schedule.transfer_finish[hop]
            args |= _seconds(begun, ended, ("hop", hop) in chain)
            place = {"pid": process, "tid": int(threads[hop])}
            name = f"{problem.graph.op_name(op)} to {args['destination']}"
            slices.append(_slice(name, "transfer", begin[hop], length[hop], place, args))
        self.events += slices
        return slices

    def _arrows(self, schedule: Schedule, ops: list[Event], hops: list[Event]) -> None:
        """Producer to its first hop, hop to hop, last hop to each consumer."""
        arrivals = find_arrivals(schedule)
        for hop, before in enumerate(arrivals.hop_before.tolist()):
            origin = hops[before] if before >= 0 else ops[schedule.transfer_ops[hop]]
            self._arrow(origin, hops[hop])
        consumers = schedule.problem.graph.edges[:, 1].tolist()
        for consumer, hop in zip(consumers, arrivals.edge_hop.tolist(), strict=True):
            if hop >= 0:
                self._arrow(hops[hop], ops[consumer])

    def _arrow(self, origin: Event, target: Event) -> None:
        self.arrows += 1
        for phase, end in (("s", origin), ("f", target)):
            place = {key: end[key] for key in ("pid", "tid", "ts")}
            event = {"ph": phase, "id": self.arrows, "name": "tensor", "cat": "flow", **place}
            self.events.append({**event, "bp": "e"} if phase == "f" else event)


def _ticks(start: np.ndarray, finish: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    begin = np.rint(start * TICKS_PER_SECOND)
    return begin, np.rint(finish * TICKS_PER_SECOND) - begin


def _seconds(start: float, finish: float, critical: bool) -> Event:
    return {
        "start_s": float(start),
        "duration_s": float(finish - start),
        "on_critical_chain": critical,
    }


def _slice(
    name: str, category: str, begin: float, length: float, place: dict[str, int], args: Event
) -> Event:
    times = {"ts": begin / TICKS_PER_MICROSECOND, "dur": length / TICKS_PER_MICROSECOND}
    return {"ph": "X", "name": name, "cat": category, **times, **place, "args": args}


def _metadata(what: str, process: int, thread: int, **args: str | int) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}
