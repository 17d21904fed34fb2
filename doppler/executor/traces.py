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
