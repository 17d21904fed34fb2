"""One rank's share of the dispatching: nobody sees the whole run, every rank decides for itself.

A rank knows the whole plan, but only what happens on its own device: its ops, what it sends and
what arrives. That is enough to be work-conserving, because a directed link has one sender, which
alone decides what goes next, and a device has one rank, which alone decides what runs next. The
rules are those of `doppler.executor.dispatcher`; all ranks together, driven by a clock with the
cost model's durations, yield the simulator's schedule under `serial_links`.
"""

from __future__ import annotations

from heapq import heappop, heappush

from doppler.errors import ConfigurationError
from doppler.executor.plan import DispatchPlan, HopTask, OpTask, Task, Transfer
from doppler.hardware import Topology

NETWORK = "serial_links"
"""The network model that ranks keep to; others would need them to ask one another first."""


def check_distributed(network: str, execution: str, topology: Topology) -> None:
    """Refuses what ranks cannot do without a central dispatcher or a relay.

    Raises:
        ConfigurationError: another network than `serial_links`, a bulk-synchronous execution,
            several compute slots, or a route of several links.
    """
    where = "executor=distributed"
    if network != NETWORK:
        raise ConfigurationError(
            f"{where}, network: a rank has one transfer at a time on the way to each other rank, "
            f"which is {NETWORK}; {network} cannot be kept to: use network={NETWORK}"
        )
    if execution != "work_conserving":
        raise ConfigurationError(f"{where}, execution: is work_conserving, not {execution}")
    for device in topology.devices:
        if device.compute_slots != 1:
            raise ConfigurationError(
                f"{where}, topology {topology.name!r}: device {device.name!r} has "
                f"{device.compute_slots} compute slots; a rank runs one op at a time"
            )
    for source, routes in enumerate(topology.routes):
        for target, route in enumerate(routes):
            if len(route) > 1:
                raise ConfigurationError(
                    f"{where}, topology {topology.name!r}: no direct link from "
                    f"{topology.endpoint_name(source)} to {topology.endpoint_name(target)}; ranks "
                    "send to one another directly"
                )


class RankDispatcher:
    """What starts when on one rank. Not safe for threads: a rank calls it under one lock.

    Args:
        plan: of the whole run; the same on every rank.
        rank: the device of this rank.

    Attributes:
        unfinished: ops of this rank that have not finished.
        unsent: transfers from this rank that have not been sent.
        incoming: transfers to this rank, by source device. # (num_devices,)
        released: copies on this device that nobody will read any more; the caller drains it.
        running: started and not finished ops and sends.
    """

    def __init__(self, plan: DispatchPlan, rank: int) -> None:
        num_devices = plan.problem.num_devices
        self.plan = plan
        self.rank = rank
        self.ops = [op for op, device in enumerate(plan.device_of) if device == rank]
        self.unfinished = len(self.ops)
        self.unsent = sum(len(plan.outgoing[op]) for op in self.ops)
        self.incoming = [0] * num_devices
        for transfer in plan.transfers:
            if transfer.target == rank:
                self.incoming[plan.device_of[transfer.op]] += 1
        self.released: list[int] = []
        self.running: set[Task] = set()
        self._missing = list(plan.missing)
        self._uses = list(plan.uses)
        self._ready: list[tuple[float, int]] = []
        self._busy = False
        self._sends: list[list[tuple[float, int, HopTask]]] = [[] for _ in range(num_devices)]
        self._sending = [False] * num_devices
        self._woken_links: set[int] = set()
        self._resident_bytes = self._peak_bytes = 0.0

    @property
    def done(self) -> bool:
        """Whether all ops of this rank have finished and all its tensors have left."""
        return self.unfinished == 0 and self.unsent == 0

    @property
    def peak_bytes(self) -> float | None:
        """Peak of outputs and arrived tensors, None where bytes are unknown. [B]"""
        return self._peak_bytes if self.plan.output_bytes else None

    def begin(self, now: float) -> list[Task]:
        """Makes this rank's entry ops ready and returns what starts."""
        for op in self.ops:
            if self._missing[op] == 0:
                self._make_ready(op, now)
        return self.start_tasks()

    def on_op_finished(self, op: int, now: float) -> None:
        """Takes in the end of an op of this rank at time `now` [s]; starts nothing yet."""
        plan = self.plan
        self.running.discard(plan.op_tasks[op])
        self._busy = False
        self.unfinished -= 1
        for consumer in plan.local_consumers[op]:
            self._satisfy(consumer, now)
        for transfer in plan.outgoing[op]:
            key = now if plan.ranks is None else transfer.rank
            heappush(self._sends[transfer.target], (key, op, transfer.hops[0]))
            self._woken_links.add(transfer.target)
        for copy in plan.consumed_copies[op]:
            self._drop_use(copy)

    def on_sent(self, hop: HopTask) -> None:
        """Takes in that a tensor has left: the link is free for the next one."""
        self.running.discard(hop)
        self._sending[hop.target] = False
        self._woken_links.add(hop.target)
        self.unsent -= 1
        self._drop_use(hop.op)

    def on_arrival_started(self, transfer: Transfer) -> None:
        """Takes in that a tensor needs its place on this device from now on.

        Raises:
            CapacityError: if it does not fit.
        """
        self._occupy(transfer.op)

    def on_arrival(self, transfer: Transfer, now: float) -> None:
        """Takes in that a tensor is there at time `now` [s]; starts nothing yet."""
        for consumer in transfer.consumers:
            self._satisfy(consumer, now)

    def start_tasks(self) -> list[Task]:
        """What this rank starts now: its next op, and a send on every idle link.

        Raises:
            CapacityError: if an output would not fit on this device.
        """
        started: list[Task] = []
        if self._ready and not self._busy:
            op = heappop(self._ready)[1]
            self._busy = True
            started.append(self.plan.op_tasks[op])
            self._occupy(op)
        for target in sorted(self._woken_links):
            if self._sends[target] and not self._sending[target]:
                self._sending[target] = True
                started.append(heappop(self._sends[target])[2])
        self._woken_links.clear()
        self.running.update(started)
        return started

    def running_ops(self) -> list[int]:
        """Started and not finished ops, for messages."""
        return sorted(task.op for task in list(self.running) if isinstance(task, OpTask))

    def _satisfy(self, consumer: int, now: float) -> None:
        self._missing[consumer] -= 1
        if self._missing[consumer] == 0:
            self._make_ready(consumer, now)

    def _make_ready(self, op: int, now: float) -> None:
        ranks = self.plan.ranks
        heappush(self._ready, (now if ranks is None else ranks[op], op))

    def _drop_use(self, copy: int) -> None:
        self._uses[copy] -= 1
        if self._uses[copy] == 0:
            self.released.append(copy)
            if self.plan.output_bytes:
                self._resident_bytes -= self.plan.output_bytes[self.plan.copy_place(copy)[0]]

    def _occupy(self, op: int) -> None:
        if not self.plan.output_bytes:
            return
        self._resident_bytes += self.plan.output_bytes[op]
        self._peak_bytes = max(self._peak_bytes, self._resident_bytes)
        if self._resident_bytes > self.plan.capacity[self.rank]:
            raise self.plan.over_capacity(op, self.rank, self._resident_bytes)
