"""Work-conserving execution on CPU devices: a worker thread per device, copies on link threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from doppler.errors import CapacityError, ExecutionError
from doppler.executor.base import Executable, Executor
from doppler.executor.dispatcher import Dispatcher, DispatchPlan, HopTask, OpTask, Task
from doppler.executor.lanes import Crew, Lane
from doppler.schedule import Schedule

JOIN_SECONDS = 5.0
"""How long the end of a failed run or of the executor waits for kernels that still run. [s]"""


class EndpointMemory:
    """One device's (or host's) own tensors: input tiles, outputs and arrived copies.

    Args:
        inputs: copied, so that no two devices share a page.

    Attributes:
        tensors: by key: op id for an op's output, ~tile (negative) for an input tile, and
            (op, target) for a tensor that a host passes on.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self.tensors: dict[Any, torch.Tensor] = {
            ~tile: tensor.clone() for tile, tensor in enumerate(inputs)
        }
        self._num_inputs = len(self.tensors)
        self._buffers: dict[torch.Size, list[torch.Tensor]] = {}

    def take_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """A buffer for an arriving tensor, from an earlier arrival of that shape if there is one.

        Fresh pages would cost more than the copy into them.
        """
        buffers = self._buffers.get(like.shape)
        if buffers:
            return buffers.pop()
        return torch.empty(like.shape, dtype=like.dtype)

    def give_buffer(self, buffer: torch.Tensor) -> None:
        self._buffers.setdefault(buffer.shape, []).append(buffer)

    def clear(self) -> None:
        """Drops everything but the input tiles and the idle buffers."""
        if len(self.tensors) > self._num_inputs:
            self.tensors = {
                key: tensor
                for key, tensor in self.tensors.items()
                if isinstance(key, int) and key < 0
            }


class CpuExecutor(Executor):
    """Runs placements on CPU threads that stand for devices.

    A device is a worker thread with one torch intra-op thread and its own copies of the input
    tiles; a directed link is a thread that copies between the memories of two devices. There is no
    dispatcher thread: the thread that finishes a task takes its end in and hands out what starts
    now, under one lock, which saves a hand-off per op. The caller's thread only waits.
    Other settings of the process, torch's threads among them, stay as they are; garbage collection
    is paused during a run. See `Executor` for the arguments.
    """

    backend = "cpu"
    default_topology = "cpu"

    def __init__(self, workload: Executable, num_devices: int, **options: Any) -> None:
        super().__init__(workload, num_devices, **options)
        self.operand_keys = [
            tuple(index if kind == "op" else ~index for kind, index in operands)
            for operands in workload.operands
        ]
        self.runners = [kernel.run for kernel in workload.kernels]
        # Whether an op's output shares memory with an operand, known after its first run.
        self.aliasing: list[bool | None] = [None] * workload.graph.num_ops
        self._inputs: list[torch.Tensor] | None = workload.make_inputs(self.input_seed)
        self._memories: list[EndpointMemory] = []
        self._crew: Crew | None = None
        self._closed = False

    def close(self) -> None:
        with self._serial:  # a run of another thread ends first
            self._closed = True
            self._dismiss_crew()
            self._inputs = None

    def _renew_inputs(self) -> None:
        self._dismiss_crew()

    def _execute(self, plan: DispatchPlan, outputs: dict[int, torch.Tensor] | None) -> Schedule:
        crew = self._ensure_crew(plan)
        run = _CpuRun(self, plan, crew, self._memories)
        try:
            run.wait(self.timeout_s)
        except BaseException:  # a failed run, and Ctrl-C while waiting
            run.abandon()
            self._dismiss_crew()
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
            self._crew = Crew(self.num_devices)
            self._memories = [EndpointMemory(self._inputs) for _ in range(self.num_devices)]
        while len(self._memories) < plan.problem.topology.num_endpoints:
            self._memories.append(EndpointMemory(()))  # hosts only pass tensors on
        for transfer in plan.transfers:
            for link in transfer.route:
                self._crew.prepare_link(link)
        return self._crew

    def _dismiss_crew(self) -> None:
        """Ends the threads and drops the memories, which a stuck kernel may still write to."""
        crew, self._crew, self._memories = self._crew, None, []
        if crew is not None:
            crew.stop(JOIN_SECONDS)


class _CpuRun:
    """One run: the dispatcher, the lock around it, and what the threads record."""

    def __init__(
        self,
        executor: CpuExecutor,
        plan: DispatchPlan,
        crew: Crew,
        memories: list[EndpointMemory],
    ) -> None:
        self._executor = executor
        self._plan = plan
        self._crew = crew
        self._memories = memories
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
        with self._lock:
            self._hand_out(self._dispatcher.begin(self._zero))
        in_time = self._over.wait(timeout_s)
        if self._failure is not None:
            task, error = self._failure
            if isinstance(error, CapacityError):
                raise error
            raise ExecutionError(
                f"{self._describe(task)} failed: {type(error).__name__}: {error}"
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
        plan = self._plan
        hops = [hop for hop, _, _ in self._hops]
        times = np.array([(start, finish) for _, start, finish in self._hops]).reshape(-1, 2)
        return Schedule(
            problem=plan.problem,
            devices=plan.devices,
            start=np.array(self._start) - self._zero,
            finish=np.array(self._finish) - self._zero,
            transfer_ops=np.array([hop.op for hop in hops], np.int64),
            transfer_targets=np.array([hop.target for hop in hops], np.int64),
            transfer_links=np.array([hop.link for hop in hops], np.int64),
            transfer_start=times[:, 0] - self._zero,
            transfer_finish=times[:, 1] - self._zero,
            network=plan.network,
            choose=plan.choose,
            order=plan.order,
            origin="measured",
            peak_bytes=self._dispatcher.peak_bytes,
        )

    def run_op(self, task: OpTask, lane: Lane) -> None:
        """Job of a device lane."""
        if self._abandoned:
            return
        op = task.op
        try:
            tensors = self._memories[task.device].tensors
            start = perf_counter()
            operands = [tensors[key] for key in self._executor.operand_keys[op]]
            output = self._executor.runners[op](operands)
            if self._executor.aliasing[op] is not False:
                output = self._own(op, output, operands)
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

    def _own(self, op: int, output: torch.Tensor, operands: list[torch.Tensor]) -> torch.Tensor:
        """Copies an output that is a view of an operand: the operand's buffer is used again."""
        if self._executor.aliasing[op] is None:
            storage = output.untyped_storage().data_ptr()
            self._executor.aliasing[op] = any(
                storage == operand.untyped_storage().data_ptr() for operand in operands
            )
        return output.clone() if self._executor.aliasing[op] else output

    def _fail(self, task: Task, error: BaseException) -> None:
        with self._lock:
            self._abandoned = True
            if self._failure is None:
                self._failure = (task, error)
        self._over.set()

    def _describe(self, task: Task) -> str:
        problem = self._plan.problem
        topology, name = problem.topology, problem.graph.op_name(task.op)
        if isinstance(task, OpTask):
            kernel = self._executor.workload.kernels[task.op].signature
            device = topology.devices[task.device].name
            return f"op {task.op} ({name}), kernel {kernel!r}, on device {task.device} ({device})"
        return (
            f"transfer of op {task.op} ({name}) from {topology.endpoint_name(task.source)} to "
            f"{topology.endpoint_name(task.destination)}"
        )
