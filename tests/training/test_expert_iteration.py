"""Search in the loop: what it finds, what it counts, and that a policy alone can rebuild it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Device, make_topology
from doppler.policies import DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.simulator import RobustSimulator, Simulator
from doppler.training import (
    Callback,
    Checkpoints,
    EpisodeRunner,
    Episodes,
    Imitation,
    Objective,
    PlacementTeacher,
    SimRL,
    Trainer,
    best_of_samples,
    simulated_objective,
)
from doppler.training.polish import Polisher, searchable
from doppler.workloads.random_dags import layered_dag

SMALL = PolicyConfig(hidden_width=16, message_rounds=2, head_width=16)


def sums_of_pairs(num_sums: int = 8) -> PlacementProblem:
    """Sums of two products each: ops 0 to 15 are products, 16 + i adds products i and 15 - i.

    All products look alike; which two meet shows only in the edges.
    """
    products = 2 * num_sums
    edges = [(i, products + i) for i in range(num_sums)]
    edges += [(products - 1 - i, products + i) for i in range(num_sums)]
    graph = DataflowGraph.from_edges("sums", products + num_sums, edges)
    topology = make_topology("ideal", 2)
    seconds = np.repeat([1.0, 0.1], [products, num_sums])
    costs = CostModel(
        np.repeat(seconds[:, None], 2, axis=1),
        np.full(len(seconds), 3.0),
        np.zeros(2),
        np.ones(2),
        "test",
    )
    return PlacementProblem(graph, topology, costs)


def sim_rl(**options: object) -> SimRL:
    settings: dict = {"episodes": 16, "batch_size": 4, "polish_every": 2, "polish_evaluations": 400}
    return SimRL(**{**settings, **options})


def trained(problem: PlacementProblem, stage: SimRL, choose: str = "fifo") -> Trainer:
    simulator = Simulator(problem, "contention_free", choose)
    objective = simulated_objective(simulator)
    trainer = Trainer(
        problem, DualPolicy(SMALL), [stage], simulated=objective, network="contention_free"
    )
    trainer.fit()
    return trainer


def test_one_polish_solves_six_ops(six_ops: PlacementProblem, six_ops_optimum: float) -> None:
    polished = trained(six_ops, sim_rl(episodes=4, batch_size=1))
    plain = trained(six_ops, sim_rl(episodes=4, batch_size=1, polish_every=0))
    assert polished.state.best_makespan == six_ops_optimum
    assert plain.state.best_makespan > six_ops_optimum


def test_evaluations_of_polishes_count(six_ops: PlacementProblem) -> None:
    # Four updates of four episodes; a polish at updates 0 and 2 unless it is too late for that, and
    # one evaluation more for the archive.
    for share, polishes in ((1.0, 2), (0.5, 1), (0.0, 0)):
        trainer = trained(six_ops, sim_rl(polish_share=share))
        assert trainer.state.evaluations == 16 + polishes * 401
        assert trainer.state.episodes == 16


def assert_followable(problem: PlacementProblem, placement: Placement) -> None:
    assert placement.order is not None
    place = np.argsort(placement.order)
    assert all(place[one] < place[other] for one, other in problem.graph.edges)


def test_what_is_polished_can_be_followed() -> None:
    problem = layered_dag(40, 3, seed=2)
    for network in ("contention_free", "serial_links"):
        for choose in ("fifo", "given"):
            simulator = Simulator(problem, network, choose)
            rng = np.random.default_rng(0)
            devices, order = rng.integers(0, 3, 40), np.array(problem.graph.topological_order)
            before = simulator.makespan(devices, order)
            found, evaluations = Polisher(problem, simulator, 2000).improve(devices, order, rng)
            assert evaluations == 2000
            assert simulator.makespan(found.devices, found.order) < before
            assert_followable(problem, found)


def test_polishes_of_large_graphs_are_shorter() -> None:
    problem = layered_dag(500, 2, seed=0)
    order = problem.graph.topological_order
    polisher = Polisher(problem, Simulator(problem), 1000)
    _, evaluations = polisher.improve(np.zeros(500, np.int64), order, np.random.default_rng(0))
    assert evaluations <= 500


def test_orders_with_ops_before_their_inputs_become_start_orders() -> None:
    problem = layered_dag(12, 2, seed=2)
    polisher = Polisher(problem, Simulator(problem, "serial_links", "given"), 10)
    backwards = Placement(np.arange(12) % 2, np.arange(12)[::-1].copy())
    assert_followable(problem, polisher._followable(backwards))


def test_what_a_search_can_ask(six_ops: PlacementProblem) -> None:
    simulator = Simulator(six_ops)
    assert searchable(simulated_objective(simulator)) is simulator
    robust = RobustSimulator(simulator, "mean", 4, 0)
    assert searchable(simulated_objective(robust)) is robust
    assert searchable(simulator.makespans) is None
    assert searchable(None) is None
    in_step = Simulator(six_ops, execution="bulk_synchronous")
    assert searchable(simulated_objective(in_step)) is None


@pytest.mark.parametrize("kind", ["mean", "in_step", "callable"])
def test_other_objectives_train_too(six_ops: PlacementProblem, kind: str) -> None:
    simulator = Simulator(six_ops)
    objectives: dict[str, Objective] = {
        "mean": simulated_objective(RobustSimulator(simulator, "mean", 4, 0)),
        "in_step": simulated_objective(Simulator(six_ops, execution="bulk_synchronous")),
        "callable": lambda placements, orders: simulator.makespans(placements),
    }
    trainer = Trainer(six_ops, DualPolicy(SMALL), [sim_rl()], simulated=objectives[kind])
    result = trainer.fit()
    assert result.simulated is not None
    assert (result.evaluations > 16) == (kind == "mean")


def test_where_nothing_fits_the_start_comes_back() -> None:
    base = layered_dag(8, 2, seed=1)
    devices = tuple(Device(each.name, memory_bytes=1e-3) for each in base.topology.devices)
    graph = replace(base.graph, output_bytes=np.ones(8))
    problem = replace(base, graph=graph, topology=replace(base.topology, devices=devices))
    start, order = np.zeros(8, np.int64), np.array(base.graph.topological_order)
    polisher = Polisher(problem, Simulator(problem), 50)
    found, evaluations = polisher.improve(start, order, np.random.default_rng(0))
    assert np.array_equal(found.devices, start)
    assert evaluations == 50
    assert not len(trained(problem, sim_rl(episodes=8)).state.archive)


class StopAt(Callback):
    def __init__(self, update: int) -> None:
        self.update = update

    def on_update(self, trainer: Trainer, metrics: dict) -> None:
        if metrics["update"] == self.update:
            raise KeyboardInterrupt


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    problem = layered_dag(16, 2, seed=1)

    def make(folder: Path, *callbacks: Callback) -> Trainer:
        return Trainer(
            problem,
            DualPolicy(SMALL),
            [sim_rl(episodes=24, polish_every=1, polish_share=1.0, polish_evaluations=60)],
            simulated=simulated_objective(Simulator(problem, "contention_free", "given")),
            network="contention_free",
            callbacks=callbacks,
            checkpoints=Checkpoints(folder, 100),
        )

    whole = make(tmp_path / "whole")
    whole.fit()
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "parts", StopAt(3)).fit()
    parts = make(tmp_path / "parts")
    parts.fit(resume=True)
    assert parts.state.evaluations == whole.state.evaluations == 24 + 6 * 61
    assert parts.state.archive.makespans == whole.state.archive.makespans
    for one, other in zip(parts.policy.parameters(), whole.policy.parameters()):
        assert torch.equal(one, other)


def test_an_interrupted_polish_does_not_count(
    six_ops: PlacementProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    polisher = Polisher(six_ops, Simulator(six_ops), 10)
    schedule = type(polisher._annealing).schedule

    def interrupted(self: object, *arguments: object) -> Placement:
        found = schedule(self, *arguments)  # type: ignore[arg-type]
        return Placement(found.devices, found.order, {**found.info, "interrupted": True})

    monkeypatch.setattr(type(polisher._annealing), "schedule", interrupted)
    with pytest.raises(KeyboardInterrupt):
        polisher.improve(np.zeros(6, np.int64), np.arange(6), np.random.default_rng(0))


def imitated(problem: PlacementProblem, positions: bool, wanted: Placement) -> float:
    """Log-likelihood of a whole episode after imitating it alone."""
    policy = DualPolicy(PolicyConfig(16, 2, 4, 16, positions=positions))
    stage = Imitation(
        episodes=150, batch_size=1, learning_rate=1e-2, teacher=PlacementTeacher([wanted]), trials=0
    )
    Trainer(problem, policy, [stage], network="contention_free").fit()
    episode = Episodes.from_placements(wanted.devices[None], np.asarray(wanted.order)[None])
    runner = EpisodeRunner(policy, problem, "contention_free", 1)
    return float(runner.run(np.random.default_rng(0), forced=episode).log_likelihood[0])


def test_only_positions_tell_look_alikes_apart() -> None:
    problem = sums_of_pairs(5)
    rng = np.random.default_rng(3)
    order = np.concatenate([rng.permutation(10), 10 + rng.permutation(5)])
    wanted = Placement(rng.integers(0, 2, 15), order)
    with_positions, without = (imitated(problem, switch, wanted) for switch in (True, False))
    # One choice, the first device, stays open: log 2.
    assert with_positions > -2.5
    assert without < -10.0


def test_the_policy_alone_rebuilds_what_the_search_found() -> None:
    problem = sums_of_pairs()
    stage = sim_rl(episodes=1200, batch_size=8, polish_every=50, polish_evaluations=20_000)
    stage.learning_rate = 1e-2
    trainer = trained(problem, stage)
    optimum = 8.4  # all work, halved: products that meet share a device, and their sums do too
    assert trainer.state.best_makespan == pytest.approx(optimum)
    objective = simulated_objective(Simulator(problem, "contention_free"))
    found = best_of_samples(
        trainer.policy, problem, objective, np.random.default_rng(5), network="contention_free"
    )
    assert found is not None
    assert found.info["simulated_makespan"] == pytest.approx(optimum)
    assert found.info["evaluations"] == 64


def test_best_of_samples(six_ops: PlacementProblem, six_ops_simulator: Simulator) -> None:
    objective, policy = simulated_objective(six_ops_simulator), DualPolicy(SMALL)
    values = []
    for samples in (1, 70):
        found = best_of_samples(
            policy, six_ops, objective, np.random.default_rng(2), samples=samples
        )
        assert found is not None
        values.append(found.info["simulated_makespan"])
        assert six_ops_simulator.makespan(found.devices) == values[-1]
        assert found.info["simulated_makespan_mean"] >= values[-1]
    assert values[1] == 9.0 < values[0]
    never = best_of_samples(
        policy, six_ops, lambda a, b: np.full(len(a), np.inf), np.random.default_rng(2), samples=3
    )
    assert never is None
