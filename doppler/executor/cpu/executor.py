"""Work-conserving execution on CPU devices: a worker thread per device, copies on link threads."""

from __future__ import annotations

import threading
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch

from doppler.errors import CapacityError, ExecutionError, InvalidProblemError
from doppler.executor.base import Executable, Executor
from doppler.executor.cpu.affinity import choose_cpus
from doppler.executor.cpu.lanes import Crew, Lane
from doppler.executor.cpu.memories import EndpointMemory, keep_freed_memory
from doppler.executor.dispatcher import Dispatcher
from doppler.executor.kernels import KernelRunner, operand_keys
from doppler.executor.plan import DispatchPlan, HopTask, OpTask, Task
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule

JOIN_SECONDS = 5.0
"""How long the end of a failed run or of the executor waits for kernels that still run. [s]"""
LOOK_SECONDS = 0.2
"""How often a waiting run looks whether its threads live. [s]"""


class CpuExecutor(Executor):
    """Runs placements on CPU threads that stand for devices.

    A device is a worker thread with one torch intra-op thread and its own copies of the input
    tiles; a directed link is a thread that copies between the memories of two devices. There is no
    dispatcher thread: the thread that finishes a task takes its end in and hands out what starts
    now, under one lock, which saves a hand-off per op. The caller's thread only waits.
    Other settings of the process, torch's threads and CPUs among them, stay as they are; garbage
    collection is paused during a run, and the C library keeps more freed memory than before.

    Inputs with a place of their own (`PlacementProblem.with_explicit_inputs`) are read where they
    are and move over links; the input op stands for the tile that exactly its consumers read.

    Args:
        workload: see `Executor`.
        num_devices: see `Executor`.
        pin_cores: bind each device's thread to a CPU of its own, copies staying free: True, False,
            or "auto", which does so if there are more cores than devices.
        **options: as for `Executor`.
    """

    backend = "cpu"
    default_topology = "cpu"

    def __init__(
        self,
        workload: Executable,
        num_devices: int,
        *,
        pin_cores: bool | str = "auto",
        **options: Any,
    ) -> None:
        super().__init__(workload, num_devices, **options)
        self._cpus = choose_cpus(self.num_devices, pin_cores)
        self.operand_keys = operand_keys(workload)
        self.runner = KernelRunner(workload)
        self._inputs: list[torch.Tensor] | None = workload.make_inputs(self.input_seed)
        self._memories: list[EndpointMemory] = []
        self._crew: Crew | None = None
        self._closed = False

    def environment(self) -> dict[str, Any]:
        """As for `Executor`, with the CPU that each device is bound to, None where none is."""
        return {**super().environment(), "pinned_cpus": self._cpus}

    def close(self) -> None:
        with self._serial:  # a run of another thread ends first
            self._closed = True
            self._dismiss_crew()
            self._inputs = None

    def _renew_inputs(self) -> None:
        self._dismiss_crew()

    def _execute(self, plan: DispatchPlan, outputs: dict[int, torch.Tensor] | None) -> Schedule:
        placed = self._placed_tiles(plan.problem)
        crew = self._ensure_crew(plan)
        run = _CpuRun(self, plan, crew, self._memories, placed)
        try:
            run.wait(self.timeout_s)
        except BaseException as error:  # a failed run, and Ctrl-C while waiting
            run.abandon()
            stuck = self._dismiss_crew()
            if stuck and isinstance(error, ExecutionError):
                raise ExecutionError(
                    f"{error}; threads that are stuck in their kernel and end with it: "
                    f"{', '.join(stuck)}"
                ) from error
            raise
        if outputs is not None:
            for op in self.workload.output_ops:
                outputs[op] = self._memories[plan.device_of[op]].tensors[op]
        for memory in self._memories:
            memory.clear()
        return run.schedule()

    def _ensure_crew(self, plan: DispatchPlan) -> Crew:
        if self._closed or self._inputs is None:
            raise ExecutionError(f"the executor of {self.workload.name!r} is closed")
        if self._crew is None:
            keep_freed_memory()
            self._crew = Crew(self.num_devices, self._cpus)
            self._memories = [EndpointMemory(self._inputs) for _ in range(self.num_devices)]
        while len(self._memories) < plan.problem.topology.num_endpoints:
            self._memories.append(EndpointMemory(()))  # hosts only pass tensors on
        for transfer in plan.transfers:
            for link in transfer.route:
                self._crew.prepare_link(link)
        return self._crew

    def _dismiss_crew(self) -> list[str]:
        """Ends the threads and drops the memories, which a stuck kernel may still write to.

        Returns:
            Names of threads that are still inside a kernel.
        """
        crew, self._crew, self._memories = self._crew, None, []
        return [] if crew is None else crew.stop(JOIN_SECONDS)

    def _placed_tiles(self, problem: PlacementProblem) -> dict[int, int]:
        """The input tile that each input op stands for.

        Raises:
            InvalidProblemError: an input op that the workload computes, or no tile of that size is
                read by exactly the op's consumers.
        """
        graph, placed = problem.graph, {}
        if not problem.is_input_op.any():
            return {}
        readers: dict[int, set[int]] = {}
        for op, operands in enumerate(self.workload.operands):
            for kind, index in operands:
                if kind == "input":
                    readers.setdefault(index, set()).add(op)
        for op in np.flatnonzero(problem.is_input_op).tolist():
            consumers = set(graph.successors(op).tolist())
            size = None if graph.output_bytes is None else float(graph.output_bytes[op])
            for tile in sorted(readers):
                fits = size is None or self._inputs is None or size == self._inputs[tile].nbytes
                if op >= self.workload.graph.num_ops and readers[tile] == consumers and fits:
                    placed[op] = tile
                    del readers[tile]
                    break
            else:
                raise InvalidProblemError(
                    f"problem {problem.name!r}, input op {op} ({graph.op_name(op)}): no other "
                    f"input tile of workload {self.workload.name!r} "
                    f"{'' if size is None else f'has {size:g} B and '}is read by exactly the ops "
                    f"{sorted(consumers)}"
                )
        return placed


class _CpuRun:
    """One run: the dispatcher, the lock around it, and what the threads record."""

    def __init__(
        self,
        executor: CpuExecutor,
        plan: DispatchPlan,
        crew: Crew,
        memories: list[EndpointMemory],
        placed: dict[int, int],
    ) -> None:
        self._executor = executor
        self._plan = plan
        self._crew = crew
        self._memories = memories
        self._run_kernel = executor.runner.run
        self._operand_keys = executor.operand_keys
        if placed:
            op_of = {~tile: op for op, tile in placed.items()}
            self._operand_keys = [
                tuple(op_of.get(key, key) for key in keys) for keys in executor.operand_keys
            ]
        for op, tile in placed.items():
            tensors = memories[plan.device_of[op]].tensors
            tensors[op] = tensors[~tile]
        self._dispatcher = Dispatcher(plan)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._failure: tuple[Task, BaseException] | None = None
        self._abandoned = False
        self._start = [0.0] * plan.num_ops
        self._finish = [0.0] * plan.num_ops
        self._hops: list[tuple[HopTask, float, float]] = []
        self._zero = 0.0

    def wait(self, timeout_s: float) -> None:
        """Starts the run and returns at its end.

        Raises:
            ExecutionError: a task failed, or the time is over.
        """
        self._zero = perf_counter()
        for op in self._plan.input_ops:
            self._start[op] = self._finish[op] = self._zero
        with self._lock:
            self._hand_out(self._dispatcher.begin(self._zero))
        deadline = monotonic() + timeout_s
        in_time = False
        while not in_time and (left := deadline - monotonic()) > 0:
            self._check_threads()
            in_time = self._over.wait(min(left, LOOK_SECONDS))
        if self._failure is not None:
            task, error = self._failure
            if isinstance(error, CapacityError):
                raise error
            what = "ran out of memory" if _is_out_of_memory(error) else "failed"
            raise ExecutionError(
                f"{self._describe(task)} {what}: {type(error).__name__}: {error}"
            ) from error
        if not in_time:
            with self._lock:
                running = self._dispatcher.running
            shown = "; ".join(self._describe(task) for task in running[:4]) or "nothing"
            raise ExecutionError(
                f"workload {self._plan.problem.name!r}: the run did not end within {timeout_s:g} s;"
                f" {self._dispatcher.unfinished} ops are unfinished, still running: {shown}"
            )

    def abandon(self) -> None:
        """Lets the threads start nothing more for this run."""
        with self._lock:
            self._abandoned = True

    def schedule(self) -> Schedule:
        """What the threads recorded, in seconds from the start of the run."""
        zero = self._zero
        return self._plan.schedule(
            np.array(self._start) - zero,
            np.array(self._finish) - zero,
            [(hop, start - zero, finish - zero) for hop, start, finish in self._hops],
            origin="measured",
            peak_bytes=self._dispatcher.peak_bytes,
        )

    def _check_threads(self) -> None:
        """Raises `ExecutionError` if a thread that this run needs has ended."""
        plan, crew = self._plan, self._crew
        dead, broken = crew.dead_devices(), crew.dead_links()
        if not (dead or broken):
            return
        with self._lock:
            tasks: list[Task] = self._dispatcher.running
        tasks = tasks + list(plan.op_tasks)  # a device without a running op: name its first one
        if not self._over.is_set():
            for task in tasks:
                if isinstance(task, OpTask) and task.device in dead:
                    raise ExecutionError(
                        f"{self._describe(task)} cannot go on: the device is gone, its worker "
                        "thread has ended"
                    )
                if isinstance(task, HopTask) and task.link in broken:
                    raise ExecutionError(
                        f"{self._describe(task)} cannot go on: the thread of link {task.link} has "
                        "ended"
                    )

    def run_op(self, task: OpTask, lane: Lane) -> None:
        """Job of a device lane."""
        if self._abandoned:
            return
        op = task.op
        try:
            tensors = self._memories[task.device].tensors
            start = perf_counter()
            operands = [tensors[key] for key in self._operand_keys[op]]
            output = self._run_kernel(op, operands)
            finish = perf_counter()
            del operands
            with self._lock:
                self._start[op] = start
                self._finish[op] = finish
                tensors[op] = output
                self._dispatcher.on_op_finished(op, finish)
                garbage = self._advance()
            del garbage  # large blocks go back to the system: not under the lock
        except BaseException as error:
            self._fail(task, error)

    def run_hop(self, hop: HopTask, lane: Lane) -> None:
        """Job of a link lane."""
        if self._abandoned:
            return
        try:
            source = self._memories[hop.source].tensors
            source_key = hop.op if hop.position == 0 else (hop.op, hop.target)
            tensor = source[source_key]
            memory = self._memories[hop.destination]
            buffer = memory.take_buffer(tensor)
            start = perf_counter()
            buffer.copy_(tensor)
            finish = perf_counter()
            del tensor
            with self._lock:
                if hop.position > 0:
                    self._memories[hop.source].give_buffer(source.pop(source_key))
                memory.tensors[hop.op if hop.last else (hop.op, hop.target)] = buffer
                self._hops.append((hop, start, finish))
                self._crew.idle[hop.link].append(lane)
                self._dispatcher.on_hop_finished(hop, finish)
                garbage = self._advance()
            del garbage
        except BaseException as error:
            self._fail(hop, error)

    def _advance(self) -> list[torch.Tensor]:
        """Starts what can start; returns dead outputs, for the caller to drop."""
        dispatcher = self._dispatcher
        if not self._abandoned:
            self._hand_out(dispatcher.start_tasks())
        garbage = []
        for copy in dispatcher.released:
            op, device = self._plan.copy_place(copy)
            tensor = self._memories[device].tensors.pop(op)
            if copy == op:
                garbage.append(tensor)
            else:
                self._memories[device].give_buffer(tensor)
        dispatcher.released.clear()
        if dispatcher.done:
            self._over.set()
        return garbage

    def _hand_out(self, tasks: list[Task]) -> None:
        for task in tasks:
            if isinstance(task, OpTask):
                self._crew.devices[task.device].put((self.run_op, task))
            else:
                self._crew.take_link_lane(task.link).put((self.run_hop, task))

    def _fail(self, task: Task, error: BaseException) -> None:
        with self._lock:
            self._abandoned = True
            if self._failure is None:
                self._failure = (task, error)
        self._over.set()

    def _describe(self, task: Task) -> str:
        kernels = self._executor.workload.kernels
        if isinstance(task, OpTask) and task.op < len(kernels):
            return self._plan.describe(task, kernels[task.op].signature)
        return self._plan.describe(task)


def _is_out_of_memory(error: BaseException) -> bool:
    """Torch's allocator raises a RuntimeError where Python has its MemoryError."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )
