"""A pretence of CUDA: streams and events on a clock of their own, kernels that last as told.

Kernels compute on the CPU when they are launched, but their outputs count as written, and their
operands as read, at the times at which a GPU would have done so. Reading what is not written yet,
writing what is still read, and freeing what is still in use are noted in `violations`.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from executor_fakes import FakeWorkload

from doppler.graph import DataflowGraph

LAUNCH = 4e-6
CALL = 1e-6


class FakeStream:
    def __init__(self, gpu: int, number: int) -> None:
        self.gpu = gpu
        self.number = number
        self.free_at = 0.0
        self.pending: list[float] = []  # ends of kernels


class FakeEvent:
    def __init__(self, number: int) -> None:
        self.number = number
        self.gpu = -1
        self.at = 0.0


class _Use:
    """When a tensor is written and read, and where it is."""

    def __init__(self, place: object, written: float, owner: FakeStream | None) -> None:
        self.place = place
        self.owner = owner  # stream whose order the memory keeps to
        self.written = written
        self.in_use_until = written


class PoisonedError(RuntimeError):
    pass


class FakeCuda:
    """Args: GPUs, and pairs of them that the driver says can copy directly.

    Attributes:
        seconds: of kernels, by their `run`; `op_seconds` for all others.
        failing: what a kernel raises when it is launched, by its `run`.
        harmful: kernels that poison the context when they have run.
        harmed: pairs of GPUs between which copies arrive wrong.
        stalls: of the host, next one last, each while it waits for an event. [s]
        log: ("launch" | "copy" | "record" | "wait", details) in the order of the calls.
        spans: (start, end) of kernels, by `run`, on the true clock.
        most_tensors: that lived at a time.
        most_queued: kernels in one stream and not ended, at most, when one was launched.
    """

    def __init__(self, num_gpus: int = 1, reachable: Sequence[tuple[int, int]] = ()) -> None:
        self.num_gpus = num_gpus
        self.reachable = set(reachable)
        self.now = 100.0
        self.op_seconds = 1e-3
        self.copy_seconds = 2e-4
        self.seconds: dict[Any, float] = {}
        self.failing: dict[Any, BaseException] = {}
        self.harmful: set[Any] = set()
        self.harmed: set[tuple[int, int]] = set()
        self.log: list[tuple[str, Any]] = []
        self.spans: dict[Any, tuple[float, float]] = {}
        self.stalls: list[float] = []
        self.violations: list[str] = []
        self.most_queued = 0
        self.most_tensors = 0
        self.num_pinned = 0
        self.num_events = 0
        self.poisoned_at = math.inf
        self._uses: dict[int, _Use] = {}
        self._streams = itertools.count()

    def clock(self) -> float:
        self.now += 1e-7
        return self.now

    def gpu_name(self, gpu: int) -> str:
        return "Pretence 9000"

    def make_stream(self, gpu: int, urgent: bool = False) -> FakeStream:
        return FakeStream(gpu, next(self._streams))

    def make_event(self) -> FakeEvent:
        self.num_events += 1
        return FakeEvent(self.num_events)

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        self._call()
        assert event.gpu in (-1, stream.gpu), "events stay on the GPU where they were recorded"
        event.gpu, event.at = stream.gpu, max(self.now, stream.free_at)
        self.log.append(("record", (event.number, stream.number)))

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        self._call()
        assert event.gpu >= 0, "waits for an event that was never recorded"
        stream.free_at = max(stream.free_at, event.at)
        self.log.append(("wait", (stream.number, event.number)))

    def reached(self, event: FakeEvent) -> bool:
        self._call()
        assert event.gpu >= 0
        if event.at > self.now:
            return False
        self.now += self.stalls.pop() if self.stalls else 0.0
        return True

    def seconds_between(self, earlier: FakeEvent, later: FakeEvent) -> float:
        assert earlier.gpu == later.gpu, "events of two GPUs have no time between them"
        assert max(earlier.at, later.at) <= self.now, "an event was not reached"
        return later.at - earlier.at

    def launch(
        self,
        run: Callable[[list[torch.Tensor]], torch.Tensor],
        operands: list[torch.Tensor],
        stream: FakeStream,
    ) -> torch.Tensor:
        self._call(LAUNCH)
        if run in self.failing:
            raise self.failing[run]
        start = max(self.now, stream.free_at)
        end = start + self.seconds.get(run, self.op_seconds)
        stream.pending = [time for time in stream.pending if time > self.now] + [end]
        self.most_queued = max(self.most_queued, len(stream.pending))
        output = run(operands)
        stream.free_at = end
        for operand in operands:
            self._read(operand, stream.gpu, start, end)
        self._track(output, stream.gpu, end)
        self.spans[run] = start, end
        self.log.append(("launch", (run, stream.number)))
        if run in self.harmful:
            self.poisoned_at = end
        return output

    def make_like(self, tensor: torch.Tensor, gpu: int, stream: FakeStream) -> torch.Tensor:
        assert stream.gpu == gpu
        return self._track(torch.full_like(tensor, math.nan), gpu, math.inf, stream)

    def make_pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        self.num_pinned += 1
        return self._track(torch.full_like(tensor, math.nan), "host", math.inf)

    def copy(
        self, target: torch.Tensor, source: torch.Tensor, streams: Sequence[FakeStream]
    ) -> None:
        self._call(LAUNCH)
        ends = self._uses[id(source)].place, self._uses[id(target)].place
        on_gpus = {end for end in ends if end != "host"}
        assert {stream.gpu for stream in streams} == on_gpus, f"{ends} on streams of other GPUs"
        assert streams[-1].gpu == (ends[0] if ends[0] != "host" else ends[1])
        start = max(self.now, *(stream.free_at for stream in streams))
        end = start + self.copy_seconds
        for stream in streams:  # as PyTorch does, both wait for each other
            stream.free_at = end
        self._read(source, ends[0], start, end)
        use = self._uses[id(target)]
        if use.owner is not None and use.owner not in streams:
            self.violations.append("memory of one stream first written by another")
        if use.in_use_until > start and use.in_use_until != math.inf:
            self.violations.append("a copy into a tensor in use")
        use.written = use.in_use_until = end
        target.copy_(source)
        if ends in self.harmed:
            target.view(-1)[-1] += 1
        self.log.append(("copy", (streams[-1].number, ends)))

    def upload(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        return self._track(tensor.clone(), gpu, self.now)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self._uses[id(tensor)].written <= self.now
        return tensor.clone()

    def can_reach(self, source: int, target: int) -> bool:
        return (source, target) in self.reachable

    def synchronise(self, gpu: int) -> None:
        self._call()

    def release_memory(self) -> None:
        self._call()

    @property
    def num_tensors(self) -> int:
        """Tensors that live."""
        return len(self._uses)

    def _call(self, seconds: float = CALL) -> None:
        self.now += seconds
        if self.now >= self.poisoned_at:
            raise PoisonedError("CUDA error: an illegal memory access was encountered\nlong story")

    def _track(
        self, tensor: torch.Tensor, place: object, written: float, owner: FakeStream | None = None
    ) -> torch.Tensor:
        key = id(tensor)
        if key in self._uses:  # a kernel that writes nothing and returns the same every time
            return tensor
        use = self._uses[key] = _Use(place, written, owner)
        self.most_tensors = max(self.most_tensors, len(self._uses))
        weakref.finalize(tensor, self._freed, key, use)
        return tensor

    def _read(self, tensor: torch.Tensor, place: object, start: float, end: float) -> None:
        use = self._uses[id(tensor)]
        if use.place != place:
            self.violations.append(f"a tensor on {use.place} read on {place}")
        if use.written > start:
            self.violations.append(f"read at {start}, written at {use.written}")
        use.in_use_until = max(use.in_use_until, end)

    def _freed(self, key: int, use: _Use) -> None:
        del self._uses[key]
        if self.now < use.in_use_until < math.inf:
            self.violations.append(f"freed at {self.now}, in use until {use.in_use_until}")


def chain(num_ops: int) -> FakeWorkload:
    """Ops one after the other, which add."""
    edges = [(op, op + 1) for op in range(num_ops - 1)]
    return FakeWorkload(
        DataflowGraph.from_edges(
            "chain", num_ops, edges, flops=np.ones(num_ops), output_bytes=np.full(num_ops, 256.0)
        )
    )
