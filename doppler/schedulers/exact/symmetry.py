"""Which devices may be swapped without changing any schedule's times."""

from __future__ import annotations

import numpy as np

from doppler.problem import PlacementProblem


def identical_devices(problem: PlacementProblem) -> list[list[int]]:
    """Groups of devices any two of which may change places; devices in ascending order.

    Two devices may if all ops take equally long on both, neither is named by a pin, they have
    equal slots and memory, and swapping them maps links on equal links and routes on routes.
    """
    groups: list[list[int]] = []
    for device in range(problem.num_devices):
        for group in groups:
            if _interchangeable(problem, group[0], device):
                group.append(device)
                break
        else:
            groups.append([device])
    return groups


def _interchangeable(problem: PlacementProblem, first: int, second: int) -> bool:
    topology, costs = problem.topology, problem.cost_model
    a, b = topology.devices[first], topology.devices[second]
    return (
        a.compute_slots == b.compute_slots
        and a.memory_bytes == b.memory_bytes
        and not np.isin(problem.constraints.block_device, [first, second]).any()
        and np.array_equal(costs.op_seconds[:, first], costs.op_seconds[:, second])
        and _links_agree(problem, first, second)
    )


def _links_agree(problem: PlacementProblem, first: int, second: int) -> bool:
    topology, costs = problem.topology, problem.cost_model
    swap = np.arange(topology.num_endpoints)
    swap[[first, second]] = second, first
    number = {(link.source, link.target): index for index, link in enumerate(topology.links)}
    image = []
    for index, link in enumerate(topology.links):
        other = number.get((int(swap[link.source]), int(swap[link.target])))
        if (
            other is None
            or link.bus != topology.links[other].bus
            or costs.link_latency[index] != costs.link_latency[other]
            or costs.link_seconds_per_unit[index] != costs.link_seconds_per_unit[other]
        ):
            return False
        image.append(other)
    devices = range(problem.num_devices)
    return all(
        tuple(image[link] for link in topology.routes[source][target])
        == topology.routes[swap[source]][swap[target]]
        for source in devices
        for target in devices
    )


def numbered_by_first_use(
    devices: np.ndarray, sequence: np.ndarray, groups: list[list[int]]
) -> np.ndarray:
    """The placement with the devices of each group renamed in the order in which ops come to them.

    Args:
        devices: # (num_ops,)
        sequence: in which order ops are looked at. # (num_ops,)
        groups: of `identical_devices`.
    """
    group_of = {device: index for index, group in enumerate(groups) for device in group}
    unused = [list(group) for group in groups]
    name: dict[int, int] = {}
    for op in sequence.tolist():
        device = int(devices[op])
        if device not in name:
            name[device] = unused[group_of[device]].pop(0)
    return np.array([name[int(device)] for device in devices], np.int64)
