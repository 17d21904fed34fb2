"""The placement environment with one flat action per (op, device) pair."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from envs.placement import PlacementEnv
from envs.task import whole_actions


class PlacementFlatEnv(PlacementEnv):
    """`doppler/Placement-v0` with a single discrete action per (op, device) pair.

    ## Description

    As `doppler/Placement-v0`. The flat action space can express that a device is legal for one op
    and not for another, and suits algorithms that know discrete actions only. Problems that pin ops
    to devices, keep them together in groups or have inputs with a place of their own are accepted
    here only; such an input is an op that takes no time.

    ## Action Space

    `Discrete(num_ops * num_devices)`: action a places op a // num_devices on device
    a % num_devices. `action_masks()` returns a bool array of length num_ops * num_devices: the op
    is a candidate, and its pin or colocation group allows the device. Some
    versions of sb3-contrib's MaskablePPO fail with about 1 000 masked actions or more.

    ## Observation Space

    As `doppler/Placement-v0`.

    ## Rewards

    As `doppler/Placement-v0`.

    ## Starting State

    As `doppler/Placement-v0`.

    ## Episode End

    As `doppler/Placement-v0`.

    ## Arguments

    As `doppler/Placement-v0`.

    ## Version History

    - v0: first version.
    """

    def action_masks(self) -> np.ndarray:
        """Legal actions. # (num_ops * num_devices,) bool"""
        return self.construction.legal_pairs()[0].reshape(-1)

    def _check_problem(self) -> None:
        """Every problem suits: the mask tells which devices each op may go on."""

    def _make_action_space(self) -> spaces.Space[Any]:
        return spaces.Discrete(self.task.problem.num_ops * self.task.problem.num_devices)

    def _op_and_device(self, action: Any) -> tuple[int, int]:
        number = int(whole_actions(action, (), "number"))
        return divmod(number, self.task.problem.num_devices)
