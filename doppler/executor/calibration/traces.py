"""What a measured schedule says: when ops were ready, how long dispatch and transfers took."""

from __future__ import annotations

import numpy as np

from doppler.schedule import Schedule


def ready_times(schedule: Schedule) -> np.ndarray:
    """When all inputs of each op were resident on its device, 0 without inputs. # (num_ops,) [s]"""
    arrival = np.zeros((schedule.problem.num_ops, schedule.problem.num_devices))
    # Hops of one transfer end one after the other; the last one is the arrival.
    np.maximum.at(
        arrival, (schedule.transfer_ops, schedule.transfer_targets), schedule.transfer_finish
    )
    producers, consumers = schedule.problem.graph.edges.T
    local = schedule.devices[producers] == schedule.devices[consumers]
    known = np.where(
        local, schedule.finish[producers], arrival[producers, schedule.devices[consumers]]
    )
    ready = np.zeros(schedule.problem.num_ops)
    np.maximum.at(ready, consumers, known)
    return ready


def dispatch_gaps(schedule: Schedule) -> np.ndarray:
    """Idle time before each op that was ready when its device became free. # (gaps,) [s]

    Only devices of one compute slot tell it.
    """
    ready = ready_times(schedule)
    gaps = []
    for device in range(schedule.problem.num_devices):
        ops = np.flatnonzero(schedule.devices == device)
        ops = ops[np.argsort(schedule.start[ops], kind="stable")]
        before, after = ops[:-1], ops[1:]
        waited = ready[after] <= schedule.finish[before]
        gaps.append((schedule.start[after] - schedule.finish[before])[waited])
    return np.concatenate(gaps)


def transfer_delays(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of each transfer, and seconds from when it could have begun to its arrival.

    A transfer could begin when its tensor was there and the link had done with the one before.
    Only transfers over a direct link count.

    Returns:
        (bytes, seconds). # (transfers,) [B], (transfers,) [s]

    Raises:
        UnknownQuantityError: if the graph does not say bytes.
    """
    routes = schedule.problem.topology.routes
    sizes, seconds = [], []
    link_free: dict[int, float] = {}
    output_bytes = schedule.problem.graph.require("output_bytes")
    for hop in np.argsort(schedule.transfer_start, kind="stable").tolist():
        op, link = int(schedule.transfer_ops[hop]), int(schedule.transfer_links[hop])
        arrival = float(schedule.transfer_finish[hop])
        begin = max(float(schedule.finish[op]), link_free.get(link, 0.0))
        link_free[link] = arrival
        source, target = schedule.devices[op], schedule.transfer_targets[hop]
        if len(routes[source][target]) == 1:
            sizes.append(output_bytes[op])
            seconds.append(arrival - begin)
    return np.array(sizes), np.array(seconds)


def others_at_work(schedule: Schedule) -> np.ndarray:
    """Share of the other devices' compute slots that worked while each op ran. # (num_ops,)

    0 for ops that took no time, and on one device.
    """
    problem = schedule.problem
    lengths = schedule.finish - schedule.start
    slots = problem.topology.compute_slots
    shares = np.zeros(problem.num_ops)
    for device in range(problem.num_devices):
        own = schedule.devices == device
        seconds = _work_within(schedule.start[own], schedule.finish[own], schedule)
        shares[~own] += seconds[~own] / slots[device]
    if problem.num_devices > 1:
        shares /= problem.num_devices - 1
    shares = np.divide(shares, lengths, out=np.zeros_like(shares), where=lengths > 0)
    return np.clip(shares, 0.0, 1.0)


def transfers_at_work(schedule: Schedule) -> np.ndarray:
    """How many transfers were under way at some time while each op ran. # (num_ops,)"""
    begun = np.searchsorted(np.sort(schedule.transfer_start), schedule.finish, "left")
    over = np.searchsorted(np.sort(schedule.transfer_finish), schedule.start, "right")
    return np.maximum(begun - over, 0).astype(float)


def _work_within(start: np.ndarray, finish: np.ndarray, schedule: Schedule) -> np.ndarray:
    """Seconds of work of one device's ops that fall into each op of the schedule. # (num_ops,)"""
    if not len(start):
        return np.zeros(schedule.problem.num_ops)
    times = np.concatenate([start, finish])
    steps = np.repeat([1.0, -1.0], len(start))
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(steps[order])
    # The integral of how many run is piecewise linear between starts and finishes.
    done = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(times))])
    return np.asarray(
        np.interp(schedule.finish, times, done) - np.interp(schedule.start, times, done)
    )
