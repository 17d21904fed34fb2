"""Many episodes with one flat action per (op, device) pair, stepped together."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from envs.task import whole_actions
from envs.vector import PlacementVectorEnv


class PlacementFlatVectorEnv(PlacementVectorEnv):
    """`doppler/PlacementFlat-v0`, `num_envs` episodes of the same problem at a time.

    Equal, step by step, to a `SyncVectorEnv` of single environments; see `PlacementVectorEnv` for
    the arguments and for how episodes end. Actions are whole numbers # (num_envs,).
    """

    def action_masks(self) -> np.ndarray:
        """Legal actions. # (num_envs, num_ops * num_devices) bool"""
        return self.construction.legal_pairs().reshape(self.num_envs, -1)

    def _check_problem(self) -> None:
        """Every problem suits: the mask tells which devices each op may go on."""

    def _make_action_space(self) -> spaces.Space[Any]:
        return spaces.Discrete(self.task.problem.num_ops * self.task.problem.num_devices)

    def _ops_and_devices(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers = whole_actions(actions, (self.num_envs,), "number of each episode's action")
        return np.divmod(numbers, self.task.problem.num_devices)
