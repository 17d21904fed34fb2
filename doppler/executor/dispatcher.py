"""The dispatcher: which op or transfer starts when, for every backend and without any device.

A `DispatchPlan` holds what does not change between two runs of one placement; a `Dispatcher` is the
state of one run. A backend reports completions (`on_op_finished`, `on_hop_finished`), asks
`start_tasks` what starts now, and frees the tensor copies named in `released`. The rules are those
of the simulator: driven by a clock with the cost model's durations, it yields the simulator's
schedule.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import numpy as np

from doppler.errors import CapacityError, ConfigurationError, InvalidPlacementError
from doppler.problem import PlacementProblem
from doppler.schedule.networks import NETWORKS, link_channels
from doppler.simulator.simulator import CHOOSE_RULES, choose_ranks


def check_rules(network: str, choose: str) -> None:
    """Raises `ConfigurationError` if a network model or a choose rule is unknown."""
    for label, value, known in (("network", network, NETWORKS), ("choose", choose, CHOOSE_RULES)):
        if value not in known:
            raise ConfigurationError(f"{label} {value!r} is unknown; known: {', '.join(known)}")


class OpTask:
    """Run one op on its device."""

    __slots__ = ("device", "op")

    def __init__(self, op: int, device: int) -> None:
        self.op = op
        self.device = device


class HopTask:
    """Move the output of `op`, on its way to device `target`, over one link.

    `source` and `destination` are endpoints (devices, then hosts); `position` counts the hops of a
    route and `last` says that the tensor arrives at `target`.
    """

    __slots__ = ("destination", "last", "link", "op", "position", "source", "target", "transfer")

    def __init__(self, transfer: Transfer, position: int, ends: tuple[int, int]) -> None:
        self.transfer = transfer
        self.op = transfer.op
        self.target = transfer.target
        self.position = position
        self.link = transfer.route[position]
        self.source, self.destination = ends
        self.last = position == len(transfer.route) - 1


class Transfer:
    """One tensor to one destination device, whatever the number of its consumers there."""

    __slots__ = ("consumers", "copy", "hops", "op", "rank", "route", "target")

    def __init__(
        self, op: int, target: int, copy: int, route: tuple[int, ...], link_ends: np.ndarray
    ) -> None:
        self.op = op
        self.target = target
        self.copy = copy
        self.route = route
        self.consumers: list[int] = []
        self.rank = 0.0
        self.hops = [
            HopTask(self, position, (int(link_ends[link, 0]), int(link_ends[link, 1])))
            for position, link in enumerate(route)
        ]


Task = OpTask | HopTask


class DispatchPlan:
    """What is known of a placed graph before it runs.

    A *copy* is a tensor on a device: copy `op` is the output of `op` on its own device, and every
    transfer has one more copy, at its destination.

    Args:
        problem: graph, topology and costs; the costs matter to `choose=b_level` only.
        devices: a device per op. # (num_ops,)
        order: the placement's order, needed under `choose=given`. # (num_ops,)
        network: one of `NETWORKS`.
        choose: one of `CHOOSE_RULES`.
        seed: of `choose=random`.
        keep: ops whose output stays on its own device to the end, because somebody reads it then.

    Raises:
        ConfigurationError: unknown network or rule, or inputs with a place of their own.
        InvalidPlacementError: a placement or an order that does not fit or breaks the problem's
            constraints, or no order under `given`.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        devices: object,
        order: object | None = None,
        *,
        network: str = "serial_links",
        choose: str = "fifo",
        seed: int = 0,
        keep: Iterable[int] = (),
    ) -> None:
        check_rules(network, choose)
        if problem.has_implicit_inputs or problem.is_input_op.any():
            raise ConfigurationError(
                f"problem {problem.name!r}: executors hold every input on every device; inputs "
                "with a place of their own can only be simulated"
            )
        self.problem = problem
        self.network = network
        self.choose = choose
        self.devices = problem.check_placement(devices)
        self.order = None if order is None else problem.check_order(order)
        self.ranks = self._op_ranks(seed)
        self.keep = frozenset(keep)
        self.channels = link_channels(problem.topology, network)
        self.links_of_channel: list[list[int]] = [
            [] for _ in range(1 + max((c for row in self.channels for c in row), default=-1))
        ]
        for link, channels in enumerate(self.channels):
            for channel in channels:
                self.links_of_channel[channel].append(link)
        self._connect()
        self._count_uses()

    def copy_place(self, copy: int) -> tuple[int, int]:
        """(op, device) of a tensor copy."""
        if copy < self.num_ops:
            return copy, self.device_of[copy]
        transfer = self.transfers[copy - self.num_ops]
        return transfer.op, transfer.target

    def _op_ranks(self, seed: int) -> list[float] | None:
        """Priority of each op, most urgent lowest; None under `fifo`, where time decides."""
        if self.choose == "fifo":
            return None
        if self.choose != "given":
            return choose_ranks(self.problem, self.choose, seed).tolist()
        if self.order is None:
            raise InvalidPlacementError(
                f"problem {self.problem.name!r}: choose=given needs a placement with an order"
            )
        ranks = np.empty(self.problem.num_ops)
        ranks[self.order] = np.arange(self.problem.num_ops)
        return ranks.tolist()

    def _connect(self) -> None:
        """Splits every op's consumers into local ones and one transfer per other device."""
        graph, topology = self.problem.graph, self.problem.topology
        self.num_ops = graph.num_ops
        self.device_of: list[int] = self.devices.tolist()
        self.missing: list[int] = graph.in_degrees.tolist()
        self.op_tasks = [OpTask(op, device) for op, device in enumerate(self.device_of)]
        self.local_consumers: list[list[int]] = [[] for _ in range(self.num_ops)]
        self.outgoing: list[list[Transfer]] = [[] for _ in range(self.num_ops)]
        self.transfers: list[Transfer] = []
        self.consumed_copies: list[list[int]] = [[] for _ in range(self.num_ops)]
        for op, source in enumerate(self.device_of):
            by_target: dict[int, Transfer] = {}
            for consumer in graph.successors(op).tolist():
                target = self.device_of[consumer]
                if target == source:
                    self.local_consumers[op].append(consumer)
                    self.consumed_copies[consumer].append(op)
                    continue
                if target not in by_target:
                    copy = self.num_ops + len(self.transfers)
                    route = topology.routes[source][target]
                    by_target[target] = Transfer(op, target, copy, route, topology.link_ends)
                    self.transfers.append(by_target[target])
                by_target[target].consumers.append(consumer)
                self.consumed_copies[consumer].append(by_target[target].copy)
            self.outgoing[op] = [by_target[target] for target in sorted(by_target)]
        if self.ranks is not None:
            for transfer in self.transfers:
                transfer.rank = min(self.ranks[consumer] for consumer in transfer.consumers)

    def _count_uses(self) -> None:
        """How many readers each copy has; it is freed when the last of them is done.

        Outputs that serve nobody are results and stay.
        """
        self.uses = [
            len(local) + len(outgoing)
            for local, outgoing in zip(self.local_consumers, self.outgoing, strict=True)
        ]
        self.uses += [len(transfer.consumers) for transfer in self.transfers]
        for op in self.keep:
            self.uses[op] += 1
        graph = self.problem.graph
        self.output_bytes = [] if graph.output_bytes is None else graph.output_bytes.tolist()
        self.capacity: list[float] = self.problem.topology.memory_bytes.tolist()


class Dispatcher:
    """The state of one run. Not safe for threads: a backend calls it under one lock.

    Args:
        plan: what to run.

    Attributes:
        unfinished: ops that have not finished.
        released: copies that nobody will read any more; the backend drains the list.
    """

    def __init__(self, plan: DispatchPlan) -> None:
        topology = plan.problem.topology
        self.plan = plan
        self.unfinished = plan.num_ops
        self.released: list[int] = []
        # Empty where the graph does not say bytes: memory is then unknown and unchecked.
        self._resident_bytes = [0.0] * (topology.num_devices if plan.output_bytes else 0)
        self._peak_bytes = list(self._resident_bytes)
        self._missing = list(plan.missing)
        self._uses = list(plan.uses)
        self._ready: list[list[tuple[float, int]]] = [[] for _ in range(topology.num_devices)]
        self._free_slots: list[int] = topology.compute_slots.tolist()
        self._woken_devices: list[int] = []
        self._network = _Network(plan)
        self._running: set[Task] = set()

    @property
    def done(self) -> bool:
        return self.unfinished == 0

    @property
    def running(self) -> list[Task]:
        """Started and not finished, for messages: ops first, then hops, by id."""
        return sorted(
            self._running,
            key=lambda t: (0, t.op, 0) if isinstance(t, OpTask) else (1, t.op, t.target),
        )

    @property
    def peak_bytes(self) -> np.ndarray | None:
        """Peak of outputs and arrived tensors, None where bytes are unknown. # (num_devices,) [B]

        An op's output counts from its start, an arriving tensor from the start of its last hop.
        """
        return np.array(self._peak_bytes) if self._peak_bytes else None

    def begin(self, now: float) -> list[Task]:
        """Makes the entry ops ready and returns what starts."""
        for op, missing in enumerate(self._missing):
            if missing == 0:
                self._make_ready(op, now)
        return self.start_tasks()

    def on_op_finished(self, op: int, now: float) -> None:
        """Takes in the end of an op at time `now` [s]; starts nothing yet."""
        plan = self.plan
        self._running.discard(plan.op_tasks[op])
        self.unfinished -= 1
        device = plan.device_of[op]
        self._free_slots[device] += 1
        self._woken_devices.append(device)
        for consumer in plan.local_consumers[op]:
            self._satisfy(consumer, now)
        for transfer in plan.outgoing[op]:
            self._queue_hop(transfer.hops[0], now)
        for copy in plan.consumed_copies[op]:
            self._drop_use(copy)

    def on_hop_finished(self, hop: HopTask, now: float) -> None:
        """Takes in the end of a hop at time `now` [s]; starts nothing yet."""
        self._running.discard(hop)
        self._network.free(hop)
        if not hop.last:
            self._queue_hop(hop.transfer.hops[hop.position + 1], now)
            return
        self._drop_use(hop.op)
        for consumer in hop.transfer.consumers:
            self._satisfy(consumer, now)

    def start_tasks(self) -> list[Task]:
        """What starts now, once all completions of this moment are taken in.

        Raises:
            CapacityError: if a tensor would not fit on its device.
        """
        started: list[Task] = []
        for device in self._woken_devices:
            ready = self._ready[device]
            while ready and self._free_slots[device]:
                op = heappop(ready)[1]
                self._free_slots[device] -= 1
                started.append(self.plan.op_tasks[op])
                self._occupy(op, device)
        self._woken_devices.clear()
        for hop in self._network.start():
            started.append(hop)
            if hop.last:
                self._occupy(hop.op, hop.target)
        self._running.update(started)
        return started

    def _satisfy(self, consumer: int, now: float) -> None:
        self._missing[consumer] -= 1
        if self._missing[consumer] == 0:
            self._make_ready(consumer, now)

    def _make_ready(self, op: int, now: float) -> None:
        ranks = self.plan.ranks
        device = self.plan.device_of[op]
        heappush(self._ready[device], (now if ranks is None else ranks[op], op))
        self._woken_devices.append(device)

    def _queue_hop(self, hop: HopTask, now: float) -> None:
        key = now if self.plan.ranks is None else hop.transfer.rank
        self._network.add((key, hop.op, hop.target, hop))

    def _drop_use(self, copy: int) -> None:
        self._uses[copy] -= 1
        if self._uses[copy] > 0:
            return
        self.released.append(copy)
        if self._resident_bytes:
            op, device = self.plan.copy_place(copy)
            self._resident_bytes[device] -= self.plan.output_bytes[op]

    def _occupy(self, op: int, device: int) -> None:
        if not self._resident_bytes:
            return
        self._resident_bytes[device] += self.plan.output_bytes[op]
        resident = self._resident_bytes[device]
        self._peak_bytes[device] = max(self._peak_bytes[device], resident)
        if resident > self.plan.capacity[device]:
            problem = self.plan.problem
            raise CapacityError(
                f"problem {problem.name!r}: device {problem.topology.devices[device].name!r} would "
                f"hold {resident:.0f} B of {self.plan.capacity[device]:.0f} B with the output of "
                f"op {op} ({problem.graph.op_name(op)})"
            )


_Waiting = tuple[float, int, int, HopTask]
"""Priority, then (op, destination device); the same for no two waiting hops."""


class _Network:
    """Hops that wait for their links; a hop starts when all channels of its link are free.

    Hops on one link start in order of priority; a hop whose channels are free overtakes one on
    another link that is blocked.
    """

    def __init__(self, plan: DispatchPlan) -> None:
        self._channels = plan.channels
        self._links_of_channel = plan.links_of_channel
        self._busy = [False] * len(plan.links_of_channel)
        self._waiting: list[list[_Waiting]] = [[] for _ in plan.channels]
        self._woken: list[int] = []

    def add(self, waiting: _Waiting) -> None:
        link = waiting[3].link
        heappush(self._waiting[link], waiting)
        self._woken.append(link)

    def free(self, hop: HopTask) -> None:
        """Frees the channels of a hop that has ended."""
        for channel in self._channels[hop.link]:
            self._busy[channel] = False
            self._woken += self._links_of_channel[channel]

    def start(self) -> list[HopTask]:
        """Takes out what starts now, most urgent first."""
        if not self._woken:
            return []
        heads = [self._waiting[link][0] for link in set(self._woken) if self._waiting[link]]
        self._woken.clear()
        heapify(heads)
        started = []
        while heads:
            hop = heappop(heads)[3]
            channels = self._channels[hop.link]
            if any(self._busy[channel] for channel in channels):
                continue
            for channel in channels:
                self._busy[channel] = True
            started.append(hop)
            waiting = self._waiting[hop.link]
            heappop(waiting)
            if waiting and not channels:
                heappush(heads, waiting[0])
        return started
