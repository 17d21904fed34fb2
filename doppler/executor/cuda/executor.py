"""Work-conserving execution on GPUs: a stream per device, a copy stream per link, events between.

A thread hands out ops and copies and watches events for their ends; see `AheadDispatcher` for how
far ahead of the devices it is, `CudaRun` for life-times. Times are those of CUDA events, put on the
host's clock by an event per GPU at the start of each run.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from doppler.checks import whole_number
from doppler.errors import CapacityError, ConfigurationError, ExecutionError, InvalidProblemError
from doppler.executor.base import Executable, Executor
from doppler.executor.cpu.lanes import Lane
from doppler.executor.cuda.devices import COPIES, CudaDevices, becomes_reached, find_peers
from doppler.executor.cuda.run import CudaRun, DeviceState
from doppler.executor.cuda.streams import Streams, TorchStreams, is_out_of_memory
from doppler.executor.kernels import operand_keys
from doppler.executor.plan import DispatchPlan, OpTask, Task
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule

JOIN_SECONDS = 5.0
"""How long the end of a failed run waits for what the devices still do. [s]"""


class CudaExecutor(Executor):
    """Runs placements on CUDA devices.

    Devices are dealt to the GPUs in turn. Where there are more devices than GPUs, several *logical*
    devices share one: each has a stream and input tiles of its own, and the environment of every
    measurement says `logical_devices`; they compete for the GPU, so a calibration under load is
    needed to simulate them. A thread watches the devices without sleeping: leave it a core.

    Args:
        workload: its kernels must make their tensors on the device of their operands.
        num_devices: how many devices.
        gpus: which GPUs; None: all.
        depth: ops handed out per device and not finished: 1 starts each op after the end of the one
            before was noticed, 2 keeps one waiting behind the one that runs.
        copies: "auto" copies directly between GPUs that pass a self-test at the start, and over
            page-locked memory of the host between others; "staged" always does the latter.
        allow_tf32: whether float32 products may round their operands to TF32; off, since results
            would fail the check. Set for PyTorch as a whole while a run lasts.
        streams: stand-in for CUDA, for tests.
        **options: see `Executor`.

    Raises:
        ConfigurationError: no CUDA device; an unknown or impossible option.
        InvalidProblemError: see `Executor`; or devices with several compute slots, or inputs with a
            place of their own.
    """

    backend = "cuda"

    def __init__(
        self,
        workload: Executable,
        num_devices: int,
        *,
        gpus: Sequence[int] | None = None,
        depth: int = 2,
        copies: str = "auto",
        allow_tf32: bool = False,
        streams: Streams | None = None,
        **options: Any,
    ) -> None:
        num_devices = whole_number(num_devices, "num_devices", 1)
        self.depth = whole_number(depth, "executor=cuda, depth", 1)
        if copies not in COPIES:
            raise ConfigurationError(
                f"executor=cuda, copies: {copies!r} is unknown; known: {', '.join(COPIES)}"
            )
        self.copies = copies
        self.allow_tf32 = bool(allow_tf32)
        self.streams = TorchStreams() if streams is None else streams
        self.devices = CudaDevices.find(self.streams, num_devices, gpus)
        if options.get("problem") is None:
            options["problem"] = workload.problem(self.devices.topology())
        super().__init__(workload, num_devices, **options)
        self.peers = (
            find_peers(self.streams, self.devices.gpus)
            if copies == "auto"
            else frozenset[tuple[int, int]]()
        )
        self.operand_keys = operand_keys(workload)
        self.runners = [kernel.run for kernel in workload.kernels]
        self.clock_error = 0.0
        self._inputs: list[torch.Tensor] | None = workload.make_inputs(self.input_seed)
        self._state: DeviceState | None = None
        self._lane: Lane | None = None
        # Of runs whose work never ended: a device may still write to these tensors.
        self._lost: list[tuple[DeviceState, CudaRun]] = []
        self._poisoned: str | None = None

    def close(self) -> None:
        with self._serial:
            self._inputs = None
            self._state = None
            lane, self._lane = self._lane, None
            if lane is not None:
                lane.stop()
                lane.join(JOIN_SECONDS)
            if self._poisoned is None and not self._lost:  # it would wait for what hangs
                self.streams.release_memory()

    def environment(self) -> dict[str, Any]:
        pairs = sorted({(s, t) for s in self.devices.gpus for t in self.devices.gpus if s != t})
        return {
            **super().environment(),
            **self.devices.describe(),
            "queue_depth": self.depth,
            "peer_copies": {f"cuda{s}->cuda{t}": (s, t) in self.peers for s, t in pairs},
            "allow_tf32": self.allow_tf32,
            "cuda_version": torch.version.cuda,
            "clock": "CUDA events on time.perf_counter",
            "clock_error": self.clock_error,
        }

    def _renew_inputs(self) -> None:
        self._state = None

    def _check_problem(self, problem: PlacementProblem) -> None:
        super()._check_problem(problem)
        if (problem.topology.compute_slots > 1).any():
            raise InvalidProblemError(
                f"problem {problem.name!r}: executor=cuda runs one op at a time on a device, but "
                "some device has several compute slots"
            )
        if (problem.topology.link_ends >= self.num_devices).all(axis=1).any():
            raise InvalidProblemError(
                f"problem {problem.name!r}: executor=cuda copies to and from GPUs, but some link "
                "connects two hosts"
            )
        if problem.is_input_op.any():
            raise InvalidProblemError(
                f"problem {problem.name!r}: executor=cuda holds every input on every device; "
                "inputs with a place of their own run with executor=cpu"
            )

    def _execute(self, plan: DispatchPlan, outputs: dict[int, torch.Tensor] | None) -> Schedule:
        state, lane = self._ensure_state(plan)
        run = CudaRun(
            plan, self.streams, self.devices, state, self.runners, self.operand_keys, self.peers,
            self.depth,
        )  # fmt: skip
        try:
            with _tf32(self.allow_tf32):
                run.prepare()
                lane.put((run.drive, None))
                self._wait(run)
            schedule = run.schedule()
            if outputs is not None:
                for op in self.workload.output_ops:
                    tensor = state.tensors[plan.device_of[op]][op]
                    outputs[op] = self.streams.download(tensor)
        except BaseException as error:  # a failed run, and Ctrl-C while waiting
            self._recover(run, state, error)
            raise
        self.clock_error = run.clock_error
        state.clear()
        return schedule

    def _wait(self, run: CudaRun) -> None:
        """Returns at the end of a run.

        Raises:
            ExecutionError: a task failed, or the time is over.
        """
        in_time = run.ended.wait(self.timeout_s)
        if run.failure is not None:
            task, error = run.failure
            if isinstance(error, CapacityError):
                raise error
            what = "the run" if task is None else self._describe(run.plan, task)
            if is_out_of_memory(error):
                message = f"{what}: out of memory: {_first_line(error)}"
            else:
                message = f"{what} failed: {type(error).__name__}: {_first_line(error)}"
            raise ExecutionError(message) from error
        if not in_time:
            run.abandoned = True
            run.ended.wait(JOIN_SECONDS)
            running = [self._describe(run.plan, task) for task in run.in_flight()[:4]]
            raise ExecutionError(
                f"workload {run.plan.problem.name!r}: the run did not end within "
                f"{self.timeout_s:g} s; {run.dispatcher.unfinished} ops are unfinished, still "
                f"handed out: {'; '.join(running) or 'nothing'}"
            )

    def _ensure_state(self, plan: DispatchPlan) -> tuple[DeviceState, Lane]:
        if self._inputs is None:
            raise ExecutionError(f"the executor of {self.workload.name!r} is closed")
        if self._poisoned is not None:
            raise ExecutionError(_unusable(self._poisoned))
        if self._state is None:
            self._state = DeviceState(
                compute=[self.streams.make_stream(gpu) for gpu in self.devices.gpus],
                tensors=[self._upload_inputs(device) for device in range(self.num_devices)],
            )
        while len(self._state.tensors) < plan.problem.topology.num_endpoints:
            self._state.tensors.append({})  # hosts only pass tensors on
        if self._lane is None:
            self._lane = Lane("doppler-cuda-dispatch")
            self._lane.wait_until_ready()
        return self._state, self._lane

    def _upload_inputs(self, device: int) -> dict[Any, torch.Tensor]:
        assert self._inputs is not None
        gpu = self.devices.gpus[device]
        try:
            return {~tile: self.streams.upload(t, gpu) for tile, t in enumerate(self._inputs)}
        except RuntimeError as error:
            raise ExecutionError(
                f"input tiles on device {device} ({self._device_name(device)}): "
                f"{type(error).__name__}: {_first_line(error)}"
            ) from error

    def _recover(self, run: CudaRun, state: DeviceState, error: BaseException) -> None:
        """Ends a failed run: waits for the devices, frees its tensors, looks at what is left.

        Raises:
            ExecutionError: instead of `error`, where the devices can no longer be used.
        """
        run.abandoned = True
        lane, self._lane, self._state = self._lane, None, None
        assert lane is not None
        lane.stop()
        deadline = time.monotonic() + JOIN_SECONDS
        idle = lane.join(JOIN_SECONDS)
        try:
            if idle:
                idle = self._becomes_idle(state, deadline - time.monotonic())
            if not idle:
                self._lost.append((state, run))
                return
            cause = error if run.failure is None else run.failure[1]
            # Its frames hold operands; the caller may keep the error for long.
            traceback.clear_frames(cause.__traceback__)
            state.tensors.clear()
            self.streams.release_memory()
        except RuntimeError as broken:
            self._lost.append((state, run))
            self._poisoned = _first_line(broken)
            in_flight = [self._describe(run.plan, task) for task in run.in_flight()[:4]]
            raise ExecutionError(
                f"{error}; {_unusable(self._poisoned)}. Errors of GPUs show late, the cause may be "
                f"any op that was handed out: {'; '.join(in_flight)} (CUDA_LAUNCH_BLOCKING=1 shows "
                "which)"
            ) from error

    def _becomes_idle(self, state: DeviceState, seconds: float) -> bool:
        """Waits for the work in all streams; raises what the devices say of it."""
        events = []
        for stream in state.streams():
            event = self.streams.make_event()
            self.streams.record(event, stream)
            events.append(event)
        if not becomes_reached(self.streams, events, max(0.0, seconds)):
            return False
        for gpu in sorted(set(self.devices.gpus)):
            self.streams.synchronise(gpu)
        return True

    def _device_name(self, device: int) -> str:
        return f"{self.devices.names[device]}, {self.devices.gpu_names[device]}"

    def _describe(self, plan: DispatchPlan, task: Task) -> str:
        if not isinstance(task, OpTask):
            return plan.describe(task)
        name, kernel = plan.problem.graph.op_name(task.op), self.workload.kernels[task.op].signature
        return (
            f"op {task.op} ({name}), kernel {kernel!r}, on device {task.device} "
            f"({self._device_name(task.device)})"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _unusable(reason: str) -> str:
    return f"the CUDA context is unusable after {reason!r}: start a new process"


@contextmanager
def _tf32(allow: bool) -> Iterator[None]:
    """Lets float32 products use TF32 or not, and sets back what was set before."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = allow
    try:
        yield
    finally:
        matmul.allow_tf32 = before
