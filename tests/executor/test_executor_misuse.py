"""Impossible numbers, several threads on one executor, and kernels that write to their operands."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from executor_fakes import FakeWorkload, random_graph

from doppler.errors import ConfigurationError
from doppler.executor import CpuExecutor, calibrate


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "2", 2.0, True, 0])
def test_numbers_of_devices_that_are_none(value: Any) -> None:
    workload = FakeWorkload(random_graph(4, seed=0))
    with pytest.raises(ConfigurationError, match="num_devices"):
        CpuExecutor(workload, value)
    with pytest.raises(ConfigurationError, match="num_devices"):
        calibrate(workload, value)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 1e20, 10**400, "2", True, 0, -1.0])
def test_timeouts_that_are_none(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout_s"):
        CpuExecutor(FakeWorkload(random_graph(4, seed=0)), 2, timeout_s=value)


@pytest.mark.parametrize("value", [None, 1.5, "3", True, -1])
def test_repeats_and_warmups_that_are_none(value: Any) -> None:
    workload = FakeWorkload(random_graph(4, seed=0))
    with CpuExecutor(workload, 2) as executor:
        for label in ("repeats", "warmup"):
            with pytest.raises(ConfigurationError, match=label):
                executor.measure([[0, 1, 0, 1]], **{label: value})
            with pytest.raises(ConfigurationError, match=label):
                calibrate(workload, 2, **{label: value})


def test_threads_take_turns() -> None:
    workload = FakeWorkload(random_graph(40, seed=1))
    rng = np.random.default_rng(0)
    wrong: list[BaseException | str] = []
    with CpuExecutor(workload, 2) as executor:

        def use(placements: np.ndarray) -> None:
            try:
                for placement in placements:
                    if not executor.check(placement).passed:
                        wrong.append("wrong results")
                    executor.measure([placement], repeats=1, warmup=0)
            except BaseException as error:
                wrong.append(error)

        threads = [
            threading.Thread(target=use, args=(rng.integers(2, size=(5, 40)),)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_failed_check_renews_the_input_tiles() -> None:
    workload = FakeWorkload(random_graph(4, seed=0, density=0.0))
    honest = workload.kernels[0].run

    def spoils(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        operands[0].add_(1.0)
        return honest(operands)

    with CpuExecutor(workload, 1) as executor:
        executor.runner.kernels[0] = spoils
        assert not executor.check([0, 0, 0, 0]).passed
        executor.runner.kernels[0] = honest
        assert executor.check([0, 0, 0, 0]).passed
