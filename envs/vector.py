"""Many episodes of one placement problem, stepped together by batched kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from doppler.checks import whole_number
from doppler.construction import Construction
from doppler.errors import ConfigurationError
from envs.observation import Observer
from envs.placement import Observation
from envs.rendering import render_picture, render_text
from envs.task import make_task, whole_actions


class PlacementVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray]):
    """`doppler/Placement-v0`, `num_envs` episodes of the same problem at a time.

    Equal, step by step, to a `SyncVectorEnv` of single environments, without a Python loop over
    them: one construction holds all partial placements, and complete ones are simulated in a batch.

    An episode that ends is reset in the same step (`AutoresetMode.SAME_STEP`): the observation is
    the next episode's first one, `infos["final_obs"]` and `infos["final_info"]` are the last of
    the episode that ended. `action_masks()` has one row per episode.

    Args:
        num_envs: number of episodes.
        render_mode: None, "ansi" or "rgb_array".
        **options: see `envs.task.make_task`.

    Raises:
        ConfigurationError: an unknown name or impossible combination.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self, num_envs: int = 1, *, render_mode: str | None = None, **options: Any
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigurationError(
                f"environment, render_mode: {render_mode!r} is not one of "
                f"{', '.join(self.metadata['render_modes'])}"
            )
        self.render_mode = render_mode
        self.num_envs = num_envs = whole_number(num_envs, "environment, num_envs", 1)
        self.task = make_task(**options)
        self._check_problem()
        self.construction = Construction(self.task.problem, self.task.simulator.network, num_envs)
        self._observer = Observer(self.task, num_envs)
        self.single_observation_space = self._observer.space
        self.single_action_space = self._make_action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts all episodes, or those of the mask `options["reset_mask"]` (num_envs,).

        Args:
            seed: of `np_random`; of a list, the first. Nothing in an episode is random.
            options: None or {"reset_mask": bool array}.

        Raises:
            ConfigurationError: not as many seeds as episodes, or a mask of another shape or type.
        """
        super().reset(seed=self._first_seed(seed))
        self.construction.reset(self._reset_mask(options))
        return self._observer.observe(self.construction), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Places one op in every episode.

        Args:
            actions: (op, device) of each episode, whole numbers. # (num_envs, 2)

        Returns:
            Observations, rewards, terminations, truncations (all False) and infos.
        """
        c, problem = self.construction, self.task.problem
        ops, devices = self._ops_and_devices(actions)
        rows = np.arange(self.num_envs)
        exists = (ops >= 0) & (ops < problem.num_ops)
        legal = exists & c.candidates[rows, np.where(exists, ops, 0)]
        legal &= (devices >= 0) & (devices < problem.num_devices)
        if problem.constrained:
            allowed = c.allowed_devices(np.where(legal, ops, -1))
            legal &= allowed[rows, np.where(legal, devices, 0)]
        reasons = {
            int(b): c.why_illegal(int(b), int(ops[b]), int(devices[b]))
            for b in np.flatnonzero(~legal)
        }
        c.step(np.where(legal, ops, -1), devices)
        rewards = np.where(legal, 0.0, self.task.illegal_reward)
        complete = legal & (c.placed_counts == problem.num_ops)
        makespans = np.zeros(self.num_envs)
        if complete.any():
            makespans[complete] = self._makespans(c.devices[complete], c.order[complete])
            rewards[complete] = self.task.rewards(makespans[complete])
        terminations = complete | ~legal
        infos: dict[str, Any] = {}
        if terminations.any():
            last = self._observer.observe(c)
            for b in np.flatnonzero(terminations):
                final_info = self._final_info(int(b), reasons, float(makespans[b]))
                final_obs = {key: values[b] for key, values in last.items()}
                infos = self._add_info(
                    infos, {"final_obs": final_obs, "final_info": final_info}, int(b)
                )
            c.reset(terminations)
        truncations = np.zeros(self.num_envs, bool)
        return self._observer.observe(c), rewards, terminations, truncations, infos

    def action_masks(self) -> np.ndarray:
        """Legal values of the two parts of the actions. # (num_envs, num_ops + num_devices) bool"""
        devices = np.ones((self.num_envs, self.task.problem.num_devices), bool)
        return np.concatenate([self.construction.candidates, devices], axis=1)

    def render(self) -> tuple[Any, ...] | None:
        """One text or picture per episode, by `render_mode`."""
        episodes = range(self.num_envs)
        if self.render_mode == "ansi":
            return tuple(render_text(self.construction, b) for b in episodes)
        if self.render_mode == "rgb_array":
            return tuple(
                render_picture(self.construction, self.task.simulator, b) for b in episodes
            )
        return None

    def _check_problem(self) -> None:
        """Raises `ConfigurationError` where a device's legality depends on the op."""
        self.task.check_unconstrained()

    def _make_action_space(self) -> spaces.Space[Any]:
        """Of one episode."""
        problem = self.task.problem
        return spaces.MultiDiscrete([problem.num_ops, problem.num_devices])

    def _ops_and_devices(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the episodes' actions say. # (num_envs,) each"""
        pairs = whole_actions(actions, (self.num_envs, 2), "(op, device) of each episode")
        return pairs[:, 0], pairs[:, 1]

    def _makespans(self, devices: np.ndarray, orders: np.ndarray) -> np.ndarray:
        """Of complete placements. # (rows, num_ops) each -> (rows,) [s]"""
        return self.task.simulator.makespans(devices, orders)

    def _first_seed(self, seed: int | list[int | None] | None) -> int | None:
        if not isinstance(seed, list | tuple):
            return seed
        if len(seed) != self.num_envs:
            raise ConfigurationError(
                f"environment, seed: a list of {len(seed)} seeds for {self.num_envs} episodes"
            )
        return seed[0]

    def _reset_mask(self, options: dict[str, Any] | None) -> np.ndarray | None:
        if options is None:
            return None
        if not isinstance(options, dict):
            raise ConfigurationError(f"environment, options: {options!r} is not a dict or None")
        mask = options.get("reset_mask")
        if mask is None:
            return None
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ConfigurationError(
                f"environment, options, reset_mask: {mask.dtype} of shape {mask.shape}, expected "
                f"bool of shape ({self.num_envs},)"
            )
        return mask

    def _final_info(self, b: int, reasons: dict[int, str], makespan: float) -> dict[str, Any]:
        if b in reasons:
            return {"illegal_action": reasons[b]}
        devices, order = self.construction.devices[b].copy(), self.construction.order[b].copy()
        info = {"simulated_makespan": makespan, "placement": devices, "order": order}
        if not np.isfinite(makespan):
            info["over_capacity"] = self.task.why_over_capacity(devices, order)
        return info
