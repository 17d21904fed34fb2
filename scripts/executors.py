"""From the configuration to devices that run placements: the `_target_`s of the group executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from doppler.errors import ConfigurationError
from scripts.problems import Setup

if TYPE_CHECKING:
    from doppler.executor import CpuExecutor


@dataclass(frozen=True)
class CpuExecution:
    """executor=cpu: run on CPU devices, one worker thread each.

    Args:
        repeats: measured runs per placement in the results table.
        warmup: unmeasured runs before them.
        timeout_s: a run that takes longer is given up. [s]
        input_seed: of the workload's input tensors.
    """

    repeats: int = 15
    warmup: int = 2
    timeout_s: float = 120.0
    input_seed: int = 0

    def build(self, setup: Setup) -> CpuExecutor:
        """Starts the devices; close them when done.

        Raises:
            ConfigurationError: the problem came from a file, or is about other devices than CPUs.
        """
        from doppler.executor import CpuExecutor

        if setup.workload is None:
            raise ConfigurationError(
                "executor=cpu needs kernels, a problem file has none: use executor=none"
            )
        if setup.profile is None and not setup.problem.topology.name.startswith("cpu"):
            raise ConfigurationError(
                f"executor=cpu runs CPU devices, the topology is {setup.problem.topology.name}: "
                "use executor=none, or topology=cpu"
            )
        if setup.settings.execution != "work_conserving":
            raise ConfigurationError(
                f"executor=cpu is work-conserving, simulator.execution={setup.settings.execution} "
                "would be compared with something else: use executor=none"
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
        )


@dataclass(frozen=True)
class NoExecution:
    """executor=none: simulate only."""

    repeats: int = 0
    warmup: int = 0

    def build(self, setup: Setup) -> None:
        """There are no devices to start."""
