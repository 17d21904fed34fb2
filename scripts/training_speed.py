"""The speed part of `scripts/bench_training.py`: episodes a second, seconds an op, memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from hydra.utils import instantiate

from doppler import PlacementProblem, load_problem
from doppler.errors import DopplerError
from doppler.hardware import make_topology
from doppler.policies import DualPolicy
from doppler.simulator import Simulator
from doppler.training import Callback, SimRL, Stage, Trainer, make_runner, simulated_objective
from doppler.workloads import layered_dag, make_workload
from scripts.bench_schedulers import TIE_FREE
from scripts.bench_simulator import Row
from scripts.learners import compose_training
from scripts.progress import ProgressDisplay
from scripts.training_quality import one_torch_thread

NETWORK, NUM_DEVICES = "contention_free", 4
WARM_UPDATES = 3
"""Before anything is counted, so that kernels are loaded."""
BATCHES = 15
"""Values of each rate, each of equally many updates that follow one another."""
ENDLESS = 10**9
"""Episodes of a stage that its seconds end."""
GREEDY_BIG = 3
"""Greedy placements of the large graph."""


@dataclass(frozen=True)
class Settings:
    """What a run is asked for; see `scripts/bench_training.py`.

    Args:
        folder: of the tie-free published graphs.
        seconds: of training for each rate. [s]
        repeats: of each greedy placement of the small graph.
        big_ops: ops of the large random graph.
        big_updates: of training on it.
    """

    folder: Path
    seconds: float
    repeats: int
    big_ops: int
    big_updates: int


class UpdateTimes(Callback):
    """Keeps how long each update took and how many episodes it had."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.episodes: list[int] = []
        self._last = (0.0, 0)

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        now = (metrics["seconds"], metrics["episodes"])
        self.seconds.append(now[0] - self._last[0])
        self.episodes.append(now[1] - self._last[1])
        self._last = now

    def rates(self) -> np.ndarray:
        """Episodes a second over stretches of equally many updates."""
        parts = np.array_split(np.arange(len(self.seconds)), min(BATCHES, len(self.seconds)))
        return np.array(
            [np.take(self.episodes, p).sum() / np.take(self.seconds, p).sum() for p in parts]
        )


def small_problem(folder: Path) -> tuple[str, PlacementProblem]:
    """The published Llama-layer, or our own where it is absent."""
    path = folder / TIE_FREE["Llama-layer"][0]
    if path.is_file():
        problem = load_problem(path, num_devices=NUM_DEVICES)
        return f"Llama-layer ({problem.num_ops} ops)", problem
    problem = make_workload("llama_layer", scale="paper").problem(
        make_topology("v100", NUM_DEVICES)
    )
    return f"own llama_layer ({problem.num_ops} ops)", problem


def learner(*overrides: str) -> tuple[DualPolicy, Stage]:
    """A policy, and the stage of simulated reinforcement learning, as configured."""
    config = compose_training([*overrides, "seed=0"], "speed")
    return instantiate(config.policy), instantiate(config.sim_rl)


def time_updates(policy: DualPolicy, stage: Stage, problem: PlacementProblem) -> UpdateTimes:
    """Trains for one stage, from initial weights."""
    simulator, times = Simulator(problem, NETWORK), UpdateTimes()
    objective = simulated_objective(simulator)
    Trainer(problem, policy, [stage], simulated=objective, network=NETWORK, callbacks=[times]).fit()
    return times


def training_rates(
    policy: DualPolicy, stage: Stage, problem: PlacementProblem, seconds: float
) -> np.ndarray:
    """Episodes a second of some seconds of training, after `WARM_UPDATES` that do not count."""
    time_updates(policy, replace(stage, episodes=WARM_UPDATES * stage.batch_size), problem)
    endless = replace(stage, episodes=ENDLESS, budget_s=seconds)
    return time_updates(policy, endless, problem).rates()


def time_greedy(policy: DualPolicy, problem: PlacementProblem, repeats: int) -> np.ndarray:
    """Seconds from problem to placement: features, encoding and one episode. # (repeats,) [s]"""
    seconds = np.empty(1 + repeats)
    with one_torch_thread():
        for i in range(1 + repeats):
            began = perf_counter()
            runner = make_runner(policy, problem, NETWORK, 1)
            runner.run(np.random.default_rng(0), greedy=True, record=False)
            seconds[i] = perf_counter() - began
    return seconds[1:]


def speed_rows(settings: Settings, display: ProgressDisplay) -> list[Row]:
    """All rows; the large graph first, while this process is small (its peak is inherited).

    Raises:
        DopplerError: a configuration that does not exist, or a process that failed.
    """
    label, problem = small_problem(settings.folder)
    default, paper = learner("policy=doppler"), learner("policy=paper")
    with display.step("speed", 5) as advance:
        advance(0, f"training on {settings.big_ops:,} ops")
        big = measure_in_child(settings)
        advance(1, f"training on {label}")
        rates = training_rates(default[0], unsearched(default[1]), problem, settings.seconds)
        advance(2, f"training on {label}, with searches")
        searching = training_rates(*default, problem, settings.seconds)
        advance(3, f"training the published network on {label}")
        paper_rates = training_rates(paper[0], unsearched(paper[1]), problem, settings.seconds)
        advance(4, f"greedy placements of {label}")
        greedy = time_greedy(default[0], problem, settings.repeats)
        advance(5, "")
    per_op = 1 / (float(np.median(rates)) * problem.num_ops)
    ratios = big.seconds / settings.big_ops / per_op
    large = f"random layers ({settings.big_ops:,} ops)"
    return [
        Row(f"{label}: sim_rl with updates", rates, "episodes/s", 250, False),
        Row("the same, while it searches too", searching, "episodes/s"),
        Row("the same without searches, published network", paper_rates, "episodes/s", 50, False),
        Row(f"{large}: sim_rl with updates", 1 / big.seconds, "episodes/s"),
        Row("the same: seconds an op and episode over those above", ratios, "x", 4),
        Row("the same: peak memory of the process that trains", big.gigabytes, "GB", 4),
        Row(f"{large}: greedy placement", big.greedy, "s", 10),
        Row(f"{label}: greedy placement", 1e3 * greedy, "ms", 60),
    ]


def unsearched(stage: Stage) -> Stage:
    """The stage without searches in its loop: learning alone."""
    assert isinstance(stage, SimRL)
    return replace(stage, polish_every=0)


@dataclass(frozen=True, eq=False)
class BigResults:
    """What the process that trains on the large graph found.

    Args:
        seconds: of training per episode, a value per update. # (updates,) [s]
        gigabytes: peak resident memory, placements not counted. # (1,)
        greedy: of greedy placements. # (repeats,) [s]
    """

    seconds: np.ndarray
    gigabytes: np.ndarray
    greedy: np.ndarray


def measure_in_child(settings: Settings) -> BigResults:
    """Runs `measure_big` in a process of its own for the sake of its memory."""
    numbers = [str(settings.big_ops), str(settings.big_updates)]
    command = [sys.executable, "-m", "scripts.training_speed", *numbers]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if done.returncode:
        reason = (done.stderr.strip() or "killed, for example for want of memory").splitlines()[-1]
        raise DopplerError(
            f"training on {settings.big_ops} ops ended with {done.returncode}: {reason}"
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return BigResults(*(np.array(found[name]) for name in ("seconds", "gigabytes", "greedy")))


def measure_big(num_ops: int, updates: int) -> dict[str, list[float]]:
    """Trains on a random graph, then places it; the first update is not counted."""
    policy, stage = learner("policy=doppler")
    stage = unsearched(stage)
    warm = replace(stage, episodes=WARM_UPDATES * stage.batch_size)
    time_updates(policy, warm, layered_dag(200, NUM_DEVICES))
    problem = layered_dag(num_ops, NUM_DEVICES)
    counted = replace(stage, episodes=(1 + updates) * stage.batch_size)
    times = time_updates(policy, counted, problem)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    seconds = np.divide(times.seconds, times.episodes)[1:]
    greedy = time_greedy(policy, problem, GREEDY_BIG)
    return {"seconds": seconds.tolist(), "gigabytes": [peak], "greedy": greedy.tolist()}


if __name__ == "__main__":
    print(json.dumps(measure_big(int(sys.argv[1]), int(sys.argv[2]))))
