"""PyTorch's streams, with `torch.cuda` replaced by a record of its calls."""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from doppler.executor.cuda.streams import TorchStreams, is_out_of_memory


class Recorder:
    """Stands for `torch.cuda`: streams and events note who called them, within which streams."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.current: list[str] = []

    def Stream(self, device: int, priority: int) -> SimpleNamespace:
        name = f"stream of {device}" if priority == 0 else f"urgent stream of {device}"
        return SimpleNamespace(
            name=name, wait_event=lambda event: self.calls.append((name, "waits", event.name))
        )

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace(name="event", ms=3.0)
        event.record = lambda stream: self.calls.append(("event", "recorded in", stream.name))
        event.query = lambda: True
        event.elapsed_time = lambda later: later.ms - event.ms
        return event

    @contextmanager
    def stream(self, stream: SimpleNamespace):
        self.current.append(stream.name)
        yield
        self.current.pop()

    def synchronize(self, gpu: int) -> None:
        self.calls.append(("synchronize", gpu))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # is put back afterwards, and respected
    for name in ("Stream", "Event", "stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(recorder, name))
    for name, value in {
        "is_available": True, "init": None, "device_count": 2, "empty_cache": None,
        "get_device_name": "Card", "can_device_access_peer": True,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    return recorder


def test_calls_reach_their_streams(recorder: Recorder) -> None:
    cuda = TorchStreams()
    assert (cuda.num_gpus, cuda.gpu_name(1), cuda.can_reach(0, 1)) == (2, "Card", True)
    assert cuda.make_stream(0, urgent=True).name == "urgent stream of 0"
    stream, event, later = cuda.make_stream(1), cuda.make_event(), cuda.make_event()
    cuda.record(event, stream)
    cuda.wait(stream, event)
    cuda.synchronise(1)
    assert recorder.calls == [
        ("event", "recorded in", "stream of 1"),
        ("stream of 1", "waits", "event"),
        ("synchronize", 1),
    ]
    later.ms = 5.5
    assert cuda.seconds_between(event, later) == pytest.approx(2.5e-3)
    assert cuda.reached(event) is True
    assert cuda.clock() <= cuda.clock()
    cuda.release_memory()
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_kernels_and_copies_run_within_their_streams(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = TorchStreams()
    first, second = cuda.make_stream(0), cuda.make_stream(1)
    seen: list[list[str]] = []

    def kernel(operands: list[torch.Tensor]) -> torch.Tensor:
        seen.append(list(recorder.current))
        return operands[0] + 1

    assert cuda.launch(kernel, [torch.ones(2)], first).tolist() == [2.0, 2.0]

    class Watched:
        def copy_(self, source: torch.Tensor, non_blocking: bool) -> None:
            assert non_blocking
            seen.append(list(recorder.current))

    cuda.copy(Watched(), torch.ones(2), [second])
    cuda.copy(Watched(), torch.ones(2), [second, first])
    assert seen == [["stream of 0"], ["stream of 1"], ["stream of 1", "stream of 0"]]
    assert recorder.current == []
    asked: list[tuple] = []

    def empty(shape: tuple, **options: object) -> None:
        asked.append((tuple(shape), options, list(recorder.current)))

    monkeypatch.setattr(torch, "empty", empty)
    like = torch.ones(2, 3, dtype=torch.float64)
    cuda.make_like(like, 1, second)
    cuda.make_pinned_like(like)
    assert asked == [
        ((2, 3), {"dtype": torch.float64, "device": "cuda:1"}, ["stream of 1"]),
        ((2, 3), {"dtype": torch.float64, "pin_memory": True}, []),
    ]


def test_out_of_memory_is_told_from_other_errors() -> None:
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    assert not is_out_of_memory(MemoryError())
