"""Actions and arguments that are none are refused with a message, never cut to something else."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest

import envs  # noqa: F401
from doppler.errors import ConfigurationError
from envs.placement import PlacementEnv
from envs.placement_flat import PlacementFlatEnv
from envs.vector import PlacementVectorEnv

SMALL: dict[str, Any] = {"workload": "ffnn", "num_shards": 4, "num_devices": 2}

NO_PAIRS = [
    None, 0, math.nan, "01", b"01", [0], [0, 1, 0], [[0, 1]], [0.7, 0.9], [0.0, 1.0],
    [math.nan, 0], [None, 0], ["0", "1"], [True, False], [0, True], [[0], [1, 2]], [2**70, 0],
    [2**63, 0], {}, np.array([0.0, 1.0]), np.array([True, False]),
]  # fmt: skip


@pytest.mark.parametrize("action", NO_PAIRS, ids=str)
def test_actions_that_are_no_pairs(action: Any) -> None:
    env = PlacementEnv(**SMALL)
    env.reset()
    with pytest.raises(ConfigurationError, match="environment, action"):
        env.step(action)
    env.step(np.array([int(np.flatnonzero(env.action_masks())[0]), 1]))  # the episode goes on
    vector = PlacementVectorEnv(2, **SMALL)
    vector.reset()
    with pytest.raises(ConfigurationError, match="environment, action"):
        vector.step([action, action])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "action", [None, math.nan, -0.5, 0.0, "0", True, [0], [0, 1], np.array([0.5]), 2**70], ids=str
)
def test_actions_that_are_no_number(action: Any) -> None:
    env = PlacementFlatEnv(**SMALL)
    env.reset()
    with pytest.raises(ConfigurationError, match="environment, action"):
        env.step(action)


def test_whole_numbers_of_any_type_are_actions() -> None:
    env = PlacementFlatEnv(**SMALL)
    for action in (0, np.int32(0), np.array(0, np.uint8)):
        env.reset()
        assert "illegal_action" not in env.step(action)[4]
    env.reset()
    assert "illegal_action" in env.step(-1)[4]


@pytest.mark.parametrize("value", [2.5, 0, None, "2", True])
def test_numbers_of_episodes_that_are_none(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="num_envs"):
        PlacementVectorEnv(value, **SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": []}, "seed: a list of 0 seeds for 2 episodes"),
        ({"seed": [1, 2, 3]}, "seed: a list of 3 seeds"),
        ({"options": 5}, "options: 5 is not a dict"),
        ({"options": {"reset_mask": [True]}}, r"reset_mask: bool of shape \(1,\)"),
        ({"options": {"reset_mask": [1, 0]}}, r"reset_mask: int64 of shape \(2,\)"),
    ],
)
def test_resets_that_are_none(arguments: dict, message: str) -> None:
    env = gymnasium.make_vec("doppler/Placement-v0", num_envs=2, **SMALL)
    with pytest.raises(ConfigurationError, match=message):
        env.reset(**arguments)


@pytest.mark.parametrize("value", [5, 0, 0.0, math.nan, -math.inf, "x", True, 10**400])
def test_an_illegal_reward_is_a_punishment(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="illegal_reward"):
        PlacementEnv(**SMALL, illegal_reward=value)
    assert PlacementEnv(**SMALL, illegal_reward=-3).task.illegal_reward == -3.0


@pytest.mark.parametrize("label", ["repeats", "warmup"])
@pytest.mark.parametrize("value", [1.5, None, "1", True, -1])
def test_runs_of_the_measured_environment(label: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=label):
        gymnasium.make("doppler/MeasuredPlacement-v0", **{label: value}).reset()
