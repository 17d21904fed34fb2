"""A measured schedule goes through all that a simulated one does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from executor_fakes import FakeWorkload, random_graph

from doppler.errors import ScheduleError
from doppler.executor import CpuExecutor, Measurement
from doppler.schedule import Schedule
from doppler.simulator import Simulator
from doppler.viz import plot_overlay, write_trace

TOLERANCE = 0.1
"""What a busy machine may put between two steps of the dispatcher. [s]"""


@pytest.fixture(scope="module")
def pair() -> tuple[Schedule, Measurement]:
    """The same placement simulated and measured, on two devices with copies both ways."""
    workload = FakeWorkload(random_graph(24, seed=5))
    matrix = torch.rand(192, 192)

    def work(operands: list[torch.Tensor]) -> torch.Tensor:
        return operands[0] + float((matrix @ matrix)[0, 0])

    workload.kernels = [workload.kernel(op, work) for op in range(24)]
    devices = np.arange(24) % 2
    with CpuExecutor(workload, 2) as executor:
        (measurement,) = executor.measure([devices], repeats=5, warmup=1)
        return Simulator(executor.problem).run(devices), measurement


def test_it_is_valid_within_what_clocks_and_hand_offs_take(
    pair: tuple[Schedule, Measurement],
) -> None:
    _, measurement = pair
    measurement.schedule.validate(TOLERANCE)
    with pytest.raises(ScheduleError):  # hand-offs take time, and the check sees it
        measurement.schedule.validate(1e-9)


def test_its_idle_time_adds_up(pair: tuple[Schedule, Measurement]) -> None:
    schedule = pair[1].schedule
    idle = schedule.idle_time()
    assert idle.total == pytest.approx([schedule.makespan] * 2)
    assert (idle.busy > 0).all() and (idle.held_back >= 0).all()
    assert idle.busy / schedule.makespan == pytest.approx(schedule.utilisation)


def test_its_critical_chain_reaches_from_begin_to_end(pair: tuple[Schedule, Measurement]) -> None:
    schedule = pair[1].schedule
    chain = schedule.critical_chain()
    assert chain[-1].finish == schedule.makespan and chain[0].reason == "begin"
    spans = sum(step.finish - step.start + step.delay for step in chain)
    assert spans == pytest.approx(schedule.makespan)


def test_it_is_exported_and_laid_over_the_simulated_one(
    pair: tuple[Schedule, Measurement], tmp_path: Path
) -> None:
    simulated, measurement = pair
    both = [("simulated", simulated), ("measured", measurement.schedule)]
    trace = json.loads(write_trace(both, tmp_path / "trace.json").read_text())
    names = [event["args"].get("name", "") for event in trace["traceEvents"] if event["ph"] == "M"]
    assert any("measured" in name for name in names)
    path = plot_overlay(simulated, measurement.schedule, tmp_path / "overlay.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_measurement_says_how_it_was_made(pair: tuple[Schedule, Measurement]) -> None:
    measurement = pair[1]
    assert (measurement.repeats, measurement.warmup, measurement.estimator) == (5, 1, "median")
    assert measurement.clock == "time.perf_counter"
    assert measurement.schedule.makespan == measurement.median
    assert measurement.schedule.origin == "measured"
