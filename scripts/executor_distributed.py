"""From the configuration to devices that are processes: the `_target_` of executor=distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from doppler.errors import ConfigurationError
from scripts.problems import Setup

if TYPE_CHECKING:
    from doppler.executor import DistributedExecutor


@dataclass(frozen=True)
class DistributedExecution:
    """executor=distributed: run on one process per device of this machine.

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
    measures: ClassVar[bool] = True

    def build(self, setup: Setup) -> DistributedExecutor:
        """Makes the executor, whose processes start with the first run; close it when done.

        Raises:
            ConfigurationError: the problem came from a file, is about other devices than CPUs, or
                its network or execution is none that processes can keep to.
        """
        from doppler.executor import DistributedExecutor

        if setup.workload is None:
            raise ConfigurationError(
                "executor=distributed needs kernels, a problem file has none: use executor=none"
            )
        if setup.profile is None and not setup.problem.topology.name.startswith("cpu"):
            raise ConfigurationError(
                "executor=distributed runs processes on CPUs, the topology is "
                f"{setup.problem.topology.name}: use executor=none, or topology=cpu"
            )
        return DistributedExecutor(
            setup.workload,
            setup.problem.num_devices,
            problem=setup.problem,
            network=setup.settings.network,
            choose=setup.settings.choose,
            seed=setup.settings.seed,
            input_seed=self.input_seed,
            timeout_s=self.timeout_s,
            execution=setup.settings.execution,
        )
