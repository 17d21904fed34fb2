"""Dispatching to devices that have a queue: ops are handed over before their device is free.

A GPU that is only told of its next op when it has finished the last one idles for as long as it
takes to notice and to launch. An `AheadDispatcher` therefore hands out up to `depth` ops per
device. It hands out early only what will be able to run as soon as those before it on the same
device are done: its other inputs have arrived, and a queue runs in order. So a device never stands
still in front of an op whose input is under way while another op could run, and the run stays
work-conserving. Transfers are never handed out before their tensor is there.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from doppler.executor.dispatcher import Dispatcher
from doppler.executor.plan import DispatchPlan, Task


class AheadDispatcher(Dispatcher):
    """A `Dispatcher` whose devices have queues; with `depth` 1 it is just that.

    What it decides may differ from the simulator by at most `depth` - 1 ops per device: an op that
    becomes ready while others are queued comes after them, however urgent it is. An op ahead of
    its time takes memory early, so the peak may be higher; where it would not fit it waits
    until its device is idle.

    Args:
        plan: what to run; every device must have one compute slot.
        depth: ops per device that are handed out and not finished, at most.
    """

    def __init__(self, plan: DispatchPlan, depth: int) -> None:
        super().__init__(plan)
        self._depth = depth
        self._free_slots = [depth] * plan.problem.num_devices
        self._handed_out = 0
        # Position in the order of handing out, which is that of finishing on one device. -1: not
        # yet, so that its consumers wait for its end.
        self._position = [-1] * plan.num_ops
        # Inputs that have not been computed or not arrived, while `_missing` leaves out those
        # that come from an op before it in the queue of its own device.
        self._awaited = list(plan.missing)
        self._queues: list[list[tuple[float, int, int]]] = [[] for _ in self._free_slots]

    def start_tasks(self) -> list[Task]:
        """What to hand to devices and links now, in this order.

        Raises:
            CapacityError: if a tensor would not fit on its device.
        """
        started: list[Task] = []
        for device in self._woken_devices:
            queue = self._queues[device]
            while queue and self._free_slots[device]:
                op = queue[0][2]
                if self._position[op] >= 0:  # was handed out under an earlier key
                    heappop(queue)
                    continue
                if self._free_slots[device] < self._depth and not self._fits(op, device):
                    break
                heappop(queue)
                self._free_slots[device] -= 1
                started.append(self.plan.op_tasks[op])
                self._occupy(op, device)
                self._promise(op)
        self._woken_devices.clear()
        self._running.update(started)
        return started + super().start_tasks()  # its own queues of ops are empty: transfers

    def _promise(self, op: int) -> None:
        """Counts an op as an input of those that will stand behind it in its device's queue."""
        self._position[op] = self._handed_out
        self._handed_out += 1
        if self.plan.levels:
            return  # they are on a later level, behind a barrier
        for consumer in self.plan.local_consumers[op]:
            self._missing[consumer] -= 1
            if self._missing[consumer] == 0:
                self._make_ready(consumer, math.inf)

    def _hand_over(self, op: int, now: float) -> None:
        if self.plan.levels:
            super()._hand_over(op, now)
            return
        promised = self._position[op] >= 0
        for consumer in self.plan.local_consumers[op]:
            self._missing[consumer] -= not promised
            self._awaited[consumer] -= 1
            changed = not promised or self._awaited[consumer] == 0
            if self._missing[consumer] == 0 and changed and self._position[consumer] < 0:
                self._make_ready(consumer, now)
        for transfer in self.plan.outgoing[op]:
            self._queue_hop(transfer.hops[0], now)

    def _satisfy(self, consumer: int, now: float) -> None:
        self._awaited[consumer] -= 1
        super()._satisfy(consumer, now)

    def _make_ready(self, op: int, now: float) -> None:
        """Queues an op; one that counts on ops before it comes after those that are ready.

        Under `fifo` that is: its time is when the last of those ops ends, later than now.
        """
        device = self.plan.device_of[op]
        key, position = now, 0
        if self.plan.ranks is not None:
            key = self.plan.ranks[op]
        elif self._awaited[op] and not self.plan.levels:
            key, position = math.inf, self._last_input(op)
        heappush(self._queues[device], (key, position, op))
        self._woken_devices.append(device)

    def _last_input(self, op: int) -> int:
        """Position of the last op on the same device that it needs."""
        copies = self.plan.consumed_copies[op]
        return max(self._position[copy] for copy in copies if copy < self.plan.num_ops)

    def _fits(self, op: int, device: int) -> bool:
        if not self._resident_bytes:
            return True
        needed = self._resident_bytes[device] + self.plan.output_bytes[op]
        return bool(needed <= self.plan.capacity[device])
