"""Emulated devices: real dispatch, but an op or a transfer is a sleep of the cost model's length.

For machines that are not here: whatever a dispatcher meets (completions in no particular order,
priorities, contended links, full memories) happens in real time, only nothing is computed. One
thread, the caller's, holds all deadlines in a heap and sleeps until the next; 64 devices cost it no
more than 2. Where the machine takes that thread's CPU away, the emulated clock stands still. How
late completions were taken in, and how long the clock stood, is recorded, so that everyone can see
how far an emulated makespan can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from time import perf_counter, sleep, thread_time
from typing import Any, Protocol

import numpy as np
import torch

from doppler.checks import number, whole_number
from doppler.errors import ConfigurationError, ExecutionError
from doppler.executor.base import Executable, ExecutableKernel, Executor, PlacementLike, Progress
from doppler.executor.dispatcher import Dispatcher
from doppler.executor.environment import describe_environment
from doppler.executor.plan import DispatchPlan, HopTask, OpTask, Task
from doppler.executor.result_check import ResultCheck
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Topology
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule
from doppler.simulator.noise import NoiseModel
from doppler.simulator.simulator import draw_factors

SPIN_SECONDS = 2e-4
"""The end of a wait that is spun: the system wakes a sleeper about 0.1 ms late. [s]"""

STALL_SECONDS = 5e-4
"""Not being woken, or not being run, for longer is a stall: the machine was busy otherwise. [s]"""


class Clock(Protocol):
    """Tells and passes the time. [s]"""

    def now(self) -> float: ...

    def sleep_until(self, deadline: float) -> None: ...


class SystemClock:
    """The monotonic clock; sleeps first, then spins."""

    def now(self) -> float:
        return perf_counter()

    def sleep_until(self, deadline: float) -> None:
        ahead = deadline - SPIN_SECONDS - perf_counter()
        if ahead > 0:
            sleep(ahead)
        while perf_counter() < deadline:
            pass


@dataclass(frozen=True)
class Lateness:
    """How late completions were taken in, in the schedule's seconds (`time_scale` divided out).

    Starts wait for what was taken in late, so that a chain of n ops is about n medians longer than
    it should be.

    Args:
        median: [s]
        max: [s]
        completions: how many there were, of ops and of hops.
        stalls: how often the clock stood still because nobody woke the dispatcher.
        stalled: how long altogether; not in the schedule. [s]
    """

    median: float
    max: float
    completions: int
    stalls: int
    stalled: float

    @classmethod
    def of(cls, late: Sequence[float], stalls: Sequence[float]) -> Lateness:
        """Summarises; without completions all is 0."""
        median, latest = (float(np.median(late)), float(np.max(late))) if late else (0.0, 0.0)
        return cls(median, latest, len(late), len(stalls), float(np.sum(stalls)))


@dataclass(frozen=True, eq=False)
class KernelFree:
    """A problem in the place of a workload, for executors that compute nothing."""

    subject: PlacementProblem
    kernels: tuple[ExecutableKernel, ...] = ()
    operands: tuple[tuple[tuple[str, int], ...], ...] = ()
    output_ops: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return self.subject.name

    @property
    def graph(self) -> DataflowGraph:
        return self.subject.graph

    def make_inputs(self, seed: int) -> list[torch.Tensor]:
        return []

    def reference(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {}

    def collect(self, op_outputs: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {}

    def problem(self, topology: Topology, cost_model: CostModel | None = None) -> PlacementProblem:
        return self.subject


class EmulatedExecutor(Executor):
    """Runs placements on devices that only sleep; schedules have the origin "emulated".

    An op or hop finishes at its deadline, start plus the cost model's seconds; what waits for it
    starts when the dispatcher has taken that in. A stall, that is a wake-up `STALL_SECONDS` late or
    as long without the processor amid dispatching, stops the emulated clock, so that it delays all
    devices and links alike; a dispatcher with too much to do does not. Tasks that are handed out
    together start at the moment at which the dispatcher looked at the clock, since on real devices
    its work is not done by one thread for all of them. Memory is counted as the simulator does.

    Args:
        workload: a workload, or a problem alone: kernels are not needed.
        num_devices: how many devices; None: those of the problem.
        time_scale: emulated seconds last this many real ones; schedules are scaled back. Large
            costs need less than 1 to be done soon, tiny ones more than 1 to be accurate.
        noise: factors on durations, drawn anew for each run; None for none.
        noise_seed: of the draws: run r of this executor has the seed that the simulator's
            `replication_seeds(noise_seed, ...)` have at place r.
        clock: the machine's unless a test brings its own.
        **options: as for `Executor`.

    Raises:
        ConfigurationError, InvalidProblemError: as for `Executor`.
    """

    backend = "emulated"
    computes = False

    def __init__(
        self,
        workload: Executable | PlacementProblem,
        num_devices: int | None = None,
        *,
        time_scale: float = 1.0,
        noise: NoiseModel | None = None,
        noise_seed: int = 0,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        if isinstance(workload, PlacementProblem):
            options.setdefault("problem", workload)
            workload = KernelFree(workload)
        if num_devices is None:
            stated = options.get("problem")
            if stated is None:
                raise ConfigurationError("emulated executor, num_devices: give it, or a problem")
            num_devices = stated.num_devices
        super().__init__(workload, num_devices, **options)
        self.time_scale = number(
            time_scale, "emulated executor, time_scale", ConfigurationError, above=True
        )
        if noise is not None and not isinstance(noise, NoiseModel):
            raise ConfigurationError(f"noise is {noise!r}, not a NoiseModel or None")
        self.noise = noise
        self.noise_seed = whole_number(noise_seed, "noise_seed", 0)
        self._clock = SystemClock() if clock is None else clock
        self._runs = 0
        self._last: tuple[list[float], list[float]] = ([], [])
        self._measured: tuple[list[float], list[float]] = ([], [])
        self._closed = False

    @property
    def lateness(self) -> Lateness:
        """Of the latest run."""
        return Lateness.of(*self._last)

    def check(self, placement: PlacementLike) -> ResultCheck:
        """Refuses.

        Raises:
            ConfigurationError: always; nothing is computed.
        """
        raise ConfigurationError(
            f"{self.workload.name!r} is emulated: ops sleep and compute nothing, so there are no "
            "results to check; use executor=cpu"
        )

    def environment(self) -> dict[str, Any]:
        """As for `Executor`, with how late the latest run or, after `measure`, its runs were."""
        late = Lateness.of(*(self._measured if self._measured[0] else self._last))
        names = [device.name for device in self.problem.topology.devices]
        return {
            **describe_environment(self.backend, self.num_devices, names),
            "threads_per_device": 0,
            "costs": self.problem.cost_model.source,
            "time_scale": self.time_scale,
            "lateness_median_s": late.median,
            "lateness_max_s": late.max,
            "lateness_completions": late.completions,
            "stalls": late.stalls,
            "stalled_s": late.stalled,
        }

    def close(self) -> None:
        with self._serial:
            self._closed = True

    def _renew_inputs(self) -> None:
        """There are none."""

    def _kept(self) -> tuple[int, ...]:
        return ()  # nobody reads results, so memory is the simulator's

    def _measure_rounds(
        self, plans: list[DispatchPlan], repeats: int, warmup: int, progress: Progress | None
    ) -> list[list[Schedule]]:
        first_measured = self._runs + warmup * len(plans)
        late: list[float] = []
        stalls: list[float] = []

        def watch(done: int, total: int) -> None:
            if self._runs > first_measured:
                late.extend(self._last[0])
                stalls.extend(self._last[1])
            if progress is not None:
                progress(done, total)

        schedules = super()._measure_rounds(plans, repeats, warmup, watch)
        self._measured = (late, stalls)
        return schedules

    def _execute(self, plan: DispatchPlan, outputs: dict[int, torch.Tensor] | None) -> Schedule:
        if self._closed:
            raise ExecutionError(f"the executor of {self.workload.name!r} is closed")
        seeds = np.random.SeedSequence((self.noise_seed, self._runs))
        seed = int(seeds.generate_state(1, np.uint64)[0] >> 1)
        self._runs += 1
        self._measured = ([], [])
        run = _EmulatedRun(self, plan, seed)
        schedule = run.run(self._clock, self.timeout_s)
        self._last = (run.late, run.stalls)
        return schedule


class _EmulatedRun:
    """One run; times are real seconds since its start until `run` scales them back."""

    def __init__(self, executor: EmulatedExecutor, plan: DispatchPlan, noise_seed: int) -> None:
        self._plan = plan
        self._scale = executor.time_scale
        self._dispatcher = Dispatcher(plan)
        costs = plan.problem.cost_model
        factors = draw_factors(executor.noise, plan.problem, noise_seed)
        seconds = costs.op_seconds[np.arange(plan.num_ops), plan.devices]
        if factors.ops.size:
            seconds = seconds * factors.ops
        self._op_seconds: list[float] = seconds.tolist()
        self._hop_factors = factors.transfers
        self._volume: list[float] = costs.transfer_volume.tolist()
        self._latency: list[float] = costs.link_latency.tolist()
        self._rate: list[float] = costs.link_seconds_per_unit.tolist()
        self._start = [0.0] * plan.num_ops
        self._finish = [0.0] * plan.num_ops
        self._hops: list[tuple[HopTask, float, float]] = []
        self.late: list[float] = []  # [s] of the schedule
        self.stalls: list[float] = []  # [s] of the schedule
        self._zero = 0.0

    def run(self, clock: Clock, timeout_s: float) -> Schedule:
        """Waits for one deadline after the other.

        Raises:
            ExecutionError: the next deadline is behind the time-out.
            CapacityError: a tensor would not fit on its device.
        """
        dispatcher = self._dispatcher
        began = woken = clock.now()
        self._zero, now, count = began, 0.0, 0
        pending: list[tuple[float, int, Task]] = []
        used = thread_time()
        tasks = dispatcher.begin(now)
        while True:
            for task in tasks:
                finish = now + self._seconds(task) * self._scale
                self._record(task, now, finish)
                heappush(pending, (finish, count, task))
                count += 1
            if not pending:
                return self._schedule()
            first = pending[0][0]
            if self._zero + first - began > timeout_s:
                raise self._overdue(timeout_s)
            done = clock.now()
            self._stop_clock((done - woken) - (thread_time() - used))
            clock.sleep_until(self._zero + first)
            woken = clock.now()
            self._stop_clock(woken - max(self._zero + first, done))
            used = thread_time()
            now = max(first, woken - self._zero)
            while pending and pending[0][0] <= now:
                finish, _, task = heappop(pending)
                self.late.append((now - finish) / self._scale)
                if isinstance(task, OpTask):
                    dispatcher.on_op_finished(task.op, finish)
                else:
                    dispatcher.on_hop_finished(task, finish)
            tasks = dispatcher.start_tasks()
            dispatcher.released.clear()

    def _stop_clock(self, lost: float) -> None:
        """Moves the start of the run, and with it all deadlines, by what a stall took. [s]"""
        if lost > STALL_SECONDS:
            self._zero += lost
            self.stalls.append(lost / self._scale)

    def _seconds(self, task: Task) -> float:
        if isinstance(task, OpTask):
            return self._op_seconds[task.op]
        seconds = self._latency[task.link] + self._volume[task.op] * self._rate[task.link]
        if self._hop_factors.size:
            seconds *= float(self._hop_factors[task.op, task.target])
        return seconds

    def _record(self, task: Task, start: float, finish: float) -> None:
        if isinstance(task, OpTask):
            self._start[task.op] = start
            self._finish[task.op] = finish
        else:
            self._hops.append((task, start, finish))

    def _overdue(self, timeout_s: float) -> ExecutionError:
        dispatcher, plan = self._dispatcher, self._plan
        shown = "; ".join(plan.describe(task) for task in dispatcher.running[:4])
        return ExecutionError(
            f"problem {plan.problem.name!r}: the emulated run does not end within {timeout_s:g} s; "
            f"{dispatcher.unfinished} ops are unfinished, still running: {shown}. Lower time_scale "
            "or raise timeout_s"
        )

    def _schedule(self) -> Schedule:
        return self._plan.schedule(
            np.array(self._start) / self._scale,
            np.array(self._finish) / self._scale,
            [(hop, start / self._scale, finish / self._scale) for hop, start, finish in self._hops],
            origin="emulated",
            peak_bytes=self._dispatcher.peak_bytes,
        )
