"""What training minimises: seconds of placements, simulated or measured.

An objective is any callable `(placements, orders) -> seconds`, with a device per op in
`placements` # (batch, num_ops), an order of the ops in `orders` # (batch, num_ops) and one run's
makespan per row in the result # (batch,) [s], infinite for a placement that cannot run.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from doppler.schedule import Placement, Schedule

Objective = Callable[[np.ndarray, np.ndarray], np.ndarray]


class BatchSimulator(Protocol):
    """The part of `doppler.simulator.Simulator` that training needs."""

    def makespans(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray: ...


class PlacementRunner(Protocol):
    """The part of an executor that training needs."""

    def run(self, placement: Placement) -> Schedule: ...


@dataclass(frozen=True, eq=False)
class SimulatedObjective:
    """Simulated makespans, with what tells this objective from others.

    Args:
        simulator: reads the orders under `choose=given` only.
        identity: see `simulator_identity`; a resumed run must share it.
    """

    simulator: BatchSimulator
    identity: Mapping[str, Any]

    def __call__(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return self.simulator.makespans(placements, orders)


def simulated_objective(simulator: BatchSimulator) -> SimulatedObjective:
    """Simulated makespans; the simulator reads the orders under `choose=given` only."""
    return SimulatedObjective(simulator, simulator_identity(simulator))


def simulator_identity(simulator: Any, **settings: Any) -> dict[str, Any]:
    """What two simulators of one problem must share to judge placements alike.

    Args:
        simulator: a `Simulator`, or one with its face.
        **settings: further values that the makespans depend on (a seed, a number of samples).

    Returns:
        Its network, choose rule, execution, noise, tie ranks and statistic, as far as it has them.
    """
    found: dict[str, Any] = {}
    inner = getattr(simulator, "simulator", simulator)
    for label in ("network", "choose", "execution", "statistic"):
        value = getattr(simulator, label, getattr(inner, label, None))
        if value is not None:
            found[label] = str(value)
    noise = getattr(inner, "noise", None)
    found["noise"] = "none" if noise is None else _short(noise)
    ranks = getattr(getattr(inner, "engine", None), "rank", ())
    if len(ranks):  # choose=random draws them with the simulator's seed
        found["ranks"] = hashlib.sha256(np.ascontiguousarray(ranks).tobytes()).hexdigest()[:16]
    return {**found, **settings}


def _short(noise: Any) -> str:
    """A noise model in full, or by a hash of that where it is long."""
    with np.printoptions(threshold=sys.maxsize, precision=17, floatmode="unique"):
        text = repr(noise)
    if len(text) <= 200:
        return text
    return f"{type(noise).__name__} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, eq=False)
class MeasuredObjective:
    """Measured makespans, one run per row, in the order of the rows.

    Args:
        executor: runs the placements.
    """

    executor: PlacementRunner

    def __call__(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return np.array([run.makespan for run in self.schedules(placements, orders)])

    def schedules(self, placements: np.ndarray, orders: np.ndarray) -> list[Schedule]:
        """Who ran where and when, a run per row."""
        rows = zip(placements, orders)
        return [self.executor.run(Placement(devices, order)) for devices, order in rows]

    @property
    def rules(self) -> dict[str, Any]:
        """The executor's network, choose rule, execution and seed, as far as it says."""
        found = {name: getattr(self.executor, name, None) for name in _RULES}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def signatures(self) -> tuple[str, ...] | None:
        """Of the kernels, by op; None where the executor does not say."""
        workload = getattr(self.executor, "workload", None)
        kernels = getattr(workload, "kernels", None)
        return None if kernels is None else tuple(kernel.signature for kernel in kernels)


_RULES = ("network", "choose", "execution", "seed")


def measured_objective(executor: PlacementRunner) -> MeasuredObjective:
    """Measured makespans, one run per row, in the order of the rows."""
    return MeasuredObjective(executor)
