"""Times a workload's kernels and copies on this machine's devices and writes a profile.

python scripts/calibrate.py workload=ffnn topology.num_devices=2 output=profile.json
python scripts/calibrate.py workload=ffnn topology.num_devices=2 executor=cuda
python scripts/train.py workload=ffnn simulator.cost.profile=profile.json
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import to_absolute_path
from omegaconf import DictConfig
from rich.console import Console

from doppler.errors import ConfigurationError
from doppler.executor import Profile
from doppler.executor.calibration.profile_file import BACKENDS
from doppler.workloads import Workload
from scripts.entry import check_count, entry_point, task_overrides
from scripts.problems import build_workload, default_cache, run_calibration
from scripts.progress import ProgressDisplay


def run(config: DictConfig) -> Path:
    """Calibrates as configured; returns the profile's path."""
    console = Console(markup=False)
    workload = build_workload(config.workload)
    if not isinstance(workload, Workload):
        raise ConfigurationError("calibrating needs kernels to time; a problem file has none")
    num_devices = config.topology.num_devices
    check_count(num_devices, "topology.num_devices")
    backend = str(HydraConfig.get().runtime.choices.get("executor"))
    if backend not in BACKENDS:
        raise ConfigurationError(
            f"executor={backend} cannot be calibrated; known: {', '.join(BACKENDS)}"
        )
    display = ProgressDisplay(console)
    profile = run_calibration(workload, num_devices, config.repeats, display, backend)
    name = f"{workload.graph.name}-{num_devices}{backend}.json"
    path = (
        default_cache() / name if config.output is None else Path(to_absolute_path(config.output))
    )
    profile.save(path)
    chosen = [override for override in task_overrides() if override.startswith("workload")]
    devices = [f"topology.num_devices={num_devices}", f"simulator.cost.profile={path}"]
    if backend != "cpu":
        devices = ["topology=v100", *devices, f"executor={backend}"]
    console.print(
        f"{describe(profile)}\nprofile: {path}\n"
        f"use it: python scripts/train.py {' '.join(chosen + devices)}",
        highlight=False,
        soft_wrap=True,
    )
    return path


def describe(profile: Profile) -> str:
    """What was measured, and how kernels that were not will be estimated."""
    slowdown = [timing.busy / timing.alone for timing in profile.kernels.values() if timing.alone]
    beside = ""
    if slowdown and profile.num_devices > 1:
        times = f"{median(slowdown):.2f} times as long (median)"
        beside = f"; while the other devices work a kernel takes {times}"
    lines = [
        f"kernels: {len(profile.kernels)} measured, 0 estimated{beside}",
        f"dispatch: {1e6 * profile.dispatch_gap:.1f} us from op to op, "
        f"{1e6 * profile.dispatch_empty:.1f} us per empty kernel",
    ]
    if profile.copies is not None:
        lines.append(
            f"copies: {1e6 * profile.copies.latency:.1f} us + bytes / "
            f"({profile.copies.bandwidth / 1e9:.2f} GB/s); each interrupts the ops meanwhile by "
            f"{1e6 * profile.copies.interruption:.1f} us"
        )
    if profile.regression is None:
        lines.append("other kernels: refused, too few were measured to estimate more")
    else:
        lines.append(f"other kernels: estimated by {profile.regression.describe()}")
    return "\n".join(lines)


@hydra.main(version_base=None, config_path="../configs", config_name="calibrate")
@entry_point
def main(config: DictConfig) -> None:
    """Hydra's entry point."""
    run(config)


if __name__ == "__main__":
    main()
