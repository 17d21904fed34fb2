"""Times a workload's kernels and copies on this machine's CPU devices and writes a profile.

python scripts/calibrate.py workload=ffnn topology.num_devices=2 output=profile.json
python scripts/train.py workload=ffnn simulator.cost.profile=profile.json
"""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.utils import to_absolute_path
from omegaconf import DictConfig
from rich.console import Console

from doppler.errors import ConfigurationError
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
    profile = run_calibration(workload, num_devices, config.repeats, ProgressDisplay(console))
    name = f"{workload.graph.name}-{num_devices}cpu.json"
    path = (
        default_cache() / name if config.output is None else Path(to_absolute_path(config.output))
    )
    profile.save(path)
    chosen = [override for override in task_overrides() if override.startswith("workload")]
    devices = [f"topology.num_devices={num_devices}", f"simulator.cost.profile={path}"]
    console.print(
        f"profile: {path}\nuse it: python scripts/train.py {' '.join(chosen + devices)}",
        highlight=False,
        soft_wrap=True,
    )
    return path


@hydra.main(version_base=None, config_path="../configs", config_name="calibrate")
@entry_point
def main(config: DictConfig) -> None:
    """Hydra's entry point."""
    run(config)


if __name__ == "__main__":
    main()
