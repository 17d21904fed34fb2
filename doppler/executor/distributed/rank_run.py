"""What one rank does in a run: its ops on one thread, and a thread per rank for each direction.

A transfer is two messages on a directed link: a header that says which tensor comes, in what shape
and since when, and the tensor itself. The receiver takes the header first and so needs neither
to know the order of arrival nor to hold buffers for what is still far away. Small tensors travel
in the header, which saves them a round trip. The transport starts to move a message when both
ends have asked for it, and a thread waits for one message only, hence no order of sends and
arrivals can deadlock.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from doppler.errors import CapacityError, ExecutionError
from doppler.executor.base import Executable
from doppler.executor.cpu.lanes import Lane
from doppler.executor.cpu.memories import EndpointMemory
from doppler.executor.distributed import rank_clock
from doppler.executor.distributed.rank_dispatcher import RankDispatcher
from doppler.executor.kernels import KernelRunner, operand_keys
from doppler.executor.plan import DispatchPlan, HopTask, OpTask, Task

_HEADER_TAG, _TENSOR_TAG = 1, 2
_HEADER_WORDS = 16
_INLINE_BYTES = 1920
"""Tensors of up to this size travel in the header message, which always is of one size. [B]"""
_MESSAGE_WORDS = _HEADER_WORDS + _INLINE_BYTES // 8
_MOST_DIMENSIONS = _HEADER_WORDS - 5
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip


@dataclass
class RankTrace:
    """What one rank saw of a run, in seconds of its own clock.

    Args:
        rank: who.
        begin: when it began.
        ops: which it ran, with `starts` and `finishes`. # (ops,)
        arrivals: (index of the transfer in the plan, start in the sender's clock, finish).
        peak_bytes: of its device, None where unknown. [B]
        outputs: of the workload's output ops on this rank, where they were asked for.
    """

    rank: int
    begin: float
    ops: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    finishes: list[float] = field(default_factory=list)
    arrivals: list[tuple[int, float, float]] = field(default_factory=list)
    peak_bytes: float | None = None
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass
class RankFailure:
    """Why a rank cannot go on.

    Args:
        rank: who.
        message: what failed, with op and device.
        kind: "kernel", "memory", "setup" or "transfer"; a transfer fails as well where the rank at
            its other end died.
        details: the traceback.
    """

    rank: int
    message: str
    kind: str
    details: str = ""


class Rank:
    """The threads, tensors and kernels of one rank; they outlive its runs.

    Args:
        workload: what runs.
        input_seed: of the workload's input tensors.
        group: the process group of all ranks.
        status: where to publish the running op, -1 for none; read when this process is dead.
            # (world,)
    """

    def __init__(
        self,
        workload: Executable,
        input_seed: int,
        group: dist.ProcessGroup,
        status: np.ndarray,
    ) -> None:
        self.workload = workload
        self.group = group
        self.rank = group.rank()
        self.status = status
        self.operand_keys = operand_keys(workload)
        self.runner = KernelRunner(workload)
        self._input_seed = input_seed
        self.renew_inputs()
        self.compute = Lane(f"doppler-rank-{self.rank}")
        others = [r for r in range(group.size()) if r != self.rank]
        self.senders = {r: Lane(f"doppler-send-{self.rank}-{r}") for r in others}
        self.receivers = {r: Lane(f"doppler-receive-{r}-{self.rank}") for r in others}
        for lane in self._lanes():
            lane.wait_until_ready()

    def renew_inputs(self) -> None:
        """Draws the input tiles anew and drops all else."""
        self.memory = EndpointMemory(self.workload.make_inputs(self._input_seed))

    def stop(self, timeout: float) -> None:
        """Ends the threads."""
        for lane in self._lanes():
            lane.stop()
        for lane in self._lanes():
            lane.join(timeout)

    def _lanes(self) -> list[Lane]:
        return [self.compute, *self.senders.values(), *self.receivers.values()]


class RankRun:
    """One run of a plan on one rank.

    Args:
        rank: the threads and tensors.
        plan: the same on every rank.
        keep_outputs: whether the trace carries the outputs of `workload.output_ops`.
        report: called once, from any thread, with the trace or with why there is none.
    """

    def __init__(
        self,
        rank: Rank,
        plan: DispatchPlan,
        keep_outputs: bool,
        report: Callable[[RankTrace | RankFailure], None],
    ) -> None:
        self._rank = rank
        self._plan = plan
        self._keep_outputs = keep_outputs
        self._report = report
        self._dispatcher = RankDispatcher(plan, rank.rank)
        self._lock = threading.Lock()
        self._over = False
        self._trace = RankTrace(rank.rank, 0.0)

    def begin(self) -> None:
        """Starts the run and returns."""
        for source, count in enumerate(self._dispatcher.incoming):
            if count:
                self._rank.receivers[source].put((self._receive, (source, count)))
        with self._lock:
            self._trace.begin = rank_clock.now()
            self._hand_out(self._dispatcher.begin(self._trace.begin))
            over = self._ends()
        if over:
            self._finish()

    def state(self) -> str:
        """What this rank is at, for a message."""
        with self._lock:
            running, left = self._dispatcher.running_ops(), self._dispatcher.unfinished
        if running:
            shown = ", ".join(describe_op(self._plan, self._rank.workload, op) for op in running)
        else:
            shown = f"nothing on {describe_device(self._plan, self._rank.rank)}"
        return f"{shown} ({left} ops of this rank are unfinished)"

    def _run_op(self, task: OpTask, lane: Lane) -> None:
        """Job of the compute lane."""
        rank, op = self._rank, task.op
        try:
            tensors = rank.memory.tensors
            rank.status[rank.rank] = op
            start = rank_clock.now()
            operands = [tensors[key] for key in rank.operand_keys[op]]
            output = rank.runner.run(op, operands)
            finish = rank_clock.now()
            rank.status[rank.rank] = -1
            del operands
        except BaseException as error:
            what = describe_op(self._plan, rank.workload, op)
            self._fail(f"{what} failed: {type(error).__name__}: {error}", "kernel", error)
            return
        try:
            with self._lock:
                tensors[op] = output
                self._trace.ops.append(op)
                self._trace.starts.append(start)
                self._trace.finishes.append(finish)
                self._dispatcher.on_op_finished(op, finish)
                garbage, over = self._advance()
            del garbage, output  # large blocks go back to the system: not under the lock
            if over:
                self._finish()
        except BaseException as error:
            self._fail_after(error)

    def _send(self, hop: HopTask, lane: Lane) -> None:
        """Job of a sending lane."""
        group = self._rank.group
        try:
            tensor = self._rank.memory.tensors[hop.op].contiguous()
            header = _encode(hop.transfer.copy - self._plan.num_ops, rank_clock.now(), tensor)
            sends = [group.send([header], hop.target, _HEADER_TAG)]
            if tensor.nbytes > _INLINE_BYTES:
                sends.append(group.send([tensor], hop.target, _TENSOR_TAG))
            for send in sends:
                send.wait()
            del tensor
            with self._lock:
                self._dispatcher.on_sent(hop)
                garbage, over = self._advance()
            del garbage
            if over:
                self._finish()
        except BaseException as error:
            self._fail_after(error, f"sending the output of {self._tensor_name(hop.op)} to "
                                    f"{describe_device(self._plan, hop.target)}")  # fmt: skip

    def _receive(self, task: tuple[int, int], lane: Lane) -> None:
        """Job of a receiving lane: all tensors of this run that come from one rank."""
        source, count = task
        rank, plan = self._rank, self._plan
        header = torch.empty(_MESSAGE_WORDS, dtype=torch.int64)
        coming = "a tensor"
        try:
            for _ in range(count):
                rank.group.recv([header], source, _HEADER_TAG).wait()
                index, start, shape, dtype = _decode(header)
                transfer = plan.transfers[index]
                coming = f"the output of {self._tensor_name(transfer.op)}"
                with self._lock:
                    self._dispatcher.on_arrival_started(transfer)
                    buffer = rank.memory.take_buffer(torch.empty(shape, dtype=dtype, device="meta"))
                if buffer.nbytes > _INLINE_BYTES:
                    rank.group.recv([buffer], source, _TENSOR_TAG).wait()
                else:
                    _bytes_of(buffer).copy_(_inline_part(header, buffer.nbytes))
                finish = rank_clock.now()
                with self._lock:
                    rank.memory.tensors[transfer.op] = buffer
                    self._trace.arrivals.append((index, start, finish))
                    self._dispatcher.on_arrival(transfer, finish)
                    garbage, over = self._advance()
                del garbage, buffer
                if over:
                    self._finish()
                coming = "a tensor"
        except BaseException as error:
            self._fail_after(error, f"receiving {coming} from {describe_device(plan, source)}")

    def _advance(self) -> tuple[list[torch.Tensor], bool]:
        """Starts what can start; returns dead outputs, for the caller to drop, and the end."""
        if not self._over:
            self._hand_out(self._dispatcher.start_tasks())
        garbage = []
        for copy in self._dispatcher.released:
            tensor = self._rank.memory.tensors.pop(self._plan.copy_place(copy)[0])
            if copy < self._plan.num_ops:
                garbage.append(tensor)
            else:
                self._rank.memory.give_buffer(tensor)
        self._dispatcher.released.clear()
        return garbage, self._ends()

    def _ends(self) -> bool:
        """Whether this is the end of the run; True once only."""
        if self._over or not self._dispatcher.done:
            return False
        self._over = True
        return True

    def _hand_out(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if isinstance(task, OpTask):
                self._rank.compute.put((self._run_op, task))
            else:
                self._rank.senders[task.target].put((self._send, task))

    def _finish(self) -> None:
        rank, trace = self._rank, self._trace
        trace.peak_bytes = self._dispatcher.peak_bytes
        if self._keep_outputs:
            for op in rank.workload.output_ops:
                if self._plan.device_of[op] == rank.rank:
                    trace.outputs[op] = rank.memory.tensors[op].clone()
        rank.memory.clear()
        self._report(trace)

    def _fail_after(self, error: BaseException, doing: str = "dispatching") -> None:
        if isinstance(error, CapacityError):
            self._fail(str(error), "memory", error)
            return
        where = describe_device(self._plan, self._rank.rank)
        self._fail(f"{where}, {doing} failed: {type(error).__name__}: {error}", "transfer", error)

    def _fail(self, message: str, kind: str, error: BaseException) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        details = "".join(traceback.format_exception(error))
        self._report(RankFailure(self._rank.rank, message, kind, details))

    def _tensor_name(self, op: int) -> str:
        return f"op {op} ({self._plan.problem.graph.op_name(op)})"


def describe_op(plan: DispatchPlan, workload: Executable, op: int) -> str:
    """Op, kernel and device, for messages."""
    name, kernel = plan.problem.graph.op_name(op), workload.kernels[op].signature
    where = describe_device(plan, plan.device_of[op])
    return f"op {op} ({name}), kernel {kernel!r}, on {where}"


def describe_device(plan: DispatchPlan, device: int) -> str:
    """Device and rank, which have the same number, for messages."""
    return f"device {device} ({plan.problem.topology.devices[device].name}, rank {device})"


def _encode(index: int, start: float, tensor: torch.Tensor) -> torch.Tensor:
    """Header of a transfer: which, since when, what kind of tensor, and a small one itself.

    Returns:
        # (_MESSAGE_WORDS,)
    """
    if tensor.dim() > _MOST_DIMENSIONS or tensor.dtype not in _DTYPES:
        raise ExecutionError(
            f"a tensor of {tensor.dim()} dimensions and {tensor.dtype} cannot be sent; ranks send "
            f"up to {_MOST_DIMENSIONS} dimensions of {', '.join(map(str, _DTYPES))}"
        )
    words: list[Any] = [index, round(start * 1e9), _DTYPES.index(tensor.dtype), tensor.dim()]
    words += tensor.shape
    message = torch.empty(_MESSAGE_WORDS, dtype=torch.int64)
    message[: len(words)] = torch.tensor(words, dtype=torch.int64)
    if tensor.nbytes <= _INLINE_BYTES:
        _inline_part(message, tensor.nbytes).copy_(_bytes_of(tensor))
    return message


def _decode(message: torch.Tensor) -> tuple[int, float, torch.Size, torch.dtype]:
    index, start, dtype, dimensions, *shape = message[:_HEADER_WORDS].tolist()
    return index, start / 1e9, torch.Size(shape[:dimensions]), _DTYPES[dtype]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor. # (nbytes,)"""
    return tensor.reshape(-1).view(torch.uint8)


def _inline_part(message: torch.Tensor, nbytes: int) -> torch.Tensor:
    """Where a small tensor lies in a header message. # (nbytes,)"""
    begin = 8 * _HEADER_WORDS
    return message.view(torch.uint8)[begin : begin + nbytes]
