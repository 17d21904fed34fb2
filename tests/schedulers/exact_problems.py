"""Problems that the tests of exact schedulers share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Topology
from doppler.hardware import make_topology
from doppler.schedulers.exact import SolverOptions

QUICK = SolverOptions(budget_s=10.0, num_workers=2)
"""All problems here are solved in a fraction of it."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def priced(
    num_ops: int, edges: np.ndarray, num_devices: int, seconds: np.ndarray, volume: np.ndarray
) -> PlacementProblem:
    """Edges and amounts on fully connected devices whose links add nothing to the volume."""
    topology = make_topology("v100", num_devices)
    costs = CostModel(
        op_seconds=np.broadcast_to(seconds, (num_ops, num_devices)),
        transfer_volume=volume,
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="test",
    )
    return PlacementProblem(DataflowGraph.from_edges("test", num_ops, edges), topology, costs)


def random_problem(
    num_ops: int, num_devices: int, seed: int, transfer: float = 1.0, alike: bool = True
) -> PlacementProblem:
    """A random DAG of small whole amounts; volumes are whole multiples of `transfer`."""
    generator = rng(seed)
    consumers = generator.integers(1, num_ops, 2 * num_ops)
    producers = (generator.random(2 * num_ops) * consumers).astype(np.int64)
    names = generator.permutation(num_ops)
    edges = names[np.unique(np.stack([producers, consumers], 1), axis=0)]
    seconds = generator.integers(1, 9, (num_ops, 1 if alike else num_devices)).astype(float)
    volume = generator.integers(1, 4, num_ops) * transfer
    return priced(num_ops, edges, num_devices, seconds, volume)


def drawn(
    edges: list[tuple[int, int]],
    seconds: list[float],
    volumes: list[float] | float = 0.0,
    num_devices: int = 2,
    **more: object,
) -> PlacementProblem:
    """A problem in seconds; volumes are seconds per hop."""
    count = len(seconds)
    return replace(
        priced(
            count,
            np.array(edges).reshape(-1, 2),
            num_devices,
            np.array(seconds, float)[:, None],
            np.broadcast_to(np.asarray(volumes, float), count),
        ),
        **more,
    )


def waiting_pays() -> PlacementProblem:
    """Ops 1 and 2 are pinned to device 0, ops 0 and 3 to device 1; moving tensors is free.

        free (12):                                work-conserving (21):
        dev 0  . 2 1-------------------           1------------------- 2
        dev 1  0 . 3-------------------           0 . . .              . 3-------------------
               0 1 2                  12          0 1                 10 11                 21

    Edges 0 -> 2 -> 3. At time 0 only op 1 is ready on device 0, and a work-conserving executor
    starts it; it is better to wait a second for op 2, on which op 3 depends.
    """
    return drawn([(0, 2), (2, 3)], [1, 10, 1, 10], pinned=[1, 0, 0, 1])


def host_staged(slots: int = 1, bus: bool = False) -> Topology:
    """Two devices that reach each other over a host: two hops."""
    ends = [(0, 2), (2, 1), (1, 2), (2, 0)]
    devices = tuple(Device(f"d{i}", compute_slots=slots) for i in range(2))
    links = tuple(Link(a, b, 1.0, bus="x" if bus else None) for a, b in ends)
    return Topology("staged", devices, links, ("host",))


def over(topology: Topology, problem: PlacementProblem) -> PlacementProblem:
    """The problem on another topology of as many devices; every hop takes the volume in seconds."""
    links = topology.num_links
    costs = replace(
        problem.cost_model, link_latency=np.zeros(links), link_seconds_per_unit=np.ones(links)
    )
    return replace(problem, topology=topology, cost_model=costs)


def tiny(seed: int, network: str) -> PlacementProblem:
    """Six ops on two devices (three for some), durations whole or not, links slow or fast."""
    generator = rng(seed)
    scale = (0.3, 1.0, 1 / 3, 0.0)[seed % 4]
    problem = random_problem(6, 3 if seed % 5 == 4 else 2, seed, scale, alike=seed % 2 == 0)
    if seed % 3 == 1:  # no common tick
        uneven = problem.cost_model.op_seconds * generator.uniform(0.5, 1.5, (6, 1))
        problem = replace(problem, cost_model=replace(problem.cost_model, op_seconds=uneven))
    if seed % 7 == 3:
        problem = replace(problem, pinned=[0, -1, -1, 1, -1, -1], colocation=[-1, 2, -1, -1, 2, -1])
    if seed % 4 != 3 and seed % 2 == 1:  # links of different speeds
        rates = generator.integers(1, 4, problem.topology.num_links).astype(float)
        problem = replace(
            problem, cost_model=replace(problem.cost_model, link_seconds_per_unit=rates)
        )
    if network == "shared_bus" or seed % 6 == 2:
        problem = problem if problem.num_devices == 3 else over(host_staged(1, True), problem)
    if seed % 8 == 5 and problem.num_devices == 2:
        problem = over(host_staged(2), problem)
    return problem
