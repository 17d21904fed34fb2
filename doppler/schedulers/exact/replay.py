"""Schedules in which devices and links may wait: rebuilt from the order of their tasks."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from doppler.problem import PlacementProblem
from doppler.schedule import Schedule
from doppler.schedule.networks import link_channels
from doppler.schedulers.exact.ticks import hop_seconds

Task = tuple[int, int, int]
"""An op as (op, -1, 0), a hop of its output's transfer as (op, destination device, hop)."""

Times = dict[Task, tuple[Any, Any]]
"""Start and finish of every task, in seconds or in ticks."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A placement and the order in which all tasks start; each resource keeps that order.

    Args:
        devices: # (num_ops,)
        tasks: all ops and hops, each after those that it waits for.
    """

    devices: np.ndarray
    tasks: tuple[Task, ...]

    @property
    def order(self) -> np.ndarray:
        """The ops alone, a topological order. # (num_ops,)"""
        return np.array([task[0] for task in self.tasks if task[1] < 0], np.int64)


def make_plan(problem: PlacementProblem, devices: np.ndarray, times: Times) -> Plan:
    """Orders tasks by start; at equal times those that take none come first, in path order."""
    rank = np.argsort(problem.graph.topological_order)

    def key(task: Task) -> tuple[Any, ...]:
        start, finish = times[task]
        op, target, hop = task
        return start, finish, int(rank[op]), target >= 0, hop, target

    return Plan(devices, tuple(sorted(times, key=key)))


def plan_of(schedule: Schedule) -> Plan:
    """The plan that a simulated schedule followed."""
    times: Times = {
        (op, -1, 0): (start, finish)
        for op, (start, finish) in enumerate(zip(schedule.start.tolist(), schedule.finish.tolist()))
    }
    hops: dict[tuple[int, int], int] = {}
    columns = (
        schedule.transfer_ops,
        schedule.transfer_targets,
        schedule.transfer_start,
        schedule.transfer_finish,
    )
    for op, target, start, finish in zip(*(column.tolist() for column in columns)):
        hop = hops.get((op, target), 0)
        hops[op, target] = hop + 1
        times[op, target, hop] = start, finish
    return make_plan(schedule.problem, schedule.devices, times)


class Replay:
    """Starts the tasks of plans as early as their order allows.

    Args:
        problem: what is scheduled.
        network: a model of `doppler.simulator.NETWORKS`.
        ops: duration of each op on each device. # (num_ops, num_devices) [s] or [ticks]
        hops: duration of each op's output on each link. # (num_ops, num_links)
    """

    def __init__(
        self, problem: PlacementProblem, network: str, ops: np.ndarray, hops: np.ndarray
    ) -> None:
        self.problem = problem
        self.network = network
        self.channels = link_channels(problem.topology, network)
        self._ops = ops.tolist()
        self._hops = hops.tolist()

    def times(self, plan: Plan, planned: Times | None = None) -> Times:
        """Start and finish of every task. Each resource serves its tasks in the plan's order.

        Args:
            plan: must be complete.
            planned: in whatever unit; where given, tasks start in its order and wait for all that
                have finished in it before they start. What is resident is then what is there,
                however durations were rounded.
        """
        problem = self.problem
        routes = problem.topology.routes
        devices = plan.devices.tolist()
        slots = [[0] * int(count) for count in problem.topology.compute_slots]
        channel_free: dict[int, Any] = {}
        arrived: dict[tuple[int, int], Any] = {}
        times: Times = {}
        earliest: Any = 0
        ending: list[tuple[Any, Any]] = []
        for task in plan.tasks:
            op, target, hop = task
            home = devices[op]
            while planned is not None and ending and ending[0][0] <= planned[task][0]:
                earliest = max(earliest, heappop(ending)[1])
            if target >= 0:
                route = routes[home][target]
                link = route[hop]
                ready = arrived[op, home] if hop == 0 else times[op, target, hop - 1][1]
                busy = self.channels[link]
                start = max([ready, earliest, *(channel_free.get(channel, 0) for channel in busy)])
                finish = start + self._hops[op][link]
                for channel in busy:
                    channel_free[channel] = finish
                if hop + 1 == len(route):
                    arrived[op, target] = finish
            elif problem.is_input_op[op]:
                start = finish = 0
                arrived[op, home] = finish
            else:
                inputs = problem.graph.predecessors(op).tolist()
                start = max(
                    [slots[home][0], earliest, *(arrived[producer, home] for producer in inputs)]
                )
                finish = start + self._ops[op][home]
                heapreplace(slots[home], finish)
                arrived[op, home] = finish
            times[task] = start, finish
            if planned is not None:
                earliest = max(earliest, start)
                heappush(ending, (planned[task][1], finish))
        return times


def length(times: Times) -> Any:
    """Finish of the last task."""
    return max(finish for _, finish in times.values())


def schedule_of(problem: PlacementProblem, network: str, plan: Plan, times: Times) -> Schedule:
    """The schedule of a plan; it need not be work-conserving."""
    ops = np.array([times[op, -1, 0] for op in range(problem.num_ops)], np.float64)
    hops = sorted(task for task in times if task[1] >= 0)
    spans = np.array([times[task] for task in hops], np.float64).reshape(-1, 2)
    devices = plan.devices
    routes = problem.topology.routes
    return Schedule(
        problem=problem,
        devices=devices,
        start=ops[:, 0].copy(),
        finish=ops[:, 1].copy(),
        transfer_ops=np.array([op for op, _, _ in hops], np.int64),
        transfer_targets=np.array([target for _, target, _ in hops], np.int64),
        transfer_links=np.array([routes[devices[op]][t][hop] for op, t, hop in hops], np.int64),
        transfer_start=spans[:, 0].copy(),
        transfer_finish=spans[:, 1].copy(),
        network=network,
        choose="given",
        order=plan.order,
    )


def seconds_replay(problem: PlacementProblem, network: str) -> Replay:
    """The replay in true seconds."""
    return Replay(problem, network, problem.cost_model.op_seconds, hop_seconds(problem))


def fits(schedule: Schedule) -> bool:
    """Whether no device is ever over its memory, as far as bytes and capacities are known.

    Without slack, as in the simulator.
    """
    problem = schedule.problem
    if problem.graph.output_bytes is None:
        return True
    return all(
        held.max() <= capacity
        for (_, held), capacity in zip(
            schedule.memory_over_time(), problem.topology.memory_bytes.tolist()
        )
    )


def memory_may_bind(problem: PlacementProblem) -> bool:
    """Whether all outputs together are more than some device holds."""
    sizes = problem.graph.output_bytes
    return sizes is not None and bool((sizes.sum() > problem.topology.memory_bytes).any())
