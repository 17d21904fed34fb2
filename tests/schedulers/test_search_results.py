"""What searches find: optima of tiny problems, under constraints and in little memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numba import njit
from search_problems import (
    SEARCHES,
    all_placements,
    constrained,
    drawn,
    optimum,
    random_problem,
    rng,
    search,
    tight,
)

from doppler import Placement
from doppler.errors import CapacityError, ConfigurationError, InvalidPlacementError
from doppler.hardware import make_topology
from doppler.schedulers import make_scheduler
from doppler.simulator import NETWORKS, LognormalNoise, RobustSimulator, Simulator

RULES = ("fifo", "b_level", "given")


@pytest.mark.parametrize("begin", ["random", "critical_path", "lists"])
@pytest.mark.parametrize("name", SEARCHES)
def test_the_optimum_over_all_placements_is_found(name, begin):
    for seed, (num_ops, num_devices) in enumerate([(8, 2), (6, 3), (7, 2)]):
        problem = random_problem(num_ops, num_devices, seed, alike=seed != 1)
        for network, choose in (("contention_free", "fifo"), ("serial_links", "b_level")):
            simulator = Simulator(problem, network, choose)
            placement = search(name, 3000, begin=begin).schedule(problem, simulator, rng(seed))
            assert placement.info["simulated_makespan"] == optimum(simulator)


@pytest.mark.parametrize("name", SEARCHES)
def test_the_optimum_over_placements_and_orders_is_found(name):
    for seed in range(3):
        problem = random_problem(6, 2, seed)
        simulator = Simulator(problem, "contention_free", "given")
        best = make_scheduler("exhaustive").schedule(problem, simulator, rng())
        placement = search(name, 4000).schedule(problem, simulator, rng(seed))
        assert placement.info["simulated_makespan"] == best.info["simulated_makespan"]


# All ops are pinned; only the order is left. 0 feeds 2 on the other device, 1 feeds nobody.
#   0 (1) ---> 2 (5)       dev 0  0 1 1 1 1 1        1 first: 5 + 1 + 5 = 11, 0 first: 1 + 5 = 6
#   1 (5)                  dev 1  . 2 2 2 2 2
@pytest.mark.parametrize("name", SEARCHES)
def test_orders_are_searched_where_every_op_is_pinned(name):
    problem = drawn([(0, 2)], [1.0, 5.0, 5.0], pinned=[0, 0, 1])
    simulator = Simulator(problem, choose="given")
    start = Placement(np.array([0, 0, 1]), np.array([1, 0, 2]))
    assert simulator.makespan(start) == 11.0
    placement = search(name, 200).schedule(problem, simulator, rng(), start=start)
    assert placement.info["simulated_makespan"] == 6.0
    assert placement.order.tolist().index(0) < placement.order.tolist().index(1)


@pytest.mark.parametrize("choose", RULES)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", SEARCHES)
def test_the_reported_makespan_is_the_simulators(name, network, choose):
    problem = random_problem(25, 3, 4, alike=False)
    simulator = Simulator(problem, network, choose, LognormalNoise(0.2))
    quiet = Simulator(problem, network, choose)
    first = simulator.makespan(rng().integers(0, 3, 25), np.arange(25))
    for judge in (simulator, quiet):
        placement = search(name, begin="random").schedule(problem, judge, rng(1))
        assert placement.info["simulated_makespan"] == judge.makespan(placement)
        assert placement.info["simulated_makespan"] < 0.8 * first
        problem.check_order(placement.order)
        if choose != "given" or network == "contention_free":
            position = np.argsort(placement.order)
            assert (position[problem.graph.edges[:, 0]] < position[problem.graph.edges[:, 1]]).all()


@pytest.mark.parametrize("choose", RULES)
@pytest.mark.parametrize("name", SEARCHES)
def test_constraints_hold(name, choose):
    for seed in range(2):
        problem = constrained(seed, 10, 2) if seed else constrained(seed)
        simulator = Simulator(problem, choose=choose)
        placement = search(name, 1500, begin="random").schedule(problem, simulator, rng(seed))
        problem.check_placement(placement.devices)
        if choose == "fifo" and seed:
            assert placement.info["simulated_makespan"] == optimum(simulator)


def test_constrained_problems_are_small_enough_to_enumerate():
    assert 8 <= len(all_placements(constrained(1, 10, 2))) <= 64


@pytest.mark.parametrize("begin", ["random", "critical_path", "lists"])
@pytest.mark.parametrize("name", SEARCHES)
def test_what_fits_in_memory_is_found(name, begin):
    needed = 0
    for seed in range(6):
        for capacity in (6.0, 7.0, 8.0):
            problem = tight(seed, capacity)
            simulator = Simulator(problem)
            makespans = simulator.makespans(all_placements(problem))
            if not np.isinf(makespans).any():
                continue
            needed += 1
            scheduler = search(name, 1500, begin=begin)
            if np.isinf(makespans).all():
                with pytest.raises(CapacityError, match=r"holds .* over its capacity"):
                    scheduler.schedule(problem, simulator, rng(seed))
                continue
            placement = scheduler.schedule(problem, simulator, rng(seed))
            assert placement.info["simulated_makespan"] == makespans.min()
    assert needed > 8


@pytest.mark.parametrize("name", SEARCHES)
def test_what_fits_is_not_given_up(name):
    """A start that fits, surrounded by placements that do not: one evaluation more is enough."""
    problem = tight(3, 9.0, 7)
    simulator = Simulator(problem)
    placements = all_placements(problem)
    makespans = simulator.makespans(placements)
    fits = np.flatnonzero(np.isfinite(makespans))
    assert 0 < len(fits) < len(placements) / 2
    worst = fits[np.argmax(makespans[fits])]
    placement = search(name, 30).schedule(
        problem, simulator, rng(), start=Placement(placements[worst])
    )
    assert placement.info["simulated_makespan"] <= makespans[worst]


@pytest.mark.parametrize("choose", ["fifo", "given"])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_start_never_gets_worse(name, choose):
    problem = random_problem(30, 3, 2)
    simulator = Simulator(problem, choose=choose)
    good = search("annealing", 20_000).schedule(problem, simulator, rng(3))
    for evaluations in (1, 2, 3, 40, 400):
        again = search(name, evaluations).schedule(problem, simulator, rng(), start=good)
        assert again.info["simulated_makespan"] <= good.info["simulated_makespan"]
        assert again.info["evaluations"] == evaluations
    one = search(name, 1).schedule(problem, simulator, rng(), start=good)
    np.testing.assert_array_equal(one.devices, good.devices)
    poor = Placement(np.zeros(30, np.int64))
    better = search(name, 2000).schedule(problem, simulator, rng(), start=poor)
    assert better.info["simulated_makespan"] < 0.8 * simulator.makespan(poor.devices, np.arange(30))


def test_a_wrong_start_is_refused():
    problem = constrained()
    simulator = Simulator(problem)
    for devices in (np.zeros(3, np.int64), np.full(problem.num_ops, 2)):
        with pytest.raises(InvalidPlacementError):
            search("annealing").schedule(problem, simulator, rng(), start=Placement(devices))


def test_restarts_leave_a_local_optimum():
    """Two ops that only pay on one device each, in a problem of two basins, from the worse one.

    Ops 0..5 are tied by costly tensors and start on the slow device; no single move pays.
    """
    edges = [(a, a + 1) for a in range(5)]
    problem = drawn(edges, [1.0] * 6, 50.0)
    costs = problem.cost_model
    seconds = costs.op_seconds.copy()
    seconds[:, 1] = 4.0
    problem = replace(problem, cost_model=replace(costs, op_seconds=seconds))
    simulator = Simulator(problem)
    start = Placement(np.ones(6, np.int64))
    assert simulator.makespan(start.devices) == 24.0
    only = {"swap": 0, "pair": 0, "cluster": 0, "critical": 0, "tail": 0, "meta_op": 0}
    for patience, found in ((10_000, 24.0), (50, 6.0)):
        scheduler = search("random_restarts", 2000, patience=patience, moves=only)
        placement = scheduler.schedule(problem, simulator, rng(), start=start)
        assert placement.info["simulated_makespan"] == found


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_pays(name):
    """Many evaluations find better placements than few, and all than samples at random."""
    problem = random_problem(60, 3, 8, 2.0)
    simulator = Simulator(problem)
    sampled = make_scheduler("random", samples=5000).schedule(problem, simulator, rng())
    few, many = (
        np.median([
            search(name, count, begin="random")
            .schedule(problem, simulator, rng(seed))
            .info["simulated_makespan"]
            for seed in range(3)
        ])
        for count in (300, 20_000)
    )  # fmt: skip
    assert many < few
    assert many < 0.95 * sampled.info["simulated_makespan"]


@pytest.mark.parametrize("choose", ["fifo", "given"])
@pytest.mark.parametrize("statistic", ["mean", "p95", "makespan"])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_robust_objective_picks_among_the_best(name, statistic, choose):
    problem = random_problem(20, 3, 6)
    nominal = Simulator(problem, choose=choose, noise=LognormalNoise(0.3))
    robust = RobustSimulator(nominal, statistic, samples=8)
    start = search("annealing", 3000).schedule(problem, nominal, rng(2))
    for options in ({}, {"start": start}):
        placement = search(name, 300, chains=3).schedule(problem, robust, rng(), **options)
        value = robust.makespan(placement.devices, placement.order)
        key = "simulated_makespan" if statistic == "makespan" else f"simulated_{statistic}"
        assert placement.info[key] == value
        if options:
            assert value <= robust.makespan(start.devices, start.order)


def test_bulk_synchronous_execution_is_refused():
    problem = random_problem(6, 2, 0)
    simulator = Simulator(problem, execution="bulk_synchronous")
    for name in SEARCHES:
        with pytest.raises(ConfigurationError, match="searches need execution=work_conserving"):
            search(name).schedule(problem, simulator, rng())


def test_devices_that_may_change_places_are_matched():
    """Crossing two placements that differ by names only gives the first one."""
    from doppler.schedulers.anytime import Run
    from doppler.schedulers.search.base import Space
    from doppler.schedulers.search.breeding import cross
    from doppler.schedulers.search.genetic import Genetic
    from doppler.schedulers.search.neighbourhood import DEFAULT_WEIGHTS, make_neighbourhood
    from doppler.simulator.search import search_tables

    @njit  # not cached: a cache in this folder does not notice when the kernels change
    def crossed(hood, s, g, second):
        cross(hood, s, g, second)

    problem = random_problem(20, 4, 0)
    assert len({d.compute_slots for d in problem.topology.devices}) == 1
    simulator = Simulator(problem, choose="given")
    hood = make_neighbourhood(problem, DEFAULT_WEIGHTS, True)
    space = Space(search_tables(simulator), hood, np.arange(20), None, 1.0)
    run = Run(problem, simulator, rng())
    climb = Genetic(population=2, islands=1).make_chain(run, space, 0, 0)._climb
    g, s = climb.population, climb.best
    g.devices[1] = np.array([2, 0, 3, 1])[g.devices[0]]
    g.orders[1] = rng(1).permutation(20)
    orders = set()
    for _ in range(20):
        s.devices[:] = g.devices[0]
        s.order[:], s.position[:] = np.arange(20), np.arange(20)
        crossed(hood, s, g, 1)
        np.testing.assert_array_equal(s.devices, g.devices[0])
        assert (s.order[s.position] == np.arange(20)).all()
        cut = next((i for i in range(20) if s.order[i] != i), 20)
        rest = [op for op in g.orders[1] if op not in set(range(cut))]
        assert cut == 20 or s.order[cut:].tolist() == rest
        orders.add(tuple(s.order))
    assert len(orders) > 5
    # Pinned, and so not alike: nothing is renamed, and the child has parts of both
    pinned = replace(problem, pinned=[0, 1, 2, 3] + [-1] * 16)
    hood = make_neighbourhood(pinned, DEFAULT_WEIGHTS, True)
    space = Space(search_tables(simulator), hood, np.arange(20), None, 1.0)
    run = Run(pinned, simulator, rng())
    climb = Genetic(population=2, islands=1).make_chain(run, space, 0, 0)._climb
    g, s = climb.population, climb.best
    shares = []
    for _ in range(50):
        s.devices[:] = g.devices[0]
        crossed(hood, s, g, 1)
        pinned.check_placement(s.devices)
        assert ((s.devices == g.devices[0]) | (s.devices == g.devices[1])).all()
        differ = g.devices[0] != g.devices[1]
        shares.append((s.devices == g.devices[1])[differ].mean())
    assert 0.3 < np.mean(shares) < 0.7


def test_no_link_between_unequal_devices_is_crossed_wrongly():
    """On a topology of unlike links the genetic search still reports what the simulator says."""
    topology = make_topology("p100", 4)
    problem = random_problem(16, 4, 3)
    costs = replace(
        problem.cost_model,
        link_latency=np.linspace(0, 1, topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
    )
    problem = replace(problem, topology=topology, cost_model=costs)
    simulator = Simulator(problem)
    placement = search("genetic", 2000).schedule(problem, simulator, rng())
    assert placement.info["simulated_makespan"] == simulator.makespan(placement)
