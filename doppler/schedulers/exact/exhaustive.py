"""Exact enumeration of tiny problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from math import factorial, prod
from typing import Any, ClassVar

import numpy as np

from doppler.errors import CapacityError, ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedule.networks import link_channels
from doppler.schedulers.base import Proposal, Scheduler, best_of, check_count
from doppler.schedulers.exact.branching import best_sequence, make_tasks
from doppler.schedulers.exact.instance import allowed_devices
from doppler.schedulers.exact.replay import Plan, memory_may_bind
from doppler.schedulers.exact.symmetry import identical_devices
from doppler.schedulers.exact.ticks import hop_seconds
from doppler.simulator import Simulator

ORDERS_PER_PLACEMENT = 50
"""The best schedule of a placement takes as long as so many simulations, or more."""
HUGE = 10**300
"""Larger counts are not printed."""
ROUNDING = 1e-12
"""Makespans that agree to this part are the same: sums in another order differ by rounding."""


@dataclass(frozen=True, eq=False)
class Optima:
    """The best of all schedules of a problem.

    Args:
        placements: all that were looked at, one of each kind of interchangeable devices.
            # (num_placements, num_ops)
        free_makespan: least makespan where devices and links may wait, memory left out. [s]
        free_plan: a plan that reaches it.
        makespan: least makespan of a work-conserving run with `choose=given`, over placements and
            topological orders; infinite where nothing fits. [s]
        devices, order: that reach it. # (num_ops,)
        evaluations: simulations that it took.
    """

    placements: np.ndarray
    free_makespan: float
    free_plan: Plan
    makespan: float
    devices: np.ndarray
    order: np.ndarray
    evaluations: int


@dataclass(frozen=True)
class Exhaustive(Scheduler):
    """Looks at all placements, and at all orders of the ops for each, of a tiny problem.

    Finds two optima: the least makespan over placements and orders on each device and link, where
    these may wait for the next in their order (the *free* optimum); and the least makespan of the
    simulator with `choose=given` over placements and topological orders. The free one is never
    longer. If the simulator's choose-task rule is another one, orders do not reach it, and the
    placement that is best under it is returned.

    The proposal's `info`: `optimum` ("optimal"), `free_makespan` and `bound` (equal, [s]; waiting
    for memory is not looked at: where memory may bind, `optimum` is "gap" and `free_makespan` is
    None), `gap` (0 or None), `work_conserving_makespan` (the second optimum, [s]),
    `work_conserving_gap` (1 - bound / work_conserving_makespan), `free_devices` and `free_order`
    (of the free optimum), `placements` (how many were looked at).

    Args:
        max_evaluations: most pairs of a placement and an order (a placement counts as at least
            `ORDERS_PER_PLACEMENT` of them); problems with more are refused.

    Raises:
        ConfigurationError: an impossible option; on `schedule`, too large a problem.
        CapacityError: on `schedule`, no placement fits in the devices' memory.
    """

    max_evaluations: int = 2_000_000
    name: ClassVar[str] = "exhaustive"

    def __post_init__(self) -> None:
        check_count(f"scheduler {self.name!r}", "max_evaluations", self.max_evaluations)

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        optima = find_optima(problem, simulator.network, self.max_evaluations)
        info = _report(problem, optima)
        if simulator.choose == "given" and np.isfinite(optima.makespan):
            return Proposal(optima.devices, optima.order, optima.evaluations, None, info)
        orders = np.tile(optima.order, (len(optima.placements), 1))
        makespans = simulator.makespans(optima.placements, orders)
        best = best_of(makespans)
        if not np.isfinite(makespans[best]):
            raise CapacityError(
                f"scheduler {self.name!r}, problem {problem.name!r}: none of its "
                f"{len(makespans)} placements fits in the devices' memory"
            )
        devices = optima.placements[best].copy()
        start = simulator.run(devices, optima.order).start
        rank = np.argsort(problem.graph.topological_order)
        return Proposal(
            devices,
            np.lexsort((rank, start)),
            optima.evaluations + len(makespans),
            float(makespans[best]),
            info,
        )


def find_optima(
    problem: PlacementProblem, network: str, max_evaluations: int = 2_000_000
) -> Optima:
    """Enumerates a problem; see `Exhaustive`.

    Args:
        problem: what is scheduled, its inputs explicit.
        network: a model of `doppler.simulator.NETWORKS`.
        max_evaluations: most pairs of a placement and an order.

    Raises:
        ConfigurationError: the problem has more of them.
    """
    simulator = Simulator(problem, network=network, choose="given")  # checks problem and network
    orders, placements = _everything(problem, max_evaluations)
    frees, plans = _free_optima(problem, network, placements)
    best_free = best_of(frees)
    makespan, evaluations = np.inf, 0
    devices, order = placements[best_free], plans[best_free].order
    for row in np.argsort(frees, kind="stable").tolist():
        if frees[row] >= makespan * (1 - ROUNDING):
            break
        found = simulator.makespans(np.tile(placements[row], (len(orders), 1)), orders)
        evaluations += len(orders)
        if found.min() < makespan:
            makespan, devices = float(found.min()), placements[row]
            order = orders[best_of(found)]
    return Optima(
        placements, float(frees[best_free]), plans[best_free],
        makespan, devices.copy(), order.copy(), evaluations,
    )  # fmt: skip


def _report(problem: PlacementProblem, optima: Optima) -> dict[str, Any]:
    known = not memory_may_bind(problem)
    free, makespan = optima.free_makespan, optima.makespan
    return {
        "optimum": "optimal" if known else "gap",
        "free_makespan": free if known else None,
        "bound": free,
        "gap": 0.0 if known else None,
        "work_conserving_makespan": makespan,
        "work_conserving_gap": 0.0 if makespan <= free else 1.0 - free / makespan,
        "free_devices": optima.free_plan.devices.tolist(),
        "free_order": optima.free_plan.order.tolist(),
        "placements": len(optima.placements),
    }


def _everything(problem: PlacementProblem, most: int) -> tuple[np.ndarray, np.ndarray]:
    """All topological orders and all placements, unless their product is more than `most`."""
    units = np.unique(problem.constraints.leader)
    num_placements = prod(allowed_devices(problem)[units].sum(axis=1).tolist())
    alike = prod(factorial(len(group)) for group in identical_devices(problem))
    least = max(1, num_placements // alike)
    placements: list[list[int]] = []
    num_orders = 1
    if least * ORDERS_PER_PLACEMENT <= most:
        num_orders = _count_orders(problem, most // least)
        weight = max(num_orders, ORDERS_PER_PLACEMENT)
        placements = list(islice(_placements(problem), most // weight + 1))
    weight = max(num_orders, ORDERS_PER_PLACEMENT)
    if not 0 < len(placements) * weight <= most:
        raise ConfigurationError(
            f"scheduler 'exhaustive': problem {problem.name!r} has {min(num_placements, HUGE):.3g} "
            f"placements of {problem.num_ops} ops, with {num_orders:.3g} or more orders each; "
            f"max_evaluations is {most}; use scheduler cp_sat"
        )
    return np.array(list(_orders(problem))), np.array(placements)


def _count_orders(problem: PlacementProblem, most: int) -> int:
    """Topological orders, not counted on much beyond `most`, over sets of ops that come first."""
    graph = problem.graph
    before = [sum(1 << int(op) for op in graph.predecessors(v)) for v in range(graph.num_ops)]
    ways = {0: 1}
    for _ in range(graph.num_ops):
        longer: dict[int, int] = {}
        total = 0
        for done, count in ways.items():
            for op, needed in enumerate(before):
                if not done >> op & 1 and done & needed == needed:
                    longer[done | 1 << op] = longer.get(done | 1 << op, 0) + count
                    total += count
            if total > most:  # every beginning of an order can be completed
                return total
        ways = longer
    return sum(ways.values())


def _orders(problem: PlacementProblem) -> Iterator[list[int]]:
    graph = problem.graph
    missing = graph.in_degrees.tolist()
    following = [graph.successors(op).tolist() for op in range(graph.num_ops)]
    order: list[int] = []

    def extend() -> Iterator[list[int]]:
        if len(order) == len(missing):
            yield list(order)
            return
        for op in range(len(missing)):
            if missing[op] == 0:
                order.append(op)
                missing[op] = -1
                for after in following[op]:
                    missing[after] -= 1
                yield from extend()
                order.pop()
                missing[op] = 0
                for after in following[op]:
                    missing[after] += 1

    return extend()


def _placements(problem: PlacementProblem) -> Iterator[list[int]]:
    """Placements that open interchangeable devices in ascending order."""
    leaders = problem.constraints.leader.tolist()
    units = sorted(set(leaders))
    allowed = [np.flatnonzero(row).tolist() for row in allowed_devices(problem)[units]]
    opens_after = {
        after: before for group in identical_devices(problem) for before, after in pairwise(group)
    }
    chosen: list[int] = []

    def extend() -> Iterator[list[int]]:
        if len(chosen) == len(units):
            where = dict(zip(units, chosen))
            yield [where[leader] for leader in leaders]
            return
        for device in allowed[len(chosen)]:
            if opens_after.get(device, device) in (device, *chosen) or device in chosen:
                chosen.append(device)
                yield from extend()
                chosen.pop()

    return extend()


def _free_optima(
    problem: PlacementProblem, network: str, placements: np.ndarray
) -> tuple[np.ndarray, list[Plan]]:
    """The least makespan of each placement, waiting allowed, and the plan that reaches it."""
    seconds = hop_seconds(problem)
    channels = link_channels(problem.topology, network)
    num_channels = 1 + max((channel for row in channels for channel in row), default=-1)
    slots = np.array(problem.topology.compute_slots, np.int64)
    makespans, plans = np.zeros(len(placements)), []
    for row, devices in enumerate(placements):
        tasks, names = make_tasks(problem, devices, seconds, channels)
        makespans[row], sequence = best_sequence(tasks, slots, num_channels, np.inf)
        plans.append(Plan(devices, tuple(names[task] for task in sequence.tolist())))
    return makespans, plans
