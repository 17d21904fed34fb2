"""Gymnasium environments over the doppler library; importing this package registers the ids.

`gymnasium.make("envs:doppler/Placement-v0")` imports it by itself. `gymnasium.make_vec` uses our
own batched vector environments for `doppler/Placement-v0` and `doppler/PlacementFlat-v0`.
"""

from __future__ import annotations

from gymnasium.envs.registration import register

from envs.measured_placement import MeasuredPlacementEnv
from envs.placement import PlacementEnv
from envs.placement_flat import PlacementFlatEnv
from envs.task import PlacementTask, make_task
from envs.vector import PlacementVectorEnv
from envs.vector_flat import PlacementFlatVectorEnv

register(
    id="doppler/Placement-v0",
    entry_point="envs.placement:PlacementEnv",
    vector_entry_point="envs.vector:PlacementVectorEnv",
)
register(
    id="doppler/PlacementFlat-v0",
    entry_point="envs.placement_flat:PlacementFlatEnv",
    vector_entry_point="envs.vector_flat:PlacementFlatVectorEnv",
)
register(
    id="doppler/MeasuredPlacement-v0",
    entry_point="envs.measured_placement:MeasuredPlacementEnv",
    nondeterministic=True,
)

ENV_IDS = ("doppler/Placement-v0", "doppler/PlacementFlat-v0", "doppler/MeasuredPlacement-v0")
"""Every id that this package registers."""

__all__ = [
    "ENV_IDS",
    "MeasuredPlacementEnv",
    "PlacementEnv",
    "PlacementFlatEnv",
    "PlacementFlatVectorEnv",
    "PlacementTask",
    "PlacementVectorEnv",
    "make_task",
]
