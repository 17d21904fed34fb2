"""The placement environment: one step places one op on one device."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from doppler.construction import Construction
from doppler.errors import ConfigurationError
from envs.observation import Observer
from envs.rendering import render_picture, render_text
from envs.task import make_task, whole_actions

Observation = dict[str, Any]


class PlacementEnv(gymnasium.Env[Observation, Any]):
    """Place the ops of a dataflow graph on devices, one op a step, so that it finishes soonest.

    ## Description

    A dataflow graph is a directed acyclic graph of ops (kernel calls); an edge says that one op
    consumes the tensor that another one produces. A step chooses an op all of whose predecessors
    are placed (a *candidate*) and the device that it runs on. When all ops are placed, a
    work-conserving simulator runs the graph: no device or link idles while it could work, and a
    tensor moves once to every other device where it is consumed. The aim is the least makespan.

    Source: the dual-policy formulation of DOPPLER (Yao et al. 2026), as one environment.

    ## Action Space

    `MultiDiscrete([num_ops, num_devices])`: the op to place and its device. Only candidate ops are
    legal; every device is. `action_masks()` returns a bool array of length num_ops + num_devices,
    the masks of the two parts one after the other, as sb3-contrib's MaskablePPO expects.

    ## Observation Space

    A `Dict` of one-dimensional arrays. N ops, D devices, E edges; times are in time units and
    clipped to [0, 10], where one time unit is all work on the fastest single device.

    | key | shape | meaning |
    |---|---|---|
    | `candidates` | (N,) binary | ops that may be placed now |
    | `devices` | (N,) int | device of each op, -1 where unplaced |
    | `start`, `finish` | (N,) | estimated times of placed ops, 0 elsewhere |
    | `earliest_start` | (N * D,) | estimated start of candidate v on device d at v * D + d |
    | `device_compute` | (D,) | compute placed on each device |
    | `device_free` | (D,) | estimated time at which each device is free |
    | `progress` | (1,) | share of the ops that are placed |
    | `op_seconds` | (N * D,) | duration of op v on device d at v * D + d |
    | `b_level`, `t_level` | (N,) | longest path to an exit, from an entry, with communication |
    | `input_transfers` | (N,) | transfer times of the op's inputs, summed |
    | `output_transfers` | (N,) | transfer time of the op's output, times its consumers |
    | `edge_source`, `edge_target` | (max(E, 1),) int | the edges; -1 where there are none |

    The estimates are those of `doppler.construction.Construction`: list scheduling in the order of
    the steps.

    ## Rewards

    0 until the last op is placed; then minus the simulated makespan in time units: -1 is the best
    single device, -1 / num_devices about perfect. An illegal action, or a complete placement that
    needs more memory than a device has, earns `illegal_reward`, by default minus an upper bound of
    every makespan, which no legal placement falls below.

    ## Starting State

    Nothing is placed. It is the same in every episode: nothing here is random.

    ## Episode End

    Terminated when all ops are placed; `info` then has `simulated_makespan` [s] (infinite over
    capacity, with the reason in `over_capacity`), `placement` (device of each op) and `order` (op
    of each step, which counts in the simulator under `choose="given"` only). Terminated at once by
    an illegal action, whose reason is in `info["illegal_action"]`. Never truncated.

    ## Arguments

    - `workload` (default "chainmm"): name of a workload of `doppler.workloads`.
    - `num_devices` (default 4).
    - `problem`: a `PlacementProblem` or the path of a problem file, instead of a workload. One
      with pins or colocation groups is refused: the two masks cannot say which device is legal
      for which op; `doppler/PlacementFlat-v0` can.
    - `topology` (default "p100"): preset of devices and links. Costs are its fixed data-sheet
      rates, never a calibration of this machine, so that rewards are comparable.
    - `scale` (default "paper") and `num_shards` (default: the workload's): size of the workload.
    - `network` (default "serial_links"), `choose` (default "fifo"): rules of the simulator.
    - `illegal_reward` (default: see Rewards).
    - `render_mode`: None, "ansi" (text) or "rgb_array" (Gantt chart of the estimated, at the end
      of the simulated schedule; needs matplotlib).

    ```python
    import gymnasium
    env = gymnasium.make("envs:doppler/Placement-v0", workload="ffnn", num_devices=4)
    ```

    ## Version History

    - v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        """Builds the environment.

        Args:
            render_mode: None, "ansi" or "rgb_array".
            **options: the class's other arguments; see `envs.task.make_task`.

        Raises:
            ConfigurationError: an unknown name or impossible combination.
            FileFormatError: a malformed problem file.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigurationError(
                f"environment, render_mode: {render_mode!r} is not one of "
                f"{', '.join(self.metadata['render_modes'])}"
            )
        self.render_mode = render_mode
        self.task = make_task(**options)
        self._check_problem()
        self.construction = Construction(self.task.problem, self.task.simulator.network)
        self._observer = Observer(self.task, 1)
        self._over = False
        self.observation_space = self._observer.space
        self.action_space = self._make_action_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode with nothing placed; `options` are not used."""
        super().reset(seed=seed)
        self.construction.reset()
        self._over = False
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Places one op; see the class.

        Raises:
            ResetNeeded: the episode is over.
            ConfigurationError: the action is of another shape or not of whole numbers. (One that
                is, but not legal, ends the episode.)
        """
        if self._over:
            raise ResetNeeded("the episode is over; call reset() before the next step()")
        op, device = self._op_and_device(action)
        illegal = self.construction.why_illegal(0, op, device)
        if illegal:
            self._over = True
            info: dict[str, Any] = {"illegal_action": illegal}
            return self._observe(), self.task.illegal_reward, True, False, info
        self.construction.step(np.array([op]), np.array([device]))
        reward, info = 0.0, {}
        if self.construction.done:
            self._over = True
            reward, info = self._judge()
        return self._observe(), reward, self._over, False, info

    def action_masks(self) -> np.ndarray:
        """Legal values of the two parts of an action. # (num_ops + num_devices,) bool"""
        devices = np.ones(self.task.problem.num_devices, bool)
        return np.concatenate([self.construction.candidates[0], devices])

    def render(self) -> Any:
        """The partial placement as text or picture, by `render_mode`."""
        if self.render_mode == "ansi":
            return render_text(self.construction)
        if self.render_mode == "rgb_array":
            return render_picture(self.construction, self.task.simulator)
        return None

    def _check_problem(self) -> None:
        """Raises `ConfigurationError` where a device's legality depends on the op."""
        self.task.check_unconstrained()

    def _make_action_space(self) -> spaces.Space[Any]:
        problem = self.task.problem
        return spaces.MultiDiscrete([problem.num_ops, problem.num_devices])

    def _op_and_device(self, action: Any) -> tuple[int, int]:
        op, device = whole_actions(action, (2,), "(op, device)").tolist()
        return op, device

    def _judge(self) -> tuple[float, dict[str, Any]]:
        """Reward and info of a complete placement."""
        devices = self.construction.devices.copy()
        orders = self.construction.order.copy()
        makespans = self.task.simulator.makespans(devices, orders)
        info = {
            "simulated_makespan": float(makespans[0]),
            "placement": devices[0],
            "order": orders[0],
        }
        if not np.isfinite(makespans[0]):
            info["over_capacity"] = self.task.why_over_capacity(devices[0], orders[0])
        return float(self.task.rewards(makespans)[0]), info

    def _observe(self) -> Observation:
        observation = self._observer.observe(self.construction)
        return {key: values[0] for key, values in observation.items()}
