"""The classical list schedulers in plain Python and exact fractions, straight from the papers."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from doppler import DataflowGraph
from doppler.schedulers.lists import PlanningModel, edge_model


@dataclass
class Example:
    """Whole numbers, so that ties abound and are exact."""

    seconds: list[list[int]]
    volume: dict[tuple[int, int], int]
    latency: list[list[int]]
    rate: list[list[int]]
    graph: DataflowGraph = field(init=False)

    def __post_init__(self) -> None:
        self.graph = DataflowGraph.from_edges("drawn", len(self.seconds), sorted(self.volume))

    @property
    def model(self) -> PlanningModel:
        return edge_model(
            self.graph,
            np.array(self.seconds),
            np.array([self.volume[tuple(edge)] for edge in self.graph.edges.tolist()]),
            np.array(self.latency),
            np.array(self.rate),
        )

    def transfer(self, edge: tuple[int, int], source: int, target: int) -> Fraction:
        if source == target:
            return Fraction(0)
        units = self.volume[edge] * self.rate[source][target]
        return Fraction(self.latency[source][target] + units)

    def mean_transfer(self, edge: tuple[int, int]) -> Fraction:
        devices = range(len(self.rate))
        all_pairs = [self.transfer(edge, s, t) for s in devices for t in devices if s != t]
        return sum(all_pairs, Fraction(0)) / max(len(all_pairs), 1)


@st.composite
def examples(draw: st.DrawFn, max_ops: int = 7) -> Example:
    num_ops, num_devices = draw(st.integers(1, max_ops)), draw(st.integers(1, 3))
    number = draw(st.sampled_from([2, 9]))
    pairs = [(a, b) for b in range(num_ops) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=10)) if pairs else []

    def table(rows: int) -> list[list[int]]:
        row = st.lists(st.integers(0, number), min_size=num_devices, max_size=num_devices)
        return draw(st.lists(row, min_size=rows, max_size=rows))

    latency, rate = table(num_devices), table(num_devices)
    for device in range(num_devices):
        latency[device][device] = rate[device][device] = 0
    volume = {edge: draw(st.integers(0, number)) for edge in edges}
    return Example(table(num_ops), volume, latency, rate)


class Reference:
    """One example, its levels, and a plan that grows."""

    def __init__(self, example: Example) -> None:
        self.x = example
        self.ops = range(len(example.seconds))
        self.devices = range(len(example.rate))
        self.succ = {i: [b for a, b in example.volume if a == i] for i in self.ops}
        self.pred = {i: [a for a, b in example.volume if b == i] for i in self.ops}
        self.position = {int(op): k for k, op in enumerate(example.graph.topological_order)}
        self.mean = [Fraction(sum(row), len(row)) for row in example.seconds]
        self.place: dict[int, int] = {}
        self.start: dict[int, Fraction] = {}
        self.finish: dict[int, Fraction] = {}

    def upward(self, op: int, communication: bool = True) -> Fraction:
        onward = [
            (self.x.mean_transfer((op, j)) if communication else 0) + self.upward(j, communication)
            for j in self.succ[op]
        ]
        return self.mean[op] + max(onward, default=Fraction(0))

    def median_level(self, op: int) -> Fraction:
        onward = [self.median_level(j) for j in self.succ[op]]
        return self.median(op) + max(onward, default=Fraction(0))

    def median(self, op: int) -> Fraction:
        return Fraction(statistics.median([Fraction(w) for w in self.x.seconds[op]]))

    def downward(self, op: int) -> Fraction:
        before = [
            self.downward(i) + self.mean[i] + self.x.mean_transfer((i, op)) for i in self.pred[op]
        ]
        return max(before, default=Fraction(0))

    def optimistic(self, op: int, device: int) -> Fraction:
        onward = [
            min(
                self.optimistic(j, w)
                + self.x.seconds[j][w]
                + (self.x.mean_transfer((op, j)) if w != device else 0)
                for w in self.devices
            )
            for j in self.succ[op]
        ]
        return max(onward, default=Fraction(0))

    def critical_path(self) -> list[int]:
        """Enumerates all paths; the longest, ties to the lexicographically lower positions."""

        def paths(op: int) -> list[list[int]]:
            return [[op, *tail] for j in self.succ[op] for tail in paths(j)] or [[op]]

        def length(path: list[int]) -> Fraction:
            edges = sum(self.x.mean_transfer(edge) for edge in itertools.pairwise(path))
            return edges + sum(self.mean[op] for op in path)

        every = [path for op in self.ops if not self.pred[op] for path in paths(op)]
        return min(every, key=lambda path: (-length(path), [self.position[op] for op in path]))

    def ready(self) -> list[int]:
        return [
            op
            for op in self.ops
            if op not in self.place and all(i in self.place for i in self.pred[op])
        ]

    def earliest(self, op: int, device: int, insertion: bool) -> Fraction:
        """Tries every moment at which a gap could begin."""
        arrival = max(
            (
                self.finish[i] + self.x.transfer((i, op), self.place[i], device)
                for i in self.pred[op]
            ),
            default=Fraction(0),
        )
        busy = [(self.start[i], self.finish[i]) for i in self.place if self.place[i] == device]
        if not insertion:
            return max([arrival, *(f for _, f in busy)])
        seconds = self.x.seconds[op][device]
        moments = sorted([arrival, *(f for _, f in busy if f > arrival)])
        return next(t for t in moments if all(t + seconds <= s or t >= f for s, f in busy))

    def put(self, op: int, device: int, insertion: bool) -> None:
        self.start[op] = self.earliest(op, device, insertion)
        self.finish[op] = self.start[op] + self.x.seconds[op][device]
        self.place[op] = device

    def by_priority(
        self,
        priority: Callable[[int], Fraction],
        insertion: bool = True,
        wishes: dict[int, int] | None = None,
        onward: Callable[[int, int], Fraction] = lambda op, device: Fraction(0),
    ) -> Reference:
        while ready := self.ready():
            op = min(ready, key=lambda i: (-priority(i), self.position[i]))
            costs = [
                self.earliest(op, p, insertion) + self.x.seconds[op][p] + onward(op, p)
                for p in self.devices
            ]
            self.put(op, (wishes or {}).get(op, costs.index(min(costs))), insertion)
        return self

    def by_pair(
        self, gain: Callable[[int, int], Fraction], level: Callable[[int], Fraction]
    ) -> Reference:
        while ready := self.ready():
            key = {
                (i, p): self.earliest(i, p, False) - gain(i, p) for i in ready for p in self.devices
            }
            op, device = min(
                key,
                key=lambda pair: (
                    key[pair],
                    -level(pair[0]),
                    self.position[pair[0]],
                    self.earliest(*pair, False) + self.x.seconds[pair[0]][pair[1]],
                    pair[1],
                ),
            )
            self.put(op, device, False)
        return self


def heft(example: Example, insertion: bool = True) -> Reference:
    plan = Reference(example)
    return plan.by_priority(plan.upward, insertion)


def cpop(example: Example) -> Reference:
    plan = Reference(example)
    path = plan.critical_path()
    work = [sum(example.seconds[op][p] for op in path) for p in plan.devices]
    wishes = dict.fromkeys(path, work.index(min(work)))
    return plan.by_priority(lambda op: plan.upward(op) + plan.downward(op), wishes=wishes)


def peft(example: Example) -> Reference:
    plan = Reference(example)

    def mean(op: int) -> Fraction:
        return sum(plan.optimistic(op, p) for p in plan.devices) / len(plan.devices)

    return plan.by_priority(mean, onward=plan.optimistic)


def etf(example: Example) -> Reference:
    plan = Reference(example)
    return plan.by_pair(lambda op, device: Fraction(0), lambda op: plan.upward(op, False))


def dls(example: Example) -> Reference:
    plan = Reference(example)

    def gain(op: int, device: int) -> Fraction:
        return plan.median_level(op) + plan.median(op) - example.seconds[op][device]

    return plan.by_pair(gain, plan.median_level)
