"""The oracle: the executor semantics once more, as slow and as readable as possible, on SimPy.

It shares no code with the kernel beyond names of rules and the wording of errors, and exists to
be compared with it event by event. SimPy is a test dependency and imported on first use.

The round structure maps to SimPy like this: every task is a process that sleeps for its duration
and then reports; the first report of an instant schedules one dispatch at the lowest priority of
that same instant, hence after all other reports. The dispatch starts tasks; those of zero duration
report at the same instant again and cause another dispatch.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from doppler.errors import CapacityError, ConfigurationError, InvalidPlacementError
from doppler.graph import b_levels, hop_depths
from doppler.problem import PlacementProblem
from doppler.schedule import Placement, Schedule
from doppler.schedule.networks import NETWORKS
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator.noise import NoiseModel
from doppler.simulator.simulator import CHOOSE_RULES, capacity_error, draw_factors

AFTER_ALL_REPORTS: Any = 9
"""A SimPy priority below those of timeouts (1) and process starts (0)."""


class OracleSimulator:
    """Same face and meaning as `Simulator`, at thousands of times its run time."""

    def __init__(
        self,
        problem: PlacementProblem,
        network: str = "serial_links",
        choose: str = "fifo",
        noise: NoiseModel | None = None,
        seed: int = 0,
        execution: str = "work_conserving",
    ) -> None:
        if network not in NETWORKS or choose not in CHOOSE_RULES or execution not in EXECUTIONS:
            raise ConfigurationError(
                f"network {network!r}, choose {choose!r} or execution {execution!r} is unknown"
            )
        problem.check_explicit()
        self.problem = problem
        self.network = network
        self.choose = choose
        self.noise = noise
        self.seed = seed
        self.execution = execution

    def makespan(self, devices: Any, order: Any = None, noise_seed: int = 0) -> float:
        """Simulated makespan, infinity where a device would run out of memory. [s]"""
        try:
            return self.run(devices, order, noise_seed).makespan
        except CapacityError:
            return float("inf")

    def run(self, devices: Any, order: Any = None, noise_seed: int = 0) -> Schedule:
        """Simulates one placement; arguments and errors as in `Simulator.run`."""
        if isinstance(devices, Placement):
            order = devices.order if order is None else order
            devices = devices.devices
        devices = self.problem.check_placement(devices)
        if self.choose != "given":
            order = None
        elif order is None:
            raise InvalidPlacementError("choose=given needs an order of the ops")
        else:
            order = self.problem.check_order(order)
        run_type = _Run if self.execution == "work_conserving" else _BulkRun
        return run_type(self, devices, order, noise_seed).schedule()

    def priorities(self, order: np.ndarray | None) -> list[float] | None:
        """Urgency of each op, lowest first, or None under fifo."""
        problem = self.problem
        if self.choose == "b_level":
            levels = b_levels(problem.graph, problem.mean_op_seconds, problem.mean_transfer_seconds)
            return [-level for level in levels]
        if self.choose == "random":
            return list(np.random.default_rng(self.seed).random(problem.num_ops))
        if order is not None:
            return [float(np.flatnonzero(order == op)[0]) for op in range(problem.num_ops)]
        return None


@dataclass
class _Transfer:
    """One tensor on its way to one device."""

    op: int
    target: int
    route: tuple[int, ...]
    consumers: list[int] = field(default_factory=list)
    hop: int = 0
    times: list[tuple[float, float]] = field(default_factory=list)


class _Run:
    """State of one simulated run."""

    def __init__(
        self,
        oracle: OracleSimulator,
        devices: np.ndarray,
        order: np.ndarray | None,
        noise_seed: int,
    ) -> None:
        import simpy

        self.oracle = oracle
        self.problem = oracle.problem
        self.env = simpy.Environment()
        self.devices = [int(device) for device in devices]
        self.order = order
        self.priority = oracle.priorities(order)
        self.factors = (
            None if oracle.noise is None else draw_factors(oracle.noise, self.problem, noise_seed)
        )
        graph, num_devices = self.problem.graph, self.problem.num_devices
        self.start = [float("nan")] * graph.num_ops
        self.finish = [float("nan")] * graph.num_ops
        self.inputs_missing = [len(graph.predecessors(op)) for op in range(graph.num_ops)]
        self.transfers: dict[tuple[int, int], _Transfer] = {}
        # Waiting tasks as (urgency, id, ...) tuples, so that min() is the whole priority rule.
        self.waiting_ops: list[list[tuple[float, int]]] = [[] for _ in range(num_devices)]
        self.waiting_hops: list[tuple[float, int, int]] = []
        self.free_slots = [int(slots) for slots in self.problem.topology.compute_slots]
        self.occupied: set[tuple[str, int | str]] = set()
        # (op, device) -> who still needs the tensor there
        self.needed: dict[tuple[int, int], set[tuple[str, int]]] = {}
        self.resident: set[tuple[int, int]] = set()
        self.peak = [0.0] * num_devices
        self.dispatch_due = False
        for op in range(graph.num_ops):
            self._plan_output(op)

    def schedule(self) -> Schedule:
        for op, missing in enumerate(list(self.inputs_missing)):
            if self.problem.is_input_op[op]:
                self.start[op] = self.finish[op] = 0.0
                self.resident.add((op, self.devices[op]))
                self._hand_over(op)
            elif missing == 0:
                self._op_is_ready(op)
        self._request_dispatch()
        self.env.run()
        hops = [
            (transfer.op, transfer.target, link, begin, end)
            for key in sorted(self.transfers)
            for transfer in [self.transfers[key]]
            for link, (begin, end) in zip(transfer.route, transfer.times, strict=True)
        ]
        columns = list(zip(*hops, strict=True)) if hops else [()] * 5
        known = self.problem.graph.output_bytes is not None
        return Schedule(
            problem=self.problem,
            devices=np.array(self.devices),
            start=np.array(self.start),
            finish=np.array(self.finish),
            transfer_ops=np.array(columns[0], np.int64),
            transfer_targets=np.array(columns[1], np.int64),
            transfer_links=np.array(columns[2], np.int64),
            transfer_start=np.array(columns[3], np.float64),
            transfer_finish=np.array(columns[4], np.float64),
            network=self.oracle.network,
            choose=self.oracle.choose,
            order=self.order,
            peak_bytes=np.array(self.peak) if known else None,
            execution=self.oracle.execution,
        )

    def _plan_output(self, op: int) -> None:
        """Lists who needs the output of an op where."""
        home = self.devices[op]
        routes = self.problem.topology.routes
        for consumer in self.problem.graph.successors(op):
            target = self.devices[consumer]
            self.needed.setdefault((op, target), set()).add(("op", int(consumer)))
            if target != home:
                transfer = self.transfers.setdefault(
                    (op, target), _Transfer(op, target, routes[home][target])
                )
                transfer.consumers.append(int(consumer))
                self.needed.setdefault((op, home), set()).add(("transfer", target))

    def _request_dispatch(self) -> None:
        if not self.dispatch_due:
            self.dispatch_due = True
            event = self.env.event()
            event._ok = True
            event._value = None
            event.callbacks.append(lambda _: self._dispatch())
            self.env.schedule(event, priority=AFTER_ALL_REPORTS)

    def _dispatch(self) -> None:
        """Starts whatever can start, then looks at memory."""
        self.dispatch_due = False
        for device, waiting in enumerate(self.waiting_ops):
            while waiting and self.free_slots[device]:
                urgency, op = min(waiting)
                waiting.remove((urgency, op))
                self.free_slots[device] -= 1
                self.resident.add((op, device))
                self.env.process(self._execute(op, device))
        while True:
            startable = [
                hop for hop in self.waiting_hops if not self._resources(hop) & self.occupied
            ]
            if not startable:
                break
            hop = min(startable)
            self.waiting_hops.remove(hop)
            self.occupied |= self._resources(hop)
            transfer = self.transfers[hop[1:]]
            if transfer.hop == len(transfer.route) - 1:
                self.resident.add((transfer.op, transfer.target))
            self.env.process(self._send(hop, transfer))
        self._check_memory()

    def _execute(self, op: int, device: int) -> Generator[Any, Any, None]:
        seconds = self.problem.cost_model.op_seconds[op, device]
        if self.factors is not None:
            seconds *= self.factors.ops[op]
        self.start[op] = self.env.now
        yield self.env.timeout(seconds)
        self.finish[op] = self.env.now
        self.free_slots[device] += 1
        for producer in self.problem.graph.predecessors(op):
            self._no_longer_needed(int(producer), device, ("op", op))
        self._hand_over(op)
        self._request_dispatch()

    def _hand_over(self, op: int) -> None:
        """Takes in an op that is done."""
        for consumer in self.problem.graph.successors(op):
            if self.devices[consumer] == self.devices[op]:
                self._input_arrived(int(consumer))
        for transfer in self._transfers_of(op):
            self._hop_is_ready(transfer)

    def _transfers_of(self, op: int) -> list[_Transfer]:
        keys = [(op, target) for target in range(self.problem.num_devices)]
        return [self.transfers[key] for key in keys if key in self.transfers]

    def _send(self, hop: tuple[float, int, int], transfer: _Transfer) -> Generator[Any, Any, None]:
        costs = self.problem.cost_model
        link = transfer.route[transfer.hop]
        resources = self._resources(hop)
        seconds = (
            costs.link_latency[link]
            + costs.transfer_volume[transfer.op] * costs.link_seconds_per_unit[link]
        )
        if self.factors is not None:
            seconds *= self.factors.transfers[transfer.op, transfer.target]
        begin = self.env.now
        yield self.env.timeout(seconds)
        transfer.times.append((begin, self.env.now))
        self.occupied -= resources
        transfer.hop += 1
        if transfer.hop < len(transfer.route):
            self._hop_is_ready(transfer)
        else:
            home = self.devices[transfer.op]
            self._no_longer_needed(transfer.op, home, ("transfer", transfer.target))
            self._take_in(transfer)
        self._request_dispatch()

    def _take_in(self, transfer: _Transfer) -> None:
        """Takes in a tensor that has arrived."""
        for consumer in transfer.consumers:
            self._input_arrived(consumer)

    def _resources(self, hop: tuple[float, int, int]) -> set[tuple[str, int | str]]:
        """What the current hop of a transfer occupies exclusively."""
        transfer = self.transfers[hop[1:]]
        link = transfer.route[transfer.hop]
        if self.oracle.network == "contention_free":
            return set()
        if self.oracle.network == "serial_links":
            return {("link", link)}
        ends = self.problem.topology.links[link]
        if self.oracle.network == "shared_bus":
            return {("bus", ends.bus or "")}
        return {("send", ends.source), ("receive", ends.target)}

    def _input_arrived(self, op: int) -> None:
        self.inputs_missing[op] -= 1
        if self.inputs_missing[op] == 0:
            self._op_is_ready(op)

    def _op_is_ready(self, op: int) -> None:
        urgency = self.env.now if self.priority is None else self.priority[op]
        self.waiting_ops[self.devices[op]].append((urgency, op))

    def _hop_is_ready(self, transfer: _Transfer) -> None:
        if self.priority is None:
            urgency = self.env.now
        else:
            urgency = min(self.priority[consumer] for consumer in transfer.consumers)
        self.waiting_hops.append((urgency, transfer.op, transfer.target))

    def _no_longer_needed(self, op: int, device: int, by: tuple[str, int]) -> None:
        self.needed[op, device].remove(by)
        if not self.needed[op, device]:
            self.resident.remove((op, device))

    def _check_memory(self) -> None:
        sizes = self.problem.graph.output_bytes
        if sizes is None:
            return
        for device, capacity in enumerate(self.problem.topology.memory_bytes):
            tensors = sorted(op for op, where in self.resident if where == device)
            held = sum(float(sizes[op]) for op in tensors)
            self.peak[device] = max(self.peak[device], held)
            if held > capacity:
                raise capacity_error(self.problem, device, self.env.now, np.array(tensors))


class _BulkRun(_Run):
    """State of a bulk-synchronous run: ops and transfers become eligible level by level."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.levels: list[list[int]] = []
        for op, level in enumerate(hop_depths(self.problem.graph)):
            self.levels += [[] for _ in range(level + 1 - len(self.levels))]
            self.levels[level].append(op)
        self.level = 0
        self.unfinished = len(self.levels[0])

    def _hand_over(self, op: int) -> None:
        self.unfinished -= 1
        if self.unfinished == 0:
            sent = [t for done in self.levels[self.level] for t in self._transfers_of(done)]
            self.unfinished = len(sent)
            for transfer in sent:
                self._hop_is_ready(transfer)
            if not sent:
                self._next_level()

    def _take_in(self, transfer: _Transfer) -> None:
        self.unfinished -= 1
        if self.unfinished == 0:
            self._next_level()

    def _next_level(self) -> None:
        self.level += 1
        if self.level < len(self.levels):
            self.unfinished = len(self.levels[self.level])
            for op in self.levels[self.level]:
                self._op_is_ready(op)
