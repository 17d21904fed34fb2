"""The distributed executor on gloo processes of this machine: results, semantics, faults."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from executor_fakes import random_graph
from rank_fakes import rank_workload

from doppler.errors import ExecutionError
from doppler.executor import DistributedExecutor
from doppler.executor.calibration.traces import ready_times
from doppler.executor.distributed.fleet import LocalFleet
from doppler.schedule import Placement, Schedule, validate_schedule

ROOT = Path(__file__).resolve().parents[2]
LOADED_MACHINE = 10.0
"""Idle seconds that a validation forgives: other processes may hold the CPUs. [s]"""

if not (dist.is_available() and dist.is_gloo_available()):
    warnings.warn(
        "torch.distributed has no gloo: the distributed executor is untested", stacklevel=1
    )
    pytest.skip("torch.distributed has no gloo", allow_module_level=True)


def assert_valid(schedule: Schedule) -> None:
    """Forgives idling, but no task that starts before its inputs or beside another one."""
    validate_schedule(schedule, tolerance=LOADED_MACHINE)
    assert (schedule.start >= ready_times(schedule)).all()
    assert (schedule.transfer_start >= schedule.finish[schedule.transfer_ops] - 1e-8).all()
    for resource, start, finish in (
        (schedule.devices, schedule.start, schedule.finish),
        (schedule.transfer_links, schedule.transfer_start, schedule.transfer_finish),
    ):
        order = np.lexsort((start, resource))
        same = resource[order][1:] == resource[order][:-1]
        assert (start[order][1:] >= finish[order][:-1])[same].all()


def is_gone(process: int) -> bool:
    """Whether a process has ended and was reaped, within some seconds."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def local(executor: DistributedExecutor) -> LocalFleet:
    assert isinstance(executor.fleet, LocalFleet)
    return executor.fleet


SHAPE = (32, 32)
"""4 KiB: too large for the header of a transfer; smaller tensors go by it in other tests."""
GRAPH = random_graph(40, seed=3, nbytes=4096.0)
FAULTY = 7


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that op `FAULTY` obeys."""
    path = tmp_path_factory.mktemp("orders") / "order"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def shared(orders: Path) -> Iterator[DistributedExecutor]:
    """Two ranks for the whole module: starting Python and torch takes seconds."""
    with DistributedExecutor(rank_workload(GRAPH, FAULTY, orders, SHAPE), 2) as executor:
        yield executor
        processes, folder = local(executor).processes, local(executor)._folder
    assert folder is not None and not folder.exists()
    assert all(is_gone(process) for process in processes)


@pytest.fixture()
def executor(shared: DistributedExecutor, orders: Path) -> Iterator[DistributedExecutor]:
    """The shared executor, with a kernel that behaves and the default rule before and after."""
    yield shared
    orders.write_text("")
    shared.choose, shared.timeout_s = "fifo", 120.0


DEVICES = np.arange(40) % 2
"""Op 7 runs on device 1."""


def test_random_placements_compute_the_reference(executor: DistributedExecutor) -> None:
    rng = np.random.default_rng(0)
    for _ in range(6):
        devices = rng.integers(0, 2, 40)
        check = executor.check(devices)
        assert check.passed and check.max_relative_error < 1e-6
        schedule = executor.run(devices)
        assert_valid(schedule)
        assert schedule.origin == "measured" and schedule.network == "serial_links"
        assert schedule.peak_bytes is not None and (schedule.peak_bytes >= 4096).all()
    one_sided = executor.run(np.zeros(40, int))
    assert one_sided.num_transfers == 0 and (one_sided.finish > 0).all()


@pytest.mark.parametrize("choose", ["fifo", "b_level", "random", "given"])
def test_every_choose_rule_runs(executor: DistributedExecutor, choose: str) -> None:
    executor.choose = choose
    placement = Placement(DEVICES, order=GRAPH.topological_order[::-1])
    assert executor.check(placement).passed
    assert executor.run(placement).choose == choose


def test_given_order_decides_among_ready_ops(executor: DistributedExecutor) -> None:
    executor.choose = "given"
    entries = np.flatnonzero(GRAPH.in_degrees == 0)
    order = np.concatenate([np.flatnonzero(GRAPH.in_degrees)[::-1], entries[::-1]])
    schedule = executor.run(Placement(np.zeros(40, int), order=order))
    rank = np.argsort(order)
    ready = ready_times(schedule)
    for op in np.argsort(schedule.start):
        waiting = (schedule.start > schedule.start[op]) & (ready < schedule.start[op] - 1e-3)
        assert (rank[waiting] > rank[op]).all()


def test_measurements_name_ranks_and_clocks(executor: DistributedExecutor) -> None:
    (measurement,) = executor.measure([DEVICES], repeats=3, warmup=1)
    assert measurement.repeats == 3 and measurement.min > 0
    environment = measurement.environment
    assert environment["backend"] == "distributed" and environment["transport"] == "gloo"
    assert [rank["process"] for rank in environment["ranks"]] == local(executor).processes
    assert environment["clock_offsets"] == [0.0, 0.0]  # one machine, one clock
    assert 0 < environment["clock_uncertainty"] < 0.1


def test_a_failing_kernel_is_named_and_the_next_run_works(
    executor: DistributedExecutor, orders: Path
) -> None:
    orders.write_text("raise")
    began = time.monotonic()
    with pytest.raises(
        ExecutionError,
        match=r"op 7 \(op_7\), kernel 'add_7', on device 1 \(cpu1, rank 1\) failed: "
        r"ValueError: no such luck",
    ) as caught:
        executor.run(DEVICES)
    assert time.monotonic() - began < 10.0
    assert "rank_fakes.py" in caught.value.__notes__[0]  # the traceback of the kernel
    orders.write_text("")
    assert executor.check(DEVICES).passed


def test_a_rank_that_dies_is_named_and_the_next_run_works(
    executor: DistributedExecutor, orders: Path
) -> None:
    assert executor.check(DEVICES).passed
    processes = local(executor).processes
    orders.write_text("die")
    began = time.monotonic()
    with pytest.raises(
        ExecutionError,
        match=rf"device 1 \(cpu1, rank 1\) died \(SIGKILL; process {processes[1]} .*while it ran "
        r"op 7 \(op_7\), kernel 'add_7'",
    ):
        executor.run(DEVICES)
    assert time.monotonic() - began < 10.0
    assert all(is_gone(process) for process in processes)
    orders.write_text("")
    assert executor.check(DEVICES).passed


def test_a_rank_that_died_between_runs_is_replaced(executor: DistributedExecutor) -> None:
    assert executor.check(DEVICES).passed
    processes = local(executor).processes
    os.kill(processes[0], signal.SIGKILL)
    assert wait([local(executor).connections[0]], 10.0)  # its end of the connection is closed
    assert executor.check(DEVICES).passed
    assert not set(processes) & set(local(executor).processes)


def test_a_hang_ends_at_the_time_out_and_the_next_run_works(
    executor: DistributedExecutor, orders: Path
) -> None:
    assert executor.check(DEVICES).passed
    processes = local(executor).processes
    executor.timeout_s = 0.7
    orders.write_text("hang")
    began = time.monotonic()
    with pytest.raises(
        ExecutionError,
        match=r"within 0.7 s; .*op 7 \(op_7\), kernel 'add_7', on device 1 \(cpu1, rank 1\)",
    ):
        executor.run(DEVICES)
    assert time.monotonic() - began < 10.0
    assert all(is_gone(process) for process in processes)
    executor.timeout_s = 60.0
    orders.write_text("")
    assert executor.check(DEVICES).passed


def test_ctrl_c_ends_all_ranks_and_the_next_run_works(
    executor: DistributedExecutor, orders: Path
) -> None:
    assert executor.check(DEVICES).passed
    processes = local(executor).processes
    orders.write_text("hang")
    press = threading.Timer(
        0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
    )
    press.start()
    with pytest.raises(KeyboardInterrupt):
        executor.run(DEVICES)
    press.join()
    assert all(is_gone(process) for process in processes)
    orders.write_text("")
    assert executor.check(DEVICES).passed


def test_a_failed_check_renews_the_input_tiles(executor: DistributedExecutor, orders: Path) -> None:
    orders.write_text("spoil")
    assert not executor.check(DEVICES).passed
    orders.write_text("")
    processes = local(executor).processes
    assert executor.check(DEVICES).passed
    assert local(executor).processes == processes


def test_a_workload_that_ranks_cannot_read_is_reported(
    executor: DistributedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    local(executor).stop()
    with monkeypatch.context() as patch:
        patch.setattr(executor, "_setup", pickle.dumps(("setup", {}))[:-2] + b"..")
        with pytest.raises(ExecutionError, match="getting ready failed"):
            executor.run(DEVICES)
    assert executor.check(DEVICES).passed


def test_three_ranks_run_and_end_when_their_driver_is_gone(orders: Path) -> None:
    """The death of a process closes its sockets; here the one to the nursery is, in mid-run."""
    with DistributedExecutor(
        rank_workload(GRAPH, FAULTY, orders, SHAPE), 3, choose="b_level"
    ) as executor:
        devices = np.random.default_rng(1).integers(0, 3, 40)
        assert executor.check(devices).passed
        assert_valid(executor.run(devices))
        fleet = local(executor)
        processes, nursery = fleet.processes, fleet._nursery
        orders.write_text("hang")
        plan = executor._plan(devices, None)
        executor._prepare(plan, False)
        executor._tell("go", None, plan)
        assert nursery is not None and len(processes) == 3
        nursery.shutdown(socket.SHUT_RDWR)
        assert all(is_gone(process) for process in processes)
        folder, deadline = fleet._folder, time.monotonic() + 10.0
        assert folder is not None
        while folder.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not folder.exists()
    orders.write_text("")
    with pytest.raises(ExecutionError, match="closed"):
        executor.run(devices)


def start_ranks(world: int, *arguments: str) -> list[subprocess.Popen[str]]:
    """Starts the entry point as torchrun would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    return [
        subprocess.Popen(
            [sys.executable, "scripts/run_distributed.py", *arguments],
            cwd=ROOT,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


def test_the_entry_point_of_torchrun_measures_and_checks(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    ranks = start_ranks(
        2, "--workload", "ffnn", "--repeats", "2", "--warmup", "0", "--trace", str(trace)
    )
    outputs = [rank.communicate(timeout=60.0) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "on 2 ranks" in outputs[0][0] and "result check       passed" in outputs[0][0]
    assert "measured makespan" in outputs[0][0] and outputs[1][0] == ""
    assert trace.stat().st_size > 1000
