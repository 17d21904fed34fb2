"""Places one problem with a scheduler or a trained policy and writes the placement as JSON.

python scripts/place.py problem=graph.txt topology.num_devices=4 scheduler=critical_path
python scripts/place.py workload=ffnn topology=p100 scheduler=annealing budget_s=20 curve=ffnn.png
python scripts/place.py problem=graph.json scheduler=annealing start=graph.placement.json
python scripts/place.py problem=graph.txt topology.num_devices=4 checkpoint=runs/x/checkpoint.pt
python scripts/place.py -m problem=graph.json scheduler=heft,metis,annealing
"""

from __future__ import annotations

import shlex
from pathlib import Path

import hydra
import numpy as np
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from doppler import Placement
from doppler.errors import ConfigurationError
from doppler.schedule import lower_bounds
from doppler.schedulers import Scheduler
from doppler.viz import plot_gantt, plot_search_curve, write_trace
from scripts.entry import check_count, entry_point, in_multirun, task_overrides
from scripts.place_report import Outputs, check_pictures, describe, make_outputs
from scripts.policies import POLICY, place_with_policy
from scripts.problems import Setup, build_setup
from scripts.progress import ProgressDisplay
from scripts.searching import need_anytime, schedule, with_budget

OF_SEARCHES = ("start", "budget_s", "budget_evals", "curve")
"""Options that mean nothing to a policy that places alone."""


def run(config: DictConfig) -> Path:
    """Places as configured; returns the path of the placement file.

    Raises:
        DopplerError: what cannot be placed, before anything is written.
        KeyboardInterrupt: Ctrl-C; a search's best so far has been written.
    """
    console = Console(markup=False)
    progress = ProgressDisplay(console)
    scheduler = check_options(config)
    setup = build_setup(config, progress)
    outputs = make_outputs(config, setup.problem, POLICY if scheduler is None else scheduler.name)
    if scheduler is None:
        placement = policy_placement(setup, config, config.checkpoint)
    else:
        start = None if config.start is None else load_start(setup, config)
        rng = np.random.default_rng(config.seed)
        placement = schedule(scheduler, setup.scheduling_simulator(), rng, progress, start)
        if start is not None:
            placement.info["start"] = start.info
    written = write(setup, placement, outputs)
    text = describe(setup.settings.build(setup.problem), placement)
    console.print("\n".join([*text, *written]), highlight=False, soft_wrap=True)
    if placement.info.get("interrupted"):
        again = [o for o in task_overrides() if not o.lstrip("+").startswith("start=")]
        command = shlex.join(["scripts/place.py", *again, f"start={outputs.placement}"])
        console.print(f"go on with: python {command}", highlight=False, soft_wrap=True)
        raise KeyboardInterrupt
    return outputs.placement


def check_options(config: DictConfig) -> Scheduler | None:
    """Refuses what could only fail later; returns the scheduler, None where a policy places.

    Raises:
        ConfigurationError: options that are impossible or do not go together.
    """
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
    check_pictures(config)
    if config.checkpoint is not None:
        given = [name for name in OF_SEARCHES if config[name] is not None]
        given += ["scheduler" for o in task_overrides() if o.startswith("scheduler")]
        if given:
            raise ConfigurationError(
                f"checkpoint= lets a policy place alone, {given[0]}= goes with a scheduler: leave "
                f"one out, or pass start={config.checkpoint} in place of checkpoint= to let a "
                "search improve the policy's placement"
            )
        return None
    # A budget of a multirun is for the searches among its schedulers.
    scheduler = with_budget(
        instantiate(config.scheduler), config.budget_s, config.budget_evals, lenient=in_multirun()
    )
    for name in ("start", "curve"):
        if config[name] is not None:
            need_anytime(scheduler, name)
    return scheduler


def load_start(setup: Setup, config: DictConfig) -> Placement:
    """What a search begins with: a placement file, or the best placement of a policy.

    Returns:
        The placement; its `info` tells where it is from and how good it is in this simulator.

    Raises:
        DopplerError: the file cannot be read or belongs to another problem.
    """
    path = Path(to_absolute_path(str(config.start)))
    if path.suffix == ".pt":
        start = policy_placement(setup, config, str(path))
    else:
        start = Placement.load(path, setup.problem)
    simulator = setup.settings.build(setup.problem)
    order = start.order if simulator.choose == "given" else None
    makespan = float(
        simulator.makespans(start.devices[None], None if order is None else [order])[0]
    )
    info = {
        "file": path.name,
        "scheduler": start.info.get("scheduler"),
        "simulated_makespan": makespan if np.isfinite(makespan) else None,
    }
    return Placement(start.devices, start.order, info)


def write(setup: Setup, placement: Placement, outputs: Outputs) -> list[str]:
    """Writes the placement and what else was asked for; returns a line for each file."""
    placement.save(outputs.placement, setup.problem)
    lines = [f"placement: {outputs.placement}"]
    info = placement.info
    name = f"{setup.problem.name}, {info['scheduler']}"
    if outputs.trace is not None or outputs.gantt is not None:
        simulated = setup.settings.build(setup.problem).run(placement)
        if outputs.trace is not None:
            write_trace([(info["scheduler"], simulated)], outputs.trace)
            lines.append(f"trace (open it in ui.perfetto.dev): {outputs.trace}")
        if outputs.gantt is not None:
            lines.append(f"Gantt chart: {plot_gantt([(name, simulated)], outputs.gantt)}")
    if outputs.curve is not None:
        bound = max(lower_bounds(setup.problem).best, info.get("bound") or 0.0)
        plot_search_curve(
            [(info["scheduler"], info["curve"])],
            outputs.curve,
            lower_bound=bound,
            title=name,
            ends=[(info["seconds"], info["evaluations"])],
        )
        lines.append(f"curve: {outputs.curve}")
    return lines


def policy_placement(setup: Setup, config: DictConfig, checkpoint: str) -> Placement:
    """The best of `samples` episodes; see `scripts.policies.place_with_policy`."""
    path = Path(to_absolute_path(checkpoint))
    simulator = setup.settings.build(setup.problem)
    return place_with_policy(path, setup.problem, simulator, config.seed, samples=config.samples)


@hydra.main(version_base=None, config_path="../configs", config_name="place")
@entry_point
def main(config: DictConfig) -> None:
    """Hydra's entry point."""
    run(config)


if __name__ == "__main__":
    main()
