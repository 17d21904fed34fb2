"""Prediction of one placement's run: ops are as slow as what else goes on makes them.

A `CostModel` gives one duration per op and device. Schedulers and learners minimise with those of
busy devices, which is right where a placement keeps all devices busy and too slow where it does
not, as on one device, or where it moves little: copies need the cores too. What goes on depends on
the placement; so a prediction simulates with busy durations, sees in that schedule how much the
other devices work and how many transfers are under way during each op, sets every op between its
durations alone and busy, and simulates again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from doppler.checks import whole_number
from doppler.executor.base import Executable
from doppler.executor.calibration.profile import Profile
from doppler.executor.calibration.traces import others_at_work, transfers_at_work
from doppler.problem import PlacementProblem
from doppler.schedule import Placement, Schedule
from doppler.simulator import Simulator

PASSES = 3
"""Busy and alone differ by a fifth or so, and every pass shrinks what is left by as much."""


def predict(
    profile: Profile,
    workload: Executable,
    problem: PlacementProblem,
    placement: Placement,
    build: Callable[[PlacementProblem], Simulator] = Simulator,
    passes: int = PASSES,
) -> Schedule:
    """Simulates a placement with durations that suit what the other devices do.

    Args:
        profile: calibration of the devices.
        workload: what is placed.
        problem: of the workload; its topology and constraints are used, its op seconds are not.
        placement: a device per op, and the order where the simulator needs one.
        build: makes the simulator of a problem, with the network and rules of the executor.
        passes: simulations after the first.

    Returns:
        The last simulation's schedule; its problem's cost model has this placement's durations.

    Raises:
        ProfileError: the profile does not cover the workload or these devices.
        ConfigurationError: a negative number of passes.
    """
    passes = whole_number(passes, "passes", 0)
    timings = profile.timings(workload)
    contention, transfers = np.ones(problem.num_ops), None
    for step in range(passes + 1):
        costs = profile.contended_cost_model(
            workload,
            problem.topology,
            contention,
            "calibrated, contention of this placement",
            transfers,
        )
        simulator = build(replace(problem, cost_model=costs))
        order = placement.order if simulator.choose == "given" else None
        schedule = simulator.run(placement.devices, order)
        if step < passes:
            shares, transfers = others_at_work(schedule), transfers_at_work(schedule)
            contention = np.array(
                [timing.contention(share) for timing, share in zip(timings, shares, strict=True)]
            )
    return schedule
