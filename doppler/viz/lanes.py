"""Rows and tracks: intervals that overlap are spread over lanes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from doppler.schedule import Schedule


def assign_lanes(start: np.ndarray, finish: np.ndarray) -> np.ndarray:
    """The lowest lane that is free at each interval's start; no two of one lane overlap.

    Args:
        start, finish: # (num_intervals,)

    Returns:
        # (num_intervals,)
    """
    lane = np.zeros(len(start), np.int64)
    running: list[tuple[float, int]] = []
    free: list[int] = []
    lanes = 0
    for index in np.lexsort((finish, start)):
        while running and running[0][0] <= start[index]:
            heappush(free, heappop(running)[1])
        if not free:
            free = [lanes]
            lanes += 1
            heapify(free)
        lane[index] = heappop(free)
        heappush(running, (float(finish[index]), int(lane[index])))
    return lane


def device_lanes(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Lane of each op on its device (num_ops,), and lanes of each device (num_devices,).

    A device has as many lanes as compute slots, more only where measured times overlap.
    """
    lane = np.zeros(len(schedule.devices), np.int64)
    lanes = schedule.problem.topology.compute_slots.copy()
    for device in range(len(lanes)):
        ops = np.flatnonzero(schedule.devices == device)
        lane[ops] = assign_lanes(schedule.start[ops], schedule.finish[ops])
        lanes[device] = max(lanes[device], lane[ops].max(initial=0) + 1)
    return lane, lanes


def link_lanes(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Lane of each hop on its link (num_hops,), and lanes of each link, at least 1 (num_links,)."""
    lane = np.zeros(len(schedule.transfer_links), np.int64)
    lanes = np.ones(schedule.problem.topology.num_links, np.int64)
    for link in np.unique(schedule.transfer_links):
        hops = np.flatnonzero(schedule.transfer_links == link)
        lane[hops] = assign_lanes(schedule.transfer_start[hops], schedule.transfer_finish[hops])
        lanes[link] = lane[hops].max() + 1
    return lane, lanes
