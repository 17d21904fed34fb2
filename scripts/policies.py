"""Placements by a trained policy."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from doppler import Placement, PlacementProblem
from doppler.simulator import Simulator

POLICY = "doppler"
"""What files of a trained policy's placements are called; inside they say its kind."""
_BATCH = 16


def place_with_policy(
    checkpoint: Path,
    problem: PlacementProblem,
    simulator: Simulator,
    seed: int,
    samples: int | None = None,
    seconds: float | None = None,
) -> Placement:
    """The best of some episodes of a trained policy, the first one without sampling.

    Args:
        checkpoint: of any problem; a policy fits all.
        problem: what is placed.
        simulator: judges.
        seed: of the sampling.
        samples: how many episodes.
        seconds: in place of `samples`: until so many have passed. [s]

    Raises:
        CheckpointError: not a checkpoint of this version.
        CapacityError: no episode's placement fits.
    """
    import torch

    from doppler.training import load_policy_from_checkpoint, make_runner

    torch.set_num_threads(1)  # the heads' products are too small for more

    began, rng = perf_counter(), np.random.default_rng(seed)
    policy, identity = load_policy_from_checkpoint(checkpoint)
    given = simulator.choose == "given"
    size = _BATCH if samples is None else samples - 1
    runner = make_runner(policy, problem, simulator.network, 1)
    best: Placement | None = None
    makespan, evaluations = np.inf, 0
    while True:
        greedy = best is None
        batch = runner.run(rng, greedy=greedy, record=False)
        values = simulator.makespans(batch.placements, batch.ops if given else None)
        row = int(np.argmin(values))
        if best is None or values[row] < makespan:
            best, makespan = Placement(batch.placements[row], batch.ops[row]), float(values[row])
        evaluations += len(values)
        if samples is not None and evaluations >= samples:
            break
        if seconds is not None and perf_counter() - began >= seconds:
            break
        if greedy:
            runner = make_runner(policy, problem, simulator.network, size)
    if not np.isfinite(makespan):
        simulator.run(best)  # raises CapacityError with the details
    info = {
        "scheduler": policy.kind,
        "simulated_makespan": makespan,
        "seconds": perf_counter() - began,
        "evaluations": evaluations,
        "checkpoint": checkpoint.name,
        "trained_on": identity["problem"]["name"],
    }
    return Placement(best.devices, best.order, info)
