"""Roll-outs and the gradient pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from doppler.errors import ConfigurationError, InvalidPlacementError
from doppler.policies import DualPolicy, PolicyConfig
from doppler.problem import InputTensor, PlacementProblem
from doppler.training.likelihood import LossWeights, accumulate_gradient
from doppler.training.rollout import EpisodeRunner, Episodes, RolloutBatch
from doppler.training.runners import rollout
from doppler.workloads.random_dags import layered_dag

SMALL = PolicyConfig(hidden_width=16, message_rounds=2, head_width=8)
PLAIN = PolicyConfig(16, 2, 2, 8, extended_features=False, sel_state_features=False)


def sharp_policy(config: PolicyConfig = SMALL) -> DualPolicy:
    policy = DualPolicy(config, seed=1)
    with torch.no_grad():
        for head in (policy.sel.last, policy.plc.last):
            head.weight.mul_(30.0)
    return policy


def make_runner(
    config: PolicyConfig = SMALL, batch_size: int = 6, num_ops: int = 40
) -> EpisodeRunner:
    problem = layered_dag(num_ops, 3, seed=2)
    return EpisodeRunner(sharp_policy(config), problem, "serial_links", batch_size)


def gradient(
    runner: EpisodeRunner, batch: RolloutBatch, weights: LossWeights, steps: int
) -> torch.Tensor:
    runner.policy.zero_grad()
    accumulate_gradient(runner.policy, runner.features, batch, weights, steps)
    return torch.cat([p.grad.flatten() for p in runner.policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("config", [SMALL, PLAIN])
@pytest.mark.parametrize(
    ("exploration", "temperature"), [(0.0, 1.0), (0.2, 1.0), (0.3, 0.5), (1.0, 1.0)]
)
def test_recomputed_likelihoods_equal_the_roll_outs(
    config: PolicyConfig, exploration: float, temperature: float
) -> None:
    runner = make_runner(config)
    batch = runner.run(np.random.default_rng(0), exploration=exploration, temperature=temperature)
    report = accumulate_gradient(
        runner.policy, runner.features, batch, LossWeights(np.ones(6)), steps_per_chunk=7
    )
    assert report.sel_log_likelihood == pytest.approx(batch.sel_log_likelihood, abs=1e-5)
    assert report.plc_log_likelihood == pytest.approx(batch.plc_log_likelihood, abs=1e-5)
    assert report.loss == pytest.approx(-batch.log_likelihood.mean() / 40, abs=1e-5)


def constrained_runner(batch_size: int = 6) -> EpisodeRunner:
    """Pins, groups and inputs on the problem of `make_runner`."""
    problem = layered_dag(40, 3, seed=2)
    rng = np.random.default_rng(5)
    groups = np.where(rng.random(40) < 0.4, rng.integers(0, 4, 40), -1)
    problem = replace(
        problem,
        colocation=groups,
        pinned=np.where((rng.random(40) < 0.3) & (groups < 0), rng.integers(0, 3, 40), -1),
        inputs=(
            InputTensor("x", 1e6, (0, 7, 20), 1),
            InputTensor("y", 1e6, (3, 9), "first_consumer"),
        ),
    ).with_explicit_inputs()
    return EpisodeRunner(sharp_policy(), problem, "serial_links", batch_size)


@pytest.mark.parametrize(
    ("exploration", "temperature"), [(0.0, 1.0), (0.2, 1.0), (0.3, 0.5), (1.0, 1.0)]
)
def test_constraints_are_respected_and_likelihoods_agree(
    exploration: float, temperature: float
) -> None:
    runner = constrained_runner()
    problem = runner.problem
    for seed in range(3):
        batch = runner.run(
            np.random.default_rng(seed), exploration=exploration, temperature=temperature
        )
        for devices in batch.placements:
            problem.check_placement(devices)
        options = batch.device_masks.sum(axis=2).T
        assert np.allclose(batch.plc_log_likelihood[options == 1], 0.0)
        assert {1, 3} == set(options.ravel().tolist())
        if exploration == 1.0:
            assert batch.plc_log_likelihood == pytest.approx(-np.log(options), abs=1e-6)
        report = accumulate_gradient(
            runner.policy, runner.features, batch, LossWeights(np.ones(6)), steps_per_chunk=7
        )
        assert report.plc_log_likelihood == pytest.approx(batch.plc_log_likelihood, abs=1e-5)
        assert report.sel_log_likelihood == pytest.approx(batch.sel_log_likelihood, abs=1e-5)
        assert np.isfinite(report.plc_entropy) and report.plc_entropy < np.log(3)
    greedy = runner.run(np.random.default_rng(0), greedy=True)
    problem.check_placement(greedy.placements[0])


def test_constrained_gradients_are_finite_and_leave_forced_choices_alone() -> None:
    runner = constrained_runner()
    batch = runner.run(np.random.default_rng(0), exploration=0.1)
    weights = LossWeights(np.random.default_rng(1).normal(size=6), 0.3, 0.2)
    whole = gradient(runner, batch, weights, 1000)
    assert whole.isfinite().all() and whole.abs().max() > 1e-3
    assert gradient(runner, batch, weights, 7) == pytest.approx(whole, abs=1e-6)
    every_op_pinned = EpisodeRunner(
        sharp_policy(), replace(layered_dag(40, 3, seed=2), pinned=np.arange(40) % 3), batch_size=6
    )
    batch = every_op_pinned.run(np.random.default_rng(0))
    gradient(every_op_pinned, batch, LossWeights(np.ones(6), 0.0, 0.5), 40)
    reached = [p.grad for p in every_op_pinned.policy.plc.parameters() if p.grad is not None]
    assert all(grad.abs().max() == 0.0 for grad in reached)


def test_forced_devices_must_be_allowed() -> None:
    runner = constrained_runner()
    shown = runner.run(np.random.default_rng(0))
    again = runner.run(np.random.default_rng(9), forced=shown)
    assert np.array_equal(again.devices, shown.devices)
    op = int(np.flatnonzero(runner.problem.pinned >= 0)[0])
    wrong = np.where(shown.ops == op, (shown.devices + 1) % 3, shown.devices)
    with pytest.raises(InvalidPlacementError, match=f"op {op} may not go on device"):
        runner.run(np.random.default_rng(0), forced=Episodes(shown.ops, wrong))


def test_full_exploration_is_uniform() -> None:
    runner = make_runner()
    batch = runner.run(np.random.default_rng(0), exploration=1.0)
    assert batch.plc_log_likelihood == pytest.approx(-np.log(3), abs=1e-6)
    graph, counts = runner.problem.graph, np.empty((6, 40))
    for ops, row in zip(batch.ops.tolist(), counts):
        for step in range(40):
            placed = set(ops[:step])
            waiting = set(range(40)) - placed
            row[step] = sum(placed.issuperset(graph.predecessors(op)) for op in waiting)
    assert batch.sel_log_likelihood == pytest.approx(-np.log(counts), abs=1e-6)
    # What the uniform distribution chose teaches nothing.
    norms = gradient(runner, batch, LossWeights(np.ones(6)), 40)
    assert norms.abs().max() == 0.0


def test_chunking_changes_no_gradient() -> None:
    runner = make_runner()
    batch = runner.run(np.random.default_rng(0), exploration=0.1)
    weights = LossWeights(np.random.default_rng(1).normal(size=6), 0.3, 0.2, entropy_rows=4)
    whole = gradient(runner, batch, weights, 1000)
    for steps in (1, 7, 40):
        assert gradient(runner, batch, weights, steps) == pytest.approx(whole, abs=1e-6)
    assert whole.abs().max() > 1e-3


def test_gradient_equals_finite_differences() -> None:
    """Of the loss as it is reported, along a random direction, in the plain chain of steps."""
    runner = make_runner(num_ops=12)
    batch = runner.run(np.random.default_rng(0), exploration=0.1)
    weights = LossWeights(np.random.default_rng(1).normal(size=6), 0.3, 0.2)
    slope = gradient(runner, batch, weights, 5)
    parameters = [p for p in runner.policy.parameters() if p.grad is not None]
    flat = torch.nn.utils.parameters_to_vector(parameters).detach()
    direction = slope / slope.norm()
    losses = []
    for sign in (1.0, -1.0):
        torch.nn.utils.vector_to_parameters(flat + sign * 5e-3 * direction, parameters)
        report = accumulate_gradient(runner.policy, runner.features, batch, weights)
        entropies = 0.3 * report.sel_entropy + 0.2 * report.plc_entropy
        likelihoods = report.sel_log_likelihood + report.plc_log_likelihood
        losses.append(-(weights.episodes[:, None] * likelihoods).mean() - entropies)
    assert (losses[0] - losses[1]) / 1e-2 == pytest.approx(slope.norm().item(), rel=2e-2)


def test_a_step_uphill_makes_chosen_episodes_likelier() -> None:
    runner = make_runner()
    batch = runner.run(np.random.default_rng(0))
    weights = np.array([1.0, 0, 0, 0, 0, -1.0])
    optimiser = torch.optim.SGD(runner.policy.parameters(), lr=0.05)
    accumulate_gradient(runner.policy, runner.features, batch, LossWeights(weights))
    optimiser.step()
    after = runner.run(np.random.default_rng(0), forced=batch)
    change = after.log_likelihood - batch.log_likelihood
    assert change[0] - change[5] > 0.01


def check_legal(problem: PlacementProblem, batch: Episodes) -> None:
    for ops, devices in zip(batch.ops, batch.devices):
        assert sorted(ops.tolist()) == list(range(problem.num_ops))
        step = np.argsort(ops)
        assert (step[problem.graph.edges[:, 0]] < step[problem.graph.edges[:, 1]]).all()
        assert devices.min() >= 0 and devices.max() < problem.num_devices


@pytest.mark.parametrize("exploration", [0.0, 0.5, 1.0])
def test_no_illegal_action_is_ever_taken(exploration: float) -> None:
    for seed in range(4):
        problem = layered_dag(50, 1 + seed, seed=seed)
        runner = EpisodeRunner(sharp_policy(), problem, "contention_free", 32)
        batch = runner.run(np.random.default_rng(seed), exploration=exploration)
        check_legal(problem, batch)
        assert np.isfinite(batch.log_likelihood).all()


def test_draws_at_the_edges_stay_legal() -> None:
    """A generator that returns only the least, or only the greatest, possible draw."""

    class Constant:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
            return np.full(shape, self.value, dtype)

    runner = make_runner()
    for value in (0.0, np.nextafter(np.float32(1.0), np.float32(0.0))):
        check_legal(runner.problem, runner.run(Constant(value)))  # type: ignore[arg-type]


def test_samples_follow_the_mixture() -> None:
    """One op on three devices: frequencies against the stated likelihoods."""
    problem = layered_dag(1, 3, seed=0)
    runner = EpisodeRunner(sharp_policy(), problem, "contention_free", 4000)
    batch = runner.run(np.random.default_rng(0), exploration=0.3)
    stated = np.exp(batch.plc_log_likelihood[:, 0])
    for device in range(3):
        here = batch.devices[:, 0] == device
        assert here.mean() == pytest.approx(stated[here][0], abs=0.03)


def test_greedy_takes_the_likeliest_and_needs_no_luck() -> None:
    runner = make_runner()
    first = runner.run(np.random.default_rng(0), greedy=True)
    second = runner.run(np.random.default_rng(99), greedy=True)
    assert np.array_equal(first.ops, second.ops)
    assert np.array_equal(first.devices, second.devices)
    assert (first.ops == first.ops[0]).all()
    assert first.plc_log_likelihood.min() >= -np.log(3) - 1e-6


def test_low_temperature_approaches_greedy() -> None:
    runner = make_runner()
    greedy = runner.run(np.random.default_rng(0), greedy=True)
    cold = runner.run(np.random.default_rng(1), temperature=1e-6)
    assert (cold.ops == greedy.ops).mean() > 0.9


def test_one_seed_gives_one_batch() -> None:
    first, second, other = (make_runner().run(np.random.default_rng(s)) for s in (3, 3, 4))
    assert np.array_equal(first.devices, second.devices)
    assert np.array_equal(first.sel_log_likelihood, second.sel_log_likelihood)
    assert not np.array_equal(first.devices, other.devices)


def test_forced_rows_follow_while_the_rest_is_free() -> None:
    runner = make_runner()
    shown = runner.run(np.random.default_rng(0))
    forced = Episodes(shown.ops[:2], shown.devices[:2])
    batch = runner.run(np.random.default_rng(5), forced=forced)
    assert np.array_equal(batch.ops[4:], shown.ops[:2])
    assert np.array_equal(batch.devices[4:], shown.devices[:2])
    assert batch.log_likelihood[4:] == pytest.approx(shown.log_likelihood[:2], abs=1e-4)
    assert not np.array_equal(batch.devices[:2], shown.devices[:2])


def test_forced_episodes_must_be_possible() -> None:
    runner = make_runner()
    shown = runner.run(np.random.default_rng(0))
    with pytest.raises(InvalidPlacementError, match="no candidate"):
        runner.run(
            np.random.default_rng(0),
            forced=Episodes(shown.ops[:, ::-1].copy(), shown.devices),
        )
    with pytest.raises(ConfigurationError, match="7 forced"):
        tiled = Episodes(np.tile(shown.ops[:1], (7, 1)), np.tile(shown.devices[:1], (7, 1)))
        runner.run(np.random.default_rng(0), forced=tiled)


@pytest.mark.parametrize(("exploration", "temperature"), [(-0.1, 1.0), (1.1, 1.0), (0.0, 0.0)])
def test_impossible_settings_are_refused(exploration: float, temperature: float) -> None:
    with pytest.raises(ConfigurationError, match="exploration"):
        make_runner().run(
            np.random.default_rng(0), exploration=exploration, temperature=temperature
        )


def test_placements_are_by_op_and_episodes_by_step() -> None:
    episodes = Episodes(np.array([[2, 0, 1]]), np.array([[5, 6, 7]]))
    assert episodes.placements.tolist() == [[6, 7, 5]]
    back = Episodes.from_placements(episodes.placements, episodes.ops)
    assert back.devices.tolist() == [[5, 6, 7]]


def test_rollout_in_one_call() -> None:
    problem = layered_dag(20, 2, seed=0)
    batch = rollout(DualPolicy(SMALL), problem, batch_size=3, rng=np.random.default_rng(0))
    check_legal(problem, batch)
