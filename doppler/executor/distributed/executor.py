"""Work-conserving execution by one process per device, through `torch.distributed`."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from doppler.errors import CapacityError, ConfigurationError, ExecutionError
from doppler.executor.base import Executable, Executor
from doppler.executor.distributed.fleet import Fleet, LocalFleet
from doppler.executor.distributed.rank_clock import ClockOffset
from doppler.executor.distributed.rank_dispatcher import check_distributed
from doppler.executor.distributed.rank_run import (
    RankFailure,
    RankTrace,
    describe_device,
    describe_op,
)
from doppler.executor.plan import DispatchPlan, HopTask
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule

PREPARE_SECONDS = 120.0
"""How long ranks may take to draw their inputs and to get a run ready. [s]"""
GRACE_SECONDS = 0.5
"""A broken transfer may be the first sign of a rank that died: how long to wait for the cause."""
STATE_SECONDS = 1.0
"""How long ranks of a run that took too long have to say what they are at. [s]"""


class DistributedExecutor(Executor):
    """Runs placements on processes, one per device, which send tensors to one another.

    There is no central dispatcher: device r is rank r, every rank knows the placement and decides
    for its own device and its outgoing links what starts next (`RankDispatcher`). This process only
    says when a run begins and puts the ranks' traces together. Without `fleet` it starts the ranks
    on this machine, on gloo over the loopback interface, with the first run; they serve until
    `close` and are started anew after a fault.

    The kernels must be picklable, and modules that they come from importable by another process.
    Under `timeout_s` falls the run itself, not the starting of processes. See `Executor` for the
    other arguments.

    Args:
        fleet: other processes than those, see `JoinedFleet`.

    Raises:
        ConfigurationError: another network than `serial_links`, routes over several links, several
            compute slots, inputs with a place of their own, a workload that cannot be pickled, or
            a torch without gloo.
    """

    backend = "distributed"
    default_topology = "cpu"

    def __init__(
        self,
        workload: Executable,
        num_devices: int,
        *,
        fleet: Fleet | None = None,
        **options: Any,
    ) -> None:
        super().__init__(workload, num_devices, **options)
        try:
            self._setup = pickle.dumps(
                ("setup", {"workload": workload, "input_seed": self.input_seed})
            )
        except Exception as error:
            raise ConfigurationError(
                f"executor=distributed, workload {workload.name!r} cannot be sent to other "
                f"processes: {error}"
            ) from error
        self.fleet = LocalFleet(self.num_devices) if fleet is None else fleet
        if self.fleet.world != self.num_devices:
            raise ConfigurationError(
                f"executor=distributed, num_devices: {self.num_devices} devices need as many "
                f"processes, there are {self.fleet.world}"
            )
        self.offsets: list[ClockOffset] = []
        self._known_problem: PlacementProblem | None = None
        self._renew = False
        self._closed = False

    def close(self) -> None:
        with self._serial:  # a run of another thread ends first
            self._closed = True
            self.fleet.close()

    def environment(self) -> dict[str, Any]:
        """As every executor's, plus the ranks and how well their clocks are known."""
        return {
            **super().environment(),
            "torch_threads": 1,
            "transport": "gloo",
            "ranks": [dict(rank) for rank in self.fleet.ranks],
            "clock_offsets": [offset.seconds for offset in self.offsets],
            "clock_uncertainty": self.clock_uncertainty,
        }

    @property
    def clock_uncertainty(self) -> float:
        """How far apart two ranks' times of one moment may be recorded at most. [s]"""
        worst = sorted(offset.uncertainty for offset in self.offsets)[-2:]
        return sum(worst)

    def _renew_inputs(self) -> None:
        self._renew = True

    def _check_problem(self, problem: PlacementProblem) -> None:
        super()._check_problem(problem)
        check_distributed(self.network, self.execution, problem.topology)
        if problem.has_implicit_inputs or problem.is_input_op.any():
            raise ConfigurationError(
                f"executor=distributed, problem {problem.name!r}: every rank holds every input; "
                "inputs with a place of their own run with executor=cpu"
            )

    def _execute(self, plan: DispatchPlan, outputs: dict[int, torch.Tensor] | None) -> Schedule:
        if self._closed:
            raise ExecutionError(f"the executor of {self.workload.name!r} is closed")
        try:
            self._ensure_ranks(plan)
            self._prepare(plan, outputs is not None)
            self._tell("go", None, plan)
            traces = self._gather("trace", self.timeout_s, plan)
        except BaseException:  # a failed run, and Ctrl-C while waiting
            self.fleet.stop()
            raise
        ordered = [traces[rank] for rank in range(self.num_devices)]
        if outputs is not None:
            for trace in ordered:
                outputs.update(trace.outputs)
        return merge_traces(plan, ordered, self.offsets)

    def _ensure_ranks(self, plan: DispatchPlan) -> None:
        if self.fleet.is_whole():
            return
        self.fleet.stop()  # whoever died between two runs harmed none
        self._known_problem, self._renew, self.offsets = None, False, []
        self.fleet.start()
        for rank, connection in enumerate(self.fleet.connections):
            self._write(rank, connection, self._setup, plan)
        self._gather("ready", PREPARE_SECONDS, plan)

    def _prepare(self, plan: DispatchPlan, keep_outputs: bool) -> None:
        # Clocks of one machine are one clock; those of several drift and are compared every time.
        align = not self.offsets or any(offset.seconds for offset in self.offsets)
        known = plan.problem is self._known_problem
        payload = {
            "problem": None if known else plan.problem,
            "plan": {
                "devices": plan.devices,
                "order": plan.order,
                "network": plan.network,
                "choose": plan.choose,
                "seed": self.seed,
                "keep": sorted(plan.keep),
            },
            "keep_outputs": keep_outputs,
            "renew_inputs": self._renew,
            "align": align,
        }
        self._tell("prepare", payload, plan)
        answers = self._gather("prepared", PREPARE_SECONDS, plan)
        self._known_problem, self._renew = plan.problem, False
        if align:
            self.offsets = answers[0]

    def _tell(self, command: str, payload: Any, plan: DispatchPlan) -> None:
        message = pickle.dumps((command, payload))
        for rank, connection in enumerate(self.fleet.connections):
            self._write(rank, connection, message, plan)

    def _write(self, rank: int, connection: Connection, message: bytes, plan: DispatchPlan) -> None:
        try:
            connection.send_bytes(message)
        except OSError:
            raise self._death(rank, plan) from None

    def _gather(self, kind: str, timeout_s: float, plan: DispatchPlan) -> dict[int, Any]:
        """Waits for one answer of every rank.

        Raises:
            ExecutionError, CapacityError: a rank failed, died, or does not answer in time.
        """
        waiting = dict(enumerate(self.fleet.connections))
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + timeout_s
        broken: RankFailure | None = None
        while waiting:
            ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise (
                    _error_of(broken)
                    if broken is not None
                    else self._timeout(timeout_s, plan, waiting)
                )
            for rank in [r for r in sorted(waiting) if waiting[r] in ready]:
                try:
                    found, payload = pickle.loads(waiting[rank].recv_bytes())
                except (EOFError, OSError):
                    raise self._death(rank, plan) from None
                if found == "failure":
                    if payload.kind != "transfer":
                        raise _error_of(payload)
                    del waiting[rank]
                    broken = broken or payload
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                elif found == kind:
                    answers[rank] = payload
                    del waiting[rank]
        if broken is not None:
            raise _error_of(broken)
        return answers

    def _death(self, rank: int, plan: DispatchPlan) -> ExecutionError:
        op = self.fleet.running_op(rank)
        doing = "" if op is None else f" while it ran {describe_op(plan, self.workload, op)}"
        who = self.fleet.ranks[rank] if rank < len(self.fleet.ranks) else {}
        how = self.fleet.stop(gone=[rank]).get(rank, "its connection broke")
        process = f"process {who.get('process', '?')} on {who.get('host', '?')}"
        return ExecutionError(f"{describe_device(plan, rank)} died ({how}; {process}){doing}")

    def _timeout(
        self, timeout_s: float, plan: DispatchPlan, waiting: Mapping[int, Connection]
    ) -> ExecutionError:
        states = []
        deadline = time.monotonic() + STATE_SECONDS
        for connection in waiting.values():
            try:
                connection.send_bytes(pickle.dumps(("state", None)))
                while connection.poll(max(0.0, deadline - time.monotonic())):
                    kind, payload = pickle.loads(connection.recv_bytes())
                    if kind == "state":
                        states.append(payload)
                        break
            except (EOFError, OSError):
                continue
        silent = ", ".join(map(str, waiting))
        return ExecutionError(
            f"workload {plan.problem.name!r}: the run did not end within {timeout_s:g} s; waiting "
            f"for ranks {silent}, still running: {'; '.join(states) or 'unknown'}"
        )


def _error_of(failure: RankFailure) -> ExecutionError | CapacityError:
    kind = CapacityError if failure.kind == "memory" else ExecutionError
    error = kind(failure.message)
    if failure.details:
        error.add_note(f"on rank {failure.rank}:\n{failure.details}")
    return error


def merge_traces(
    plan: DispatchPlan, traces: Sequence[RankTrace], offsets: Sequence[ClockOffset]
) -> Schedule:
    """Puts the ranks' traces into one schedule, in rank 0's time from the first rank's begin.

    A transfer begins when its sender hands it to the transport and the one before it on the link
    has arrived, for the receiver does not take it before; it ends when the receiver has it. These
    two ends are times of two clocks, so that an arrival within the clocks' uncertainty of the start
    may seem to be before it and is then put at the start.

    Args:
        plan: what was run.
        traces: by rank. # (num_devices,)
        offsets: by rank. # (num_devices,)
    """
    ahead = [offset.seconds for offset in offsets]
    zero = min(trace.begin - ahead[trace.rank] for trace in traces)
    start, finish = np.zeros(plan.num_ops), np.zeros(plan.num_ops)
    peaks = [trace.peak_bytes for trace in traces]
    hops: list[tuple[HopTask, float, float]] = []
    for trace in traces:
        start[trace.ops] = np.array(trace.starts) - ahead[trace.rank] - zero
        finish[trace.ops] = np.array(trace.finishes) - ahead[trace.rank] - zero
        free: dict[int, float] = {}
        for index, sent, arrived in trace.arrivals:  # in the order of arrival
            (hop,) = plan.transfers[index].hops
            begin = max(sent - ahead[hop.source] - zero, free.get(hop.link, 0.0))
            end = max(begin, arrived - ahead[trace.rank] - zero)
            free[hop.link] = end
            hops.append((hop, begin, end))
    hops.sort(key=lambda each: (each[2], each[0].op, each[0].target))
    peak_bytes = None if None in peaks else np.array(peaks, dtype=float)
    return plan.schedule(start, finish, hops, "measured", peak_bytes)
