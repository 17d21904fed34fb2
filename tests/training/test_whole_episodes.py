"""Whole episodes in kernels against the same episodes stepped op by op with torch."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from comparator_problems import constrained

from doppler.hardware import make_topology
from doppler.policies import DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.simulator import threads
from doppler.training.likelihood import LossWeights, accumulate_gradient, log_likelihoods
from doppler.training.rollout import EpisodeRunner, RolloutBatch
from doppler.workloads.random_dags import erdos_renyi_dag, layered_dag

SMALL = PolicyConfig(hidden_width=16, message_rounds=2, head_width=8)
ODD = PolicyConfig(hidden_width=7, message_rounds=1, head_width=5)
PLAIN = PolicyConfig(16, 2, 2, 8, extended_features=False, sel_state_features=False)
BATCH = 9


class SteppedRunner(EpisodeRunner):
    """Overrides a hook, so that its episodes are stepped op by op."""

    def _select(self, *arguments: object) -> None:  # type: ignore[override]
        super()._select(*arguments)  # type: ignore[arg-type]


def sharp_policy(config: PolicyConfig = SMALL) -> DualPolicy:
    policy = DualPolicy(config, seed=1)
    with torch.no_grad():
        for head in (policy.sel.last, policy.plc.last):
            head.weight.mul_(30.0)
    return policy


def two_slots() -> PlacementProblem:
    problem = layered_dag(30, 2, seed=4)
    topology = make_topology("ideal", 2)
    devices = tuple(replace(device, compute_slots=2) for device in topology.devices)
    return replace(problem, topology=replace(problem.topology, devices=devices))


PROBLEMS = {
    "layered": layered_dag(60, 4, seed=1),
    "dense": erdos_renyi_dag(50, 5, mean_degree=6.0, seed=3),
    "wide": erdos_renyi_dag(200, 3, mean_degree=0.5, seed=3),
    "one device": layered_dag(20, 1, seed=3),
    "constrained": constrained(),
    "two slots": two_slots(),
}
NETWORKS = {"layered": "serial_links", "dense": "one_port"}
MIXTURES = [(0.0, 1.0), (0.2, 0.7), (1.0, 1.0)]


def both(
    name: str, config: PolicyConfig, exploration: float, temperature: float
) -> tuple[EpisodeRunner, RolloutBatch, EpisodeRunner, RolloutBatch]:
    """A batch from the kernels, and the same episodes stepped."""
    network, policy = NETWORKS.get(name, "contention_free"), sharp_policy(config)
    whole, stepped = (
        kind(policy, PROBLEMS[name], network, BATCH) for kind in (EpisodeRunner, SteppedRunner)
    )
    rng, options = (
        np.random.default_rng(0),
        {"exploration": exploration, "temperature": temperature},
    )
    batch = whole.run(rng, **options)
    assert batch.trace is not None
    again = stepped.run(rng, forced=batch, **options)
    assert again.trace is None and len(again.candidates) == PROBLEMS[name].num_ops
    return whole, batch, stepped, again


def gradients(runner: EpisodeRunner, batch: RolloutBatch, weights: LossWeights) -> torch.Tensor:
    runner.policy.zero_grad()
    accumulate_gradient(runner.policy, runner.features, batch, weights)
    grads = [p.grad for p in runner.policy.parameters() if p.grad is not None]
    return torch.cat([grad.flatten() for grad in grads])


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("exploration", "temperature"), MIXTURES)
@pytest.mark.parametrize("config", [SMALL, PLAIN], ids=["features", "plain"])
def test_kernels_see_and_judge_as_the_stepped_roll_out(
    name: str, exploration: float, temperature: float, config: PolicyConfig
) -> None:
    _, batch, _, again = both(name, config, exploration, temperature)
    assert np.array_equal(batch.ops, again.ops) and np.array_equal(batch.devices, again.devices)
    assert batch.device_features == pytest.approx(again.device_features, abs=1e-6)
    assert np.array_equal(batch.device_masks, again.device_masks)
    assert batch.sel_log_likelihood == pytest.approx(again.sel_log_likelihood, abs=1e-5)
    assert batch.plc_log_likelihood == pytest.approx(again.plc_log_likelihood, abs=1e-5)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("exploration", "temperature"), MIXTURES)
def test_replayed_gradients_equal_those_of_torch(
    name: str, exploration: float, temperature: float
) -> None:
    config = ODD if name == "dense" else PLAIN if name == "wide" else SMALL
    whole, batch, stepped, again = both(name, config, exploration, temperature)
    weights = LossWeights(np.random.default_rng(1).normal(size=BATCH), 0.3, 0.2, entropy_rows=6)
    fast, slow = gradients(whole, batch, weights), gradients(stepped, again, weights)
    assert slow.abs().max() > 1e-3
    assert fast == pytest.approx(slow, abs=2e-6, rel=1e-4)
    policy, features = whole.policy, whole.features
    policy.zero_grad()
    reports = [accumulate_gradient(policy, features, one, weights) for one in (batch, again)]
    for label in ("loss", "sel_entropy", "plc_entropy"):
        first, second = (getattr(report, label) for report in reports)
        assert first == pytest.approx(second, abs=1e-5), label
    assert reports[0].sel_log_likelihood == pytest.approx(batch.sel_log_likelihood, abs=1e-5)
    assert reports[0].plc_log_likelihood == pytest.approx(batch.plc_log_likelihood, abs=1e-5)


def test_likelihoods_under_other_weights_equal_those_of_torch() -> None:
    whole, batch, _, again = both("constrained", SMALL, 0.2, 0.7)
    other = DualPolicy(SMALL, seed=9)
    fast, slow = (log_likelihoods(other, whole.features, one) for one in (batch, again))
    for one, two in zip(fast, slow):
        assert one == pytest.approx(two, abs=1e-5)
    assert np.abs(fast[0] - batch.sel_log_likelihood).max() > 0.01


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_greedy_episode_is_the_stepped_one(name: str) -> None:
    policy = sharp_policy()
    ops = []
    for kind in (EpisodeRunner, SteppedRunner):
        runner = kind(policy, PROBLEMS[name], "contention_free", 1)
        batch = runner.run(np.random.default_rng(0), greedy=True, record=False)
        ops.append(np.stack([batch.ops[0], batch.devices[0]]))
    assert np.array_equal(*ops)


def test_equal_scores_go_by_the_lower_id() -> None:
    policy = DualPolicy(SMALL)
    with torch.no_grad():
        policy.sel.last.weight.zero_()
    runner = EpisodeRunner(policy, PROBLEMS["wide"], "contention_free", 1)
    ops = runner.run(np.random.default_rng(0), greedy=True).ops[0]
    placed: set[int] = set()
    for op in ops.tolist():
        graph = PROBLEMS["wide"].graph
        waiting = (x for x in range(200) if x not in placed)
        assert op == next(x for x in waiting if placed.issuperset(graph.predecessors(x)))
        placed.add(op)


def test_draws_among_many_follow_the_stated_mixture() -> None:
    """200 candidates: each op's share of first choices, and the mean of 1 / likelihood."""
    problem = layered_dag(200, 2, num_layers=1, seed=0)
    policy = sharp_policy()
    with torch.no_grad():
        policy.sel.last.weight.mul_(100.0)
    runner = EpisodeRunner(policy, problem, "contention_free", 8000)
    batch = runner.run(np.random.default_rng(0), exploration=0.3, record=False)
    first, stated = batch.ops[:, 0], np.exp(batch.sel_log_likelihood[:, 0])
    assert np.mean(1.0 / stated) == pytest.approx(200, rel=0.03)
    shares = np.bincount(first, minlength=200) / 8000
    expected = np.zeros(200)
    expected[first] = stated
    assert np.abs(shares - expected).max() < 5 * np.sqrt(expected.max() / 8000)
    assert expected.sum() == pytest.approx(1.0, abs=0.02) and expected.max() > 2 / 200


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_SMALLEST_SHARE", 1)
    found = []
    for cores in (1, 2, 3):
        monkeypatch.setattr(threads, "available_cores", lambda cores=cores: cores)
        runner = EpisodeRunner(sharp_policy(), PROBLEMS["constrained"], "serial_links", 21)
        batch = runner.run(np.random.default_rng(3), exploration=0.1)
        weights = LossWeights(np.random.default_rng(1).normal(size=21), 0.3, 0.2)
        gradient = gradients(runner, batch, weights)
        found.append((batch.ops, batch.devices, batch.sel_log_likelihood, gradient.numpy()))
    for other in found[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(found[0], other))


def test_memory_does_not_grow_with_the_candidates() -> None:
    """1500 ops, up to 700 candidates, whose lists alone would take 17 kB per op and episode."""
    problem = erdos_renyi_dag(1500, 4, mean_degree=1.5, seed=0)
    runner = EpisodeRunner(sharp_policy(), problem, "contention_free", 8)
    weights = LossWeights(np.ones(8))
    tracemalloc.start()
    batch = runner.run(np.random.default_rng(0))
    accumulate_gradient(runner.policy, runner.features, batch, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / (8 * 1500) < 1200


def test_weights_that_are_not_finite_show_in_the_likelihoods() -> None:
    policy = sharp_policy()
    with torch.no_grad():
        policy.sel.last.bias.fill_(float("nan"))
    runner = EpisodeRunner(policy, PROBLEMS["layered"], "contention_free", 2)
    batch = runner.run(np.random.default_rng(0))
    assert sorted(batch.ops[0].tolist()) == list(range(60))
    assert not np.isfinite(batch.log_likelihood).any()
