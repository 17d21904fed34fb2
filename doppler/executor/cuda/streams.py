"""The few calls of CUDA that the executor makes, behind one interface.

`Streams` is what the executor needs of streams, events and memory. `TorchStreams` is PyTorch's;
tests bring one that pretends, with a clock of its own, so that queues, life-times and clocks can be
checked without a GPU.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch

from doppler.errors import ConfigurationError

Stream = Any
"""A queue of work on one GPU; what is in it runs in order."""

Event = Any
"""A point in a stream; knows whether it was reached, and when."""

HARDWARE_QUEUES = 32
"""As many as CUDA allows."""

NO_CUDA = (
    "executor=cuda needs a CUDA device, and PyTorch ({version}) finds none here: "
    "use executor=cpu, or executor=none to simulate"
)


class Streams(Protocol):
    """What the executor needs of CUDA. GPUs are numbered from 0; all seconds are floats."""

    num_gpus: int

    def clock(self) -> float:
        """The host's clock. [s]"""

    def gpu_name(self, gpu: int) -> str: ...

    def make_stream(self, gpu: int, urgent: bool = False) -> Stream:
        """A stream; what is in an urgent one goes before what is in the others."""

    def make_event(self) -> Event:
        """An event; it belongs to the GPU where it is recorded first."""

    def record(self, event: Event, stream: Stream) -> None:
        """Puts an event behind what the stream has."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Lets what the stream gets from now on wait for an event of any stream."""

    def reached(self, event: Event) -> bool: ...

    def seconds_between(self, earlier: Event, later: Event) -> float:
        """Between two events that were reached on the same GPU. [s]"""

    def launch(
        self,
        run: Callable[[list[torch.Tensor]], torch.Tensor],
        operands: list[torch.Tensor],
        stream: Stream,
    ) -> torch.Tensor:
        """Puts a kernel into a stream and returns its output, whose memory is the stream's."""

    def make_like(self, tensor: torch.Tensor, gpu: int, stream: Stream) -> torch.Tensor:
        """Memory on a GPU, free again in the order of `stream`."""

    def make_pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Page-locked memory of the host, to and from which copies need no CPU."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, streams: Sequence[Stream]) -> None:
        """Puts a copy into the last of `streams`; the others are those of the other GPUs in it."""

    def upload(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        """A tensor of the host on a GPU, when done."""

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the host, when done."""

    def can_reach(self, source: int, target: int) -> bool:
        """Whether the driver says that one GPU can write to the memory of the other."""

    def synchronise(self, gpu: int) -> None:
        """Waits for all work on a GPU and raises what went wrong in it."""

    def release_memory(self) -> None:
        """Gives memory that no tensor uses back to the devices."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a GPU has no memory left, which it survives."""
    return isinstance(error, torch.cuda.OutOfMemoryError)


class TorchStreams:
    """`Streams` by `torch.cuda`, which is initialised here and not before.

    Raises:
        ConfigurationError: no CUDA device.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigurationError(NO_CUDA.format(version=torch.__version__))
        # Streams beyond the number of hardware queues (8 by default) wait for one another; this has
        # an effect only if nothing used CUDA before.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(HARDWARE_QUEUES))
        torch.cuda.init()
        self.num_gpus = torch.cuda.device_count()

    clock = staticmethod(perf_counter)

    def gpu_name(self, gpu: int) -> str:
        return str(torch.cuda.get_device_name(gpu))

    def make_stream(self, gpu: int, urgent: bool = False) -> Stream:
        # PyTorch deals out 32 streams per GPU and priority in turn: copies do not get those of ops.
        return torch.cuda.Stream(device=gpu, priority=-1 if urgent else 0)

    def make_event(self) -> Event:
        return torch.cuda.Event(enable_timing=True)

    def record(self, event: Event, stream: Stream) -> None:
        event.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def reached(self, event: Event) -> bool:
        return bool(event.query())

    def seconds_between(self, earlier: Event, later: Event) -> float:
        return float(earlier.elapsed_time(later)) * 1e-3

    def launch(
        self,
        run: Callable[[list[torch.Tensor]], torch.Tensor],
        operands: list[torch.Tensor],
        stream: Stream,
    ) -> torch.Tensor:
        with torch.cuda.stream(stream):
            return run(operands)

    def make_like(self, tensor: torch.Tensor, gpu: int, stream: Stream) -> torch.Tensor:
        with torch.cuda.stream(stream):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=f"cuda:{gpu}")

    def make_pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, streams: Sequence[Stream]) -> None:
        # Between two GPUs PyTorch copies on the current stream of the source and lets those of
        # both GPUs wait for one another, so both must be ours.
        if len(streams) == 1:
            with torch.cuda.stream(streams[0]):
                target.copy_(source, non_blocking=True)
            return
        with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[1]):
            target.copy_(source, non_blocking=True)

    def upload(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        uploaded = tensor.to(f"cuda:{gpu}", copy=True)
        torch.cuda.synchronize(gpu)  # other streams than the current one will read it
        return uploaded

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu()

    def can_reach(self, source: int, target: int) -> bool:
        return bool(torch.cuda.can_device_access_peer(source, target))

    def synchronise(self, gpu: int) -> None:
        torch.cuda.synchronize(gpu)

    def release_memory(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
