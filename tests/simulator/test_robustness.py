"""Replications, tie orders and objectives over samples."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from simulator_problems import priced, random_problem, with_permuted_ids

from doppler import CostModel, DataflowGraph, PlacementProblem, load_problem
from doppler.errors import ConfigurationError, InvalidPlacementError
from doppler.hardware import make_topology
from doppler.schedulers import RandomPlacement
from doppler.simulator import (
    CHOOSE_RULES,
    EXECUTIONS,
    NETWORKS,
    LognormalNoise,
    RobustSimulator,
    Simulator,
    replication_seeds,
)
from doppler.simulator import threads as simulator_threads
from doppler.simulator.noise import NO_NOISE
from doppler.simulator.robustness import percentile_95, tie_samples
from doppler.training import simulated_objective


def fork_problem(tied: bool = True) -> PlacementProblem:
    r"""Ops 0, 1 and 2 take one second; 3 takes ten and needs 0. All are ready at 0 but 3.

        0   1   2         device 0: 0 1 2        0 first: 3 starts at 1, ends at 11
        |                 device 1: 3            0 last:  3 starts at 3, ends at 13
        3

    Transfers take no time. The makespan is 11, 12 or 13, each in a third of the tie orders.
    """
    graph = DataflowGraph.from_edges("fork", 4, np.array([[0, 3]]))
    topology = make_topology("v100", 2)
    seconds = np.array([1.0, 1.0, 1.0, 10.0])
    costs = CostModel(
        np.repeat(seconds[:, None], 2, 1), np.zeros(4), np.zeros(2), np.zeros(2), "by hand"
    )
    problem = PlacementProblem(graph, topology, costs)
    return problem if tied else chained(problem)


def chained(problem: PlacementProblem) -> PlacementProblem:
    """The same with edges 0 -> 1 -> 2, so that nothing ties."""
    graph = DataflowGraph.from_edges("chained", 4, np.array([[0, 1], [0, 3], [1, 2]]))
    return PlacementProblem(graph, problem.topology, problem.cost_model)


FORK = np.array([0, 0, 0, 1])


def sharded_problem() -> PlacementProblem:
    """Layers of equal shards, each reduced from three."""
    width, depth = 16, 8
    edges = [
        (layer * width + shard, (layer + 1) * width + (shard + step) % width)
        for layer in range(depth - 1)
        for shard in range(width)
        for step in (0, 1, 4)
    ]
    num_ops = width * depth
    return priced(num_ops, np.array(edges), 8, np.ones((num_ops, 1)), np.full(num_ops, 0.5))


def tie_free_problem() -> tuple[PlacementProblem, np.ndarray]:
    """Eight chains of twelve ops that end in one op, with amounts all different, and a placement.

    No two events coincide: every op has one consumer, and the eight entries have their own devices.
    Unequal amounts alone do not suffice: entries of one device are ready together at 0, and so are
    consumers of one op.
    """
    rng = np.random.default_rng(0)
    ids = rng.permutation(97)
    chains = ids[:96].reshape(8, 12)
    edges = np.concatenate(
        [np.stack([chains[:, :-1].ravel(), chains[:, 1:].ravel()], 1),
         np.stack([chains[:, -1], np.full(8, ids[96])], 1)]
    )  # fmt: skip
    devices = rng.integers(0, 8, 97)
    devices[chains[:, 0]] = np.arange(8)
    problem = priced(97, edges, 8, rng.uniform(1, 2, (97, 1)), rng.uniform(0.5, 1, 97))
    return problem, devices


# --- replications --------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("choose", CHOOSE_RULES)
def test_replications_equal_single_calls(monkeypatch, network, choose):
    monkeypatch.setattr(simulator_threads, "_SMALLEST_SHARE", 1)
    problem = sharded_problem()
    rng = np.random.default_rng(1)
    placements = rng.integers(0, 8, (5, problem.num_ops))
    orders = rng.permuted(np.tile(np.arange(problem.num_ops), (5, 1)), axis=1)
    simulator = Simulator(problem, network, choose, LognormalNoise(0.2), num_threads=2)
    found = simulator.makespans(placements, orders, noise_seed=3, replications=7)
    seeds = replication_seeds(3, 7)
    expected = [
        [simulator.makespan(d, o, seed) for seed in seeds]
        for d, o in zip(placements, orders, strict=True)
    ]
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 30
    assert found.flags.c_contiguous
    fewer = simulator.makespans(placements, orders, noise_seed=3, replications=2)
    np.testing.assert_array_equal(fewer, found[:, :2])


def test_replications_without_noise_are_equal():
    problem = sharded_problem()
    devices = np.arange(problem.num_ops) % 8
    simulator = Simulator(problem)
    found = simulator.makespans([devices], replications=3)
    assert found.tolist() == [[simulator.makespan(devices)] * 3]
    assert simulator.makespans([], replications=3).shape == (0, 3)


@pytest.mark.parametrize("replications", [0, -1, 2.0, True])
def test_impossible_replications_are_refused(replications):
    with pytest.raises(ConfigurationError, match="replications"):
        Simulator(fork_problem()).makespans([FORK], replications=replications)


def test_replications_of_a_wrong_placement_name_the_row():
    with pytest.raises(InvalidPlacementError, match=r"row 1: .*op 3: device 2"):
        Simulator(fork_problem()).makespans([FORK, FORK * 2], replications=2)


# --- tie orders ----------------------------------------------------------------------------------


def test_tie_orders_of_a_fork():
    found = Simulator(fork_problem()).robust(FORK, samples=600)
    values, counts = np.unique(found.samples, return_counts=True)
    assert values.tolist() == [11.0, 12.0, 13.0]
    assert (abs(counts - 200) < 50).all()
    assert (found.nominal, found.best, found.worst, found.p95) == (11.0, 11.0, 13.0, 13.0)
    assert abs(found.mean - 12.0) < 0.1
    assert found.tie_sensitivity == 13 / 11
    assert found.tie_sensitive
    assert "worst over best tie order 1.182" in str(found)


def test_without_ties_nothing_is_sensitive():
    found = Simulator(fork_problem(tied=False)).robust(FORK, samples=50)
    assert set(found.samples) == {found.nominal} == {11.0}
    assert found.tie_sensitivity == 1.0
    assert not found.tie_sensitive


@pytest.mark.parametrize("network", NETWORKS)
def test_equal_amounts_are_tie_sensitive_and_tie_free_ones_are_not(network):
    devices = np.random.default_rng(0).integers(0, 8, 128)
    tied = Simulator(sharded_problem(), network).robust(devices)
    # One bus is never idle here, whatever goes first.
    assert tied.tie_sensitive == (network != "shared_bus")
    assert len(np.unique(tied.samples)) > (1 if network == "shared_bus" else 5)
    problem, devices = tie_free_problem()
    free = Simulator(problem, network).robust(devices)
    assert (free.samples == free.nominal).all()
    assert free.tie_sensitivity == 1.0


def test_the_published_llama_layer_on_eight_devices_is_tie_sensitive(shared_data):
    path = shared_data / "doppler" / "gdp_full_transformer_layer_261nodes.txt"
    problem = load_problem(path, num_devices=8)
    found = Simulator(problem, "contention_free").robust(
        np.random.default_rng(1).integers(0, 8, problem.num_ops)
    )
    assert found.tie_sensitive
    assert found.worst > found.nominal or found.best < found.nominal


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("choose", ["fifo", "b_level", "given"])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_tie_order_is_another_naming_of_the_ops(network, choose, execution):
    """The samples of `robust` are runs of a problem whose ops were renamed."""
    for seed in range(8):
        problem = random_problem(30, 3, seed, alike=False)
        rng = np.random.default_rng(seed)
        devices, order = rng.integers(0, 3, 30), rng.permutation(30)
        simulator = Simulator(problem, network, choose, execution=execution)
        sample = tie_samples(simulator, 1, seed)[0]
        source = sample.engine.source
        renamed = Simulator(
            with_permuted_ids(problem, source), network, choose, execution=execution
        )
        expected = renamed.makespan(devices[source], np.argsort(source)[order])
        assert simulator.sample([sample], [devices], [order])[0, 0] == expected
        given = order if choose == "given" else order[:0]
        assert sample.engine.makespan(devices, given, NO_NOISE) == expected
        devices[5] = -1
        with pytest.raises(InvalidPlacementError, match="op 5: device -1"):
            simulator.sample([sample], [devices], [order])


def test_noise_belongs_to_the_same_op_in_every_tie_order():
    problem, devices = tie_free_problem()
    simulator = Simulator(problem, noise=LognormalNoise(0.2))
    samples = tie_samples(simulator, 4, seed=9)
    found = simulator.sample(samples, [devices])[:, 0]
    expected = [simulator.makespan(devices, None, sample.noise_seed) for sample in samples]
    np.testing.assert_array_equal(found, expected)


def test_noise_and_ties_are_told_apart():
    simulator = Simulator(fork_problem(tied=False), noise=LognormalNoise(0.3))
    found = simulator.robust(FORK, samples=20)
    assert found.tie_sensitivity == 1.0
    assert found.nominal == 11.0
    assert len(set(found.samples)) == 20


def test_robust_is_seeded():
    simulator = Simulator(sharded_problem(), noise=LognormalNoise(0.1))
    devices = np.arange(128) % 8
    first, again = (simulator.robust(devices, samples=8, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.samples, again.samples)
    assert (simulator.robust(devices, samples=8, seed=5).samples != first.samples).any()
    np.testing.assert_array_equal(
        simulator.robust(devices, samples=3, seed=4).samples, first.samples[:3]
    )


def test_percentile_95_by_hand():
    samples = np.arange(1.0, 22.0)[::-1, None]  # 1 .. 21: the 95th percentile is the 20th
    assert percentile_95(samples)[0] == 20.0
    assert percentile_95(np.array([[1.0], [2.0]]))[0] == pytest.approx(1.95)
    assert percentile_95(np.array([[1.0], [np.inf]]))[0] == np.inf
    assert percentile_95(np.array([[np.inf]] * 3))[0] == np.inf


# --- objectives ----------------------------------------------------------------------------------


def test_objectives_are_statistics_of_the_samples():
    simulator = Simulator(sharded_problem(), noise=LognormalNoise(0.1))
    placements = np.random.default_rng(4).integers(0, 8, (3, 128))
    rows = [simulator.robust(devices, samples=12, seed=6) for devices in placements]
    mean = RobustSimulator(simulator, "mean", samples=12, seed=6)
    p95 = RobustSimulator(simulator, "p95", samples=12, seed=6)
    same = RobustSimulator(simulator, "makespan")
    np.testing.assert_allclose(mean.makespans(placements), [row.mean for row in rows], rtol=1e-14)
    np.testing.assert_array_equal(p95.makespans(placements), [row.p95 for row in rows])
    assert p95.makespan(placements[0]) == rows[0].p95
    np.testing.assert_array_equal(
        same.makespans(placements, noise_seed=2), simulator.makespans(placements, noise_seed=2)
    )
    objective = simulated_objective(mean)
    orders = np.tile(np.arange(128), (3, 1))
    np.testing.assert_array_equal(objective(placements, orders), mean.makespans(placements))
    copy = pickle.loads(pickle.dumps(p95))
    assert copy.makespan(placements[1]) == rows[1].p95


def test_unknown_statistics_are_refused():
    with pytest.raises(ConfigurationError, match="objective 'median' is unknown; known: makespan"):
        RobustSimulator(Simulator(fork_problem()), "median")
    with pytest.raises(ConfigurationError, match="replications: 0"):
        RobustSimulator(Simulator(fork_problem()), samples=0)


def test_a_scheduler_minimises_the_mean():
    simulator = Simulator(sharded_problem())
    mean = RobustSimulator(simulator, "mean", samples=16, seed=1)
    search = RandomPlacement(samples=100)
    found = search.schedule(simulator.problem, mean, np.random.default_rng(5))
    drawn = np.random.default_rng(5).integers(8, size=(100, 128))
    means = np.array([simulator.robust(d, samples=16, seed=1).mean for d in drawn])
    assert (found.devices == drawn[means.argmin()]).all()
    assert found.info["simulated_mean"] == pytest.approx(means.min(), rel=1e-14)
    assert found.info["simulated_makespan"] == simulator.makespan(found.devices)
    assert means.argmin() != simulator.makespans(drawn).argmin()
