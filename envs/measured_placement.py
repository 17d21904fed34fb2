"""The placement environment whose reward is a measured time on this machine's CPU devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.checks import whole_number
from doppler.errors import ConfigurationError
from envs.placement import PlacementEnv

if TYPE_CHECKING:
    from doppler.executor import CpuExecutor

UNBOUNDED = 10.0
"""How much worse than the simulator's upper bound an illegal action is by default."""


class MeasuredPlacementEnv(PlacementEnv):
    """`doppler/Placement-v0` with complete placements run for real on CPU devices.

    ## Description

    As `doppler/Placement-v0`, but a complete placement is run by the work-conserving executor on
    CPU devices, one worker thread per device, and rewarded with the measured time.

    ## Action Space

    As `doppler/Placement-v0`.

    ## Observation Space

    As `doppler/Placement-v0`; times in it come from the preset cost model, not from measurements.

    ## Rewards

    0 until the last op is placed; then minus the median measured makespan, in the time unit of the
    preset cost model (a fixed number of seconds). An illegal action earns `illegal_reward`, by
    default ten times that of `doppler/Placement-v0`, since real runs know no upper bound. Rewards
    differ from run to run.

    ## Starting State

    As `doppler/Placement-v0`. The executor starts with the first complete placement, which it runs
    once untimed before it measures.

    ## Episode End

    As `doppler/Placement-v0`; `info` also has `measured_makespan` [s].

    ## Arguments

    As `doppler/Placement-v0`, with these differences:

    - `problem` is not accepted: only workloads have kernels to run.
    - `num_devices` (default 2), `topology` (default "cpu"), `scale` (default "host").
    - `repeats` (default 1), `warmup` (default 0): runs of each placement, the median counts.

    ## Version History

    - v0: first version.
    """

    def __init__(self, *, repeats: int = 1, warmup: int = 0, **options: Any) -> None:
        """Builds the environment.

        Args:
            repeats: timed runs per placement, at least 1.
            warmup: untimed runs before them, at least 0.
            **options: as for `PlacementEnv`.

        Raises:
            ConfigurationError: a problem instead of a workload, a wrong count, an unknown name.
        """
        if options.get("problem") is not None:
            raise ConfigurationError(
                "environment, problem: a measured environment needs a workload, which has kernels"
            )
        repeats = whole_number(repeats, "environment, repeats", 1)
        warmup = whole_number(warmup, "environment, warmup", 0)
        for option, default in (("num_devices", 2), ("topology", "cpu"), ("scale", "host")):
            if options.get(option) is None:
                options[option] = default
        super().__init__(**options)
        if options.get("illegal_reward") is None:
            penalty = UNBOUNDED * self.task.illegal_reward
            self.task = replace(self.task, illegal_reward=penalty)
        self._repeats = repeats
        self._warmup = warmup
        self._executor: CpuExecutor | None = None

    def close(self) -> None:
        """Ends the executor's threads."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_executor": None}  # threads stay; the copy starts its own

    def _judge(self) -> tuple[float, dict[str, Any]]:
        from doppler import Placement
        from doppler.executor import CpuExecutor

        reward, info = super()._judge()
        if not np.isfinite(info["simulated_makespan"]):
            return reward, info
        workload = self.task.workload
        assert workload is not None  # the constructor accepts no bare problem
        placement = Placement(info["placement"], info["order"])
        if self._executor is None:
            self._executor = CpuExecutor(
                workload,
                self.task.problem.num_devices,
                problem=self.task.problem,
                choose=self.task.simulator.choose,
                network=self.task.simulator.network,
            )
            self._executor.run(placement)
        measured = self._executor.measure([placement], repeats=self._repeats, warmup=self._warmup)
        info["measured_makespan"] = float(measured[0].median)
        return float(self.task.rewards(np.array([info["measured_makespan"]]))[0]), info
