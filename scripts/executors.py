"""From the configuration to devices that run placements: the `_target_`s of the group executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from doppler import PlacementProblem
from doppler.checks import number
from doppler.errors import ConfigurationError
from scripts.problems import Setup

if TYPE_CHECKING:
    from doppler.executor import CpuExecutor, EmulatedExecutor


@dataclass(frozen=True)
class CpuExecution:
    """executor=cpu: run on CPU devices, one worker thread each.

    Args:
        repeats: measured runs per placement in the results table.
        warmup: unmeasured runs before them.
        timeout_s: a run that takes longer is given up. [s]
        input_seed: of the workload's input tensors.
        pin_cores: bind each device to a core of its own: true, false, or auto, which does so if
            there are more cores than devices.
    """

    repeats: int = 15
    warmup: int = 2
    timeout_s: float = 120.0
    input_seed: int = 0
    pin_cores: bool | str = "auto"
    measures: ClassVar[bool] = True

    def build(self, setup: Setup) -> CpuExecutor:
        """Starts the devices; close them when done.

        Raises:
            ConfigurationError: the problem came from a file, or is about other devices than CPUs.
        """
        from doppler.executor import CpuExecutor

        if setup.workload is None:
            raise ConfigurationError(
                "executor=cpu needs kernels, a problem file has none: use executor=none or emulated"
            )
        if setup.profile is None and not setup.problem.topology.name.startswith("cpu"):
            raise ConfigurationError(
                f"executor=cpu runs CPU devices, the topology is {setup.problem.topology.name}: "
                "use executor=none, or topology=cpu"
            )
        return CpuExecutor(
            setup.workload,
            setup.problem.num_devices,
            problem=setup.problem,
            network=setup.settings.network,
            choose=setup.settings.choose,
            seed=setup.settings.seed,
            input_seed=self.input_seed,
            timeout_s=self.timeout_s,
            execution=setup.settings.execution,
            pin_cores=self.pin_cores,
        )


@dataclass(frozen=True)
class EmulatedExecution:
    """executor=emulated: real dispatch, but ops and transfers only sleep for their seconds.

    Args:
        repeats: emulated runs per placement in the results table.
        warmup: runs before them that are not reported.
        timeout_s: a run that takes longer, after `time_scale`, is given up. [s]
        time_scale: emulated seconds last this many real ones; null: so many that one run of the
            slowest single device would last about `target_s`.
        target_s: see there. [s]
        noise: spread of durations relative to their mean, 0 for none.
        noise_seed: of the draws.
    """

    repeats: int = 5
    warmup: int = 0
    timeout_s: float = 120.0
    time_scale: float | None = None
    target_s: float = 2.0
    noise: float = 0.0
    noise_seed: int = 0
    measures: ClassVar[bool] = False

    def build(self, setup: Setup) -> EmulatedExecutor:
        """Makes the devices, as many as the problem has.

        Raises:
            ConfigurationError: an impossible number.
        """
        from doppler.executor import EmulatedExecutor
        from doppler.simulator import LognormalNoise

        settings = setup.settings
        return EmulatedExecutor(
            setup.problem,
            network=settings.network,
            choose=settings.choose,
            seed=settings.seed,
            execution=settings.execution,
            timeout_s=self.timeout_s,
            time_scale=self._scale(setup.problem) if self.time_scale is None else self.time_scale,
            noise=LognormalNoise(self.noise) if self.noise else None,
            noise_seed=self.noise_seed,
        )

    def _scale(self, problem: PlacementProblem) -> float:
        target = number(self.target_s, "executor.target_s", ConfigurationError, above=True)
        serial = float(problem.cost_model.op_seconds.sum(axis=0).max())
        return target / serial if serial > 0 else 1.0


@dataclass(frozen=True)
class NoExecution:
    """executor=none: simulate only."""

    repeats: int = 0
    warmup: int = 0
    measures: ClassVar[bool] = False

    def build(self, setup: Setup) -> None:
        """There are no devices to start."""
