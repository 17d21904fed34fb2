"""Comparators' episodes: replayed exactly, legal, and what each of them stands for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from comparator_problems import MAKERS, PROBLEMS, SIZES, check_legal, every_comparator, sharp

from doppler.errors import ConfigurationError, InvalidPlacementError
from doppler.policies import (
    DualPolicy,
    PolicyConfig,
)
from doppler.schedulers.critical_path import critical_path_episodes
from doppler.training import (
    EpisodeRunner,
    Episodes,
    make_runner,
)
from doppler.training.likelihood import LossWeights, accumulate_gradient, log_likelihoods
from doppler.training.rollout import RolloutBatch
from doppler.training.runners import RUNNERS, PairBatch
from doppler.workloads.random_dags import layered_dag


@every_comparator
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    ("exploration", "temperature"), [(0.0, 1.0), (0.2, 1.0), (0.3, 0.5), (1.0, 1.0)]
)
def test_replayed_likelihoods_equal_the_roll_outs(
    name: str, problem: str, exploration: float, temperature: float
) -> None:
    runner = make_runner(sharp(name), PROBLEMS[problem], "serial_links", 6)
    batch = runner.run(np.random.default_rng(0), exploration=exploration, temperature=temperature)
    check_legal(PROBLEMS[problem], batch)
    report = accumulate_gradient(
        runner.policy, runner.features, batch, LossWeights(np.ones(6)), steps_per_chunk=7
    )
    assert report.sel_log_likelihood == pytest.approx(batch.sel_log_likelihood, abs=1e-5)
    assert report.plc_log_likelihood == pytest.approx(batch.plc_log_likelihood, abs=1e-5)
    assert report.loss == pytest.approx(-batch.log_likelihood.mean() / batch.ops.shape[1], abs=1e-5)
    again = log_likelihoods(runner.policy, runner.features, batch, 11)
    assert again[0] == pytest.approx(batch.sel_log_likelihood, abs=1e-5)
    assert again[1] == pytest.approx(batch.plc_log_likelihood, abs=1e-5)
    assert np.abs(batch.log_likelihood).min() > 1.0  # something is learned in every episode


RULED = {"sel_only": "plc", "plc_only": "sel", "placeto": "sel", "gdp": "sel", "joint": "plc"}


@every_comparator
def test_a_rule_s_choice_is_certain(name: str) -> None:
    runner = make_runner(sharp(name), PROBLEMS["free"], "serial_links", 6)
    batch = runner.run(np.random.default_rng(0), exploration=0.3)
    assert (getattr(batch, f"{RULED[name]}_log_likelihood") == 0.0).all()
    report = accumulate_gradient(
        runner.policy, runner.features, batch, LossWeights(np.ones(6), 0.5, 0.5)
    )
    assert getattr(report, f"{RULED[name]}_entropy") == 0.0
    learned = ({"sel", "plc"} - {RULED[name]}).pop()
    assert getattr(report, f"{learned}_entropy") > 0.1
    for label, weights in runner.policy.named_parameters():
        assert weights.grad is not None and bool(weights.grad.isfinite().all()), label


@every_comparator
def test_chunking_changes_no_gradient_and_differences_agree(name: str) -> None:
    runner = make_runner(sharp(name), PROBLEMS["constrained"], "serial_links", 6)
    policy = runner.policy
    batch = runner.run(np.random.default_rng(0), exploration=0.1)
    weights = LossWeights(np.random.default_rng(1).normal(size=6), 0.3, 0.2, entropy_rows=4)

    def gradient(steps: int) -> torch.Tensor:
        policy.zero_grad()
        accumulate_gradient(policy, runner.features, batch, weights, steps)
        return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])

    whole = gradient(1000)
    for steps in (1, 7):
        assert gradient(steps) == pytest.approx(whole, abs=1e-6)
    assert whole.abs().max() > 1e-3
    flat = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    losses, distance = [], 1e-4
    for sign in (1.0, -1.0):
        moved = flat + sign * distance * whole / whole.norm()
        torch.nn.utils.vector_to_parameters(moved, policy.parameters())
        report = accumulate_gradient(policy, runner.features, batch, weights)
        likelihoods = (report.sel_log_likelihood + report.plc_log_likelihood).astype(np.float64)
        entropies = 0.3 * report.sel_entropy + 0.2 * report.plc_entropy
        losses.append(-(weights.episodes[:, None] * likelihoods).mean() - entropies)
    slope = (losses[0] - losses[1]) / (2 * distance)
    assert slope == pytest.approx(whole.norm().item(), rel=3e-2)


@every_comparator
@pytest.mark.parametrize("exploration", [0.0, 0.5, 1.0])
def test_no_illegal_action_is_ever_taken(name: str, exploration: float) -> None:
    problems = [*PROBLEMS.values(), layered_dag(50, 1, seed=0), layered_dag(50, 5, seed=3)]
    for seed, problem in enumerate(problems):
        runner = make_runner(sharp(name), problem, "contention_free", 32)
        batch = runner.run(np.random.default_rng(seed), exploration=exploration)
        check_legal(problem, batch)
        assert np.isfinite(batch.log_likelihood).all()
        check_legal(problem, runner.run(np.random.default_rng(seed), greedy=True, record=False))


@pytest.mark.parametrize("name", ["plc_only", "placeto", "gdp"])
def test_a_walk_is_the_critical_paths_and_follows_placements_in_it(name: str) -> None:
    problem = PROBLEMS["free"]
    runner = make_runner(sharp(name), problem, "serial_links", 4)
    batch = runner.run(np.random.default_rng(0))
    order, _ = critical_path_episodes(
        problem, 1, "serial_links", np.random.default_rng(0), ties="id"
    )
    assert (batch.ops == order[0]).all()
    placements = np.random.default_rng(3).integers(0, 3, (2, 40))
    topological = np.repeat(problem.graph.topological_order[None], 2, axis=0)
    shown = Episodes.from_placements(placements, topological)
    followed = runner.run(np.random.default_rng(0), forced=shown)
    if name == "gdp":  # which renames devices, see below
        together = placements[:, :, None] == placements[:, None]
        placements = followed.placements[2:]
        assert np.array_equal(placements[:, :, None] == placements[:, None], together)
    assert np.array_equal(followed.placements[2:], placements)
    assert (followed.ops == order[0]).all()
    assert np.array_equal(followed.devices[:2], batch.devices[:2])


@pytest.mark.parametrize("problem", PROBLEMS)
def test_sel_only_places_as_the_critical_path_does(problem: str) -> None:
    """Given that scheduler's order, its rule finds that scheduler's devices."""
    task = PROBLEMS[problem]
    ops, devices = critical_path_episodes(
        task, 3, "serial_links", np.random.default_rng(0), ties="id"
    )
    runner = make_runner(sharp("sel_only"), task, "serial_links", 3)
    asked: list[np.ndarray] = []
    rule = runner._earliest  # type: ignore[attr-defined]
    runner._earliest = lambda ops: asked.append(rule(ops).copy()) or asked[-1]  # type: ignore[attr-defined]
    batch = runner.run(np.random.default_rng(0), forced=Episodes(ops, devices))
    assert np.array_equal(np.array(asked).T, devices)
    assert np.array_equal(batch.devices, devices)


def test_sel_only_follows_devices_that_its_rule_would_not_take() -> None:
    problem = PROBLEMS["free"]
    runner = make_runner(sharp("sel_only"), problem, "serial_links", 2)
    order = problem.graph.topological_order[None]
    shown = Episodes(order, np.random.default_rng(0).integers(0, 3, (1, 40)))
    batch = runner.run(np.random.default_rng(0), forced=shown)
    assert np.array_equal(batch.ops[1:], shown.ops)
    assert np.array_equal(batch.devices[1:], shown.devices)
    assert (batch.plc_log_likelihood == 0.0).all()


def test_joint_full_exploration_is_uniform_over_pairs() -> None:
    for problem in PROBLEMS.values():
        runner = make_runner(sharp("joint"), problem, "serial_links", 6)
        batch = runner.run(np.random.default_rng(0), exploration=1.0)
        assert isinstance(batch, PairBatch)
        listed = [(ids < problem.num_ops).sum(axis=1) * 3 for ids in batch.candidates]
        options = [mask.sum(axis=1) for mask in batch.pair_masks] or listed
        assert batch.sel_log_likelihood == pytest.approx(-np.log(np.stack(options, 1)), abs=1e-6)
        assert bool(batch.pair_masks) == problem.constrained
        assert (np.stack(options) <= np.stack(listed)).all()


def test_joint_prefers_the_best_of_all_pairs() -> None:
    """Greedy: no other pair of a step is likelier, whichever op or device it has."""
    runner = make_runner(sharp("joint"), PROBLEMS["free"], "serial_links", 1)
    batch = runner.run(np.random.default_rng(0), greedy=True)
    tables = runner.policy.encode(runner.features)
    with torch.no_grad():
        ids, pairs = batch.candidates[0], torch.from_numpy(batch.state_features[0])
        nothing = torch.zeros(1, 1, 3, SIZES["head_width"])
        logits = runner.policy.plc(tables.plc_ops[torch.from_numpy(ids)], nothing, pairs)
    best = int(logits.flatten().argmax())
    assert (batch.ops[0, 0], batch.devices[0, 0]) == (ids[0, best // 3], best % 3)
    share = torch.log_softmax(logits.flatten(), 0)[best].item()
    assert batch.sel_log_likelihood[0, 0] == pytest.approx(share, abs=1e-5)


def test_joint_chunks_hold_a_bounded_number_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(sharp("joint"), PROBLEMS["free"], "serial_links", 6)
    batch = runner.run(np.random.default_rng(0))
    assert isinstance(batch, PairBatch)
    pairs = sum(ids.size * 3 for ids in batch.candidates)
    monkeypatch.setattr("doppler.training.runners.PAIRS_PER_CHUNK", pairs // 7)
    assert batch.steps_per_chunk == 5
    seen: list[int] = []
    replay = PairBatch.step_likelihoods

    def spy(self: PairBatch, *arguments: object) -> object:
        seen.append(arguments[3] - arguments[2])  # type: ignore[operator]
        return replay(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PairBatch, "step_likelihoods", spy)
    accumulate_gradient(runner.policy, runner.features, batch, LossWeights(np.ones(6)))
    assert seen == [5] * 8


@every_comparator
def test_forced_episodes_must_be_possible(name: str) -> None:
    problem = PROBLEMS["constrained"]
    runner = make_runner(sharp(name), problem, "serial_links", 2)
    shown = runner.run(np.random.default_rng(0))
    again = runner.run(np.random.default_rng(9), forced=shown)
    assert np.array_equal(again.placements, shown.placements)
    assert again.log_likelihood == pytest.approx(shown.log_likelihood, abs=1e-4)
    op = int(np.flatnonzero(problem.pinned >= 0)[0])  # type: ignore[operator]
    wrong = np.where(shown.ops == op, (shown.devices + 1) % 3, shown.devices)
    with pytest.raises(InvalidPlacementError, match=rf"op {op}(:| may not go on) device"):
        runner.run(np.random.default_rng(0), forced=Episodes(shown.ops, wrong))


@every_comparator
def test_forced_devices_must_exist(name: str) -> None:
    problem = PROBLEMS["free"]
    runner = make_runner(sharp(name), problem, "serial_links", 1)
    shown = Episodes(problem.graph.topological_order[None], np.full((1, 40), 3))
    with pytest.raises(InvalidPlacementError, match="device 3"):
        runner.run(np.random.default_rng(0), forced=shown)
    check_legal(problem, runner.run(np.random.default_rng(0)))


def test_gdp_follows_identical_devices_by_first_use() -> None:
    problem = PROBLEMS["free"]
    runner = make_runner(sharp("gdp"), problem, "serial_links", 3)
    walk = runner.run(np.random.default_rng(0)).ops
    devices = np.random.default_rng(1).integers(0, 3, (1, 40))
    names = np.array([[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    shown = Episodes(walk, names[:, devices[0]])
    assert len({row.tobytes() for row in shown.devices}) == 3
    followed = runner.run(np.random.default_rng(0), forced=shown)
    assert (followed.devices == followed.devices[0]).all()
    used, first = np.unique(followed.devices[0], return_index=True)
    assert used.tolist() == [0, 1, 2] and (np.diff(first) > 0).all()
    same = followed.devices[0][:, None] == followed.devices[0]
    assert np.array_equal(same, devices[0][:, None] == devices[0])
    # Devices that differ keep their names.
    pinned = replace(problem, pinned=np.where(np.arange(40) == 7, 2, -1))
    runner = make_runner(sharp("gdp"), pinned, "serial_links", 1)
    placement = np.full((1, 40), 2)
    placement[0, ::2] = 1
    topological = problem.graph.topological_order[None]
    placement[0, 7] = 2
    batch = runner.run(
        np.random.default_rng(0), forced=Episodes.from_placements(placement, topological)
    )
    assert np.array_equal(batch.placements == 2, placement == 2)
    assert np.array_equal(batch.placements == 0, placement == 1)


def test_runners_fit_their_policies() -> None:
    assert type(make_runner(DualPolicy(PolicyConfig(**SIZES)), PROBLEMS["free"])) is EpisodeRunner
    kinds = {name: type(make_runner(MAKERS[name](), PROBLEMS["free"])) for name in MAKERS}
    assert {*kinds.values(), EpisodeRunner} == {*RUNNERS.values()}
    assert kinds["plc_only"] is kinds["placeto"] and len(set(kinds.values())) == 4
    with pytest.raises(ConfigurationError, match="policy Linear, episodes: '' is not one of"):
        make_runner(torch.nn.Linear(1, 1), PROBLEMS["free"])  # type: ignore[arg-type]
    for name in MAKERS:
        with pytest.raises(ConfigurationError, match="EpisodeRunner builds episodes by 'select_a"):
            EpisodeRunner(MAKERS[name](), PROBLEMS["free"])


def recorded(batch: RolloutBatch) -> int:
    return sum(map(np.size, (*batch.candidates, *batch.state_features)))


@every_comparator
def test_inference_records_nothing(name: str) -> None:
    runner = make_runner(sharp(name), PROBLEMS["free"], "serial_links", 2)
    kept = runner.run(np.random.default_rng(0))
    loose = runner.run(np.random.default_rng(0), record=False)
    assert np.array_equal(kept.placements, loose.placements)
    assert recorded(loose) == 0 < recorded(kept)
