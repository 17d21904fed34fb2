"""Placements that fit in the devices' memory, to start from where list schedules do not fit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from doppler.problem import PlacementProblem
from doppler.simulator import Simulator

REPAIRS = 4
"""Most placements that are tried to repair."""


def one_device_each(problem: PlacementProblem) -> np.ndarray:
    """All ops on one device, as far as constraints let them. # (num_devices, num_ops)"""
    devices = np.repeat(np.arange(problem.num_devices)[:, None], problem.num_ops, axis=1)
    placements: np.ndarray = problem.conform(devices)
    return placements


def fitting_placement(
    simulator: Simulator,
    candidates: Iterable[tuple[np.ndarray, np.ndarray]],
    rng: np.random.Generator,
) -> tuple[tuple[np.ndarray, np.ndarray] | None, int]:
    """A placement that the simulator does not refuse.

    The fastest single device comes first, then the candidates are repaired.

    Args:
        simulator: whose devices may be too small.
        candidates: devices and order of placements that respect all constraints. # (num_ops,) each
        rng: the only source of randomness.

    Returns:
        Devices and order # (num_ops,) each, or None; and how many simulations it took.
    """
    from doppler.schedulers.repair import memory_may_bind, repaired  # it is built on searches

    problem = simulator.problem
    singles, order = one_device_each(problem), problem.graph.topological_order.copy()
    makespans = simulator.makespans(singles, np.tile(order, (len(singles), 1)))
    simulations = len(singles)
    best = int(np.argmin(makespans))
    if np.isfinite(makespans[best]):
        return (singles[best].copy(), order), simulations
    if not memory_may_bind(simulator):
        return None, simulations
    rows = [*candidates, *((row, order) for row in singles)]
    for devices, given in rows[:REPAIRS]:
        found, tries = repaired(simulator, devices, given, rng)
        simulations += tries
        if found is not None and np.isfinite(simulator.makespans([found], [given])[0]):
            return (found, given), simulations + 1
    return None, simulations
