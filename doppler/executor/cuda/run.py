"""One run of a placement on streams: what is handed to the GPUs, when it ended, what may be freed.

Life-times are explicit. A tensor is dropped when the end of its last reader has been *observed* (an
event was reached), on whatever stream that reader was; so its memory can go back to the stream that
it came from, and `record_stream` is not needed. Buffers for arriving tensors belong to the link's
stream at the destination, never to the destination's compute stream: there, memory is reused in
the order of that stream, which a copy on another stream would not keep to.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from doppler.errors import ExecutionError
from doppler.executor.cuda.ahead import AheadDispatcher
from doppler.executor.cuda.devices import CudaDevices
from doppler.executor.cuda.streams import Event, Stream, Streams
from doppler.executor.plan import DispatchPlan, HopTask, OpTask, Task
from doppler.schedule import Schedule

CLOCK_READINGS = 5
ANSWER_SECONDS = 5.0
"""How long an idle GPU may take to answer. [s]"""


class LinkLane:
    """The streams of one copy at a time on a link: at its source and at its destination.

    On one GPU, and between a GPU and the host, they are one stream.
    """

    __slots__ = ("into", "out")

    def __init__(self, out: Stream, into: Stream) -> None:
        self.out = out
        self.into = into


@dataclass
class DeviceState:
    """What lives on the devices between two runs.

    Args:
        compute: a stream per device.
        tensors: per endpoint (devices, then hosts), by key: op id for an op's output or its arrived
            copy, ~tile (negative) for an input tile, (op, target) for one that a host passes on.
        lanes: idle lanes by the endpoints of a link; under `contention_free` a link gets as many as
            it ever needed.
        events: that nothing waits for any more, by GPU.
        pinned: page-locked buffers of the host that nothing uses, by shape and dtype.
    """

    compute: list[Stream]
    tensors: list[dict[Any, torch.Tensor]]
    lanes: dict[tuple[int, int], list[LinkLane]] = field(default_factory=dict)
    all_lanes: list[LinkLane] = field(default_factory=list)
    events: dict[int, list[Event]] = field(default_factory=dict)
    pinned: dict[Any, list[torch.Tensor]] = field(default_factory=dict)

    def streams(self) -> Iterable[Stream]:
        """All streams, some twice."""
        yield from self.compute
        for lane in self.all_lanes:
            yield lane.out
            yield lane.into

    def clear(self) -> None:
        """Drops all tensors but the input tiles."""
        for index, tensors in enumerate(self.tensors):
            self.tensors[index] = {
                key: tensor for key, tensor in tensors.items() if isinstance(key, int) and key < 0
            }


class _Flight:
    """A task on its way through a stream."""

    __slots__ = ("end", "gpus", "lane", "staging", "start", "task")

    def __init__(self, task: Task, start: Event, end: Event, gpus: tuple[int, int]) -> None:
        self.task = task
        self.start = start
        self.end = end
        self.gpus = gpus  # of the start and of the end
        self.lane: LinkLane | None = None
        self.staging: torch.Tensor | None = None


class CudaRun:
    """One run. `drive` is the job of one thread, which alone touches dispatcher and streams.

    Args:
        plan: what to run.
        cuda: streams and events.
        devices: the GPU of each device.
        state: streams and tensors; idle.
        runners: kernel of each op.
        operand_keys: per op, the keys of its operands in `DeviceState.tensors`.
        peers: pairs of GPUs that may copy directly.
        depth: ops handed out per device, see `AheadDispatcher`.
    """

    def __init__(
        self,
        plan: DispatchPlan,
        cuda: Streams,
        devices: CudaDevices,
        state: DeviceState,
        runners: Sequence[Callable[[list[torch.Tensor]], torch.Tensor]],
        operand_keys: Sequence[tuple[int, ...]],
        peers: frozenset[tuple[int, int]],
        depth: int,
    ) -> None:
        self.plan = plan
        self.dispatcher = AheadDispatcher(plan, depth)
        self.failure: tuple[Task | None, BaseException] | None = None
        self.ended = threading.Event()
        self.abandoned = False
        self.clock_error = 0.0
        self._cuda = cuda
        self._gpus = devices.gpus
        self._state = state
        self._runners = runners
        self._operand_keys = operand_keys
        self._peers = peers
        self._bases: dict[int, tuple[Event, float]] = {}
        self._zero = 0.0
        self._current: Task | None = None
        self._op_flights: list[deque[_Flight]] = [deque() for _ in devices.gpus]
        self._hop_flights: list[_Flight] = []
        self._done: list[tuple[_Flight, float]] = []
        self._arrivals: dict[int, Event] = {}  # by copy: the event behind its last hop
        self._ends: dict[tuple[int, int], Event] = {}  # by (op, target): behind the hop before

    def prepare(self) -> None:
        """Makes what the run needs, before the clock runs."""
        for transfer in self.plan.transfers:
            for hop in transfer.hops:
                idle = self._state.lanes.setdefault((hop.source, hop.destination), [])
                if not idle:
                    idle.append(self._make_lane(hop))
        for gpu in sorted(set(self._gpus)):
            self._bases[gpu] = self._read_clocks(gpu)

    def drive(self, _: object, lane: object) -> None:
        """Runs the plan to its end, or until it fails or is abandoned."""
        try:
            self._zero = self._cuda.clock()
            self._start(self.dispatcher.begin(self._zero))
            while not (self.dispatcher.done or self.abandoned):
                self._current = None
                if self._take_in_completions():
                    self._start(self.dispatcher.start_tasks())
                    self._drop_released()
        except BaseException as error:
            self.failure = (self._current, error)
        finally:
            self.ended.set()

    def in_flight(self) -> list[Task]:
        """Handed out and not known to have ended."""
        return self.dispatcher.running

    def schedule(self) -> Schedule:
        """What the events recorded, in seconds from the start of the run; gives events back."""
        plan = self.plan
        times = np.array([(self._seconds(f.start, f.gpus[0]), finish) for f, finish in self._done])
        # Clocks of host and GPU agree to some microseconds: nothing may start before 0.
        times -= min(self._zero, times.min())
        start, finish = np.empty(plan.num_ops), np.empty(plan.num_ops)
        hops: list[tuple[HopTask, float, float]] = []
        for (flight, _), (begun, ended) in zip(self._done, times.tolist(), strict=True):
            ended = max(begun, ended)
            if isinstance(flight.task, OpTask):
                start[flight.task.op], finish[flight.task.op] = begun, ended
            else:
                hops.append((flight.task, begun, ended))
            for event, gpu in zip((flight.start, flight.end), flight.gpus, strict=True):
                self._state.events.setdefault(gpu, []).append(event)
        return plan.schedule(start, finish, hops, "measured", self.dispatcher.peak_bytes)

    def _start(self, tasks: list[Task]) -> None:
        for task in tasks:
            self._current = task
            if isinstance(task, OpTask):
                self._launch(task)
            else:
                self._copy(task)

    def _launch(self, task: OpTask) -> None:
        cuda, op, device = self._cuda, task.op, task.device
        stream, tensors = self._state.compute[device], self._state.tensors[device]
        for copy in self.plan.consumed_copies[op]:
            if copy >= self.plan.num_ops:  # the others come before it in the same stream
                cuda.wait(stream, self._arrivals[copy])
        flight = self._flight(task, self._gpus[device], self._gpus[device])
        cuda.record(flight.start, stream)
        operands = [tensors[key] for key in self._operand_keys[op]]
        tensors[op] = cuda.launch(self._runners[op], operands, stream)
        cuda.record(flight.end, stream)
        self._op_flights[device].append(flight)
        for transfer in self.plan.outgoing[op]:
            self._ends[op, transfer.target] = flight.end

    def _copy(self, hop: HopTask) -> None:
        """Puts a hop into its link's streams, between events of producer and consumers."""
        cuda, state = self._cuda, self._state
        idle = state.lanes[hop.source, hop.destination]
        lane = idle.pop() if idle else self._make_lane(hop)
        source, target = self._gpu(hop.source), self._gpu(hop.destination)
        tensor = state.tensors[hop.source][hop.op if hop.position == 0 else (hop.op, hop.target)]
        staged = lane.out is not lane.into and (source, target) not in self._peers
        first = source if source is not None else target
        last = target if staged or source is None else source
        assert first is not None and last is not None
        flight = self._flight(hop, first, last)
        flight.lane = lane
        cuda.wait(lane.out, self._ends[hop.op, hop.target])
        cuda.record(flight.start, lane.out)
        if target is None:
            buffer = self._pinned(tensor)
            cuda.copy(buffer, tensor, [lane.out])
        else:
            buffer = cuda.make_like(tensor, target, lane.into)
            if lane.out is lane.into:
                cuda.copy(buffer, tensor, [lane.out])
            elif staged:
                self._copy_staged(flight, buffer, tensor)
            else:
                cuda.copy(buffer, tensor, [lane.into, lane.out])
        cuda.record(flight.end, lane.into if staged else lane.out)
        state.tensors[hop.destination][hop.op if hop.last else (hop.op, hop.target)] = buffer
        self._ends[hop.op, hop.target] = flight.end
        if hop.last:
            self._arrivals[hop.transfer.copy] = flight.end
        self._hop_flights.append(flight)

    def _copy_staged(self, flight: _Flight, buffer: torch.Tensor, tensor: torch.Tensor) -> None:
        """Up to the host on the source's stream, then down on the destination's."""
        cuda, lane = self._cuda, flight.lane
        assert lane is not None
        flight.staging = self._pinned(tensor)
        cuda.copy(flight.staging, tensor, [lane.out])
        half_way = cuda.make_event()
        cuda.record(half_way, lane.out)
        cuda.wait(lane.into, half_way)
        cuda.copy(buffer, flight.staging, [lane.into])

    def _take_in_completions(self) -> bool:
        """Tells the dispatcher what has ended, in the order of ending; False if nothing has."""
        reached = self._cuda.reached
        ended: list[_Flight] = []
        for flights in self._op_flights:
            while flights:
                self._current = flights[0].task
                if not reached(flights[0].end):
                    break
                ended.append(flights.popleft())
        under_way: list[_Flight] = []
        for flight in self._hop_flights:
            self._current = flight.task
            (ended if reached(flight.end) else under_way).append(flight)
        self._hop_flights = under_way
        timed = [(self._seconds(flight.end, flight.gpus[1]), flight) for flight in ended]
        for finish, flight in sorted(timed, key=_by_time_and_id):
            self._done.append((flight, finish))
            if isinstance(flight.task, OpTask):
                self.dispatcher.on_op_finished(flight.task.op, finish)
            else:
                self._end_hop(flight, flight.task)
                self.dispatcher.on_hop_finished(flight.task, finish)
        return bool(ended)

    def _end_hop(self, flight: _Flight, hop: HopTask) -> None:
        """Gives back the lane and the host's buffers of a hop that has ended."""
        assert flight.lane is not None
        self._state.lanes[hop.source, hop.destination].append(flight.lane)
        if flight.staging is not None:
            self._give_pinned(flight.staging)
            flight.staging = None
        if hop.position > 0:  # its source was a host
            self._give_pinned(self._state.tensors[hop.source].pop((hop.op, hop.target)))

    def _drop_released(self) -> None:
        for copy in self.dispatcher.released:
            op, device = self.plan.copy_place(copy)
            del self._state.tensors[device][op]
        self.dispatcher.released.clear()

    def _gpu(self, endpoint: int) -> int | None:
        """GPU of a device; None for a host."""
        return self._gpus[endpoint] if endpoint < len(self._gpus) else None

    def _make_lane(self, hop: HopTask) -> LinkLane:
        ends = [gpu for gpu in map(self._gpu, (hop.source, hop.destination)) if gpu is not None]
        out = into = self._cuda.make_stream(ends[0], urgent=True)
        if ends[0] != ends[-1]:
            into = self._cuda.make_stream(ends[-1], urgent=True)
        lane = LinkLane(out, into)
        self._state.all_lanes.append(lane)
        return lane

    def _flight(self, task: Task, first: int, last: int) -> _Flight:
        """A task that starts on one GPU and ends on the same or another one."""
        return _Flight(task, self._event(first), self._event(last), (first, last))

    def _event(self, gpu: int) -> Event:
        events = self._state.events.get(gpu)
        return events.pop() if events else self._cuda.make_event()

    def _pinned(self, like: torch.Tensor) -> torch.Tensor:
        idle = self._state.pinned.get((like.shape, like.dtype))
        return idle.pop() if idle else self._cuda.make_pinned_like(like)

    def _give_pinned(self, buffer: torch.Tensor) -> None:
        self._state.pinned.setdefault((buffer.shape, buffer.dtype), []).append(buffer)

    def _read_clocks(self, gpu: int) -> tuple[Event, float]:
        """An event on an idle GPU and the host's time of it, to half of what it took to see it.

        A reading in between which the thread was interrupted is off by as much; of several, the
        quickest is taken.
        """
        cuda = self._cuda
        stream = self._state.compute[self._gpus.index(gpu)]
        best: tuple[float, float, Event] | None = None
        for _ in range(CLOCK_READINGS):
            event = cuda.make_event()
            before = cuda.clock()
            cuda.record(event, stream)
            while not cuda.reached(event):
                if cuda.clock() - before > ANSWER_SECONDS:
                    raise ExecutionError(
                        f"GPU {gpu} ({cuda.gpu_name(gpu)}) does not answer within "
                        f"{ANSWER_SECONDS:g} s: something else keeps it busy, or a run before hangs"
                    )
            after = cuda.clock()
            if best is None or after - before < best[0]:
                best = (after - before, (before + after) / 2, event)
        assert best is not None
        self.clock_error = max(self.clock_error, best[0] / 2)
        return best[2], best[1]

    def _seconds(self, event: Event, gpu: int) -> float:
        """The host's time of an event that was reached. [s]"""
        base, seconds = self._bases[gpu]
        return seconds + self._cuda.seconds_between(base, event)


def _by_time_and_id(timed: tuple[float, _Flight]) -> tuple[float, bool, int, int]:
    finish, flight = timed
    task = flight.task
    is_hop = isinstance(task, HopTask)
    return finish, is_hop, task.op, task.target if isinstance(task, HopTask) else 0
