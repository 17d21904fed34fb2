"""From the configuration to devices that run placements: the `_target_`s of the group executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from doppler import PlacementProblem
from doppler.checks import number
from doppler.errors import ConfigurationError
from doppler.workloads import Workload
from scripts.problems import Setup

if TYPE_CHECKING:
    from doppler.executor import CpuExecutor, DistributedExecutor, EmulatedExecutor
    from doppler.executor.cuda.executor import CudaExecutor


def _rules(setup: Setup) -> dict[str, Any]:
    """The simulator's rules, as options of an executor on the same problem."""
    settings = setup.settings
    return {
        "problem": setup.problem,
        "network": settings.network,
        "choose": settings.choose,
        "seed": settings.seed,
        "execution": settings.execution,
    }


@dataclass(frozen=True)
class MeasuredExecution:
    """What the executors have in common that run a workload's kernels.

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
    name: ClassVar[str]
    runs: ClassVar[str]
    """What its devices are, for messages."""
    otherwise: ClassVar[str] = "executor=none, or topology=cpu"
    """What to use for other devices, for messages."""

    def _options(self, setup: Setup) -> dict[str, Any]:
        return {**_rules(setup), "input_seed": self.input_seed, "timeout_s": self.timeout_s}

    def _workload(self, setup: Setup) -> Workload:
        """The workload to run, if these devices can.

        Raises:
            ConfigurationError: the problem came from a file, or is about other devices.
        """
        if setup.workload is None:
            raise ConfigurationError(
                f"executor={self.name} needs kernels, a problem file has none: use executor=none "
                "or emulated"
            )
        if not self._suits(setup):
            raise ConfigurationError(
                f"executor={self.name} runs {self.runs}, the topology is "
                f"{setup.problem.topology.name}: use {self.otherwise}"
            )
        return setup.workload

    def _suits(self, setup: Setup) -> bool:
        """Whether the problem is about such devices."""
        return setup.profile is not None or setup.problem.topology.name.startswith("cpu")


@dataclass(frozen=True)
class CpuExecution(MeasuredExecution):
    """executor=cpu: run on CPU devices, one worker thread each.

    Args:
        pin_cores: bind each device to a core of its own: true, false, or auto, which does so if
            there are more cores than devices.
    """

    pin_cores: bool | str = "auto"
    name: ClassVar[str] = "cpu"
    runs: ClassVar[str] = "CPU devices"

    def build(self, setup: Setup) -> CpuExecutor:
        """Starts the devices; close them when done.

        Raises:
            ConfigurationError: the problem came from a file, or is about other devices than CPUs.
        """
        from doppler.executor import CpuExecutor

        return CpuExecutor(
            self._workload(setup),
            setup.problem.num_devices,
            pin_cores=self.pin_cores,
            **self._options(setup),
        )


@dataclass(frozen=True)
class CudaExecution(MeasuredExecution):
    """executor=cuda: run on GPUs, a stream per device.

    Args:
        gpus: numbers of the GPUs to use; None: all.
        depth: ops per device that are handed out and not finished.
        copies: "auto" or "staged", see `CudaExecutor`.
        allow_tf32: whether float32 products may round to TF32.
    """

    warmup: int = 3
    gpus: Sequence[int] | None = None
    depth: int = 2
    copies: str = "auto"
    allow_tf32: bool = False
    name: ClassVar[str] = "cuda"
    runs: ClassVar[str] = "GPUs"
    otherwise: ClassVar[str] = (
        "topology=v100 or p100, or a profile that was calibrated on these GPUs"
    )

    def build(self, setup: Setup) -> CudaExecutor:
        """Starts the devices; close them when done.

        Raises:
            ConfigurationError: no CUDA device, the problem came from a file, or is about CPUs.
        """
        from doppler.executor.cuda.executor import CudaExecutor

        return CudaExecutor(
            self._workload(setup),
            setup.problem.num_devices,
            gpus=self.gpus,
            depth=self.depth,
            copies=self.copies,
            allow_tf32=self.allow_tf32,
            **self._options(setup),
        )

    def _suits(self, setup: Setup) -> bool:
        if setup.profile is not None and setup.profile.environment["backend"] != "cuda":
            return False
        return not setup.problem.topology.name.startswith("cpu")


@dataclass(frozen=True)
class DistributedExecution(MeasuredExecution):
    """executor=distributed: run on one process per device of this machine."""

    name: ClassVar[str] = "distributed"
    runs: ClassVar[str] = "processes on CPUs"

    def build(self, setup: Setup) -> DistributedExecutor:
        """Makes the executor, whose processes start with the first run; close it when done.

        Raises:
            ConfigurationError: the problem came from a file, is about other devices than CPUs, or
                its network or execution is none that processes can keep to.
        """
        from doppler.executor import DistributedExecutor

        return DistributedExecutor(
            self._workload(setup), setup.problem.num_devices, **self._options(setup)
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

        return EmulatedExecutor(
            setup.problem,
            timeout_s=self.timeout_s,
            time_scale=self._scale(setup.problem) if self.time_scale is None else self.time_scale,
            noise=LognormalNoise(self.noise) if self.noise else None,
            noise_seed=self.noise_seed,
            **_rules(setup),
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
