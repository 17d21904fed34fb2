"""The quality part of `scripts/bench_training.py`: learners and searches at equal seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from doppler import Placement, load_problem
from doppler.errors import DopplerError
from doppler.simulator import Simulator
from doppler.training import Callback, Trainer, best_of_samples
from doppler.viz.figure import format_seconds
from envs.sb3 import ActorCritic, sample_episodes
from scripts import train
from scripts.bench_journal import Cell, Journal, is_number
from scripts.bench_methods import Case, Method, restarted, scheduled
from scripts.bench_schedulers import TIE_FREE
from scripts.best_known import BestKnown, entry_key
from scripts.learners import AS_PUBLISHED, build_learner, learner_config
from scripts.progress import ProgressDisplay

GRAPHS = {
    "chainmm": "ChainMM",
    "ffnn": "FFNN",
    "llama_block": "Llama-block",
    "llama_layer": "Llama-layer",
}
"""Names on the command line, and in tables and `TIE_FREE`."""
SAMPLES = 64
"""Episodes of the trained policy, the best of which is what it finds alone."""
CURVE_POINTS = 200
"""Of a learning curve are kept in the journal."""
PILOT_UPDATES = 40
"""Of each stage tell how fast a learner is."""
IMITATION_SHARE = 0.2
"""Most of the seconds that imitation has."""
RESTARTED, ANNEALING = "critical path, restarted", "annealing"


@dataclass(frozen=True)
class Settings:
    """What a run is asked for; see `scripts/bench_training.py`.

    Args:
        folder: of the tie-free published graphs.
        graphs: some of `GRAPHS`.
        learners: some of `scripts.learners.LEARNERS`.
        searches: whether critical path and annealing have rows.
        choose: the simulator's rule, fifo or given.
        seconds: of each training and each search. [s]
        seeds: runs of each.
    """

    folder: Path
    graphs: tuple[str, ...]
    learners: tuple[str, ...]
    searches: bool
    choose: str
    seconds: float
    seeds: int

    def path(self, graph: str) -> Path:
        return self.folder / TIE_FREE[GRAPHS[graph]][0]

    def case(self, graph: str) -> Case:
        """A graph with the best makespan known when the targets were set."""
        title = GRAPHS[graph]
        _, fifo, given = TIE_FREE[title]
        problem = load_problem(self.path(graph), num_devices=4)
        simulator = Simulator(problem, "contention_free", self.choose)
        return Case(title, problem, simulator, fifo if self.choose == "fifo" else given)


@dataclass(frozen=True)
class Contestant:
    """What fills one row of a graph's table.

    Args:
        label: of the row.
        key: tells its cells from those of other contestants and settings.
        run: makes a cell from a seed; told how to show where it stands. It returns what it found
            besides, for the file of best placements.
    """

    label: str
    key: str
    run: Callable[[int, Callable[[str], None]], tuple[Cell, Placement | None]]


class CurveRecorder(Callback):
    """Keeps a learning curve, and shows where training stands.

    Args:
        show: called with a short note after every update.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.rows: list[list[float | None]] = []
        self._show = show

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        best, mean = trainer.state.best_makespan, metrics.get("simulated_makespan_mean", math.nan)
        if math.isfinite(best):
            shown = float(mean) if math.isfinite(mean) else None
            self.rows.append([metrics["seconds"], metrics["episodes"], best, shown])
        found = f"best {format_seconds(best)}" if math.isfinite(best) else "nothing found yet"
        self._show(f"{metrics['seconds']:.0f} s, {found}")


def thinned(rows: list[list[Any]], most: int = CURVE_POINTS) -> list[list[Any]]:
    """At most so many rows, the first and the last among them, denser at the beginning."""
    picked = np.unique(np.geomspace(1, len(rows), most).round().astype(int)) if rows else ()
    return [[x if x is None else float(f"{x:.6g}") for x in rows[i - 1]] for i in picked]


def usable(cell: Cell) -> bool:
    """Whether a journal's cell is one of ours, whole; `best` and `policy` may be null."""
    if "refused" in cell:
        return True
    if "pace" in cell:
        return isinstance(cell["pace"], dict) and all(map(is_number, cell["pace"].values()))
    numbers = [cell.get(name) for name in ("episodes", "seconds")]
    numbers += [cell.get(name, "") for name in ("best", "policy") if cell.get(name, "") is not None]
    return all(map(is_number, numbers)) and isinstance(cell.get("curve"), list)


def contestants(
    graph: str, settings: Settings, journal: Journal, display: ProgressDisplay
) -> list[Contestant]:
    """The rows of a graph's table, learners first.

    Raises:
        ConfigurationError: a learner that is unknown or whose configuration does not exist.
        FileFormatError: the graph cannot be read.
    """
    case = settings.case(graph)
    problem = sha256(entry_key(case.problem, case.simulator).encode()).hexdigest()[:8]
    head = f"quality/{case.name}/{problem}/{settings.choose}/{settings.seconds:g} s"
    found = []
    for name in settings.learners:
        config = learner_config(name, settings.path(graph), settings.choose, 0, settings.seconds)
        key = f"{head}/{name}/{config_digest(config)}"
        pace = partial(paced, name, config, settings.seconds, key, journal, display)
        found.append(Contestant(name, key, partial(run_learner, name, pace, display)))
    if settings.searches:
        methods: dict[str, Method] = {
            RESTARTED: partial(restarted, settings.seconds),
            ANNEALING: partial(scheduled, "annealing", {"budget_s": settings.seconds}),
        }
        for label, method in methods.items():
            run = partial(run_search, partial(method, case))
            found.append(Contestant(label, f"{head}/{label}", run))
    return found


def config_digest(config: DictConfig) -> str:
    """Tells learners with other settings of policy or stages apart."""
    names = ["policy", "stages", *config.stages]
    settings = {name: OmegaConf.to_container(config[name], resolve=True) for name in names}
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def run_graph(
    graph: str,
    settings: Settings,
    journal: Journal,
    known: BestKnown,
    display: ProgressDisplay,
) -> dict[str, list[Cell]]:
    """All cells of a graph by row; what the journal has is not run again."""
    case, found = settings.case(graph), contestants(graph, settings, journal, display)
    before = known.makespan(case.problem, case.simulator) or case.reference
    cells: dict[str, list[Cell]] = {}
    name = f"{case.name}, {settings.choose}"
    with display.step(name, len(found) * settings.seeds) as advance:
        for seed in range(settings.seeds):  # all rows have a first seed early
            for contestant in found:
                done = sum(map(len, cells.values()))
                what = f"{contestant.label}, seed {seed}"
                advance(done, what)
                key = f"{contestant.key}/{seed}"
                cell = journal.cells.get(key)
                if cell is None:
                    values, placement = contestant.run(seed, note(advance, done, what))
                    if placement is not None:
                        known.offer(case.problem, case.simulator, placement)
                    cell = journal.add(key, **values)
                cells.setdefault(contestant.label, []).append(cell)
        advance(len(found) * settings.seeds, "")
    after = known.makespan(case.problem, case.simulator)
    if after is not None and after < before * (1 - 1e-9):
        display.console.print(
            f"{name}: {after:.9g} s, better than the best known {before:.9g} s; kept in "
            f"{known.path.name}",
            highlight=False,
            soft_wrap=True,
        )
    return cells


def note(advance: Callable[[int, str], None], done: int, what: str) -> Callable[[str], None]:
    """Shows where one cell stands, beside the bar of all."""
    return lambda text: advance(done, f"{what}: {text}")


def paced(
    name: str,
    config: DictConfig,
    seconds: float,
    key: str,
    journal: Journal,
    display: ProgressDisplay,
) -> DictConfig:
    """A learner's configuration with stages as long as the seconds let them be.

    Learning rates and searches follow schedules over a stage's episodes, which are to end with the
    seconds. How many that are, a short run of each stage tells, once per graph; imitation is at
    most as long as configured. Learners of `AS_PUBLISHED` stay as they are.
    """
    config, key = config.copy(), f"{key}/pace"
    if name in AS_PUBLISHED:
        return config
    stages, cell = list(config.stages), journal.cells.get(key)
    if cell is None:
        rates = {stage: pilot_rate(config, stage, seconds / 4, display) for stage in stages}
        cell = journal.add(key, pace=rates)
        _warm.add(name)
    left = seconds
    for stage in stages:
        rate, own = cell["pace"][stage], config[stage].episodes
        part = IMITATION_SHARE * seconds if stage == "imitation" else left
        episodes = max(int(rate * part), config[stage].batch_size)
        config[stage].episodes = min(own, episodes) if stage == "imitation" else episodes
        left -= config[stage].episodes / rate
    return config


def pilot_rate(
    config: DictConfig, stage: str, most_seconds: float, display: ProgressDisplay
) -> float:
    """Episodes a second of a stage whose whole schedule is short, after one update for warmth."""
    single = config.copy()
    single.stages = [stage]
    rate = 0.0
    for updates, budget in ((1, 1e-6), (PILOT_UPDATES, most_seconds)):
        single.budget_s = budget
        single[stage].episodes = updates * config[stage].batch_size
        result = train.make_trainer(build_learner(single, display), []).fit()
        rate = result.episodes / max(result.seconds, 1e-9)
    return rate


def run_learner(
    name: str,
    pace: Callable[[], DictConfig],
    display: ProgressDisplay,
    seed: int,
    show: Callable[[str], None],
) -> tuple[Cell, Placement | None]:
    """Trains once and lets the policy alone try; a training that fails leaves the reason."""
    show("how fast is it?")
    curve = CurveRecorder(show)
    try:
        config = pace()
        config.seed = seed
        if name not in _warm:
            warm_up(config, display)
            _warm.add(name)
        run = build_learner(config, display)
        trainer = train.make_trainer(run, [curve])
        result = trainer.fit()
        alone = policy_alone(run, trainer, seed)
    except DopplerError as error:
        return {"refused": str(error)}, None
    best, found = None, result.simulated
    if found is not None:
        best = float(found.info["simulated_makespan"])
        found = replace(found, info={"scheduler": f"learner {name}"})
        curve.rows.append([result.seconds, result.episodes, best, None])
    return {
        "best": best,
        "policy": alone,
        "episodes": result.episodes,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "schedule": {stage: config[stage].episodes for stage in config.stages},
        "curve": thinned(curve.rows),
    }, found


_warm: set[str] = set()
"""Learners whose kernels this process has used, so that none pays for loading them."""


def warm_up(config: DictConfig, display: ProgressDisplay) -> None:
    """One update of every stage, each with a policy of its own."""
    for stage in config.stages:
        single = config.copy()
        single.stages, single.budget_s = [stage], 1e-6
        train.make_trainer(build_learner(single, display), []).fit()


def policy_alone(run: train.Run, trainer: Trainer, seed: int) -> float | None:
    """Best makespan of `SAMPLES` sampled episodes, no search; None where none fits. [s]"""
    objective, rng = run.setup.training_objective(), np.random.default_rng([seed, SAMPLES])
    problem, network, policy = trainer.problem, trainer.network, trainer.policy
    with one_torch_thread():
        if isinstance(policy, ActorCritic):
            batch = sample_episodes(policy, problem, network, SAMPLES, rng)
            best = float(objective(batch.placements, batch.ops).min())
            return best if math.isfinite(best) else None
        found = best_of_samples(policy, problem, objective, rng, samples=SAMPLES, network=network)
    return None if found is None else float(found.info["simulated_makespan"])


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """The heads' products are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_search(
    method: Callable[[int], Placement], seed: int, show: Callable[[str], None]
) -> tuple[Cell, Placement | None]:
    """Runs a scheduler once; one that cannot leaves the reason."""
    try:
        placement = method(seed)
    except DopplerError as error:
        return {"refused": str(error)}, None
    info = placement.info
    best, spent = float(info["simulated_makespan"]), [info["seconds"], info["evaluations"]]
    points = [[*point, None] for point in info["curve"]]
    return {
        "best": best,
        "policy": None,
        "episodes": info["evaluations"],
        "evaluations": info["evaluations"],
        "seconds": info["seconds"],
        "curve": thinned([*points, [*spent, best, None]]),
    }, placement
