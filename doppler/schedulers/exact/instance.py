"""What both CP-SAT models are built from: whole ticks, allowed devices, windows and bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler.problem import PlacementProblem
from doppler.schedule import lower_bounds
from doppler.schedulers.exact.replay import Replay, memory_may_bind
from doppler.schedulers.exact.symmetry import identical_devices
from doppler.schedulers.exact.ticks import Ticks, to_ticks
from doppler.schedulers.exact.windows import heads_and_tails, window_bound


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem in ticks.

    Args:
        problem: what is scheduled.
        network: network model.
        ticks: the durations.
        allowed: where pins let each op run. # (num_ops, num_devices) bool
        least: the least duration of each op where it may run. # (num_ops,) [ticks]
        heads, tails: what passes before each op and after it. # (num_ops,) [ticks]
        lower: no schedule is shorter. [ticks]
        groups: devices that may change places.
        memory: whether memory may bind.
        replay: of plans, in ticks.
    """

    problem: PlacementProblem
    network: str
    ticks: Ticks
    allowed: np.ndarray
    least: np.ndarray
    heads: np.ndarray
    tails: np.ndarray
    lower: int
    groups: list[list[int]]
    memory: bool
    replay: Replay

    @property
    def lower_seconds(self) -> float:
        """The lower bound. [s]"""
        return self.ticks.seconds(self.lower)

    @property
    def classical(self) -> bool:
        """Whether it is P|prec|Cmax: alike devices, free communication, nothing else to respect."""
        problem = self.problem
        sent = problem.graph.out_degrees > 0
        routes = [link for row in problem.topology.routes for route in row for link in route]
        seconds = problem.cost_model.op_seconds
        return (
            not problem.constrained
            and not self.memory
            and bool((seconds == seconds[:, :1]).all())
            and not _hops_take_time(problem, sent, np.unique(np.array(routes, np.int64)))
        )

    @property
    def capacity(self) -> int:
        """Compute slots of all devices."""
        return int(self.problem.topology.compute_slots.sum())


def _hops_take_time(problem: PlacementProblem, sent: np.ndarray, links: np.ndarray) -> bool:
    costs = problem.cost_model
    if not sent.any():
        return False
    volume = costs.transfer_volume[sent].any()
    return bool(
        costs.link_latency[links].any() or (volume and costs.link_seconds_per_unit[links].any())
    )


def make_instance(problem: PlacementProblem, network: str, horizon: float) -> Instance:
    """Converts a problem.

    Args:
        problem: what is scheduled.
        network: a model of `doppler.simulator.NETWORKS`.
        horizon: length of some schedule, or more. [s]
    """
    ticks = to_ticks(problem, horizon)
    allowed = allowed_devices(problem)
    least = np.where(allowed, ticks.ops, np.iinfo(np.int64).max).min(axis=1)
    heads, tails = heads_and_tails(problem.graph, least)
    capacity = int(problem.topology.compute_slots.sum())
    lower = max(
        window_bound(heads, tails, least, capacity),
        ticks.at_least(lower_bounds(problem).best),
    )
    return Instance(
        problem=problem,
        network=network,
        ticks=ticks,
        allowed=allowed,
        least=least,
        heads=heads,
        tails=tails,
        lower=lower,
        groups=identical_devices(problem),
        memory=memory_may_bind(problem),
        replay=Replay(problem, network, ticks.ops, ticks.hops),
    )


def allowed_devices(problem: PlacementProblem) -> np.ndarray:
    """Where pins, an op's own or its group's, let each op run. # (num_ops, num_devices) bool"""
    pins = problem.conform(np.full(problem.num_ops, -1))[:, None]
    return (pins < 0) | (pins == np.arange(problem.num_devices))
