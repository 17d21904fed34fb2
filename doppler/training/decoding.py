"""What a trained policy finds by itself: the best of some sampled episodes, without search."""

from __future__ import annotations

import numpy as np

from doppler.checks import number, whole_number
from doppler.errors import ConfigurationError
from doppler.policies import Policy
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.training.objectives import Objective
from doppler.training.runners import make_runner

MOST_AT_ONCE = 64
"""Episodes that are rolled out together."""


def best_of_samples(
    policy: Policy,
    problem: PlacementProblem,
    objective: Objective,
    rng: np.random.Generator,
    *,
    samples: int = 64,
    temperature: float = 1.0,
    network: str = "serial_links",
) -> Placement | None:
    """The best of some episodes of a policy; nothing is learned or searched.

    Args:
        policy: as it is now.
        problem: what is placed.
        objective: judges, one simulation per episode.
        rng: the only source of randomness.
        samples: episodes.
        temperature: below 1 sharpens the policy, above 1 flattens it.
        network: of the earliest-start estimates (that of the training).

    Returns:
        A placement in the order that the policy built it; its `info` has `simulated_makespan` [s],
        `simulated_makespan_mean` of the episodes that fit in memory [s], and `evaluations`. None if
        no episode's placement fits.

    Raises:
        ConfigurationError: no samples, or a temperature that is not above 0.
    """
    whole_number(samples, "samples", 1)
    number(temperature, "temperature", ConfigurationError, above=True)
    best: Placement | None = None
    values = np.full(samples, np.inf)
    for first in range(0, samples, MOST_AT_ONCE):
        size = min(MOST_AT_ONCE, samples - first)
        runner = make_runner(policy, problem, network, size)
        batch = runner.run(rng, temperature=temperature, record=False)
        found = np.asarray(objective(batch.placements, batch.ops), np.float64)
        row = int(np.argmin(found))
        if found[row] < values.min():
            best = Placement(batch.placements[row], batch.ops[row])
        values[first : first + size] = found
    if best is None:
        return None
    info = {
        "simulated_makespan": float(values.min()),
        "simulated_makespan_mean": float(values[np.isfinite(values)].mean()),
        "evaluations": samples,
    }
    return Placement(best.devices, best.order, info)
