"""What every backend shares: running, measuring and checking placements of one workload."""

from __future__ import annotations

import gc
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch

from doppler.checks import whole_number
from doppler.errors import ConfigurationError, InvalidProblemError
from doppler.executor.environment import describe_environment
from doppler.executor.measurement import Measurement
from doppler.executor.plan import DispatchPlan, check_rules
from doppler.executor.result_check import ResultCheck, compare_results
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Topology, make_topology
from doppler.problem import PlacementProblem
from doppler.schedule import Placement, Schedule

PlacementLike = Placement | Sequence[int] | np.ndarray
"""A device per op, with or without an order."""

Progress = Callable[[int, int], None]
"""Called with (done, total) after every step of something long."""


class ExecutableKernel(Protocol):
    """The work of one op; equal signatures mean equal work."""

    @property
    def signature(self) -> str: ...

    @property
    def run(self) -> Callable[[list[torch.Tensor]], torch.Tensor]: ...


class Executable(Protocol):
    """What an executor needs of a workload; `doppler.workloads.Workload` has it all.

    `operands[op]` names the kernel's arguments in order: ("op", op_id) or ("input", tile).
    """

    @property
    def name(self) -> str: ...

    @property
    def graph(self) -> DataflowGraph: ...

    @property
    def kernels(self) -> Sequence[ExecutableKernel]: ...

    @property
    def operands(self) -> Sequence[Sequence[tuple[str, int]]]: ...

    @property
    def output_ops(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> str: ...

    def make_inputs(self, seed: int) -> list[torch.Tensor]: ...

    def reference(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]: ...

    def collect(self, op_outputs: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]: ...

    def problem(
        self, topology: Topology, cost_model: CostModel | None = None
    ) -> PlacementProblem: ...


class Executor(ABC):
    """Runs placements of one workload on real (or emulated) devices.

    A context manager; `close` ends its threads and frees its devices' memory. Several threads may
    use one executor: their calls follow one another, for each run has all devices to itself.

    Kernels must not write to their operands: the tensors of several ops, and the input tiles of
    later runs, are the same memory. `check` finds kernels that do.

    Args:
        workload: the graph with its kernels.
        num_devices: how many devices.
        problem: default problem of the runs: its topology gives the links, its cost model the
            priorities of `choose=b_level`. None: the workload on an uncalibrated preset.
        network: network model that the dispatcher keeps to, as in the simulator.
        choose: choose-task rule, as in the simulator.
        seed: of `choose=random`.
        input_seed: of the workload's input tensors.
        timeout_s: a run that takes longer is given up. [s]
        execution: work_conserving or bulk_synchronous, as in the simulator.

    Raises:
        ConfigurationError: an unknown network, rule or execution, or an impossible number.
        InvalidProblemError: `problem` is not about this workload's graph or these devices.
    """

    backend = "abstract"
    default_topology = "cpu"
    computes = True
    """Whether runs have results, which `check` can look at."""

    def __init__(
        self,
        workload: Executable,
        num_devices: int,
        *,
        problem: PlacementProblem | None = None,
        network: str = "serial_links",
        choose: str = "fifo",
        seed: int = 0,
        input_seed: int = 0,
        timeout_s: float = 120.0,
        execution: str = "work_conserving",
    ) -> None:
        check_rules(network, choose, execution)
        self.workload = workload
        self.num_devices = whole_number(num_devices, "num_devices", 1)
        number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if not (number and 0 < timeout_s <= threading.TIMEOUT_MAX):
            raise ConfigurationError(
                f"timeout_s: {timeout_s!r} is not a time above 0 s and up to "
                f"{threading.TIMEOUT_MAX:g} s"
            )
        self.network = network
        self.choose = choose
        self.execution = execution
        self.seed = seed
        self.input_seed = input_seed
        self.timeout_s = timeout_s
        if problem is None:
            problem = workload.problem(make_topology(self.default_topology, self.num_devices))
        self._check_problem(problem)
        self.problem = problem
        # Runs share devices and memories. Reentrant: a progress callback may run something itself.
        self._serial = threading.RLock()
        self._reference: Mapping[str, torch.Tensor] | None = None

    def run(
        self,
        placement: PlacementLike,
        problem: PlacementProblem | None = None,
    ) -> Schedule:
        """Runs a placement once.

        Args:
            placement: a device per op, or a `Placement`, whose order is used by `choose=given`.
                # (num_ops,)
            problem: instead of the executor's default; becomes the schedule's `problem`.

        Returns:
            What happened, in seconds from the start of the run.

        Raises:
            ExecutionError: a kernel failed or the run took longer than `timeout_s`; the message
                names op, kernel and device. The executor can be used again.
            InvalidPlacementError: the placement does not fit, or `choose=given` has no order.
            InvalidProblemError: the problem is about other ops or devices.
        """
        plan = self._plan(placement, problem)
        with self._serial, _garbage_collection_paused():
            return self._execute(plan, None)

    def measure(
        self,
        placements: Sequence[PlacementLike],
        repeats: int = 15,
        warmup: int = 2,
        progress: Progress | None = None,
        problem: PlacementProblem | None = None,
    ) -> list[Measurement]:
        """Measures placements in interleaved rounds, so that drift touches all of them alike.

        Every round runs every placement once; rounds begin at different placements, so that none
        always follows the same one. Python's garbage collector is run before and paused during
        each run: a collection in a large process takes longer than many ops.

        Args:
            placements: what to measure.
            repeats: measured rounds.
            warmup: rounds before them, not reported.
            progress: called with (runs done, runs in all).
            problem: as in `run`.

        Returns:
            A measurement per placement, in the order given.

        Raises:
            ConfigurationError: no repeats or negative warm-up.
            ExecutionError, InvalidPlacementError, InvalidProblemError: as in `run`.
        """
        repeats = whole_number(repeats, "repeats", 1)
        warmup = whole_number(warmup, "warmup", 0)
        plans = [self._plan(placement, problem) for placement in placements]
        with self._serial:
            schedules = self._measure_rounds(plans, repeats, warmup, progress)
        environment = self.environment()
        return [Measurement.from_schedules(runs, environment, warmup) for runs in schedules]

    def _measure_rounds(
        self, plans: list[DispatchPlan], repeats: int, warmup: int, progress: Progress | None
    ) -> list[list[Schedule]]:
        """Schedules of the measured rounds, by plan."""
        schedules: list[list[Schedule]] = [[] for _ in plans]
        total, done = (warmup + repeats) * len(plans), 0
        for round_index in range(warmup + repeats):
            for position in range(len(plans)):
                index = (position + round_index) % len(plans)
                with _garbage_collection_paused(collect=position == 0):
                    schedule = self._execute(plans[index], None)
                if round_index >= warmup:
                    schedules[index].append(schedule)
                done += 1
                if progress is not None:
                    progress(done, total)
        return schedules

    def check(self, placement: PlacementLike) -> ResultCheck:
        """Runs a placement once and compares its results with the unsharded computation.

        After a check that fails the devices' input tiles are made anew: a kernel may have written
        to them, which must not spoil later runs.

        Raises:
            ExecutionError, InvalidPlacementError: as in `run`.
        """
        outputs: dict[int, torch.Tensor] = {}
        plan = self._plan(placement, None)
        with self._serial, torch.no_grad():
            with _garbage_collection_paused():
                self._execute(plan, outputs)
            results = self.workload.collect(outputs)
            if self._reference is None:
                inputs = self.workload.make_inputs(self.input_seed)
                self._reference = self.workload.reference(inputs)
            result = compare_results(results, self._reference, self.workload.dtype)
            if not result.passed:
                self._renew_inputs()
        return result

    def environment(self) -> dict[str, Any]:
        """What a measurement of this executor ran on."""
        return describe_environment(self.backend, self.num_devices)

    @abstractmethod
    def close(self) -> None:
        """Ends all threads and frees the devices' memory; the executor cannot be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def _execute(self, plan: DispatchPlan, outputs: dict[int, torch.Tensor] | None) -> Schedule:
        """Runs a plan; fills `outputs`, when given, with the outputs of `workload.output_ops`."""

    @abstractmethod
    def _renew_inputs(self) -> None:
        """Lets the next run start from input tiles as they were at first."""

    def _plan(
        self,
        placement: PlacementLike,
        problem: PlacementProblem | None,
    ) -> DispatchPlan:
        if problem is None:
            problem = self.problem
        else:
            self._check_problem(problem)
        devices, order = (
            (placement.devices, placement.order)
            if isinstance(placement, Placement)
            else (placement, None)
        )
        return DispatchPlan(
            problem,
            devices,
            order,
            network=self.network,
            choose=self.choose,
            seed=self.seed,
            keep=self._kept(),
            execution=self.execution,
        )

    def _kept(self) -> Sequence[int]:
        """Ops whose output is read after the run."""
        return self.workload.output_ops

    def _check_problem(self, problem: PlacementProblem) -> None:
        graph = self.workload.graph
        if problem.num_devices != self.num_devices:
            raise InvalidProblemError(
                f"problem {problem.name!r} has {problem.num_devices} devices, but this executor "
                f"has {self.num_devices}"
            )
        if problem.graph is graph:
            return
        # Ops for inputs with a place of their own come after the workload's.
        more = np.arange(problem.num_ops) >= graph.num_ops
        edges = problem.graph.edges[problem.graph.edges[:, 0] < graph.num_ops]
        if not (
            problem.num_ops >= graph.num_ops
            and np.array_equal(problem.is_input_op, more)
            and np.array_equal(edges, graph.edges)
        ):
            raise InvalidProblemError(
                f"problem {problem.name!r} is not about the graph of workload "
                f"{self.workload.name!r}, which this executor runs"
            )


@contextmanager
def _garbage_collection_paused(collect: bool = False) -> Iterator[None]:
    enabled = gc.isenabled()
    if collect:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
