"""Faults of the CUDA executor, on a pretence of CUDA: named, survived, or called fatal."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from cuda_fakes import FakeCuda, chain
from executor_fakes import FakeWorkload, random_graph

from doppler.errors import CapacityError, ExecutionError
from doppler.executor.cuda import executor as cuda_module
from doppler.executor.cuda.executor import CudaExecutor
from doppler.hardware import Device, Topology


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("doppler-cuda")] == []


def test_out_of_memory_is_named_and_the_next_run_works() -> None:
    workload, cuda = FakeWorkload(random_graph(20, seed=8)), FakeCuda()
    devices = np.arange(20) % 2
    with CudaExecutor(workload, 2, streams=cuda) as executor:
        broken = workload.kernels[7].run
        cuda.failing[broken] = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried\nmuch")
        with pytest.raises(
            ExecutionError,
            match=r"op 7 \(op_7\), kernel 'add\d+', on device 1 \(cuda0.logical1, Pretence 9000\): "
            r"out of memory: CUDA out of memory. Tried$",
        ) as caught:
            executor.run(devices)
        assert isinstance(caught.value.__cause__, torch.cuda.OutOfMemoryError)
        assert cuda.num_tensors == 0  # although the error is still held
        cuda.failing.clear()
        assert executor.check(devices).passed
    assert cuda.violations == []


def test_out_of_memory_for_the_inputs_names_the_device() -> None:
    cuda = FakeCuda()
    upload, calls = cuda.upload, []

    def fail_late(tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        calls.append(gpu)
        if len(calls) == 4:
            raise torch.cuda.OutOfMemoryError("no room")
        return upload(tensor, gpu)

    cuda.upload = fail_late  # type: ignore[method-assign]
    with CudaExecutor(chain(4), 2, streams=cuda) as executor:
        with pytest.raises(ExecutionError, match=r"input tiles on device 1 \(cuda0.logical1.*room"):
            executor.run([0, 1, 0, 1])
        assert executor.check([0, 1, 0, 1]).passed


def test_a_failing_kernel_is_named_while_others_run() -> None:
    workload, cuda = FakeWorkload(random_graph(20, seed=8)), FakeCuda()
    with CudaExecutor(workload, 2, streams=cuda) as executor:
        cuda.failing[workload.kernels[6].run] = ValueError("no such luck")
        with pytest.raises(ExecutionError, match=r"op 6 .* failed: ValueError: no such luck"):
            executor.run(np.arange(20) % 2)
        cuda.failing.clear()
        assert executor.check(np.arange(20) % 2).passed
    assert cuda.violations == []  # also: nothing was freed while the other device worked


def test_a_hang_ends_at_the_time_out_and_its_tensors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_module, "JOIN_SECONDS", 0.1)
    workload, cuda = FakeWorkload(random_graph(20, seed=9)), FakeCuda()
    devices = np.arange(20) % 2
    with CudaExecutor(workload, 2, streams=cuda, timeout_s=0.3) as executor:
        cuda.seconds[workload.kernels[6].run] = float("inf")
        with pytest.raises(ExecutionError, match=r"within 0.3 s.*op 6 .*device 0 \(cuda0.logical0"):
            executor.run(devices)
        assert cuda.num_tensors >= 4
        cuda.seconds.clear()
        executor.timeout_s = 60.0
        assert executor.check(devices).passed
        assert cuda.violations == []


def test_a_poisoned_context_is_called_so() -> None:
    workload, cuda = FakeWorkload(random_graph(20, seed=10)), FakeCuda()
    with CudaExecutor(workload, 2, streams=cuda) as executor:
        cuda.harmful.add(workload.kernels[5].run)
        with pytest.raises(ExecutionError, match=r"illegal memory access.*start a new process.*op"):
            executor.run(np.arange(20) % 2)
        with pytest.raises(ExecutionError, match=r"^the CUDA context is unusable after 'CUDA err"):
            executor.run(np.arange(20) % 2)


def test_too_little_memory_is_a_capacity_error() -> None:
    workload, cuda = chain(4), FakeCuda()
    small = Topology("small", (Device("d", memory_bytes=300.0),))
    with CudaExecutor(workload, 1, streams=cuda, problem=workload.problem(small)) as executor:
        with pytest.raises(CapacityError, match="op 1"):
            executor.run([0] * 4)
        assert cuda.num_tensors == 0
    assert cuda.violations == []


def test_a_gpu_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doppler.executor.cuda.run.ANSWER_SECONDS", 1e-3)
    monkeypatch.setattr(cuda_module, "JOIN_SECONDS", 0.05)
    cuda = FakeCuda()
    make_stream = cuda.make_stream

    def busy(gpu: int, urgent: bool = False):
        stream = make_stream(gpu, urgent)
        stream.free_at = float("inf")
        return stream

    cuda.make_stream = busy  # type: ignore[method-assign]
    with CudaExecutor(chain(2), 1, streams=cuda) as executor:
        with pytest.raises(ExecutionError, match=r"GPU 0 \(Pretence 9000\) does not answer"):
            executor.run([0, 0])
        cuda.make_stream = make_stream  # type: ignore[method-assign]
        assert executor.check([0, 0]).passed
