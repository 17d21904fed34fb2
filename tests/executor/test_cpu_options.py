"""CPU devices: inputs with a place of their own, bulk-synchronous runs, bound threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from executor_fakes import FakeWorkload, random_graph

from doppler.errors import ConfigurationError, InvalidProblemError
from doppler.executor import CpuExecutor
from doppler.executor.cpu import affinity
from doppler.graph import hop_depths
from doppler.hardware import make_topology
from doppler.problem import InputTensor, PlacementProblem
from doppler.schedule import validate_schedule
from doppler.workloads import make_workload

LOADED_MACHINE = 10.0
"""Idle seconds that a validation forgives: other processes may hold the CPUs. [s]"""


def with_inputs(
    workload: FakeWorkload, topology: str, places: Sequence[int | str], nbytes: float = 256.0
) -> PlacementProblem:
    """Tile t of the workload is where `places` says."""
    problem = workload.problem(make_topology(topology, 3))
    inputs = tuple(
        InputTensor(
            f"tile{t}",
            nbytes,
            tuple(op for op in range(problem.num_ops) if op % workload.num_tiles == t),
            place,
        )
        for t, place in enumerate(places)
    )
    return PlacementProblem(
        problem.graph, problem.topology, problem.cost_model, inputs=inputs
    ).with_explicit_inputs()


@pytest.mark.parametrize("topology", ["cpu", "host_staged"])
@pytest.mark.parametrize("execution", ["work_conserving", "bulk_synchronous"])
def test_placed_inputs_are_read_where_they_are_and_moved_once(
    topology: str, execution: str
) -> None:
    workload = FakeWorkload(random_graph(20, seed=2))
    problem = with_inputs(workload, topology, (2, "first_consumer"))
    rng = np.random.default_rng(0)
    with CpuExecutor(workload, 3, problem=problem, execution=execution) as executor:
        for _ in range(3):
            devices = problem.conform(rng.integers(0, 3, problem.num_ops))
            check = executor.check(devices)
            assert check.passed and check.max_relative_error < 1e-6
            schedule = executor.run(devices)
            validate_schedule(schedule, tolerance=LOADED_MACHINE)
            assert schedule.execution == execution
            assert (schedule.start[20:] == 0).all() and (schedule.finish[20:] == 0).all()
            moved = set(zip(schedule.transfer_ops.tolist(), schedule.transfer_targets.tolist()))
            for op, tile in ((20, 0), (21, 1)):
                readers = {int(devices[v]) for v in range(20) if v % 2 == tile}
                assert {d for o, d in moved if o == op} == readers - {int(devices[op])}
            assert [sorted(memory.tensors) for memory in executor._memories[:3]] == [[-2, -1]] * 3


def test_a_placed_input_is_not_read_from_a_copy_that_happens_to_be_there() -> None:
    workload = FakeWorkload(random_graph(6, seed=3))
    problem = with_inputs(workload, "cpu", (0, 0))
    with CpuExecutor(workload, 3, problem=problem) as executor:
        devices = np.array([1, 1, 1, 2, 2, 2, 0, 0])
        assert executor.check(devices).passed
        for device in (1, 2):  # the tiles that these devices hold for other problems
            for tile in range(2):
                executor._memories[device].tensors[~tile].fill_(torch.nan)
        assert executor.check(devices).passed


def test_inputs_that_are_no_tiles_are_refused() -> None:
    workload = FakeWorkload(random_graph(6, seed=3))
    plain = workload.problem(make_topology("cpu", 3))
    with CpuExecutor(workload, 3) as executor:
        wrong_size = with_inputs(workload, "cpu", (0, 1), nbytes=8.0)
        with pytest.raises(InvalidProblemError, match=r"input op 6 \(tile0\).*has 8 B and.*\[0, 2"):
            executor.run([0, 0, 0, 0, 0, 0, 0, 1], wrong_size)
        few = PlacementProblem(
            plain.graph, plain.topology, plain.cost_model,
            inputs=(InputTensor("half", 256.0, (0, 2), 1),),
        )  # fmt: skip
        with pytest.raises(InvalidProblemError, match="read by exactly"):
            executor.run([0] * 6 + [1], few.with_explicit_inputs())
        with pytest.raises(InvalidProblemError, match="with_explicit_inputs"):
            executor.run([0] * 6, few)
        computed = PlacementProblem(
            plain.graph, plain.topology,
            type(plain.cost_model)(
                np.where(np.arange(6)[:, None] == 0, 0.0, plain.cost_model.op_seconds),
                plain.cost_model.transfer_volume, plain.cost_model.link_latency,
                plain.cost_model.link_seconds_per_unit, "test",
            ),
            input_ops=np.arange(6) == 0,
        )  # fmt: skip
        with pytest.raises(InvalidProblemError, match="input op 0"):
            executor.run([0] * 6, computed)
        assert executor.check([0, 1, 2, 0, 1, 2]).passed


def test_bulk_synchronous_runs_keep_their_barriers() -> None:
    workload = make_workload("ffnn", num_shards=2)
    devices = np.arange(workload.graph.num_ops) % 3
    with CpuExecutor(workload, 3, execution="bulk_synchronous") as executor:
        assert executor.check(devices).passed
        schedule = executor.run(devices)
    assert schedule.execution == "bulk_synchronous"
    validate_schedule(schedule, tolerance=0.0)
    depth = hop_depths(workload.graph)
    for level in range(1, depth.max() + 1):
        before = schedule.finish[depth < level].max()
        assert (schedule.start[depth == level] >= before).all()


def fake_machine(monkeypatch: pytest.MonkeyPatch, siblings: dict[int, str]) -> None:
    monkeypatch.setattr(affinity, "allowed_cpus", lambda: set(siblings))
    monkeypatch.setattr(affinity.Path, "read_text", lambda self, **_: siblings[cpu_of(str(self))])


def cpu_of(path: str) -> int:
    return int(path.split("/cpu/cpu")[1].split("/")[0])


def test_cores_come_before_second_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two cores of two threads each, numbered core by core.
    fake_machine(monkeypatch, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
    assert affinity.choose_cpus(2, True) == [0, 2]
    assert affinity.choose_cpus(4, True) == [0, 2, 1, 3]
    assert affinity.choose_cpus(1, "auto") == [0]
    assert affinity.choose_cpus(2, "auto") is None  # no core is left for the rest
    assert affinity.choose_cpus(1, False) is None
    with pytest.raises(ConfigurationError, match="5 devices, but this process may use 4 CPUs"):
        affinity.choose_cpus(5, True)
    for wrong in ("yes", None, 1):
        with pytest.raises(ConfigurationError, match="neither auto, true nor false"):
            affinity.choose_cpus(1, wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
@pytest.mark.parametrize("network", ["serial_links", "contention_free"])
def test_bound_devices_leave_links_and_the_process_free(network: str) -> None:
    allowed = os.sched_getaffinity(0)
    num_devices = min(2, len(allowed))
    seen: dict[int, set[int]] = {}
    workload = FakeWorkload(random_graph(12, seed=4, density=0.4))
    right = [kernel.run for kernel in workload.kernels]

    def spy(op: int):  # type: ignore[no-untyped-def]
        def run(operands):  # type: ignore[no-untyped-def]
            seen[op] = os.sched_getaffinity(0)
            return right[op](operands)

        return run

    workload.kernels = [workload.kernel(op, spy(op)) for op in range(12)]
    devices = np.arange(12) % num_devices
    options = {"network": network, "pin_cores": True}
    with CpuExecutor(workload, num_devices, **options) as executor:
        assert executor.check(devices).passed
        cpus = executor.environment()["pinned_cpus"]
        links = [lane for lanes in executor._crew._link_lanes.values() for lane in lanes]
        assert links or num_devices == 1
        affinities: list[set[int]] = []
        for lane in links:
            lane.put((lambda task, _: affinities.append(os.sched_getaffinity(0)), None))
            lane.stop()
            assert lane.join(30.0)
    assert len(set(cpus)) == num_devices and set(cpus) <= allowed
    assert all(seen[op] == {cpus[op % num_devices]} for op in range(12))
    assert affinities == [allowed] * len(links)
    assert os.sched_getaffinity(0) == allowed
    with CpuExecutor(workload, num_devices, pin_cores=False) as executor:
        assert executor.check(devices).passed
        assert executor.environment()["pinned_cpus"] is None
    assert seen[0] == allowed


REUSE = """
import resource, sys, threading, torch
from doppler.executor.cpu.memories import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def work():
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        blocks = [torch.ones(1 << 20) for _ in range(6)]
        blocks.clear()
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
lane = threading.Thread(target=work)
lane.start()
lane.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators, other habits")
def test_dead_outputs_leave_their_pages_to_the_next_run() -> None:
    def faults(mode: str) -> int:
        run = subprocess.run(
            [sys.executable, "-c", REUSE, mode], capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    # Six blocks of 4 MiB are 6144 pages; without, glibc cuts them off the heap when they are free.
    assert faults("keep") < 1000
