"""Checks that a schedule obeys the executor semantics; used on every simulated and measured run."""

from __future__ import annotations

import numpy as np

from doppler.errors import ConfigurationError, InvalidPlacementError, ScheduleError
from doppler.schedule.arrivals import Arrivals, find_arrivals
from doppler.schedule.barriers import check_barriers
from doppler.schedule.intervals import first_overlap, free_stretches, longest_free_wait
from doppler.schedule.networks import link_channels
from doppler.schedule.schedule import EXECUTIONS, Schedule


def validate_schedule(schedule: Schedule, tolerance: float = 1e-9) -> None:
    """Raises at the first rule of the executor semantics that a schedule breaks.

    Checked are: finite times and matching shapes; every needed transfer present once, with the hops
    of its route in order; no transfer before its producer finished and no op before its inputs
    arrived; no device beyond its compute slots and no link or port (by the schedule's network
    model) beyond one transfer; work conservation, that is no device with a free slot, and no link
    with free ports, while a task that could start there waits; no device over its memory.
    Durations are not checked: noise and real devices make them what they like. Of a
    bulk-synchronous schedule the barriers between levels are checked in place of work conservation.

    Args:
        schedule: simulated, emulated or measured.
        tolerance: what clocks and hand-offs may be off by: a task may start this much early, and a
            resource may idle this long at a stretch beside a waiting task. Measured runs need more
            than the default, which only absorbs rounding. [s]

    Raises:
        ScheduleError: naming the rule, the ops, the device or link, and the times.
        ConfigurationError: if the schedule names an unknown network model or execution.
    """
    if schedule.execution not in EXECUTIONS:
        raise ConfigurationError(
            f"execution {schedule.execution!r} is unknown; known: {', '.join(EXECUTIONS)}"
        )
    _check_shapes(schedule)
    _check_times(schedule)
    _check_transfers_present(schedule)
    arrivals = find_arrivals(schedule)
    _check_hop_order(schedule, arrivals, tolerance)
    _check_inputs(schedule, arrivals, tolerance)
    op_eligible, hop_eligible = arrivals.op_eligible, arrivals.hop_eligible
    if schedule.execution == "bulk_synchronous":
        check_barriers(schedule, tolerance)
        op_eligible, hop_eligible = schedule.start, schedule.transfer_start  # nobody waits idly
    _check_devices(schedule, op_eligible, tolerance)
    _check_links(schedule, hop_eligible, tolerance)
    _check_memory(schedule)


def _check_shapes(schedule: Schedule) -> None:
    problem = schedule.problem
    try:
        problem.check_placement(schedule.devices)
    except InvalidPlacementError as error:
        raise ScheduleError(f"schedule, devices: {error}") from error
    hops = len(schedule.transfer_ops)
    for label, size in (
        ("start", problem.num_ops),
        ("finish", problem.num_ops),
        ("transfer_targets", hops),
        ("transfer_links", hops),
        ("transfer_start", hops),
        ("transfer_finish", hops),
    ):
        shape = np.shape(getattr(schedule, label))
        if shape != (size,):
            raise ScheduleError(f"schedule, {label}: shape {shape}, expected ({size},)")
    for label, limit in (
        ("transfer_ops", problem.num_ops),
        ("transfer_targets", problem.num_devices),
        ("transfer_links", problem.topology.num_links),
    ):
        values = getattr(schedule, label)
        for hop in np.flatnonzero((values < 0) | (values >= limit))[:1]:
            raise ScheduleError(
                f"schedule, {label}, entry {hop}: {values[hop]} is not in 0 to {limit - 1}"
            )


def _check_times(schedule: Schedule) -> None:
    for what, start, finish in (
        ("op", schedule.start, schedule.finish),
        ("hop", schedule.transfer_start, schedule.transfer_finish),
    ):
        good = np.isfinite(start) & np.isfinite(finish) & (start >= 0) & (finish >= start)
        for index in np.flatnonzero(~good)[:1]:
            name = f"op {index}" if what == "op" else _hop(schedule, index)
            raise ScheduleError(
                f"{name}: runs from {start[index]} s to {finish[index]} s; times must be finite, "
                "not negative and in this order"
            )


def _check_transfers_present(schedule: Schedule) -> None:
    """Compares the hops with those that the placement needs."""
    problem = schedule.problem
    num_devices = problem.num_devices
    producers, consumers = problem.graph.edges.T
    sources, targets = schedule.devices[producers], schedule.devices[consumers]
    remote = sources != targets
    needed = np.unique(producers[remote] * num_devices + targets[remote])
    found = schedule.transfer_ops * num_devices + schedule.transfer_targets
    for code in np.setdiff1d(needed, found)[:1]:
        op, target = divmod(int(code), num_devices)
        raise ScheduleError(
            f"the output of op {op} is never sent to device {target}, where op "
            f"{_consumer_on(schedule, op, target)} needs it"
        )
    for code in np.setdiff1d(found, needed)[:1]:
        op, target = divmod(int(code), num_devices)
        raise ScheduleError(
            f"the output of op {op} is sent to device {target}, where nobody needs it"
        )
    order = np.argsort(found, kind="stable")
    routes = problem.topology.routes
    starts = np.searchsorted(found[order], needed, side="left")
    ends = np.searchsorted(found[order], needed, side="right")
    links = schedule.transfer_links[order].tolist()
    for code, start, end in zip(needed.tolist(), starts.tolist(), ends.tolist(), strict=True):
        op, target = divmod(code, num_devices)
        route = routes[schedule.devices[op]][target]
        if tuple(links[start:end]) != route:
            raise ScheduleError(
                f"the output of op {op} reaches device {target} over links {links[start:end]}; "
                f"its route is {list(route)}, each link once and in this order"
            )


def _check_hop_order(schedule: Schedule, arrivals: Arrivals, tolerance: float) -> None:
    """Checks that each hop waits for its producer or for the hop before it."""
    eligible = arrivals.hop_eligible
    for hop in np.flatnonzero(schedule.transfer_start < eligible - tolerance)[:1]:
        raise ScheduleError(
            f"{_hop(schedule, hop)} starts at {schedule.transfer_start[hop]:.9g} s, before the "
            f"tensor is there at {eligible[hop]:.9g} s"
        )


def _check_inputs(schedule: Schedule, arrivals: Arrivals, tolerance: float) -> None:
    """Checks that each op waits for the arrival of its inputs."""
    producers, consumers = schedule.problem.graph.edges.T
    arrival = arrivals.edge_arrival
    for edge in np.flatnonzero(schedule.start[consumers] < arrival - tolerance)[:1]:
        raise ScheduleError(
            f"op {consumers[edge]} starts on device {schedule.devices[consumers[edge]]} at "
            f"{schedule.start[consumers[edge]]:.9g} s, before the output of op {producers[edge]} "
            f"is there at {arrival[edge]:.9g} s"
        )


def _check_devices(schedule: Schedule, eligible: np.ndarray, tolerance: float) -> None:
    for device, slots in enumerate(schedule.problem.topology.compute_slots.tolist()):
        ops = np.flatnonzero(schedule.devices == device)
        start, finish = schedule.start[ops], schedule.finish[ops]
        overlap = first_overlap(start, np.maximum(start, finish - tolerance), slots)
        if overlap is not None:
            others = _running_at(start, finish - tolerance, overlap, ops)
            raise ScheduleError(
                f"op {ops[overlap]} starts on device {device} at {start[overlap]:.9g} s, while all "
                f"{slots} slots are taken by ops {others}"
            )
        waited = _idle_wait(eligible[ops], start, start, finish, slots, tolerance)
        for index in np.flatnonzero(waited > tolerance)[:1]:
            raise ScheduleError(
                f"device {device} idles for {waited[index]:.9g} s while op {ops[index]} waits: "
                f"eligible at {eligible[ops[index]]:.9g} s, started at {start[index]:.9g} s"
            )


def _check_links(schedule: Schedule, eligible: np.ndarray, tolerance: float) -> None:
    channels = link_channels(schedule.problem.topology, schedule.network)
    hops_on = _hops_by_channel(schedule, channels)
    for channel, hops in hops_on.items():
        start, finish = schedule.transfer_start[hops], schedule.transfer_finish[hops]
        overlap = first_overlap(start, np.maximum(start, finish - tolerance), 1)
        if overlap is not None:
            others = _running_at(start, finish - tolerance, overlap, hops)
            raise ScheduleError(
                f"{_hop(schedule, hops[overlap])} starts at {start[overlap]:.9g} s, while "
                f"{_hop(schedule, others[0])} still occupies channel {channel} of network "
                f"{schedule.network}"
            )
    for link in np.unique(schedule.transfer_links):
        waiting = np.flatnonzero(schedule.transfer_links == link)
        rivals = [hops_on[channel] for channel in channels[link]]
        busy = np.unique(np.concatenate(rivals)) if rivals else np.empty(0, np.int64)
        start = schedule.transfer_start[waiting]
        waited = _idle_wait(
            eligible[waiting],
            start,
            schedule.transfer_start[busy],
            schedule.transfer_finish[busy],
            1,
            tolerance,
        )
        for index in np.flatnonzero(waited > tolerance)[:1]:
            raise ScheduleError(
                f"{_hop(schedule, waiting[index])} waits while its link could carry it for "
                f"{waited[index]:.9g} s: eligible at {eligible[waiting[index]]:.9g} s, started at "
                f"{start[index]:.9g} s under network {schedule.network}"
            )


def _check_memory(schedule: Schedule) -> None:
    if schedule.peak_bytes is None:
        return
    capacity = schedule.problem.topology.memory_bytes
    for device in np.flatnonzero(schedule.peak_bytes > capacity)[:1]:
        raise ScheduleError(
            f"device {device} holds {schedule.peak_bytes[device]:.6g} B at its peak, over its "
            f"capacity of {capacity[device]:.6g} B"
        )


def _idle_wait(
    eligible: np.ndarray,
    started: np.ndarray,
    busy_from: np.ndarray,
    busy_until: np.ndarray,
    capacity: int,
    tolerance: float,
) -> np.ndarray:
    """Longest stretch that each task waited beside a free resource; see `longest_free_wait`."""
    free_from, free_until = free_stretches(busy_from, busy_until, capacity)
    long = free_until - free_from > tolerance
    return longest_free_wait(eligible, started, free_from[long], free_until[long])


def _hops_by_channel(schedule: Schedule, channels: list[tuple[int, ...]]) -> dict[int, np.ndarray]:
    by_channel: dict[int, list[np.ndarray]] = {}
    for link in range(len(channels)):
        hops = np.flatnonzero(schedule.transfer_links == link)
        for channel in channels[link]:
            by_channel.setdefault(channel, []).append(hops)
    return {channel: np.concatenate(parts) for channel, parts in by_channel.items()}


def _running_at(start: np.ndarray, finish: np.ndarray, index: int, names: np.ndarray) -> list[int]:
    at = start[index]
    running = (start <= at) & (finish > at)
    running[index] = False
    return names[running].tolist()


def _consumer_on(schedule: Schedule, op: int, device: int) -> int:
    consumers = schedule.problem.graph.successors(op)
    return int(consumers[schedule.devices[consumers] == device][0])


def _hop(schedule: Schedule, hop: int) -> str:
    """Names a hop: the tensor, where it goes and the link."""
    topology = schedule.problem.topology
    link = int(schedule.transfer_links[hop])
    source, target = topology.links[link].source, topology.links[link].target
    return (
        f"the transfer of op {schedule.transfer_ops[hop]} to device "
        f"{schedule.transfer_targets[hop]} on link {link} ({topology.endpoint_name(source)} -> "
        f"{topology.endpoint_name(target)})"
    )
