"""The CP-SAT model of P|prec|Cmax: equal devices, free communication, no placement variables.

Devices do not matter, only how many ops run at a time: one cumulative resource. Which device each
op runs on is read off the start times afterwards, as intervals are coloured.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from doppler.schedulers.exact.instance import Instance
from doppler.schedulers.exact.replay import Plan, Times, make_plan


class ClassicalModel:
    """See the module.

    Args:
        instance: for which `Instance.classical` holds.
        upper: length of a known schedule; longer ones are left out. [ticks]
    """

    def __init__(self, instance: Instance, upper: int) -> None:
        from ortools.sat.python import cp_model

        self.instance = instance
        self.model = model = cp_model.CpModel()
        problem = instance.problem
        seconds = instance.ticks.ops[:, 0].tolist()
        last = np.where(problem.is_input_op, 0, upper - instance.tails - instance.least)
        self.makespan = model.new_int_var(instance.lower, upper, "makespan")
        self.start = [
            model.new_int_var(head, latest, f"start {op}")
            for op, (head, latest) in enumerate(zip(instance.heads.tolist(), last.tolist()))
        ]
        intervals = [
            model.new_fixed_size_interval_var(start, size, f"op {op}")
            for op, (start, size) in enumerate(zip(self.start, seconds))
        ]
        model.add_cumulative(intervals, [1] * len(intervals), instance.capacity)
        for producer, consumer in problem.graph.edges.tolist():
            model.add(self.start[consumer] >= self.start[producer] + seconds[producer])
        for start, size, tail in zip(self.start, seconds, instance.tails.tolist()):
            model.add(self.makespan >= start + size + tail)
        model.minimize(self.makespan)

    def hint(self, plan: Plan, times: Times) -> None:
        """Starts the search from a schedule in ticks."""
        for op, start in enumerate(self.start):
            self.model.add_hint(start, times[op, -1, 0][0])

    def read(self, value: Callable[[Any], int]) -> tuple[Plan, Times]:
        """The plan of a solution, and when its tasks start in it."""
        starts = np.array([value(start) for start in self.start])
        return coloured(self.instance, starts)


def coloured(instance: Instance, starts: np.ndarray) -> tuple[Plan, Times]:
    """Gives each op the lowest slot that is free when it starts.

    Args:
        instance: for which `Instance.classical` holds.
        starts: at no time do more ops run than there are slots. # (num_ops,) [ticks]
    """
    problem = instance.problem
    home = np.repeat(np.arange(problem.num_devices), problem.topology.compute_slots).tolist()
    free = list(range(len(home)))
    heapify(free)
    running: list[tuple[int, int]] = []
    devices = np.zeros(problem.num_ops, np.int64)
    finishes = starts + instance.ticks.ops[:, 0]
    for op in np.lexsort((finishes, starts)).tolist():
        while running and running[0][0] <= starts[op]:
            heappush(free, heappop(running)[1])
        if problem.is_input_op[op] or not free:  # only ops without duration find no slot
            continue
        slot = heappop(free)
        devices[op] = home[slot]
        heappush(running, (int(finishes[op]), slot))
    return _with_transfers(instance, devices, starts, finishes)


def _with_transfers(
    instance: Instance, devices: np.ndarray, starts: np.ndarray, finishes: np.ndarray
) -> tuple[Plan, Times]:
    """The plan in which tensors move, in no time, as soon as they are there."""
    times: Times = {
        (op, -1, 0): (start, finish)
        for op, (start, finish) in enumerate(zip(starts.tolist(), finishes.tolist()))
    }
    for op, target in transfers(instance, devices):
        for hop in range(len(instance.problem.topology.routes[devices[op]][target])):
            times[op, target, hop] = int(finishes[op]), int(finishes[op])
    return make_plan(instance.problem, devices, times), times


def transfers(instance: Instance, devices: np.ndarray) -> list[tuple[int, int]]:
    """Ops and the other devices that read them, each pair once, ascending."""
    producers, consumers = instance.problem.graph.edges.T
    remote = devices[producers] != devices[consumers]
    pairs = np.stack([producers[remote], devices[consumers[remote]]], axis=1)
    return [(op, target) for op, target in np.unique(pairs, axis=0).tolist()]
