"""Placements of a trained actor-critic, without Stable-Baselines3."""

from __future__ import annotations

import numpy as np
import torch

from doppler.checks import whole_number
from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem
from doppler.training import Episodes
from envs.sb3.network import ActorCritic, as_tensors, legal_logits
from envs.vector_flat import PlacementFlatVectorEnv


@torch.no_grad()
def sample_episodes(
    network: ActorCritic,
    problem: PlacementProblem,
    simulator_network: str,
    count: int,
    rng: np.random.Generator,
    *,
    greedy: bool = False,
) -> Episodes:
    """Builds placements by the policy, legal actions only, also where it was trained without masks.

    Args:
        network: trained on any problem.
        problem: what is placed.
        simulator_network: network model of the estimated starts.
        count: episodes, which step together.
        rng: the only source of randomness.
        greedy: take the likeliest pair (ties to the lower number) instead of sampling.

    Raises:
        ConfigurationError: a count below 1.
    """
    count = whole_number(count, "sampling, count", 1, ConfigurationError)
    episodes = PlacementFlatVectorEnv(count, problem=problem, network=simulator_network)
    observation, _ = episodes.reset()
    tables = network.encode_graph(network.features(problem))
    actions = np.empty((count, problem.num_ops), np.int64)
    for step in range(problem.num_ops):
        logits, _ = network(tables, as_tensors(observation))
        chances = legal_logits(logits, torch.from_numpy(episodes.action_masks())).softmax(dim=1)
        actions[:, step] = _picks(chances.double().numpy(), rng, greedy)
        observation, *_ = episodes.step(actions[:, step])
    return Episodes(*np.divmod(actions, problem.num_devices))


def _picks(chances: np.ndarray, rng: np.random.Generator, greedy: bool) -> np.ndarray:
    """A column of each row. # (rows, pairs) -> (rows,)"""
    if greedy:
        return chances.argmax(axis=1)
    passed = chances.cumsum(axis=1)
    draws = rng.random(len(chances)) * passed[:, -1]
    return (passed > draws[:, None]).argmax(axis=1)  # never a pair of no chance: its sum is no gain
