"""From the configuration to CUDA devices: the `_target_` of executor=cuda."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from doppler.errors import ConfigurationError
from scripts.problems import Setup

if TYPE_CHECKING:
    from doppler.executor.cuda.executor import CudaExecutor


@dataclass(frozen=True)
class CudaExecution:
    """executor=cuda: run on GPUs, a stream per device.

    Args:
        repeats: measured runs per placement in the results table.
        warmup: unmeasured runs before them.
        timeout_s: a run that takes longer is given up. [s]
        input_seed: of the workload's input tensors.
        gpus: numbers of the GPUs to use; None: all.
        depth: ops per device that are handed out and not finished.
        copies: "auto" or "staged", see `CudaExecutor`.
        allow_tf32: whether float32 products may round to TF32.
    """

    repeats: int = 15
    warmup: int = 3
    timeout_s: float = 120.0
    input_seed: int = 0
    gpus: Sequence[int] | None = None
    depth: int = 2
    copies: str = "auto"
    allow_tf32: bool = False
    measures: ClassVar[bool] = True

    def build(self, setup: Setup) -> CudaExecutor:
        """Starts the devices; close them when done.

        Raises:
            ConfigurationError: no CUDA device, the problem came from a file, or is about CPUs.
        """
        from doppler.executor.cuda.executor import CudaExecutor

        if setup.workload is None:
            raise ConfigurationError(
                "executor=cuda needs kernels, a problem file has none: use executor=none or "
                "emulated"
            )
        backend = "" if setup.profile is None else setup.profile.environment["backend"]
        if backend not in ("", "cuda") or setup.problem.topology.name.startswith("cpu"):
            raise ConfigurationError(
                f"executor=cuda runs GPUs, the topology is {setup.problem.topology.name}: use "
                "topology=v100 or p100, or a profile that was calibrated on these GPUs"
            )
        return CudaExecutor(
            setup.workload,
            setup.problem.num_devices,
            gpus=self.gpus,
            depth=self.depth,
            copies=self.copies,
            allow_tf32=self.allow_tf32,
            problem=setup.problem,
            network=setup.settings.network,
            choose=setup.settings.choose,
            seed=setup.settings.seed,
            input_seed=self.input_seed,
            timeout_s=self.timeout_s,
            execution=setup.settings.execution,
        )
