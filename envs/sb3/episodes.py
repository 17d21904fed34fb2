"""The environment of the stages: complete placements are judged and counted by the trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from doppler.problem import PlacementProblem
from envs.placement import Observation
from envs.vector_flat import PlacementFlatVectorEnv

Judge = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Makespans of placements built in given orders. # (rows, num_ops) each -> (rows,) [s]"""


class JudgedEpisodes(PlacementFlatVectorEnv):
    """`doppler/PlacementFlat-v0` in a batch, with another judge than its own simulator.

    Args:
        num_envs: number of episodes.
        judge: what a complete placement is worth.
        problem: what is placed.
        network: network model of the estimated starts.
        illegal_reward: see `doppler/Placement-v0`.

    Attributes:
        judged: makespans since `forget`. [s]
        ended: how many episodes have ended since then.
    """

    def __init__(
        self,
        num_envs: int,
        judge: Judge,
        problem: PlacementProblem,
        network: str,
        illegal_reward: float | None = None,
    ) -> None:
        super().__init__(num_envs, problem=problem, network=network, illegal_reward=illegal_reward)
        self._judge = judge
        self.judged: list[float] = []
        self.ended = 0

    def forget(self) -> None:
        """Begins to count anew."""
        self.judged, self.ended = [], 0

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """See `PlacementVectorEnv.step`."""
        result = super().step(actions)
        self.ended += int(result[2].sum())
        return result

    def _makespans(self, devices: np.ndarray, orders: np.ndarray) -> np.ndarray:
        makespans = self._judge(devices, orders)
        self.judged.extend(makespans.tolist())
        return makespans
