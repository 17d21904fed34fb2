"""What Stable-Baselines3 needs: a vector environment, a features extractor and the policies.

Importing this file imports Stable-Baselines3, which takes more than a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from doppler.errors import ConfigurationError
from doppler.policies import ProblemFeatures
from envs.sb3.episodes import JudgedEpisodes
from envs.sb3.network import KEYS, ActorCritic, GraphTables
from envs.vector_flat import PlacementFlatVectorEnv


class PlacementVecEnv(VecEnv):
    """A batched environment in Stable-Baselines3's words, with the observation's `KEYS` only.

    What it leaves out is the same in every state; the roll-out buffer would keep it a thousand
    times over.
    """

    def __init__(self, episodes: PlacementFlatVectorEnv) -> None:
        self.episodes = episodes
        whole: Any = episodes.single_observation_space
        seen = spaces.Dict({key: whole[key] for key in KEYS})
        super().__init__(episodes.num_envs, seen, episodes.single_action_space)

    def reset(self) -> dict[str, np.ndarray]:
        observation, _ = self.episodes.reset()
        return _seen(observation)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, rewards, ended, _, _ = self.episodes.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        return _seen(observation), rewards, ended, infos

    def close(self) -> None:
        self.episodes.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        return [getattr(self.episodes, attr_name)] * self._count(indices)

    def set_attr(
        self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None
    ) -> None:
        setattr(self.episodes, attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: int | Iterable[int] | None = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """A row per episode of what the batched method returns; MaskablePPO asks for the masks."""
        rows = getattr(self.episodes, method_name)(*method_args, **method_kwargs)
        return [rows[index] for index in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[Any], indices: int | Iterable[int] | None = None
    ) -> list[bool]:
        return [False] * self._count(indices)

    def _count(self, indices: int | Iterable[int] | None) -> int:
        return len(list(self._get_indices(indices)))


class GraphExtractor(BaseFeaturesExtractor):
    """Encodes the graph once per batch and returns all pair scores and, last, the value.

    While no gradients are recorded the encoding is kept until the next change of mode:
    Stable-Baselines3 enters evaluation mode before a roll-out, and the weights stay until its end.

    Args:
        observation_space: of `PlacementVecEnv`.
        network: trained in place.
        features: of the problem.
    """

    def __init__(
        self, observation_space: spaces.Dict, network: ActorCritic, features: ProblemFeatures
    ) -> None:
        pairs = int(np.prod(observation_space["earliest_start"].shape or (1,)))
        super().__init__(observation_space, features_dim=pairs + 1)
        self.network = network
        self.problem_features = features
        self._kept: GraphTables | None = None

    def train(self, mode: bool = True) -> GraphExtractor:
        self._kept = None
        return super().train(mode)

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Returns # (states, num_ops * num_devices + 1)"""
        logits, values = self.network(self._tables(), observations)
        return torch.cat([logits.flatten(1), values[:, None]], dim=1)

    def _tables(self) -> GraphTables:
        if torch.is_grad_enabled():
            return self.network.encode_graph(self.problem_features)
        if self._kept is None:
            self._kept = self.network.encode_graph(self.problem_features)
        return self._kept


class ScoresAndValue(nn.Module):
    """Takes the extractor's output apart; the place of an MLP that would be tied to a graph."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        return features[:, :-1]

    def forward_critic(self, features: Tensor) -> Tensor:
        return features[:, -1:]


class _GraphPolicy(nn.Module):
    """Replaces the dense layers of Stable-Baselines3's policies; first among their bases."""

    optimizer_class: Any
    optimizer_kwargs: dict[str, Any]
    mlp_extractor: Any
    action_net: Any
    value_net: Any

    def _build(self, lr_schedule: Any) -> None:
        self.mlp_extractor = ScoresAndValue()
        self.action_net = nn.Identity()
        self.value_net = nn.Identity()
        self.optimizer = self.optimizer_class(self.parameters(), **self.optimizer_kwargs)


class GraphPolicy(_GraphPolicy, ActorCriticPolicy):
    """PPO's policy: a logit for every pair, illegal ones too."""


def make_model(
    masked: bool,
    episodes: JudgedEpisodes,
    network: ActorCritic,
    optimiser: torch.optim.Optimizer,
    settings: Mapping[str, Any],
) -> OnPolicyAlgorithm:
    """Builds PPO, or MaskablePPO where masked, around a network and an optimiser that exist.

    Args:
        masked: whether illegal actions have no chance.
        episodes: what it learns from.
        network: trained in place.
        optimiser: of the network's parameters.
        settings: further arguments of the algorithm.

    Raises:
        ConfigurationError: sb3-contrib is not installed.
    """
    algorithm: Any = PPO
    policy: Any = GraphPolicy
    if masked:
        algorithm, policy = _maskable()
    model: OnPolicyAlgorithm = algorithm(
        policy,
        PlacementVecEnv(episodes),
        policy_kwargs={
            "features_extractor_class": GraphExtractor,
            "features_extractor_kwargs": {
                "network": network,
                "features": network.features(episodes.task.problem),
            },
            "optimizer_class": lambda parameters: optimiser,
        },
        device="cpu",
        **settings,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def _maskable() -> tuple[Any, Any]:
    try:
        from sb3_contrib import MaskablePPO
        from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    except ImportError as error:
        raise ConfigurationError(
            "stage maskable_ppo needs sb3-contrib: pip install sb3-contrib, or use sb3_ppo"
        ) from error

    class GraphMaskablePolicy(_GraphPolicy, MaskableActorCriticPolicy):
        """MaskablePPO's policy: a logit for every pair, masked by others."""

    return MaskablePPO, GraphMaskablePolicy


def _seen(observation: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {key: observation[key] for key in KEYS}
