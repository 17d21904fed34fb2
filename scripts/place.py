"""Places one problem with a scheduler or a trained policy and writes the placement as JSON.

python scripts/place.py problem=graph.txt topology.num_devices=4 scheduler=critical_path
python scripts/place.py workload=ffnn topology=p100 scheduler=enumerative output=ffnn.json
python scripts/place.py problem=graph.txt topology.num_devices=4 checkpoint=runs/x/checkpoint.pt
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import hydra
import numpy as np
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from doppler import Placement
from doppler.errors import ConfigurationError
from doppler.schedule import lower_bounds
from doppler.viz import write_trace
from doppler.viz.figure import format_seconds
from scripts.entry import check_count, entry_point
from scripts.problems import Setup, build_setup
from scripts.progress import ProgressDisplay
from scripts.run_folder import safe_name


def run(config: DictConfig) -> Path:
    """Places as configured; returns the path of the placement file."""
    console = Console(markup=False)
    if config.problem is not None:
        if "path" not in config.workload.keys():  # noqa: SIM118 - a missing value is not "in"
            raise ConfigurationError("problem= and workload= are both given; leave one out")
        config.workload.path = config.problem
    elif OmegaConf.is_missing(config.workload, "path"):
        raise ConfigurationError(
            "nothing to place: pass problem=<file>, or workload=<name> with topology=<preset>"
        )
    check_count(config.samples, "samples")
    check_count(config.seed, "seed", least=0)
    setup = build_setup(config, ProgressDisplay(console))
    simulator = setup.settings.build(setup.problem)
    if config.checkpoint is None:
        scheduler = instantiate(config.scheduler)
        rng = np.random.default_rng(config.seed)
        placement = scheduler.schedule(setup.problem, setup.scheduling_simulator(), rng)
    else:
        placement = place_with_policy(setup, config)
    path = Path(
        to_absolute_path(config.output or f"{safe_name(setup.problem.name)}.placement.json")
    )
    placement.save(path, setup.problem)
    written = f"placement: {path}"
    if config.trace is not None:
        trace = Path(to_absolute_path(config.trace))
        write_trace([(placement.info["scheduler"], simulator.run(placement))], trace)
        written += f"\ntrace (open it in ui.perfetto.dev): {trace}"
    info = placement.info
    console.print(
        f"{setup.problem.name}, {setup.problem.num_ops} ops on {setup.problem.num_devices} "
        f"devices: {info['scheduler']} found simulated makespan "
        f"{format_seconds(info['simulated_makespan'])} with {info['evaluations']} evaluations in "
        f"{info['seconds']:.2f} s (network {simulator.network}, choose {simulator.choose}; lower "
        f"bound {format_seconds(lower_bounds(setup.problem).best)})\n{written}",
        highlight=False,
        soft_wrap=True,
    )
    return path


def place_with_policy(setup: Setup, config: DictConfig) -> Placement:
    """The best of `samples` episodes of a trained policy, the first one without sampling.

    Raises:
        CheckpointError: not a checkpoint of this version.
    """
    import torch

    from doppler.training import EpisodeRunner, load_policy_from_checkpoint

    torch.set_num_threads(1)  # the heads' products are too small for more

    began = perf_counter()
    path = Path(to_absolute_path(config.checkpoint))
    policy, identity = load_policy_from_checkpoint(path)
    simulator = setup.settings.build(setup.problem)
    rng = np.random.default_rng(config.seed)
    batches = []
    for batch_size, greedy in ((1, True), (config.samples - 1, False)):
        if batch_size:
            runner = EpisodeRunner(policy, setup.problem, simulator.network, batch_size)
            batches.append(runner.run(rng, greedy=greedy, record=False))
    devices = np.concatenate([batch.placements for batch in batches])
    orders = np.concatenate([batch.ops for batch in batches])
    makespans = simulator.makespans(devices, orders if simulator.choose == "given" else None)
    best = int(np.argmin(makespans))
    if not np.isfinite(makespans[best]):
        simulator.run(devices[best], orders[best])  # raises CapacityError with the details
    info = {
        "scheduler": "doppler",
        "simulated_makespan": float(makespans[best]),
        "seconds": perf_counter() - began,
        "evaluations": len(makespans),
        "checkpoint": path.name,
        "trained_on": identity["problem"]["name"],
    }
    return Placement(devices[best], orders[best], info)


@hydra.main(version_base=None, config_path="../configs", config_name="place")
@entry_point
def main(config: DictConfig) -> None:
    """Hydra's entry point."""
    run(config)


if __name__ == "__main__":
    main()
