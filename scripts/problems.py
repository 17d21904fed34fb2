"""From the configuration to a placement problem and a simulator.

The classes here are the `_target_`s of the groups workload, topology and simulator where
the library has no class of that shape: they say what to build, `build_setup` builds it.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig

from doppler import PlacementProblem, Topology, load_problem
from doppler.errors import ConfigurationError
from doppler.simulator import LognormalNoise, NoiseModel, RobustSimulator, Simulator
from doppler.workloads import Workload
from scripts.entry import check_count, in_multirun
from scripts.progress import ProgressDisplay

if TYPE_CHECKING:
    from doppler.executor import Profile
    from doppler.training import Objective
    from doppler.training.objectives import SimulatedObjective


BUSY_LOAD = 0.5
"""A load average per core above which measuring is warned of."""


@dataclass(frozen=True)
class ProblemFile:
    """workload=file: a problem file in place of a workload; it has no kernels to run.

    Args:
        path: relative to the folder that the command was given in.
    """

    path: str


@dataclass(frozen=True)
class FileTopology:
    """topology=from_file: devices and links as the problem file says.

    Args:
        num_devices: for files in the published format, which name no devices; None for JSON files.
    """

    num_devices: int | None = None


class CostSource(Protocol):
    """Where a problem's seconds come from."""

    def problem(
        self, workload: Workload | ProblemFile, topology: Topology | FileTopology, parts: Builder
    ) -> tuple[PlacementProblem, Profile | None]:
        """Builds the problem, and returns the profile that it was built from, if any."""


@dataclass(frozen=True)
class Builder:
    """What building may need besides the configuration."""

    progress: ProgressDisplay


@dataclass(frozen=True)
class PresetCost:
    """Roofline estimates from the topology's data-sheet rates."""

    def problem(
        self, workload: Workload | ProblemFile, topology: Topology | FileTopology, parts: Builder
    ) -> tuple[PlacementProblem, Profile | None]:
        """See `CostSource.problem`."""
        tensors, devices = _with_kernels(workload, topology)
        return tensors.problem(devices), None


@dataclass(frozen=True)
class CalibratedCost:
    """Seconds measured on this machine's devices.

    Args:
        profile: a file that `scripts/calibrate.py` wrote; None: calibrate now, once for all jobs of
            a multirun that have the same workload, so that their seeds and options compare.
        repeats: timed runs of each kernel and copy when calibrating now.
    """

    profile: str | None = None
    repeats: int | None = None

    def problem(
        self, workload: Workload | ProblemFile, topology: Topology | FileTopology, parts: Builder
    ) -> tuple[PlacementProblem, Profile | None]:
        """See `CostSource.problem`.

        Raises:
            ConfigurationError: the topology is not the devices that are or were measured.
        """
        from doppler.executor import Profile

        tensors, devices = _with_kernels(workload, topology)
        given = None if self.profile is None else Profile.load(to_absolute_path(self.profile))
        backend = "cpu" if given is None else str(given.environment["backend"])
        if (backend == "cpu") != devices.name.startswith("cpu"):
            raise ConfigurationError(
                f"simulator=calibrated measures CPU devices, the topology is {devices.name}: use "
                "simulator=preset, or topology=cpu"
                if backend == "cpu"
                else f"simulator.cost.profile is of {backend} devices, the topology is "
                f"{devices.name}: choose another one, for example topology=v100"
            )
        shared = sweep_profile(tensors, devices.num_devices) if given is None else None
        if given is not None:
            profile = given
        elif shared is not None and shared.exists():
            profile = Profile.load(shared)
        else:
            profile = run_calibration(tensors, devices.num_devices, self.repeats, parts.progress)
            if shared is not None:
                profile.save(shared)
        measured = profile.topology(devices.num_devices)
        return tensors.problem(measured, profile.cost_model(tensors, measured)), profile


@dataclass(frozen=True)
class FileCost:
    """Seconds as the problem file says."""

    def problem(
        self, workload: Workload | ProblemFile, topology: Topology | FileTopology, parts: Builder
    ) -> tuple[PlacementProblem, Profile | None]:
        """See `CostSource.problem`."""
        if not isinstance(workload, ProblemFile):
            raise ConfigurationError(
                "a workload needs devices: choose topology=cpu, p100, v100, host_staged or ideal "
                "(from_file goes with workload=file only)"
            )
        if not isinstance(topology, FileTopology):
            raise ConfigurationError(
                "workload=file brings its own devices and links: leave topology= out, only "
                "topology.num_devices may be given"
            )
        if topology.num_devices is not None:
            check_count(topology.num_devices, "topology.num_devices")
        path = Path(to_absolute_path(workload.path))
        problem = load_problem(path, num_devices=topology.num_devices)
        return problem.with_explicit_inputs(), None


@dataclass(frozen=True)
class SimulatorSettings:
    """The group simulator.

    Args:
        cost: where seconds come from.
        network: network model.
        choose: choose-task rule.
        noise: relative spread of durations during training, 0 for none; or "empirical": as measured
            by the calibration; or a noise model. Tables and pictures are always noise-free.
        seed: of `choose=random`.
        execution: work_conserving or bulk_synchronous.
        objective: what schedulers and learners minimise: makespan, or its mean or p95 over random
            tie orders and, with noise, noise draws. Tables show makespans all the same.
        objective_samples: how many tie orders and draws.
    """

    cost: CostSource
    network: str = "serial_links"
    choose: str = "fifo"
    noise: float | str | NoiseModel = 0.0
    seed: int = 0
    execution: str = "work_conserving"
    objective: str = "makespan"
    objective_samples: int = 16

    def build(self, problem: PlacementProblem, noise: NoiseModel | None = None) -> Simulator:
        """A simulator of `problem`, noise-free unless a noise model is given."""
        return Simulator(
            problem,
            network=self.network,
            choose=self.choose,
            noise=noise,
            seed=self.seed,
            execution=self.execution,
        )


@dataclass(frozen=True)
class Setup:
    """A problem and what belongs to it.

    Args:
        workload: None where the problem came from a file.
        problem: graph, topology and costs.
        settings: how it is simulated.
        profile: what the costs were made from, None unless calibrated.
    """

    workload: Workload | None
    problem: PlacementProblem
    settings: SimulatorSettings
    profile: Profile | None

    def training_simulator(self) -> Simulator:
        """As `settings.build`, with the settings' noise."""
        return self.settings.build(self.problem, self.training_noise())

    def scheduling_simulator(self) -> Any:
        """What schedulers minimise: a noise-free simulator, or the objective of the settings."""
        if self.settings.objective == "makespan":
            return self.settings.build(self.problem)
        return self._robust()

    def training_objective(self) -> Objective:
        """What learners minimise in simulation."""
        from doppler.training import simulated_objective
        from doppler.training.objectives import SimulatedObjective, simulator_identity

        settings = self.settings
        if settings.objective != "makespan":
            robust = self._robust()
            identity = simulator_identity(
                robust, seed=settings.seed, samples=settings.objective_samples
            )
            return SimulatedObjective(robust, identity)
        simulator = self.training_simulator()
        noise_free = simulator.noise is None
        return simulated_objective(simulator) if noise_free else noisy_objective(simulator)

    def _robust(self) -> RobustSimulator:
        settings = self.settings
        return RobustSimulator(
            self.training_simulator(),
            settings.objective,
            settings.objective_samples,
            settings.seed,
        )

    def training_noise(self) -> NoiseModel | None:
        """The noise model that the settings describe.

        Raises:
            ConfigurationError: an unknown or impossible noise, or an empirical one of costs that
                were not calibrated.
        """
        noise = self.settings.noise
        if isinstance(noise, NoiseModel):
            return noise
        if isinstance(noise, int | float):
            return LognormalNoise(noise) if noise else None
        if noise != "empirical":
            raise ConfigurationError(
                f"simulator.noise: {noise!r} is neither a relative spread nor empirical"
            )
        if self.profile is None or self.workload is None:
            raise ConfigurationError(
                "simulator.noise=empirical draws from measured durations: use simulator=calibrated"
            )
        return self.profile.noise(self.workload)


def build_setup(config: DictConfig, progress: ProgressDisplay) -> Setup:
    """Builds the problem that the groups workload, topology and simulator describe.

    Raises:
        DopplerError: groups that do not go together, a bad file, an unknown name or size.
    """
    settings: SimulatorSettings = instantiate(config.simulator)
    workload = build_workload(config.workload)
    topology = instantiate(config.topology)
    problem, profile = settings.cost.problem(workload, topology, Builder(progress))
    return Setup(
        workload=None if isinstance(workload, ProblemFile) else workload,
        problem=problem,
        settings=settings,
        profile=profile,
    )


def noisy_objective(simulator: Simulator) -> SimulatedObjective:
    """Simulated makespans under noise that is drawn anew for every batch.

    The draw depends on the batch's content alone, so that a resumed run sees the same one.
    """
    from doppler.training.objectives import SimulatedObjective, simulator_identity

    return SimulatedObjective(NoisyBatches(simulator), simulator_identity(simulator))


@dataclass(frozen=True)
class NoisyBatches:
    """A simulator whose noise seed is a hash of the batch."""

    simulator: Simulator

    def makespans(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        """As `Simulator.makespans`. # (batch,) [s]"""
        seed = zlib.crc32(np.ascontiguousarray(placements).tobytes())
        given = orders if self.simulator.choose == "given" else None
        return self.simulator.makespans(placements, given, noise_seed=seed)


def build_workload(config: DictConfig) -> Workload | ProblemFile:
    """Builds the group workload; sizes left at null are the scale's own."""
    given = {str(key): config[key] for key in config if config[key] is not None}
    built: Workload | ProblemFile = instantiate(given)
    return built


def sweep_profile(workload: Workload, num_devices: int) -> Path | None:
    """Where the jobs of a multirun share one calibration; None outside of a multirun."""
    if not in_multirun():
        return None
    kernels = zlib.crc32("".join(sorted({k.signature for k in workload.kernels})).encode())
    name = f"profile_{workload.graph.name}_{num_devices}cpu_{kernels:08x}.json"
    return Path(to_absolute_path(HydraConfig.get().sweep.dir)) / name


def default_cache() -> Path:
    """Where profiles go by default: $XDG_CACHE_HOME/doppler, or ~/.cache/doppler."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "doppler"


def run_calibration(
    workload: Workload,
    num_devices: int,
    repeats: int | None,
    progress: ProgressDisplay,
    backend: str = "cpu",
) -> Profile:
    """Times every kernel and copy of a workload on an executor's devices, showing progress."""
    from doppler.executor import calibrate

    options: dict[str, Any] = {} if repeats is None else {"repeats": repeats}
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_LOAD * cores:
        progress.console.print(
            f"this machine is busy (load average {load:.1f} on {cores} cores): seconds that are "
            "measured now are unreliable",
            highlight=False,
        )
    with progress.step("calibration", 100) as advance:
        return calibrate(
            workload,
            num_devices,
            progress=lambda done, total: advance(round(100 * done / total), f"{done} of {total}"),
            backend=backend,
            **options,
        )


def _with_kernels(
    workload: Workload | ProblemFile, topology: Topology | FileTopology
) -> tuple[Workload, Topology]:
    if isinstance(workload, ProblemFile) or isinstance(topology, FileTopology):
        raise ConfigurationError(
            "workload=file brings its own devices, links and seconds, other workloads need a "
            "topology and simulator=preset or calibrated: leave topology= and simulator= out with "
            "workload=file (topology.num_devices may be given)"
        )
    return workload, topology
