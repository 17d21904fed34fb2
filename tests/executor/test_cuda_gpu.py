"""The CUDA executor on a GPU; nothing here runs without one."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
import torch
from cuda_fakes import chain

from doppler.errors import ExecutionError
from doppler.executor.cuda.executor import CudaExecutor
from doppler.hardware import make_topology
from doppler.workloads import make_workload

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def random_devices(num_ops: int, num_devices: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, num_devices, num_ops)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("copies", ["auto", "staged"])
def test_a_gpu_computes_the_reference(depth: int, copies: str) -> None:
    workload = make_workload("ffnn", num_shards=4)
    devices = random_devices(workload.graph.num_ops, 3, 0)
    with CudaExecutor(workload, 3, depth=depth, copies=copies) as executor:
        for _ in range(3):
            assert executor.check(devices).passed
        executor.run(devices).validate(tolerance=10.0)


def test_a_gpu_sends_tensors_over_the_host() -> None:
    workload = make_workload("chainmm", num_shards=4)
    problem = workload.problem(make_topology("host_staged", 2))
    with CudaExecutor(workload, 2, problem=problem) as executor:
        assert executor.check(random_devices(workload.graph.num_ops, 2, 1)).passed


def test_a_gpu_without_memory_left_is_named() -> None:
    workload = chain(4)
    workload.kernels[2] = workload.kernel(
        2, lambda operands: torch.empty(1 << 50, dtype=torch.uint8, device=operands[0].device)
    )
    with CudaExecutor(workload, 1) as executor:
        with pytest.raises(ExecutionError, match=r"op 2 .*out of memory"):
            executor.run([0] * 4)
        workload.kernels[2] = workload.kernels[1]
        executor.runners[2] = workload.kernels[1].run
        executor.run([0] * 4)


def test_times_of_a_gpu_are_those_of_the_host() -> None:
    workload = make_workload("chainmm", num_shards=4, block=1024)
    with CudaExecutor(workload, 2) as executor:
        devices = random_devices(workload.graph.num_ops, 2, 2)
        executor.run(devices)
        began = perf_counter()
        schedule = executor.run(devices)
        around = perf_counter() - began
    assert 0 < schedule.makespan <= around
    assert (schedule.finish > schedule.start).all()
