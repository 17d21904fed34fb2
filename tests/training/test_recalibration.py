"""Costs that follow traces, steps that stay within the trust region, and resuming with both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from doppler.errors import CheckpointError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.policies import DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.schedule import Placement, Schedule
from doppler.simulator import Simulator
from doppler.training import (
    Callback,
    Checkpoints,
    EpisodeRunner,
    RealRL,
    Trainer,
    measured_objective,
)
from doppler.training.exploration import Explorer
from doppler.training.journal import JOURNAL_NAME
from doppler.training.likelihood import log_likelihoods
from doppler.training.recalibration import (
    CostFactors,
    CostRecalibration,
    link_factors,
    occupied_seconds,
)
from doppler.training.trust_region import backtrack, estimated_kl
from doppler.workloads.random_dags import layered_dag

SMALL = PolicyConfig(hidden_width=8, message_rounds=2, head_width=8)


@pytest.fixture(scope="module")
def task() -> PlacementProblem:
    return layered_dag(20, 2, seed=3)


SIGNATURES = tuple("ab"[op % 2] for op in range(20))


def slower(problem: PlacementProblem, signature: str, factor: float) -> PlacementProblem:
    """The same problem, with the ops of one signature slower."""
    costs = problem.cost_model
    rows = np.array([name == signature for name in SIGNATURES])
    seconds = costs.op_seconds * np.where(rows, factor, 1.0)[:, None]
    return replace(problem, cost_model=replace(costs, op_seconds=seconds))


class Kernel:
    def __init__(self, signature: str) -> None:
        self.signature = signature


class Workload:
    kernels = tuple(map(Kernel, SIGNATURES))


class Executor:
    """Runs in a simulator of what is true, with noise on every op."""

    workload = Workload()
    network = "serial_links"
    choose = "fifo"

    def __init__(self, truth: PlacementProblem, noise: float = 0.0, seed: int = 0) -> None:
        self.truth = truth
        self.noise = noise
        self.rng = np.random.default_rng(seed)
        self.runs = 0

    def run(self, placement: Placement) -> Schedule:
        self.runs += 1
        factors = self.rng.lognormal(0.0, self.noise, self.truth.num_ops)[:, None]
        costs = self.truth.cost_model
        noisy = replace(costs, op_seconds=costs.op_seconds * factors)
        return Simulator(replace(self.truth, cost_model=noisy)).run(placement.devices)


def test_occupied_seconds_by_hand() -> None:
    r"""Ops 0 -> 2 and 1 -> 2; op 0 on device 0, ops 1 and 2 on device 1; a hop of op 0.

    device 0  0: [0.5, 2]
    link      0:          [2.5, 4]
    device 1  1: [0, 3]                2: [4.2, 5]
    """
    graph = DataflowGraph.from_edges("three", 3, [(0, 2), (1, 2)])
    costs = CostModel(np.ones((3, 2)), np.ones(3), np.zeros(2), np.ones(2), "test")
    problem = PlacementProblem(graph, make_topology("ideal", 2), costs)
    schedule = Schedule(
        problem,
        np.array([0, 1, 1]),
        np.array([0.5, 0.0, 4.2]),
        np.array([2.0, 3.0, 5.0]),
        np.array([0]),
        np.array([1]),
        np.array([0]),
        np.array([2.5]),
        np.array([4.0]),
        "serial_links",
        "fifo",
    )
    ops, hops = occupied_seconds(schedule)
    assert ops == pytest.approx([2.0, 3.0, 1.0])  # op 2 could start at 4, when its tensor was there
    assert hops == pytest.approx([2.0])
    free = replace(schedule, network="contention_free", execution="bulk_synchronous")
    ops, hops = occupied_seconds(free)
    assert ops == pytest.approx([1.5, 3.0, 0.8])
    assert hops == pytest.approx([1.5])


def test_what_a_simulator_runs_occupies_what_the_model_says(task: PlacementProblem) -> None:
    rng = np.random.default_rng(0)
    recalibration = CostRecalibration(task, SIGNATURES, 0.1)
    for _ in range(5):
        run = Simulator(task).run(rng.integers(0, 2, task.num_ops))
        trace = recalibration.summarise(run)
        assert trace["ops"] == pytest.approx([1.0, 1.0])
        factors = CostFactors.ones(2)
        recalibration.observe(factors, trace)
        assert link_factors(factors) == pytest.approx((1.0, 1.0))


def test_weights_of_runs_by_hand(task: PlacementProblem) -> None:
    """Weights 1/2, 1/3, 1/4, 1/4: 1 -> 1.5 -> 1.333 -> 1.5 -> 1.625."""
    recalibration = CostRecalibration(task, SIGNATURES, 0.25)
    factors = CostFactors.ones(2)
    seen = []
    for value in (2.0, 1.0, 2.0, 2.0):
        recalibration.observe(factors, {"ops": [value, None], "links": None})
        seen.append(factors.ops[0])
    assert seen == pytest.approx([1.5, 4 / 3, 1.5, 1.625])
    assert factors.ops[1] == 1.0
    assert factors.op_runs == [4, 0]
    assert recalibration.cost_model(factors).op_seconds[::2] == pytest.approx(
        task.cost_model.op_seconds[::2] * 1.625
    )


def test_link_factors_by_hand() -> None:
    """Half of the hops all latency, twice as slow; half all bandwidth, as modelled."""
    factors = CostFactors([], [], [0.5, 0.0, 0.5, 1.0, 0.5], 3)
    latency, volume = link_factors(factors)
    assert latency == pytest.approx(1.01 / 0.51)
    assert volume == pytest.approx(1.0)
    assert link_factors(CostFactors.ones(1)) == (1.0, 1.0)


def test_slow_links_are_learnt(task: PlacementProblem) -> None:
    costs = task.cost_model
    slow = replace(
        task, cost_model=replace(costs, link_seconds_per_unit=1.5 * costs.link_seconds_per_unit)
    )
    recalibration, factors = CostRecalibration(task, None, 0.1), None
    factors = CostFactors.ones(recalibration.num_groups)
    rng = np.random.default_rng(0)
    for _ in range(10):
        run = Simulator(slow).run(rng.integers(0, 2, task.num_ops))
        recalibration.observe(factors, recalibration.summarise(run))
    learnt = recalibration.cost_model(factors)
    assert learnt.link_seconds_per_unit == pytest.approx(
        1.5 * costs.link_seconds_per_unit, rel=0.02
    )
    assert learnt.op_seconds == pytest.approx(costs.op_seconds)


def test_foreign_traces_are_refused(task: PlacementProblem) -> None:
    recalibration = CostRecalibration(task, SIGNATURES, 0.1)
    for trace in ({"ops": [1.0], "links": None}, {"ops": [1.0, -1.0], "links": None}, 3,
                  {"ops": [1.0, 1.0], "links": [1.0]}):  # fmt: skip
        with pytest.raises(CheckpointError, match="not of this problem"):
            recalibration.observe(CostFactors.ones(2), trace)  # type: ignore[arg-type]


def train(
    task: PlacementProblem,
    executor: Executor,
    folder: Path | None = None,
    callbacks: tuple[Callback, ...] = (),
    resume: bool = False,
    **options: object,
) -> Trainer:
    stage = RealRL(
        incumbent=Placement(np.arange(20) % 2),
        **{"episodes": 48, "batch_size": 8, "shadow_margin": 0.3, **options},  # type: ignore[arg-type]
    )
    trainer = Trainer(
        task,
        DualPolicy(SMALL, seed=1),
        [stage],
        measured=measured_objective(executor),
        callbacks=callbacks,
        checkpoints=None if folder is None else Checkpoints(folder, 2),
    )
    trainer.fit(resume)
    return trainer


def test_recalibration_halves_the_error(task: PlacementProblem) -> None:
    """One signature is 20 % slower than the model says."""
    executor = Executor(slower(task, "a", 1.2), noise=0.02)
    trainer = train(task, executor, episodes=96)
    result = trainer.state.results["real_rl"]
    assert result["simulation_error_uncalibrated"] > 0.05
    assert result["simulation_error"] < 0.5 * result["simulation_error_uncalibrated"]
    assert trainer.state.measuring is not None and trainer.state.measuring.factors is not None
    assert trainer.state.measuring.factors.ops == pytest.approx([1.2, 1.0], abs=0.03)
    off = train(task, Executor(executor.truth, noise=0.02), recalibration=0.0)
    assert off.state.measuring is not None and off.state.measuring.factors is None
    values = off.state.results["real_rl"]
    assert values["simulation_error"] == values["simulation_error_uncalibrated"]


def test_errors_are_of_the_simulator_before_it_learnt(task: PlacementProblem) -> None:
    """In the first race, nothing was learnt before; in the second one, what the first one told."""
    executor = Executor(slower(task, "a", 1.2))
    stage = RealRL(incumbent=Placement(np.arange(20) % 2), shadow_margin=9.0, regret_limit=9.0)
    trainer = Trainer(task, DualPolicy(SMALL), [stage], measured=measured_objective(executor))
    stage.prepare(trainer)
    stage.start(trainer)
    explorer, order = Explorer(trainer, stage), np.array(task.graph.topological_order)
    explorer.measuring.incumbent_runs = [1.0]  # as if the incumbent had been run, without a trace
    own = np.arange(20) % 2
    counts, simulator = explorer.measuring.counts, Simulator(task)
    near = sorted((np.where(order == op, 1 - own, own) for op in order), key=simulator.makespan)
    assert explorer.rate([Placement(near[0], order)]).executed == 1
    assert counts.compared == 2
    assert counts.error == counts.first_error > 0.05
    before = counts.error
    assert explorer.rate([Placement(near[1], order)]).executed == 1
    assert counts.error - before < 0.9 * (counts.first_error - before)


class Stop(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_update(self, trainer: Trainer, metrics: dict) -> None:
        if metrics["total_updates"] == self.at:
            raise RuntimeError


@pytest.fixture(scope="module")
def whole(task: PlacementProblem) -> Trainer:
    """A run that nothing interrupted."""
    return train(task, Executor(slower(task, "a", 1.2), 0.03))


@pytest.mark.parametrize("at", [2, 3])
def test_a_resumed_run_knows_all_that_was_learnt(
    task: PlacementProblem, whole: Trainer, tmp_path: Path, at: int
) -> None:
    """The crash at update 3 is after the checkpoint of update 2: its runs come from the journal."""
    executor = Executor(slower(task, "a", 1.2), 0.03)
    with pytest.raises(RuntimeError):
        train(task, executor, tmp_path / "part", (Stop(at),))
    resumed = train(task, executor, tmp_path / "part", resume=True)
    assert resumed.state.results == whole.state.results
    one, two = resumed.state.measuring, whole.state.measuring
    assert one is not None and two is not None
    first, second = one.state_dict(), two.state_dict()
    for side in (first, second):
        for label in ("devices", "orders"):
            side["ledger"][label] = [row.tolist() for row in side["ledger"][label]]
    assert first == second
    assert one.factors is not None and max(one.factors.op_runs) > 10
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, resumed.policy.state_dict()[name])
    lines = (tmp_path / "part" / JOURNAL_NAME).read_text().splitlines()
    rounds = [json.loads(line) for line in lines if '"round"' in line]
    assert len(rounds) == resumed.state.measured_rounds
    assert all(len(record["traces"]) == len(record["placements"]) for record in rounds)


@pytest.fixture(scope="module")
def stopped(task: PlacementProblem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of update 2."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(RuntimeError):
        train(task, Executor(task), folder, (Stop(3),))
    return folder / "checkpoint.pt"


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ((), None, r": is missing"),
        (("noise", "squares"), -1.0, r"noise\.squares: -1\.0 is no such number"),
        (("regret", "executions"), 1.5, r"regret\.executions: 1\.5 is no such"),
        (("counts",), {}, r"counts: has not the entries"),
        (("factors", "ops"), [1.0], r"factors: lists of the wrong lengths"),
        (("factors", "links"), ["x"] * 5, r"factors\.links: 'x' is not a number"),
        (("ledger", "keys"), [], r"ledger\.devices: not a list of 0 rows"),
        (("ledger", "log_ratios", 0), [], r"ledger\.log_ratios\[0\]: is empty"),
        (("ledger", "devices", 0), torch.full((20,), 9), r"ledger\.devices\[0\]: .*device 9"),
        (("incumbent_runs",), [float("nan")], r"incumbent_runs: nan is not a number"),
    ],
)
def test_spoilt_accounts_are_refused(
    task: PlacementProblem,
    stopped: Path,
    tmp_path: Path,
    keys: tuple,
    value: object,
    message: str,
) -> None:
    document = torch.load(stopped, weights_only=True)
    *path, last = ("state", "measuring", *keys)
    place = document
    for key in path:
        place = place[key]
    place[last] = value
    torch.save(document, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=rf"state\.measuring.*{message}"):
        train(task, Executor(task), tmp_path, resume=True)


def test_kl_by_hand() -> None:
    """r = 2 at one choice of two: (2 - 1 - log 2 + 0) / 2."""
    before = np.log([[0.25, 0.5]]).astype(np.float32)
    after = np.log([[0.5, 0.5]]).astype(np.float32)
    assert estimated_kl(before, after) == pytest.approx((1.0 - np.log(2.0)) / 2)
    rng = np.random.default_rng(0)
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    draws = rng.choice(3, size=20_000, p=p)
    exact = float((p * np.log(p / q)).sum())
    assert estimated_kl(np.log(p)[draws], np.log(q)[draws]) == pytest.approx(exact, rel=0.05)


def test_backtracking_by_hand() -> None:
    """Divergence x ** 2 from 0; a step to 4 is halved twice for a limit of 1.5."""
    parameter = torch.tensor([4.0])
    found = backtrack([parameter], [torch.tensor([0.0])], lambda: float(parameter**2), 1.5)
    assert found == (0.25, 1.0)
    assert parameter.item() == 1.0
    parameter.fill_(4.0)
    assert backtrack([parameter], [torch.tensor([0.0])], lambda: 1.0, 0.5) == (0.0, 0.0)
    assert parameter.item() == 0.0
    parameter.fill_(4.0)
    assert backtrack([parameter], [torch.tensor([0.0])], lambda: 0.1, 0.5) == (1.0, 0.1)
    assert parameter.item() == 4.0


def test_likelihoods_are_those_of_the_roll_out(task: PlacementProblem) -> None:
    policy = DualPolicy(SMALL, seed=4)
    runner = EpisodeRunner(policy, task, batch_size=3)
    batch = runner.run(np.random.default_rng(0), exploration=0.2)
    for steps in (7, 32):
        sel, plc = log_likelihoods(policy, runner.features, batch, steps)
        assert sel == pytest.approx(batch.sel_log_likelihood, abs=1e-5)
        assert plc == pytest.approx(batch.plc_log_likelihood, abs=1e-5)


def test_a_large_step_is_taken_back_by_halves(task: PlacementProblem) -> None:
    class Rows(Callback):
        def __init__(self) -> None:
            self.rows: list[dict] = []

        def on_update(self, trainer: Trainer, metrics: dict) -> None:
            self.rows.append(dict(metrics))

    for limit, halved in ((1e-3, True), (1e9, False)):
        rows = Rows()
        train(task, Executor(task, 0.02), callbacks=(rows,), learning_rate=0.1,
              final_learning_rate=0.1, kl_limit=limit)  # fmt: skip
        scales = [row["step_scale"] for row in rows.rows]
        assert all(row["policy_kl"] <= limit for row in rows.rows)
        assert (min(scales) < 1.0) is halved
        assert max(row["policy_kl"] for row in rows.rows) > 0.0
