"""The dispatcher: which op or transfer starts when, for every backend and without any device.

A `DispatchPlan` holds what does not change between two runs of one placement; a `Dispatcher` is the
state of one run. A backend reports completions (`on_op_finished`, `on_hop_finished`), asks
`start_tasks` what starts now, and frees the tensor copies named in `released`. The rules are those
of the simulator: driven by a clock with the cost model's durations, it yields the simulator's
schedule.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from doppler.executor.plan import DispatchPlan, HopTask, OpTask, Task


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
        # Of a bulk-synchronous run: which level it is at, and how many of the ops or, once these
        # are done, of the transfers of this level have not finished.
        self._level = 0
        self._level_left = len(plan.levels[0]) if plan.levels else 0

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
        """Takes in the inputs, makes the entry ops ready and returns what starts.

        Raises:
            CapacityError: as in `start_tasks`.
        """
        inputs = set(self.plan.input_ops)
        for op, missing in enumerate(self.plan.missing):
            if missing == 0 and op not in inputs:
                self._make_ready(op, now)
        for op in self.plan.input_ops:
            self._occupy(op, self.plan.device_of[op])
            self.unfinished -= 1
            self._hand_over(op, now)
        return self.start_tasks()

    def on_op_finished(self, op: int, now: float) -> None:
        """Takes in the end of an op at time `now` [s]; starts nothing yet."""
        plan = self.plan
        self._running.discard(plan.op_tasks[op])
        self.unfinished -= 1
        device = plan.device_of[op]
        self._free_slots[device] += 1
        self._woken_devices.append(device)
        self._hand_over(op, now)
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
        if self.plan.levels:
            self._level_left -= 1
            if self._level_left == 0:
                self._open_level(now)
            return
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

    def _hand_over(self, op: int, now: float) -> None:
        """Lets those who need an output have it or, bulk-synchronously, wait for its level."""
        plan = self.plan
        if plan.levels:
            self._level_left -= 1
            if self._level_left == 0:
                self._exchange(now)
            return
        for consumer in plan.local_consumers[op]:
            self._satisfy(consumer, now)
        for transfer in plan.outgoing[op]:
            self._queue_hop(transfer.hops[0], now)

    def _exchange(self, now: float) -> None:
        """Queues all transfers of the level whose last op has finished."""
        sent = [t for op in self.plan.levels[self._level] for t in self.plan.outgoing[op]]
        self._level_left = len(sent)
        for transfer in sent:
            self._queue_hop(transfer.hops[0], now)
        if not sent:
            self._open_level(now)

    def _open_level(self, now: float) -> None:
        """Makes all ops of the next level ready, for all that they need has arrived."""
        self._level += 1
        if self._level < len(self.plan.levels):
            ops = self.plan.levels[self._level]
            self._level_left = len(ops)
            for op in ops:
                self._make_ready(op, now)

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
            raise self.plan.over_capacity(op, device, resident)


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
