"""Online re-calibration: a cost model that follows the traces of the runs just measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from doppler.errors import CheckpointError
from doppler.hardware import CostModel
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule
from doppler.schedule.arrivals import find_arrivals
from doppler.training.stage import is_number

MOST = 4.0
"""Factors stay between its inverse and this: one op that the system interrupted says no more."""

PRIOR_HOPS = 1e-2
"""Weight of "as the links were" beside one run's mean hop; decides where all hops are alike."""

Trace = dict[str, Any]
"""What the journal keeps of one run: `ops`, factors by group (or None), `links`, five sums."""


def occupied_seconds(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """How long each op held its device and each hop its link, the overheads before it included.

    A calibrated cost model's seconds are of that kind: they begin when the task could have begun,
    that is, when its inputs were there and its device or link had done with the task before. Where
    a device runs several ops at once or other rules hold tasks back, only the task itself counts.

    Returns:
        Of ops and of hops. # (num_ops,) [s], (num_hops,) [s]
    """
    arrivals = find_arrivals(schedule)
    ops_since, hops_since = schedule.start.copy(), schedule.transfer_start.copy()
    if schedule.execution == "work_conserving":
        slots = schedule.problem.topology.compute_slots[schedule.devices]
        free = _before(schedule.devices, schedule.start, schedule.finish)
        could = np.minimum(np.maximum(arrivals.op_eligible, free), schedule.start)
        ops_since = np.where(slots == 1, could, schedule.start)
        if schedule.network == "serial_links":
            free = _before(
                schedule.transfer_links, schedule.transfer_start, schedule.transfer_finish
            )
            hops_since = np.minimum(np.maximum(arrivals.hop_eligible, free), hops_since)
    return schedule.finish - ops_since, schedule.transfer_finish - hops_since


def _before(owners: np.ndarray, start: np.ndarray, finish: np.ndarray) -> np.ndarray:
    """When the task before each on the same device or link ended, 0 for the first. [s]"""
    order = np.lexsort((start, owners))
    same = owners[order][1:] == owners[order][:-1]
    before = np.zeros(len(start))
    before[order[1:][same]] = finish[order[:-1][same]]
    return before


@dataclass
class CostFactors:
    """What was learnt: factors on the original cost model.

    Args:
        ops: on the seconds of each group's ops. # (num_groups,)
        op_runs: runs that told something of each group. # (num_groups,)
        links: sums over hops, see `CostRecalibration`; weighted means of runs. # (5,)
        link_runs: runs with hops.
    """

    ops: list[float]
    op_runs: list[int]
    links: list[float]
    link_runs: int = 0

    @classmethod
    def ones(cls, num_groups: int) -> CostFactors:
        return cls([1.0] * num_groups, [0] * num_groups, [0.0] * 5)


class CostRecalibration:
    """Keeps factors on a cost model, by exponentially weighted means over runs.

    Each run gives every group of ops one factor, measured over modelled seconds, of all its ops
    together. A group is a kernel signature. A hop's seconds are modelled as
    `latency * x + volume_seconds * y`; x and y are fitted by least squares of relative errors, and
    a run gives the five sums which that needs. With weights of max(rate, 1 / (runs + 2)), the first
    runs count as much as the calibration that the model came from.

    Args:
        problem: with the original cost model.
        signatures: a name per op, equal where the work is equal; ops beyond its end (inputs with a
            place) are one group. None: ops of equal modelled seconds are a group.
        rate: least weight of a new run, above 0 and below 1.
    """

    def __init__(
        self, problem: PlacementProblem, signatures: Sequence[str] | None, rate: float
    ) -> None:
        self.problem = problem
        self.rate = rate
        if signatures is None:
            _, groups = np.unique(problem.cost_model.op_seconds, axis=0, return_inverse=True)
        else:
            names = list(signatures) + ["input"] * (problem.num_ops - len(signatures))
            _, groups = np.unique(names, return_inverse=True)
        self.groups = groups.reshape(-1)  # (num_ops,)
        self.num_groups = int(self.groups.max()) + 1

    def summarise(self, schedule: Schedule) -> Trace:
        """What one run says, small enough for every line of a journal."""
        costs = self.problem.cost_model
        op_seconds, hop_seconds = occupied_seconds(schedule)
        modelled = costs.op_seconds[np.arange(self.problem.num_ops), schedule.devices]
        measured, expected = (
            np.bincount(self.groups, weights=seconds, minlength=self.num_groups)
            for seconds in (op_seconds, modelled)
        )
        factors = [
            float(np.clip(a / b, 1.0 / MOST, MOST)) if b > 0 else None
            for a, b in zip(measured, expected, strict=True)
        ]
        latency = costs.link_latency[schedule.transfer_links]
        rest = costs.transfer_volume[schedule.transfer_ops]
        rest = rest * costs.link_seconds_per_unit[schedule.transfer_links]
        known = latency + rest > 0
        if not known.any():
            return {"ops": factors, "links": None}
        total = (latency + rest)[known]
        x, y = latency[known] / total, rest[known] / total
        z = np.clip(hop_seconds[known] / total, 1.0 / MOST, MOST)
        sums = [float((a * b).mean()) for a, b in ((x, x), (x, y), (y, y), (x, z), (y, z))]
        return {"ops": factors, "links": sums}

    def observe(self, factors: CostFactors, trace: Trace) -> None:
        """Takes one run into the factors.

        Raises:
            CheckpointError: the trace, from a journal, is not of this problem.
        """
        self._check(trace)
        for group, value in enumerate(trace["ops"]):
            if value is not None:
                weight = self._weight(factors.op_runs[group])
                factors.ops[group] += weight * (value - factors.ops[group])
                factors.op_runs[group] += 1
        if trace["links"] is not None:
            weight = max(self.rate, 1.0 / (factors.link_runs + 1))
            pairs = zip(factors.links, trace["links"], strict=True)
            factors.links = [old + weight * (new - old) for old, new in pairs]
            factors.link_runs += 1

    def cost_model(self, factors: CostFactors) -> CostModel:
        """The original costs times the factors."""
        costs = self.problem.cost_model
        latency, volume = link_factors(factors)
        return CostModel(
            op_seconds=costs.op_seconds * np.array(factors.ops)[self.groups][:, None],
            transfer_volume=costs.transfer_volume,
            link_latency=costs.link_latency * latency,
            link_seconds_per_unit=costs.link_seconds_per_unit * volume,
            source=f"{costs.source}, followed {max(factors.op_runs, default=0)} measured runs",
        )

    def recalibrated(self, factors: CostFactors) -> PlacementProblem:
        """The problem with the costs of `cost_model`."""
        return replace(self.problem, cost_model=self.cost_model(factors))

    def _weight(self, runs: int) -> float:
        return max(self.rate, 1.0 / (runs + 2))

    def _check(self, trace: Any) -> None:
        ops = trace.get("ops") if isinstance(trace, dict) else None
        links = trace.get("links") if isinstance(trace, dict) else None
        good = isinstance(ops, list) and len(ops) == self.num_groups
        good = good and all(value is None or is_number(value, above=0.0) for value in ops or [])
        if links is not None:
            good = good and isinstance(links, list) and len(links) == 5
            good = good and all(is_number(value, least=0.0) for value in links)
        if not good:
            raise CheckpointError(
                "measurement journal: a trace is not of this problem; move the journal away"
            )


def link_factors(factors: CostFactors) -> tuple[float, float]:
    """On latencies and on seconds per unit: ridge regression of relative errors around 1."""
    if not factors.link_runs:
        return 1.0, 1.0
    xx, xy, yy, xz, yz = factors.links
    system = np.array([[xx + PRIOR_HOPS, xy], [xy, yy + PRIOR_HOPS]])
    found = np.linalg.solve(system, np.array([xz + PRIOR_HOPS, yz + PRIOR_HOPS]))
    latency, volume = np.clip(found, 1.0 / MOST, MOST)
    return float(latency), float(volume)
