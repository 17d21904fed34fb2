"""What training minimises: seconds of placements, simulated or measured.

An objective is any callable `(placements, orders) -> seconds`, with a device per op in
`placements` # (batch, num_ops), an order of the ops in `orders` # (batch, num_ops) and one run's
makespan per row in the result # (batch,) [s], infinite for a placement that cannot run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from doppler.schedule import Placement, Schedule

Objective = Callable[[np.ndarray, np.ndarray], np.ndarray]


class BatchSimulator(Protocol):
    """The part of `doppler.simulator.Simulator` that training needs."""

    def makespans(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray: ...


class PlacementRunner(Protocol):
    """The part of an executor that training needs."""

    def run(self, placement: Placement) -> Schedule: ...


def simulated_objective(simulator: BatchSimulator) -> Objective:
    """Simulated makespans; the simulator reads the orders under `choose=given` only."""

    def objective(placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return simulator.makespans(placements, orders)

    return objective


def measured_objective(executor: PlacementRunner) -> Objective:
    """Measured makespans, one run per row, in the order of the rows."""

    def objective(placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        rows = zip(placements, orders)
        return np.array(
            [executor.run(Placement(devices, order)).makespan for devices, order in rows]
        )

    return objective
