"""The schedule: who ran where and when, simulated, emulated or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from doppler.problem import PlacementProblem

if TYPE_CHECKING:
    from doppler.schedule.analysis import ChainStep, IdleTime

ORIGINS = ("simulated", "emulated", "measured")

EXECUTIONS = ("work_conserving", "bulk_synchronous")
"""Whether nothing idles while eligible work waits, or levels of ops alternate with exchanges."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """One run of a placed graph. All times are seconds from the start of the run.

    A transfer that takes a route of several links has one entry per hop.

    Args:
        problem: what was run.
        devices: device of each op. # (num_ops,)
        start: # (num_ops,) [s]
        finish: # (num_ops,) [s]
        transfer_ops: op whose output each hop moves. # (num_hops,)
        transfer_targets: final destination device of each hop's transfer. # (num_hops,)
        transfer_links: link of each hop. # (num_hops,)
        transfer_start: # (num_hops,) [s]
        transfer_finish: # (num_hops,) [s]
        network: network model of the run.
        choose: choose-task rule of the run.
        order: the placement's order, or None. # (num_ops,)
        origin: one of `ORIGINS`.
        peak_bytes: peak resident bytes per device, None where bytes are unknown. # (num_devices,)
        execution: one of `EXECUTIONS`.
    """

    problem: PlacementProblem
    devices: np.ndarray
    start: np.ndarray
    finish: np.ndarray
    transfer_ops: np.ndarray
    transfer_targets: np.ndarray
    transfer_links: np.ndarray
    transfer_start: np.ndarray
    transfer_finish: np.ndarray
    network: str
    choose: str
    order: np.ndarray | None = None
    origin: str = "simulated"
    peak_bytes: np.ndarray | None = None
    execution: str = "work_conserving"

    @property
    def makespan(self) -> float:
        """Finish of the last op. [s]"""
        return float(self.finish.max())

    @property
    def utilisation(self) -> np.ndarray:
        """Busy share of each device's compute slots over the makespan. # (num_devices,)"""
        busy = np.bincount(
            self.devices, weights=self.finish - self.start, minlength=self.problem.num_devices
        )
        capacity = self.problem.topology.compute_slots * self.makespan
        return np.divide(busy, capacity, out=np.zeros_like(busy), where=capacity > 0)

    @property
    def num_transfers(self) -> int:
        """Tensors moved, each once per destination device, however many hops."""
        pairs = self.transfer_ops * self.problem.num_devices + self.transfer_targets
        return len(np.unique(pairs))

    def bytes_moved(self) -> float:
        """Bytes sent between devices, each tensor once per destination device. [B]

        Raises:
            UnknownQuantityError: if the problem's source does not say bytes.
        """
        output_bytes = self.problem.graph.require("output_bytes")
        pairs = np.unique(self.transfer_ops * self.problem.num_devices + self.transfer_targets)
        return float(output_bytes[pairs // self.problem.num_devices].sum())

    def validate(self, tolerance: float = 1e-9) -> None:
        """Raises at the first rule that this schedule breaks; see `validate_schedule`.

        Args:
            tolerance: what clocks and hand-offs may be off by. [s]

        Raises:
            ScheduleError: naming the rule, the ops, the device or link, and the times.
        """
        from doppler.schedule.validation import validate_schedule

        validate_schedule(self, tolerance)

    def idle_time(self) -> IdleTime:
        """What each device's slots did or waited for over the makespan; see `IdleTime`."""
        from doppler.schedule.analysis import idle_time

        return idle_time(self)

    def memory_over_time(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Resident bytes per device as step functions; see `doppler.schedule.memory`."""
        from doppler.schedule.memory import memory_over_time

        return memory_over_time(self)

    def critical_chain(self) -> list[ChainStep]:
        """The steps that set the makespan, first one first; see `analysis.critical_chain`."""
        from doppler.schedule.analysis import critical_chain

        return critical_chain(self)
