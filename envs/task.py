"""What an environment places, how it judges, and in which unit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler import PlacementProblem, load_problem
from doppler.checks import shown
from doppler.errors import CapacityError, ConfigurationError
from doppler.hardware import make_topology
from doppler.simulator import Simulator
from doppler.workloads import Workload, make_workload

_LARGEST = float(np.finfo(np.float64).max)

DEFAULT_WORKLOAD = "chainmm"
DEFAULT_SCALE = "paper"
DEFAULT_TOPOLOGY = "p100"
DEFAULT_NUM_DEVICES = 4


@dataclass(frozen=True, eq=False)
class PlacementTask:
    """A problem, the simulator that judges placements of it, and the unit of rewards.

    Args:
        problem: what is placed.
        simulator: judges complete placements; its network also rules the estimated starts.
        workload: the executable workload behind the problem, or None.
        time_unit: seconds of all ops on the one device where that takes least; rewards and
            observations are in this unit, and a makespan of 1 is the best single device's. [s]
        illegal_reward: ends an episode with an illegal action or a placement over capacity.
    """

    problem: PlacementProblem
    simulator: Simulator
    workload: Workload | None
    time_unit: float
    illegal_reward: float

    def rewards(self, makespans: np.ndarray) -> np.ndarray:
        """Minus the makespan in time units; `illegal_reward` where it is infinite. # (B,)"""
        return np.where(np.isfinite(makespans), -makespans / self.time_unit, self.illegal_reward)

    def check_unconstrained(self) -> None:
        """Raises `ConfigurationError` where a device's legality depends on the op."""
        if self.problem.constrained:
            raise ConfigurationError(
                f"environment, problem {self.problem.name!r}: pins, colocation groups or placed "
                "inputs make a device legal for one op and not for another, which separate masks "
                "of ops and devices cannot say; use doppler/PlacementFlat-v0"
            )

    def why_over_capacity(self, devices: np.ndarray, order: np.ndarray) -> str:
        """Which device runs out of memory when."""
        try:
            self.simulator.run(devices, order)
        except CapacityError as error:
            return str(error)
        return ""


def make_task(
    workload: str | None = None,
    num_devices: int | None = None,
    *,
    problem: PlacementProblem | str | Path | None = None,
    topology: str | None = None,
    scale: str | None = None,
    num_shards: int | None = None,
    network: str = "serial_links",
    choose: str = "fifo",
    illegal_reward: float | None = None,
) -> PlacementTask:
    """Builds a task from an environment's arguments.

    Args:
        workload: name of a workload, "chainmm" where neither this nor `problem` is given.
        num_devices: 4 for workloads; needed for a problem file that names no devices.
        problem: a problem or a problem file, instead of a workload.
        topology: preset whose data-sheet rates give a workload's costs, "p100" by default.
        scale: of the workload, "paper" by default.
        num_shards: of the workload; None for its own default.
        network, choose: see `doppler.simulator.Simulator`.
        illegal_reward: None for minus an upper bound of every makespan, in time units.

    Raises:
        ConfigurationError: arguments that contradict one another, unknown names, or an
            `illegal_reward` that is not finite and negative.
        FileFormatError: a malformed problem file.
    """
    found: Workload | None = None
    if problem is None:
        found = make_workload(
            workload or DEFAULT_WORKLOAD, scale or DEFAULT_SCALE, num_shards=num_shards
        )
        count = DEFAULT_NUM_DEVICES if num_devices is None else num_devices
        placed = found.problem(make_topology(topology or DEFAULT_TOPOLOGY, count))
    else:
        for label, value in (
            ("workload", workload),
            ("topology", topology),
            ("scale", scale),
            ("num_shards", num_shards),
        ):
            if value is not None:
                raise ConfigurationError(
                    f"environment, {label}: {value!r} is of no use together with `problem`"
                )
        placed = _given_problem(problem, num_devices)
    unit = float(placed.cost_model.op_seconds.sum(axis=0).min()) or 1.0
    penalty = -makespan_bound(placed) / unit
    if illegal_reward is not None:
        penalty = _checked_penalty(illegal_reward)
    simulator = Simulator(placed, network=network, choose=choose)
    return PlacementTask(placed, simulator, found, unit, penalty)


def makespan_bound(problem: PlacementProblem) -> float:
    """An upper bound on the makespan of every placement: all work, then all transfers. [s]

    A work-conserving run always has an op or a transfer under way.
    """
    work = float(problem.cost_model.op_seconds.max(axis=1).sum())
    slowest = (
        problem.route_latency.max()
        + problem.cost_model.transfer_volume * problem.route_seconds_per_unit.max()
    )
    copies = np.minimum(problem.graph.out_degrees, problem.num_devices - 1)
    return work + float((slowest * copies).sum())


def whole_actions(actions: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Actions as whole numbers; whether they are legal is not looked at.

    Args:
        actions: array-like.
        shape: that they must have.
        what: they are, for messages.

    Raises:
        ConfigurationError: another shape, or an entry that is no whole number (floats, bools and
            text are none), so that nothing is cut off silently.
    """
    try:
        array = np.asarray(actions)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"environment, action: {shown(actions)}: {error}") from error
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ConfigurationError(f"environment, action: {shown(actions)} exceeds 64 bits")
    if array.dtype.kind not in "iu":
        raise ConfigurationError(
            f"environment, action: {shown(actions)} is not of whole numbers: {what} is expected"
        )
    if _holds_bool(actions):  # numpy makes 0 or 1 of it
        raise ConfigurationError(
            f"environment, action: {shown(actions)} holds a bool: {what} is expected"
        )
    if array.shape != shape:
        raise ConfigurationError(
            f"environment, actions: shape {array.shape}, expected {shape}: {what}"
        )
    return array.astype(np.int64)


def _holds_bool(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_bool, value))
    return isinstance(value, bool | np.bool_)


def _checked_penalty(value: Any) -> float:
    number = isinstance(value, int | float | np.integer | np.floating)
    if not number or isinstance(value, bool):
        raise ConfigurationError(f"environment, illegal_reward: {shown(value)} is not a number")
    if not -_LARGEST <= value <= _LARGEST:
        raise ConfigurationError(f"environment, illegal_reward: {shown(value)} is not finite")
    if value >= 0:
        raise ConfigurationError(
            f"environment, illegal_reward: {value} is not below 0, so that an illegal action would "
            "earn more than any placement"
        )
    return float(value)


def _given_problem(
    problem: PlacementProblem | str | Path, num_devices: int | None
) -> PlacementProblem:
    if not isinstance(problem, PlacementProblem):
        return load_problem(problem, num_devices).with_explicit_inputs()
    if num_devices is not None and num_devices != problem.num_devices:
        raise ConfigurationError(
            f"environment, num_devices: {num_devices}, but problem {problem.name!r} has "
            f"{problem.num_devices}"
        )
    return problem.with_explicit_inputs()
