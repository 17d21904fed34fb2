"""Runs schedulers from scripts: budgets, where a search begins, how far it is, Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from doppler import Placement
from doppler.errors import ConfigurationError
from doppler.schedule import lower_bounds
from doppler.schedulers import SCHEDULERS, Scheduler
from doppler.schedulers.anytime import AnytimeScheduler, Run
from doppler.simulator import RobustSimulator, Simulator
from doppler.viz.figure import format_seconds
from scripts.progress import ProgressDisplay

MOST_POINTS = 1000
"""Of a search's curve are written into a placement file."""
_PATIENCE = 3
"""Interrupts after which another one ends the command whatever it does."""


def with_budget(
    scheduler: Scheduler, budget_s: Any, budget_evals: Any, lenient: bool = False
) -> Scheduler:
    """The scheduler with other budgets; None and None leave it its own.

    A budget of evaluations alone switches that of seconds off, so that the result depends on no
    clock.

    Args:
        scheduler: any.
        budget_s, budget_evals: see `AnytimeScheduler`.
        lenient: whether a scheduler that has no budget is left as it is, not refused.

    Raises:
        ConfigurationError: an impossible budget, or one for a scheduler that has none.
    """
    if budget_s is None and budget_evals is None:
        return scheduler
    if lenient and not isinstance(scheduler, AnytimeScheduler):
        return scheduler
    anytime = need_anytime(scheduler, "budget_evals" if budget_s is None else "budget_s")
    return replace(anytime, budget_s=budget_s, budget_evals=budget_evals)


def need_anytime(scheduler: Scheduler, option: str) -> AnytimeScheduler:
    """Returns a scheduler that searches for as long as it is let.

    Raises:
        ConfigurationError: it is none; names it and the option that needs one.
    """
    if isinstance(scheduler, AnytimeScheduler):
        return scheduler
    known = sorted(name for name, cls in SCHEDULERS.items() if issubclass(cls, AnytimeScheduler))
    raise ConfigurationError(
        f"{option}: scheduler {scheduler.name!r} is no search that goes on until a budget is "
        f"spent; leave {option} out, or choose one of {', '.join(known)}"
    )


def schedule(
    scheduler: Scheduler,
    simulator: Simulator | RobustSimulator,
    rng: np.random.Generator,
    progress: ProgressDisplay | None = None,
    start: Placement | None = None,
) -> Placement:
    """Runs a scheduler on the simulator's problem; shows how far a search is.

    Args:
        scheduler: any.
        simulator: judges placements.
        rng: the only source of randomness.
        progress: where to; None for nowhere.
        start: a placement that a search improves.

    Returns:
        The placement. Ctrl-C ends a search early: its best so far has `interrupted` in the `info`.
        Its `info` can be written to a file: curves have at most `MOST_POINTS` points, and infinite
        makespans, of what does not fit in memory, are None.

    Raises:
        ConfigurationError: a start for a scheduler that cannot use one.
    """
    problem: Any = simulator.problem
    judge: Any = simulator
    if start is not None:
        need_anytime(scheduler, "start")
    if not isinstance(scheduler, AnytimeScheduler):
        placement = scheduler.schedule(problem, judge, rng)
    elif progress is None:
        placement = scheduler.schedule(problem, judge, rng, start=start)
    else:
        bound = lower_bounds(problem).best
        with interrupted_once(), progress.step(scheduler.name, 100) as advance:

            def watch(run: Run) -> None:
                advance(int(100 * run.fraction), run_note(run, bound))

            placement = scheduler.schedule(problem, judge, rng, start=start, watch=watch)
    info = {key: kept(key, value) for key, value in placement.info.items()}
    return Placement(placement.devices, placement.order, info)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Lets one Ctrl-C end a search, and none of those right after it what is done with the result.

    Process managers and shells often send the signal twice. From the fourth on it counts again. The
    handler from before is put back unless the search was interrupted, for then the command ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def handle(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        if count == 1 or count > _PATIENCE:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if not count:
            signal.signal(signal.SIGINT, before)


def kept(key: str, value: Any) -> Any:
    """An entry of the `info` as files have it: short curves, None for infinite makespans."""
    if key in ("curve", "free_curve"):
        return thinned(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value


def run_note(run: Run, bound: float) -> str:
    """How a search is doing, for beside its bar.

    Args:
        run: the search.
        bound: no makespan is below it. [s]
    """
    if run.best is None:
        return ""
    if not np.isfinite(run.makespan):
        return f"nothing fits yet, {format_count(run.evaluations)} evaluations"
    rate = format_count(run.evaluations / max(run.seconds, 1e-9))
    gap = f" (bound +{gap_percent(run.makespan, bound):.1f} %)" if bound > 0 else ""
    return (
        f"{format_seconds(run.makespan)}{gap}, {format_count(run.evaluations)} evaluations, "
        f"{rate}/s"
    )


def gap_percent(makespan: float, bound: float) -> float:
    """How far a makespan is above a bound above 0; rounding alone never puts it below. [%]"""
    return max(0.0, 100 * (makespan / bound - 1))


def format_count(count: float) -> str:
    """Three digits and a unit, for example "1.23 M"; small whole numbers as they are."""
    count = float(f"{count:.3g}") if count >= 1000 else count  # 999999 is 1.00 M
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= scale:
            return f"{count / scale:#.3g}".rstrip(".") + unit
    return f"{count:.0f}"


def thinned(curve: list[Any]) -> list[Any]:
    """At most `MOST_POINTS` points of a curve, first and last among them."""
    if len(curve) <= MOST_POINTS:
        return curve
    return [curve[i] for i in np.linspace(0, len(curve) - 1, MOST_POINTS).round().astype(int)]
