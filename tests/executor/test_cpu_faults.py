"""Faults of CPU devices: every one ends the run with op and device, and the next run works."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from executor_fakes import FakeWorkload, random_graph

from doppler.errors import ExecutionError
from doppler.executor import CpuExecutor
from doppler.executor.cpu import executor as cpu_module

DEVICES = np.arange(20) % 2


def our_threads() -> list[str]:
    return [
        t.name
        for t in threading.enumerate()
        if t.name.startswith(("doppler-device-", "doppler-link-"))
    ]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 10.0
    while our_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert our_threads() == []


class Trouble:
    """A workload whose op 7 (device 1) does something else while `on`."""

    def __init__(self, what) -> None:  # type: ignore[no-untyped-def]
        self.workload = FakeWorkload(random_graph(20, seed=8))
        self.on = True
        right = self.workload.kernels[7]

        def run(operands):  # type: ignore[no-untyped-def]
            return what(operands) if self.on else right.run(operands)

        self.workload.kernels[7] = self.workload.kernel(7, run)

    def end_and_run_again(self, message: str) -> str:
        with CpuExecutor(self.workload, 2) as executor:
            with pytest.raises(ExecutionError, match=message) as caught:
                executor.run(DEVICES)
            assert our_threads() == []
            self.on = False
            assert executor.check(DEVICES).passed
        return str(caught.value)


OP = r"^op 7 \(op_7\), kernel 'add\d', on device 1 \(cpu1\) "


def raise_memory_error(operands):  # type: ignore[no-untyped-def]
    raise MemoryError


@pytest.mark.parametrize(
    "what", [raise_memory_error, lambda operands: torch.empty(1 << 55, dtype=torch.float64)]
)
def test_out_of_memory_says_so(what) -> None:  # type: ignore[no-untyped-def]
    Trouble(what).end_and_run_again(OP + r"ran out of memory: (MemoryError|RuntimeError)")


def leave(operands):  # type: ignore[no-untyped-def]
    raise SystemExit(3)


def test_a_kernel_that_leaves_its_thread_is_a_failure() -> None:
    Trouble(leave).end_and_run_again(OP + "failed: SystemExit: 3")


def test_a_wrong_shape_is_a_failure() -> None:
    shape = Trouble(lambda operands: operands[0] @ torch.ones(3))
    assert "memory" not in shape.end_and_run_again(OP + "failed: RuntimeError").split(":")[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_at_work_is_named_with_its_op(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = FakeWorkload(random_graph(20, seed=8))
    right = cpu_module._CpuRun.run_op

    def die(self, task, lane):  # type: ignore[no-untyped-def]
        if task.op == 7:
            raise RuntimeError("the thread is torn down")
        right(self, task, lane)

    with CpuExecutor(workload, 2) as executor:
        with monkeypatch.context() as patch:
            patch.setattr(cpu_module._CpuRun, "run_op", die)
            with pytest.raises(ExecutionError, match=OP + "cannot go on: the device is gone"):
                executor.run(DEVICES)
        assert our_threads() == []
        assert executor.check(DEVICES).passed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_link_that_dies_is_named_with_its_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = FakeWorkload(random_graph(20, seed=8))

    def die(self, hop, lane):  # type: ignore[no-untyped-def]
        raise RuntimeError("the thread is torn down")

    with CpuExecutor(workload, 2) as executor:
        with monkeypatch.context() as patch:
            patch.setattr(cpu_module._CpuRun, "run_hop", die)
            with pytest.raises(
                ExecutionError,
                match=r"^transfer of op \d+ \(op_\d+\) from cpu\d to cpu\d cannot go on: the "
                r"thread of link \d has ended",
            ):
                executor.run(DEVICES)
        assert executor.check(DEVICES).passed


def test_a_device_that_has_disappeared_is_named_with_its_first_op() -> None:
    workload = FakeWorkload(random_graph(20, seed=8))
    with CpuExecutor(workload, 3) as executor:
        assert executor.check(DEVICES).passed
        lane = executor._crew.devices[1]
        lane.stop()
        assert lane.join(10.0)
        began = time.monotonic()
        with pytest.raises(ExecutionError, match=r"^op \d+ .*on device 1 \(cpu1\) cannot go on"):
            executor.run(DEVICES)
        assert time.monotonic() - began < 0.5 * executor.timeout_s
        assert our_threads() == []
        assert executor.check(DEVICES).passed
        # A device that nothing is placed on may be gone.
        lane = executor._crew.devices[2]
        lane.stop()
        assert lane.join(10.0)
        assert executor.check(DEVICES).passed


def test_threads_that_are_stuck_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_module, "JOIN_SECONDS", 0.1)
    release = threading.Event()
    trouble = Trouble(lambda operands: release.wait())
    try:
        with CpuExecutor(trouble.workload, 2, timeout_s=0.3) as executor:
            with pytest.raises(
                ExecutionError,
                match=r"within 0.3 s.*op 7 .*on device 1 \(cpu1\).*stuck.*: doppler-device-1$",
            ):
                executor.run(DEVICES)
            trouble.on = False
            executor.timeout_s = 60.0
            assert executor.check(DEVICES).passed
    finally:
        release.set()
