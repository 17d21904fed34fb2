"""Why a run took as long as it did: idle time by cause, and the chain that set its length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler.schedule.arrivals import Arrivals, find_arrivals
from doppler.schedule.networks import link_channels
from doppler.schedule.schedule import Schedule


@dataclass(frozen=True, eq=False)
class IdleTime:
    """What the compute slots of each device did over the makespan; the parts add up to `total`.

    An idle slot stands for one op of its device that has not started. While some such op has all
    inputs computed but not all of them here, the slot waits for a transfer; a slot beyond the
    number of ops that have not started has nothing left to do.

    Args:
        busy: ran an op. # (num_devices,) [s]
        waiting_for_input: every op left here had an input that was still being computed.
            # (num_devices,) [s]
        waiting_for_transfer: an op left here had all inputs computed, and one under way or queued
            for a link. # (num_devices,) [s]
        held_back: an op could have run here. None in work-conserving simulations; barriers of
            bulk-synchronous runs and overheads of measured ones. # (num_devices,) [s]
        nothing_left: no op left here that had not started. # (num_devices,) [s]
    """

    busy: np.ndarray
    waiting_for_input: np.ndarray
    waiting_for_transfer: np.ndarray
    held_back: np.ndarray
    nothing_left: np.ndarray

    @property
    def idle(self) -> np.ndarray:
        """All but `busy`. # (num_devices,) [s]"""
        waiting = self.waiting_for_input + self.waiting_for_transfer
        return waiting + self.held_back + self.nothing_left

    @property
    def total(self) -> np.ndarray:
        """Makespan times compute slots. # (num_devices,) [s]"""
        return self.busy + self.idle


@dataclass(frozen=True)
class ChainStep:
    """One op or hop of a critical chain, and what its start waited for last.

    Args:
        kind: "op" or "hop".
        index: op id, or index of the hop in the schedule's transfer arrays.
        start: [s]
        finish: [s]
        reason: "input": the step before made or brought what this one needs; "device": it occupied
            the compute slot; "link": it occupied the link or a channel that the link shares;
            "barrier": it ended a phase of a bulk-synchronous run; "begin": nothing, this is the
            first step.
        delay: seconds between the end of the step before (or time 0) and this start; 0 but for
            overheads of measured runs. [s]
    """

    kind: str
    index: int
    start: float
    finish: float
    reason: str
    delay: float


def idle_time(schedule: Schedule) -> IdleTime:
    """Divides each device's slot seconds by what the slots did or waited for."""
    arrivals = find_arrivals(schedule)
    producers, consumers = schedule.problem.graph.edges.T
    computed = np.zeros(schedule.problem.num_ops)
    np.maximum.at(computed, consumers, schedule.finish[producers])
    # Measured clocks may disagree by a little: keep the phases of an op in their order.
    eligible = np.minimum(arrivals.op_eligible, schedule.start)
    computed = np.minimum(computed, eligible)
    phases = np.stack([computed, eligible, schedule.start, schedule.finish])
    slots = schedule.problem.topology.compute_slots
    parts = [
        _device_seconds(phases[:, schedule.devices == device], int(slots[device]), schedule)
        for device in range(len(slots))
    ]
    return IdleTime(*np.array(parts).T)


def _device_seconds(phases: np.ndarray, slots: int, schedule: Schedule) -> list[float]:
    """Seconds of one device in the order of `IdleTime`'s fields.

    Args:
        phases: when inputs are computed, when they are here, start, finish. # (4, ops) [s]
        slots: compute slots of the device.
        schedule: for its makespan.
    """
    times = np.unique(np.append(phases.ravel(), [0.0, schedule.makespan]))
    passed = np.array([np.searchsorted(np.sort(row), times[:-1], side="right") for row in phases])
    lengths = np.diff(times)
    # How many ops are in each phase over each stretch, most telling first.
    running = passed[2] - passed[3]
    ready = passed[1] - passed[2]
    coming = passed[0] - passed[1]
    pending = phases.shape[1] - passed[0]
    left = np.full(len(lengths), slots)
    seconds = []
    for count in (running, ready, coming, pending, left):
        taken = np.minimum(left, count)
        left = left - taken
        seconds.append(float(taken @ lengths))
    busy, held_back, transfer, computing, nothing = seconds
    return [busy, computing, transfer, held_back, nothing]


def critical_chain(schedule: Schedule) -> list[ChainStep]:
    """Walks back from the op that finishes last: what did each start wait for last?

    Where an input and a resource came at the same instant, the input counts; where two inputs or
    two resources did, the one listed first. In a simulated run the steps follow one another without
    a gap from time 0 to the makespan, so that shortening the run means shortening or unlinking one
    of them.

    Returns:
        The chain, first step first.
    """
    walk = _Walk(schedule, find_arrivals(schedule))
    kind, index = "op", int(np.argmax(schedule.finish))
    steps: list[ChainStep] = []
    seen: set[tuple[str, int]] = set()
    while True:
        seen.add((kind, index))
        start, finish = walk.times(kind, index)
        reason, before = walk.cause(kind, index)
        if before in seen:  # clocks that disagree can make two measured steps each other's cause
            reason, before = "begin", None
        ended = 0.0 if before is None else walk.times(*before)[1]
        steps.append(ChainStep(kind, index, start, finish, reason, start - ended))
        if before is None:
            return steps[::-1]
        kind, index = before


@dataclass(frozen=True, eq=False)
class _Walk:
    """Looks up what a start waited for."""

    schedule: Schedule
    arrivals: Arrivals

    def times(self, kind: str, index: int) -> tuple[float, float]:
        s = self.schedule
        if kind == "op":
            return float(s.start[index]), float(s.finish[index])
        return float(s.transfer_start[index]), float(s.transfer_finish[index])

    def cause(self, kind: str, index: int) -> tuple[str, tuple[str, int] | None]:
        """The reason of a start, and the step that it waited for, None for nothing."""
        start, _ = self.times(kind, index)
        if kind == "op":
            needed, rivals = self._input_of_op(index), self._ops_beside(index)
            releases = self.schedule.finish[rivals]
            begun = self.schedule.start[rivals]
            resource, what = "device", "op"
        else:
            needed, rivals = self._input_of_hop(index), self._hops_beside(index)
            releases = self.schedule.transfer_finish[rivals]
            begun = self.schedule.transfer_start[rivals]
            resource, what = "link", "hop"
        best = ("begin", None) if needed is None else ("input", needed)
        reached = 0.0 if needed is None else self.times(*needed)[1]
        # What began in the same instant cannot have been in the way.
        earlier = np.flatnonzero((releases <= start) & (begun < start))
        if earlier.size:
            last = earlier[np.argmax(releases[earlier])]
            if releases[last] > reached:
                best, reached = (resource, (what, int(rivals[last]))), float(releases[last])
        if self.schedule.execution == "bulk_synchronous" and reached < start:
            return self._barrier(start, reached) or best
        return best

    def _input_of_op(self, op: int) -> tuple[str, int] | None:
        graph = self.schedule.problem.graph
        edges = np.flatnonzero(graph.edges[:, 1] == op)
        if not edges.size:
            return None
        edge = edges[np.argmax(self.arrivals.edge_arrival[edges])]
        hop = int(self.arrivals.edge_hop[edge])
        return ("hop", hop) if hop >= 0 else ("op", int(graph.edges[edge, 0]))

    def _input_of_hop(self, hop: int) -> tuple[str, int]:
        before = int(self.arrivals.hop_before[hop])
        return ("hop", before) if before >= 0 else ("op", int(self.schedule.transfer_ops[hop]))

    def _ops_beside(self, op: int) -> np.ndarray:
        return np.flatnonzero(self.schedule.devices == self.schedule.devices[op])

    def _hops_beside(self, hop: int) -> np.ndarray:
        channels = link_channels(self.schedule.problem.topology, self.schedule.network)
        mine = set(channels[self.schedule.transfer_links[hop]])
        sharing = [link for link, taken in enumerate(channels) if mine & set(taken)]
        return np.flatnonzero(np.isin(self.schedule.transfer_links, sharing))

    def _barrier(self, start: float, after: float) -> tuple[str, tuple[str, int]] | None:
        """The last step anywhere that ended before `start`, if it ended later than `after`."""
        best = None
        s = self.schedule
        for what, begun, ended in (
            ("op", s.start, s.finish),
            ("hop", s.transfer_start, s.transfer_finish),
        ):
            earlier = np.flatnonzero((ended <= start) & (ended > after) & (begun < start))
            if earlier.size:
                last = int(earlier[np.argmax(ended[earlier])])
                after = float(ended[last])
                best = ("barrier", (what, last))
        return best
