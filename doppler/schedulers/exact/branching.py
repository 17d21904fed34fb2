"""The kernel of the enumeration: the best schedule of one placement, waiting allowed.

Branch and bound over the tasks (ops and hops of transfers) in the order of their starts: the next
task starts as soon as its inputs are there and its resources are free, and not before the last one
that was chosen. Every schedule in which nothing can be moved forward without changing the order
on some resource arises so, and one of them is optimal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.problem import PlacementProblem
from doppler.schedulers.exact.replay import Task
from doppler.simulator.jit import allocates, compiled, entry


class Tasks(NamedTuple):
    """The tasks of a placement: the ops by id, then the hops of transfers.

    Args:
        seconds, tails: duration, and what must follow. # (num_tasks,) [s]
        missing: how many tasks must come before. # (num_tasks,)
        next_ptr, next_tasks: who waits for each task, CSR. # (num_tasks + 1,), (num_edges,)
        device: whose slot it takes, -1 for none. # (num_tasks,)
        channels: which channels it takes, -1 for none. # (num_tasks, width)
    """

    seconds: np.ndarray
    tails: np.ndarray
    missing: np.ndarray
    next_ptr: np.ndarray
    next_tasks: np.ndarray
    device: np.ndarray
    channels: np.ndarray


class State(NamedTuple):
    """One row per depth of the search.

    Args:
        missing: -1 once a task is chosen. # (num_tasks + 1, num_tasks)
        ready: when the inputs known so far are there. # (num_tasks + 1, num_tasks) [s]
        earliest: start of the tasks that can be chosen, else infinite.
            # (num_tasks + 1, num_tasks) [s]
        slots: # (num_tasks + 1, num_devices, most slots) [s]
        channels: # (num_tasks + 1, num_channels) [s]
        last: start of the last task chosen. # (num_tasks + 1,) [s]
        chosen: candidate under way, then the sequence. # (num_tasks + 1,)
    """

    missing: np.ndarray
    ready: np.ndarray
    earliest: np.ndarray
    slots: np.ndarray
    channels: np.ndarray
    last: np.ndarray
    chosen: np.ndarray


def make_tasks(
    problem: PlacementProblem,
    devices: np.ndarray,
    hop_seconds: np.ndarray,
    channels: list[tuple[int, ...]],
) -> tuple[Tasks, list[Task]]:
    """Lists the tasks of a placement, and how they are called in a plan.

    Args:
        problem: what is scheduled.
        devices: # (num_ops,)
        hop_seconds: # (num_ops, num_links) [s]
        channels: of each link, see `doppler.schedule.networks`.
    """
    graph, homes = problem.graph, devices.tolist()
    seconds = problem.cost_model.op_seconds[np.arange(len(devices)), devices].tolist()
    device = [-1 if given else home for given, home in zip(problem.is_input_op, homes)]
    names: list[Task] = [(op, -1, 0) for op in range(len(homes))]
    takes: list[tuple[int, ...]] = [()] * len(homes)
    edges: list[tuple[int, int]] = []
    for op, home in enumerate(homes):
        last = {home: op}
        for consumer in graph.successors(op).tolist():
            target = homes[consumer]
            if target not in last:
                before = op
                for hop, link in enumerate(problem.topology.routes[home][target]):
                    edges.append((before, len(seconds)))
                    before = len(seconds)
                    seconds.append(float(hop_seconds[op, link]))
                    device.append(-1)
                    names.append((op, target, hop))
                    takes.append(channels[link])
                last[target] = before
            edges.append((last[target], consumer))
    following: list[list[int]] = [[] for _ in seconds]
    for before, after in edges:
        following[before].append(after)
    width = max([1, *map(len, takes)])
    tasks = Tasks(
        np.array(seconds),
        np.array(_tails(seconds, following)),
        np.bincount([after for _, after in edges], minlength=len(seconds)).astype(np.int64),
        np.cumsum([0, *map(len, following)]).astype(np.int64),
        np.array([task for row in following for task in row], np.int64),
        np.array(device, np.int64),
        np.array([[*row, *[-1] * (width - len(row))] for row in takes], np.int64),
    )
    return tasks, names


def _tails(seconds: list[float], following: list[list[int]]) -> list[float]:
    tails = [-1.0] * len(seconds)

    def tail(task: int) -> float:
        if tails[task] < 0:
            tails[task] = max(
                (seconds[after] + tail(after) for after in following[task]), default=0
            )
        return tails[task]

    return [tail(task) for task in range(len(seconds))]


@entry
def best_sequence(
    tasks: Tasks, slots: np.ndarray, num_channels: int, upper: float
) -> tuple[float, np.ndarray]:
    """The least makespan of one placement.

    Args:
        tasks: of the placement.
        slots: compute slots of each device. # (num_devices,)
        num_channels: channels are numbered below it.
        upper: schedules of at least this length are of no interest. [s]

    Returns:
        The makespan [s], or `upper` if there is none below; the tasks in the order of their starts.
    """
    return _search(tasks, _empty_state(tasks, slots, num_channels), upper)


@allocates
def _empty_state(tasks: Tasks, slots: np.ndarray, num_channels: int) -> State:
    size = len(tasks.seconds)
    state = State(
        np.zeros((size + 1, size), np.int64),
        np.zeros((size + 1, size)),
        np.full((size + 1, size), np.inf),
        np.zeros((size + 1, len(slots), slots.max())),
        np.zeros((size + 1, max(1, num_channels))),
        np.zeros(size + 1),
        np.full(size + 1, -1),
    )
    for device in range(len(slots)):
        state.slots[:, device, slots[device] :] = np.inf
    state.missing[0] = tasks.missing
    return state


@allocates
def _search(tasks: Tasks, state: State, upper: float) -> tuple[float, np.ndarray]:
    size = len(tasks.seconds)
    sequence = np.zeros(size, np.int64)
    depth = 0
    _enter(tasks, state, 0, upper)
    while depth >= 0:
        task = _next_choice(tasks, state, depth, upper)
        if task < 0:
            depth -= 1
            continue
        state.chosen[depth] = task
        _choose(tasks, state, depth, task)
        if depth + 1 == size:
            makespan = state.ready[size].max()
            if makespan < upper:
                upper = makespan
                sequence[:] = state.chosen[:size]
            continue
        depth += 1
        _enter(tasks, state, depth, upper)
    return upper, sequence


@compiled
def _enter(tasks: Tasks, state: State, depth: int, upper: float) -> None:
    """Finds what can be chosen; nothing, if what can be started can no longer end in time."""
    state.chosen[depth] = -1
    hopeless = False
    for task in range(len(tasks.seconds)):
        state.earliest[depth, task] = np.inf
        if state.missing[depth, task] != 0:
            continue
        start = state.ready[depth, task]
        device = tasks.device[task]
        if device >= 0:
            free = np.inf
            for slot in range(state.slots.shape[2]):
                free = min(free, state.slots[depth, device, slot])
            start = max(start, free)
        for entry_ in range(tasks.channels.shape[1]):
            channel = tasks.channels[task, entry_]
            if channel >= 0:
                start = max(start, state.channels[depth, channel])
        state.earliest[depth, task] = start
        finish = max(start, state.last[depth]) + tasks.seconds[task]
        hopeless = hopeless or finish + tasks.tails[task] >= upper
    if hopeless:
        state.earliest[depth, :] = np.inf


@compiled
def _next_choice(tasks: Tasks, state: State, depth: int, upper: float) -> int:
    """The next task worth choosing after the one under way, or -1.

    Left out is a task before whose start another one could both start and finish: that one would
    be moved forward without delaying anything.
    """
    size = len(tasks.seconds)
    for task in range(state.chosen[depth] + 1, size):
        start = state.earliest[depth, task]
        if start == np.inf or start < state.last[depth]:
            continue
        if start + tasks.seconds[task] + tasks.tails[task] >= upper:
            return -1  # it has to run some time, and never earlier
        pointless = False
        for other in range(size):
            begin = state.earliest[depth, other]
            if other != task and begin + tasks.seconds[other] <= start:
                first = begin < start or tasks.seconds[task] > 0 or other < task
                pointless = pointless or first
        if not pointless:
            return task
    return -1


@compiled
def _choose(tasks: Tasks, state: State, depth: int, task: int) -> None:
    """Writes the next depth's state: the task runs. A chosen task's `ready` is its finish."""
    below = depth + 1
    for other in range(len(tasks.seconds)):
        state.missing[below, other] = state.missing[depth, other]
        state.ready[below, other] = state.ready[depth, other]
    for device in range(state.slots.shape[1]):
        for slot in range(state.slots.shape[2]):
            state.slots[below, device, slot] = state.slots[depth, device, slot]
    for channel in range(state.channels.shape[1]):
        state.channels[below, channel] = state.channels[depth, channel]
    start = state.earliest[depth, task]
    finish = start + tasks.seconds[task]
    state.last[below] = start
    state.missing[below, task] = -1
    state.ready[below, task] = finish
    device = tasks.device[task]
    if device >= 0:
        slot = 0
        for other in range(1, state.slots.shape[2]):
            if state.slots[below, device, other] < state.slots[below, device, slot]:
                slot = other
        state.slots[below, device, slot] = finish
    for entry_ in range(tasks.channels.shape[1]):
        channel = tasks.channels[task, entry_]
        if channel >= 0:
            state.channels[below, channel] = finish
    for entry_ in range(tasks.next_ptr[task], tasks.next_ptr[task + 1]):
        after = tasks.next_tasks[entry_]
        state.missing[below, after] -= 1
        state.ready[below, after] = max(state.ready[below, after], finish)
