"""The flat environment in a batch, and as Stable-Baselines3 sees it; the network on its states."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from sb3_problems import SMALL, constrained, six_ops

import envs
from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.errors import ConfigurationError
from doppler.simulator import Simulator
from envs.sb3 import ActorCritic, sample_episodes
from envs.sb3.network import KEYS, as_tensors


def states(problem: PlacementProblem, count: int = 3, seed: int = 0) -> Iterator[dict]:
    """Batched observations along random legal episodes."""
    env = envs.PlacementFlatVectorEnv(count, problem=problem, network="contention_free")
    observation, _ = env.reset()
    rng = np.random.default_rng(seed)
    for _ in range(problem.num_ops):
        yield observation
        picks = [rng.choice(np.flatnonzero(row)) for row in env.action_masks()]
        observation, *_ = env.step(np.array(picks))


@pytest.mark.parametrize("make", [six_ops, constrained])
def test_a_flat_batch_equals_single_environments(make) -> None:  # type: ignore[no-untyped-def]
    problem = make()
    count, rng = 5, np.random.default_rng(1)
    batch = gymnasium.make_vec("doppler/PlacementFlat-v0", num_envs=count, problem=problem)
    singles = [envs.PlacementFlatEnv(problem=problem) for _ in range(count)]
    assert isinstance(batch, envs.PlacementFlatVectorEnv)
    observation, _ = batch.reset(seed=0)
    alone = [env.reset()[0] for env in singles]
    kinds = set()
    for _ in range(40):
        masks = batch.action_masks()
        assert np.array_equal(masks, [env.action_masks() for env in singles])
        for b in range(count):
            assert data_equivalence({k: v[b] for k, v in observation.items()}, alone[b])
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in masks])
        if rng.random() < 0.4:  # any action, most of them illegal
            actions[rng.integers(count)] = rng.integers(masks.shape[1])
        observation, rewards, ended, cut, infos = batch.step(actions)
        assert not cut.any()
        for b, env in enumerate(singles):
            alone[b], reward, over, _, info = env.step(actions[b])
            assert (reward, over) == (rewards[b], ended[b])
            if over:
                kinds.add(tuple(sorted(info)))
                for key, value in info.items():
                    assert np.array_equal(infos["final_info"][key][b], value), key
                alone[b], _ = env.reset()
    assert kinds == {("illegal_action",), ("order", "placement", "simulated_makespan")}


def test_a_batch_of_pairs_still_refuses_constraints() -> None:
    with pytest.raises(ConfigurationError, match="use doppler/PlacementFlat-v0"):
        envs.PlacementVectorEnv(2, problem=constrained())


def test_the_vector_environment_is_as_stable_baselines_wants_it() -> None:
    from envs.sb3.episodes import JudgedEpisodes
    from envs.sb3.models import PlacementVecEnv

    problem = six_ops()
    judged: list[np.ndarray] = []

    def judge(devices: np.ndarray, orders: np.ndarray) -> np.ndarray:
        judged.append(orders.copy())
        return np.full(len(devices), 7.0)

    env = PlacementVecEnv(JudgedEpisodes(2, judge, problem, "contention_free"))
    observation = env.reset()
    assert sorted(observation) == sorted(KEYS) == sorted(env.observation_space.spaces)
    assert env.has_attr("action_masks") and not env.has_attr("something_else")
    for op in range(6):
        masks = np.stack(env.env_method("action_masks"))
        assert masks.shape == (2, 12) and masks[:, 2 * op].all()
        observation, rewards, ended, infos = env.step(np.array([2 * op, 2 * op + 1]))
        assert env.observation_space.contains({k: v[0] for k, v in observation.items()})
    assert ended.all() and infos == [{}, {}]
    assert rewards.tolist() == [-0.5, -0.5]  # the judge's 7 s; all work is 14 s
    assert len(judged) == 1 and judged[0].tolist() == [list(range(6))] * 2
    assert env.episodes.judged == [7.0, 7.0] and env.episodes.ended == 2
    assert observation["candidates"][0].tolist() == [1, 1, 0, 0, 0, 0]  # the next episode's
    env.step(np.array([11, 0]))
    assert (env.episodes.ended, len(env.episodes.judged)) == (3, 2)
    env.episodes.forget()
    assert (env.episodes.ended, env.episodes.judged) == (0, [])


def test_renamed_devices_rename_the_scores() -> None:
    problem, network = six_ops(), ActorCritic(SMALL, seed=1)
    tables = network.encode_graph(network.features(problem))
    for observation in states(problem):
        seen = as_tensors(observation)
        swapped = dict(seen)
        for key in ("device_compute", "device_free"):
            swapped[key] = seen[key].flip(1)
        swapped["earliest_start"] = seen["earliest_start"].view(3, 6, 2).flip(2).flatten(1)
        swapped["devices"] = torch.where(seen["devices"] < 0, seen["devices"], 1 - seen["devices"])
        logits, values = network(tables, seen)
        others, same = network(tables, swapped)
        assert torch.allclose(others, logits.flip(2), atol=1e-6)
        assert torch.allclose(values, same, atol=1e-6)


def test_renumbered_ops_renumber_the_scores() -> None:
    new = np.array([3, 5, 0, 4, 1, 2])  # op i becomes op new[i]
    problem, network = six_ops(), ActorCritic(SMALL, seed=1)
    graph = DataflowGraph.from_edges("renumbered", 6, new[problem.graph.edges].tolist())
    seconds = np.empty_like(problem.cost_model.op_seconds)
    seconds[new] = problem.cost_model.op_seconds
    costs = CostModel(seconds, np.full(6, 2.0), np.zeros(2), np.ones(2), "test")
    other = PlacementProblem(graph, problem.topology, costs)
    ones, twos = (
        envs.PlacementFlatVectorEnv(1, problem=p, network="contention_free")
        for p in (problem, other)
    )
    seen, _ = ones.reset()
    also, _ = twos.reset()
    for op, device in [(1, 1), (0, 0), (2, 1), (3, 1), (4, 0)]:
        logits, value = network(network.encode_graph(network.features(problem)), as_tensors(seen))
        others, same = network(network.encode_graph(network.features(other)), as_tensors(also))
        assert torch.allclose(others[:, new], logits, atol=1e-5)
        assert torch.allclose(value, same, atol=1e-5)
        seen, *_ = ones.step(np.array([2 * op + device]))
        also, *_ = twos.step(np.array([2 * new[op] + device]))


def test_scores_tell_candidates_and_devices_apart() -> None:
    problem, network = six_ops(), ActorCritic(SMALL, seed=1)
    tables = network.encode_graph(network.features(problem))
    for step, observation in enumerate(states(problem)):
        logits, values = network(tables, as_tensors(observation))
        assert logits.shape == (3, 6, 2) and values.shape == (3,)
        illegal = observation["candidates"] == 0
        assert torch.equal(logits[..., 0][illegal], logits[..., 1][illegal])
        if step:  # something is placed, so the devices differ
            assert (logits[..., 0] != logits[..., 1])[~illegal].any()


def test_one_network_fits_every_graph_and_number_of_devices() -> None:
    network = ActorCritic(SMALL, seed=0)
    for devices in (2, 5):
        for workload in ("chainmm", "ffnn"):
            env = envs.PlacementFlatEnv(workload=workload, num_shards=4, num_devices=devices)
            problem = env.task.problem
            for greedy in (True, False):
                rng = np.random.default_rng(0)
                found = sample_episodes(network, problem, "contention_free", 3, rng, greedy=greedy)
                simulator = Simulator(problem, network="contention_free", choose="given")
                assert np.isfinite(simulator.makespans(found.placements, found.ops)).all()


def test_samples_respect_pins_and_groups_and_follow_their_seed() -> None:
    network = ActorCritic(SMALL, seed=0)
    one, two, other = (
        sample_episodes(network, constrained(), "contention_free", 40, np.random.default_rng(seed))
        for seed in (0, 0, 1)
    )
    placements = one.placements
    assert (placements[:, 1] == 1).all() and (placements[:, 0] == placements[:, 4]).all()
    assert np.array_equal(placements, two.placements) and np.array_equal(one.ops, two.ops)
    assert not np.array_equal(placements, other.placements)
    assert len(np.unique(placements, axis=0)) > 5


def test_wrong_shapes_are_refused() -> None:
    from envs.sb3 import ActorCriticConfig

    for label, value in (("hidden_width", 0), ("message_rounds", 1.5), ("head_width", True)):
        with pytest.raises(ConfigurationError, match=f"policy, {label}: "):
            ActorCriticConfig(**{label: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="sampling, count: 0 is below 1"):
        sample_episodes(
            ActorCritic(SMALL), six_ops(), "contention_free", 0, np.random.default_rng(0)
        )
