"""Where `place.py` writes, and what it says of a placement."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import to_absolute_path
from omegaconf import DictConfig

from doppler import Placement, PlacementProblem
from doppler.errors import ConfigurationError
from doppler.schedule import lower_bounds
from doppler.simulator import Simulator
from doppler.viz.figure import check_picture, format_seconds
from scripts.entry import in_multirun
from scripts.run_folder import safe_name
from scripts.searching import format_count, gap_percent

SAME = 1 + 1e-6
"""Makespans in this ratio are the same: the precision of the exact schedulers' proofs."""


@dataclass(frozen=True)
class Outputs:
    """The files that are written; None where not asked for."""

    placement: Path
    trace: Path | None
    gantt: Path | None
    curve: Path | None


def check_pictures(config: DictConfig) -> None:
    """Raises `ConfigurationError` where a picture's name has no known format."""
    for name in ("gantt", "curve"):
        if config[name] is not None:
            check_picture(str(config[name]))


def make_outputs(config: DictConfig, problem: PlacementProblem, scheduler: str) -> Outputs:
    """Names the files; those of the jobs of a multirun by scheduler and number of the job, too.

    Raises:
        ConfigurationError: a file that cannot be written, or would be written twice or over the
            problem or a checkpoint.
    """
    job = f".{scheduler}_{HydraConfig.get().job.num}" if in_multirun() else ""

    def named(given: Any) -> Path | None:
        if given is None:
            return None
        path = Path(to_absolute_path(str(given)))
        return path.with_name(f"{path.stem}{job}{path.suffix}") if job else path

    default = Path(to_absolute_path(f"{safe_name(problem.name)}{job}.placement.json"))
    outputs = Outputs(
        placement=named(config.output) or default,
        trace=named(config.trace),
        gantt=named(config.gantt),
        curve=named(config.curve),
    )
    read = [config.problem, config.checkpoint, config.start if _is_policy(config.start) else None]
    taken = {Path(to_absolute_path(str(path))): "read" for path in read if path is not None}
    for name, path in vars(outputs).items():
        if path is None:
            continue
        option = "output" if name == "placement" else name
        if path in taken:
            raise ConfigurationError(f"{option}={path} would be written over what is {taken[path]}")
        taken[path] = f"written as {option}"
        _check_writable(option, path)
    return outputs


def _is_policy(start: Any) -> bool:
    return str(start).endswith(".pt")


def _check_writable(option: str, path: Path) -> None:
    """Finds out now, not after a long search."""
    if path.is_dir():
        raise ConfigurationError(f"{option}={path} is a folder")
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{option}={path} is a device, a pipe or a socket, not a file")
    parent = next(parent for parent in path.parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigurationError(f"{option}={path} cannot be written: {parent} is no folder to "
                                 "write to")  # fmt: skip


def describe(simulator: Simulator, placement: Placement) -> list[str]:
    """What was placed by whom, how good it is and what it took, in lines.

    Args:
        simulator: of the problem.
        placement: with the `info` of a scheduler or a policy.
    """
    problem, info = simulator.problem, placement.info
    makespan = info["simulated_makespan"]
    bound = max(lower_bounds(problem).best, info.get("bound") or 0.0)
    evaluations, seconds = info["evaluations"], info["seconds"]
    plural = "" if evaluations == 1 else "s"
    rate = f", {format_count(evaluations / max(seconds, 1e-9))} a second" if "curve" in info else ""
    gap = f" (gap to bound {gap_percent(makespan, bound):.2f} %)" if bound > 0 else ""
    lines = [
        f"{problem.name}, {problem.num_ops} ops on {problem.num_devices} devices: "
        f"{info['scheduler']} found simulated makespan {format_seconds(makespan)} with "
        f"{evaluations} evaluation{plural} in {seconds:.2f} s{rate} (network "
        f"{simulator.network}, choose {simulator.choose}); lower bound {format_seconds(bound)}{gap}"
    ]
    for statistic in ("mean", "p95"):
        if f"simulated_{statistic}" in info:
            value = format_seconds(info[f"simulated_{statistic}"])
            lines.append(f"minimised: the simulated makespan's {statistic}, {value}")
    if "planned_makespan" in info:
        planned = format_seconds(info["planned_makespan"])
        lines.append(f"planned makespan {planned}, with links that carry everything at once")
    if "optimum" in info:
        lines.append(_proof(makespan, info))
    if "start" in info:
        lines.append(_start(makespan, info["start"]))
    if info.get("interrupted"):
        lines.append("interrupted: this is the best so far")
    return lines


def _proof(makespan: float, info: dict[str, Any]) -> str:
    """What an exact scheduler proved."""
    bound = info["bound"]
    if makespan <= bound * SAME:
        return "optimal: no schedule is shorter, proven"
    free = info["free_makespan"]
    if info["optimum"] == "optimal":
        return (
            f"the shortest schedule with waiting takes {format_seconds(free)}, proven; this "
            f"simulator never waits, so that its optimum may be longer"
        )
    best = ""
    if free is not None and bound > 0:
        above = gap_percent(free, bound)
        best = f"; the best with waiting takes {format_seconds(free)}, {above:.2f} % more"
    return f"not proven optimal: no schedule is below {format_seconds(bound)}{best}"


def _start(makespan: float, start: dict[str, Any]) -> str:
    before = start["simulated_makespan"]
    who = "" if start["scheduler"] is None else f" of {start['scheduler']}"
    if before is None:
        return f"started from {start['file']}{who}, which does not fit in the devices' memory"
    change = f", {100 * (1 - makespan / before):.2f} % shorter now" if before > 0 else ""
    return f"started from {start['file']}{who}: {format_seconds(before)}{change}"
