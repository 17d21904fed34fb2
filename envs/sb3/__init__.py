"""Stable-Baselines3's PPO and sb3-contrib's MaskablePPO as stages of training.

Both train `ActorCritic`, this project's graph encoder with a score for every (op, device) pair, on
`doppler/PlacementFlat-v0`, stepped in a batch. Stable-Baselines3 is imported when a stage begins.
"""

from envs.sb3.network import ActorCritic, ActorCriticConfig
from envs.sb3.sampling import sample_episodes
from envs.sb3.stage import PPO, MaskablePPO

__all__ = ["PPO", "ActorCritic", "ActorCriticConfig", "MaskablePPO", "sample_episodes"]
