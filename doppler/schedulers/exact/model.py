"""The CP-SAT model of the executor's semantics, in which devices and links may also wait.

Variables: on which device each op runs and when it starts; which tensors move from where to where
and when each hop of a transfer starts. A device runs as many ops at a time as it has slots, a
channel of the network carries one hop at a time, a tensor moves once per destination.

Where memory may bind, outputs occupy it as in the simulator: at home from the start of the op, on
another device from the start of the last hop to it, until the last consumer there has finished
and, at home, the transfers have arrived.

Redundant, to prove more: windows from heads and tails, the work of each device and of all together,
`doppler.schedule.lower_bounds`, and names of interchangeable devices in the order of first use.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from doppler.schedule.networks import link_channels
from doppler.schedulers.exact.classical import transfers
from doppler.schedulers.exact.instance import Instance
from doppler.schedulers.exact.memory_model import add_memory
from doppler.schedulers.exact.replay import Plan, Times, make_plan
from doppler.schedulers.exact.symmetry import numbered_by_first_use

Key = tuple[int, int, int]
"""A possible transfer: (op, source device, destination device)."""


class PlacementModel:
    """See the module.

    Args:
        instance: what is modelled.
        upper: no schedule longer than this is looked for. [ticks]

    Attributes:
        start, size, end: of each op; expressions in ticks.
        on: `on[op][device]`, a literal where the device is allowed, None elsewhere.
        moves: literal of each possible transfer, true where it is needed.
        hops: (start, size) of the hops of each possible transfer. [ticks]
    """

    def __init__(self, instance: Instance, upper: int) -> None:
        from ortools.sat.python import cp_model

        self.instance = instance
        self.upper = upper
        self.model = cp_model.CpModel()
        self.makespan = self.model.new_int_var(instance.lower, upper, "makespan")
        self.moves: dict[Key, Any] = {}
        self.hops: dict[Key, list[tuple[Any, int]]] = {}
        self._hints: list[tuple[Any, Callable[[np.ndarray], int]]] = []
        self._sequence = np.lexsort((np.arange(len(instance.heads)), instance.heads))
        self._add_placement()
        self._add_ops()
        self._add_devices()
        channels = link_channels(instance.problem.topology, instance.network)
        self.with_hops = any(channels) or instance.memory
        self._add_edges()
        if self.with_hops:
            self._add_hops(channels)
        else:
            self._add_arrivals()
        if instance.memory:
            add_memory(self)
        self._break_symmetry()
        self.model.minimize(self.makespan)

    def hint(self, plan: Plan, times: Times) -> None:
        """Starts the search from a schedule in ticks; its devices are renamed by first use."""
        devices = numbered_by_first_use(plan.devices, self._sequence, self.instance.groups)
        back = dict(zip(devices.tolist(), plan.devices.tolist()))
        for variable, value in self._hints:
            self.model.add_hint(variable, value(devices))
        for op, start in enumerate(self.start):
            if not self.instance.problem.is_input_op[op]:
                self.model.add_hint(start, times[op, -1, 0][0])
        needed = set(transfers(self.instance, devices))
        for (op, source, target), literal in self.moves.items():
            used = devices[op] == source and (op, target) in needed
            self.model.add_hint(literal, int(used))
            for hop, (start, _) in enumerate(self.hops[op, source, target]):
                if used:
                    self.model.add_hint(start, times[op, back[target], hop][0])

    def read(self, value: Callable[[Any], int]) -> tuple[Plan, Times]:
        """The plan of a solution, and when its tasks start in it."""
        problem = self.instance.problem
        devices = np.array(
            [
                next(d for d, lit in enumerate(row) if lit is not None and value(lit))
                for row in self.on
            ]
        )
        times: Times = {}
        for op in range(problem.num_ops):
            start = value(self.start[op])
            times[op, -1, 0] = start, start + int(self.instance.ticks.ops[op, devices[op]])
        for op, target in transfers(self.instance, devices):
            source = int(devices[op])
            ready = times[op, -1, 0][1]
            for hop, link in enumerate(problem.topology.routes[source][target]):
                if self.with_hops:
                    ready = value(self.hops[op, source, target][hop][0])
                finish = ready + int(self.instance.ticks.hops[op, link])
                times[op, target, hop] = ready, finish
                ready = finish
        return make_plan(problem, devices, times), times

    def _add_placement(self) -> None:
        """A literal per op and allowed device; the ops of a block share theirs."""
        problem, model = self.instance.problem, self.model
        leaders = problem.constraints.leader.tolist()
        rows: dict[int, list[Any]] = {}
        for leader in sorted(set(leaders)):
            row = [
                model.new_bool_var(f"op {leader} on {device}") if allowed else None
                for device, allowed in enumerate(self.instance.allowed[leader].tolist())
            ]
            model.add_exactly_one([literal for literal in row if literal is not None])
            rows[leader] = row
            for device, literal in enumerate(row):
                if literal is not None:
                    self._hints.append((literal, _is_on(leader, device)))
        self.on = [rows[leader] for leader in leaders]

    def _add_ops(self) -> None:
        """When ops start and how long they take."""
        instance, model = self.instance, self.model
        problem = instance.problem
        self.start: list[Any] = []
        self.size: list[Any] = []
        for op in range(problem.num_ops):
            if problem.is_input_op[op]:
                self.start.append(0)
                self.size.append(0)
                continue
            latest = self.upper - int(instance.tails[op] + instance.least[op])
            self.start.append(model.new_int_var(int(instance.heads[op]), latest, f"start {op}"))
            sizes = instance.ticks.ops[op][instance.allowed[op]]
            if (sizes == sizes[0]).all():
                self.size.append(int(sizes[0]))
                continue
            size = model.new_int_var(int(sizes.min()), int(sizes.max()), f"size {op}")
            self._hints.append((size, _size_on(op, instance.ticks.ops)))
            durations = instance.ticks.ops[op].tolist()
            model.add(size == sum(durations[d] * lit for d, lit in self._choices(op)))
            self.size.append(size)
        self.end = [start + size for start, size in zip(self.start, self.size)]
        for op, end in enumerate(self.end):
            model.add(self.makespan >= end + int(instance.tails[op]))

    def _choices(self, op: int) -> list[tuple[int, Any]]:
        return [(d, literal) for d, literal in enumerate(self.on[op]) if literal is not None]

    def _add_devices(self) -> None:
        """Slots, and the work of each device and of all devices together."""
        instance, model = self.instance, self.model
        topology = instance.problem.topology
        running = [op for op in range(len(self.on)) if not instance.problem.is_input_op[op]]
        for device, slots in enumerate(topology.compute_slots.tolist()):
            intervals, work = [], []
            for op in running:
                literal = self.on[op][device]
                if literal is not None:
                    size = int(instance.ticks.ops[op, device])
                    intervals.append(
                        model.new_optional_fixed_size_interval_var(
                            self.start[op], size, literal, f"op {op} on {device}"
                        )
                    )
                    work.append(size * literal)
            if slots == 1:
                model.add_no_overlap(intervals)
            else:
                model.add_cumulative(intervals, [1] * len(intervals), slots)
            if work:
                model.add(slots * self.makespan >= sum(work))
        every = [
            model.new_fixed_size_interval_var(self.start[op], int(instance.least[op]), f"op {op}")
            for op in running
        ]
        model.add_cumulative(every, [1] * len(every), instance.capacity)

    def _add_edges(self) -> None:
        """Precedence, and what a transfer takes at least where producer and consumer are apart."""
        model = self.model
        shortest = self._shortest_transfers()
        for producer, consumer in self.instance.problem.graph.edges.tolist():
            model.add(self.start[consumer] >= self.end[producer])
            if self.on[producer] is self.on[consumer] or shortest[producer] == 0:
                continue
            together = model.new_bool_var(f"{producer} with {consumer}")
            self._hints.append((together, _are_together(producer, consumer)))
            for device in range(self.instance.problem.num_devices):
                here, there = self.on[producer][device], self.on[consumer][device]
                if here is not None and there is not None:
                    model.add_bool_or([~here, ~there, together])
                    model.add_bool_or([~here, there, ~together])
                elif here is not None:
                    model.add_implication(here, ~together)
                elif there is not None:
                    model.add_implication(there, ~together)
            model.add(
                self.start[consumer] >= self.end[producer] + int(shortest[producer])
            ).only_enforce_if(~together)

    def _routes(self) -> list[tuple[int, int, tuple[int, ...]]]:
        routes = self.instance.problem.topology.routes
        size = self.instance.problem.num_devices
        return [(s, t, routes[s][t]) for s in range(size) for t in range(size) if s != t]

    def _transfer_ticks(self) -> np.ndarray:
        """Ticks for each op's output along each route. # (routes, num_ops)"""
        hops, routes = self.instance.ticks.hops, self._routes()
        ticks = [hops[:, list(route)].sum(axis=1) for _, _, route in routes]
        return np.array(ticks, np.int64).reshape(len(routes), len(hops))

    def _shortest_transfers(self) -> np.ndarray:
        """The least ticks for each op's output to any other device. # (num_ops,)"""
        ticks = self._transfer_ticks()
        return ticks.min(axis=0) if len(ticks) else np.zeros(ticks.shape[1], np.int64)

    def _add_arrivals(self) -> None:
        """Transfers without contention: what the least transfer does not say yet."""
        instance, model = self.instance, self.model
        shortest = self._shortest_transfers()
        ticks, routes = self._transfer_ticks().T.tolist(), self._routes()
        for producer, consumer in instance.problem.graph.edges.tolist():
            for (source, target, _), taken in zip(routes, ticks[producer]):
                here, there = self.on[producer][source], self.on[consumer][target]
                if here is not None and there is not None and taken > shortest[producer]:
                    model.add(self.start[consumer] >= self.end[producer] + taken).only_enforce_if(
                        [here, there]
                    )

    def _add_hops(self, channels: list[tuple[int, ...]]) -> None:
        """Transfers hop by hop; each channel carries one at a time."""
        instance, model = self.instance, self.model
        graph, ticks = instance.problem.graph, instance.ticks
        on_channel: dict[int, list[tuple[Any, int, Any]]] = {}
        for op in range(graph.num_ops):
            consumers = graph.successors(op).tolist()
            earliest = int(instance.heads[op] + instance.least[op])
            for source, target, route in self._routes():
                here = self.on[op][source]
                readers = [c for c in consumers if self.on[c][target] is not None]
                if here is None or not readers:
                    continue
                literal = model.new_bool_var(f"op {op} from {source} to {target}")
                model.add_implication(literal, here)
                model.add_bool_or([~literal, *(self.on[c][target] for c in readers)])
                hops = [
                    (model.new_int_var(earliest, self.upper, ""), size)
                    for size in ticks.hops[op, list(route)].tolist()
                ]
                self.moves[op, source, target] = literal
                self.hops[op, source, target] = hops
                ready = self.end[op]
                for (start, size), link in zip(hops, route):
                    model.add(start >= ready).only_enforce_if(literal)
                    ready = start + size
                    interval = model.new_optional_fixed_size_interval_var(start, size, literal, "")
                    for channel in channels[link]:
                        on_channel.setdefault(channel, []).append((interval, size, literal))
                for reader in readers:
                    there = self.on[reader][target]
                    model.add_bool_or([~here, ~there, literal])
                    model.add(self.start[reader] >= ready).only_enforce_if([here, there])
        for uses in on_channel.values():
            model.add_no_overlap([interval for interval, _, _ in uses])
            model.add(self.makespan >= sum(size * literal for _, size, literal in uses))

    def _break_symmetry(self) -> None:
        """An op may open the k-th device of a group only after an earlier op opened the one before.

        Earlier in the sequence of heads, ties by id; the hint is renamed to match.
        """
        for group in self.instance.groups:
            for before, device in pairwise(group):
                opened: list[Any] = []
                for op in self._sequence.tolist():
                    literal = self.on[op][device]
                    if literal is not None:
                        self.model.add_bool_or([*opened, ~literal])
                    if self.on[op][before] is not None:
                        opened.append(self.on[op][before])


def _is_on(op: int, device: int) -> Callable[[np.ndarray], int]:
    return lambda devices: int(devices[op] == device)


def _size_on(op: int, sizes: np.ndarray) -> Callable[[np.ndarray], int]:
    return lambda devices: int(sizes[op, devices[op]])


def _are_together(first: int, second: int) -> Callable[[np.ndarray], int]:
    return lambda devices: int(devices[first] == devices[second])
