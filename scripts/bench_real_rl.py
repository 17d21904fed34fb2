"""Measures what fine-tuning on real devices costs, and what it gains.

python scripts/bench_real_rl.py                                  # two CPU devices, ten minutes
python scripts/bench_real_rl.py --workloads ffnn --executions 100 --initial critical_path

Each workload is calibrated, a policy is trained by imitation and in the simulator, and then on the
devices until so many executions are made. The stage begins with the best placement of the simulator
(what a careful user would serve) or with a critical-path placement (what a user without a policy
would serve). Afterwards the initial and the final placement are measured afresh, in interleaved
rounds of which training knows nothing. Finished workloads are kept in a journal.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler import Placement
from doppler.executor import CpuExecutor, calibrate
from doppler.files import write_text_atomically
from doppler.policies import DualPolicy
from doppler.schedulers import make_scheduler
from doppler.simulator import Simulator
from doppler.training import (
    Callback,
    Imitation,
    RealRL,
    SimRL,
    Trainer,
    measured_objective,
    simulated_objective,
)
from doppler.training.sequential_test import sign_test
from doppler.workloads import make_workload
from scripts.bench_journal import Cell, Journal, is_number
from scripts.bench_simulator import machine
from scripts.progress import Advance, ProgressDisplay

WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
INITIAL = ("simulated", "critical_path")
ROOT = Path(__file__).resolve().parents[1]
MOST_EPISODES = 100_000
"""Of the last stage, which ends by executions; its learning rate hardly falls then."""
MEAN_REGRET, WORST_REGRET = 0.05, 0.25
"""Targets: what exploring adds to the mean execution, and the worst median of a placement after the
first ten. Noise alone gives the incumbent's own runs a regret, which no exploration pays."""
LIKELY = 0.05
"""A fresh measurement calls the final placement slower if chance does so less often."""


@dataclass(frozen=True)
class Settings:
    """What a run is asked for; see `main`."""

    executions: int
    initial: str
    repeats: int
    sim_episodes: int
    seed: int


class Watch(Callback):
    """Shows how far a stage is, and keeps the last metrics."""

    def __init__(self, advance: Advance, executions: int) -> None:
        self.metrics: dict[str, Any] = {}
        self._advance = advance
        self._executions = executions

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        done = int(metrics.get("executions", 0))
        if "executions" in metrics:
            self.metrics = metrics
        self._advance(min(done, self._executions), metrics["stage"])


def fine_tune(name: str, settings: Settings, display: ProgressDisplay) -> dict[str, Any]:
    """Calibrates, trains, fine-tunes and measures one workload.

    Raises:
        DopplerError: the executor cannot run it.
    """
    workload = make_workload(name, scale="host")
    with display.step(f"calibration of {name}", 100) as advance:
        profile = calibrate(
            workload, 2, seed=settings.seed, progress=lambda n, of: advance(100 * n // of, "")
        )
    topology = profile.topology()
    problem = workload.problem(topology, profile.cost_model(workload, topology))
    simulator = Simulator(problem)
    incumbent = None
    if settings.initial == "critical_path":
        rng = np.random.default_rng(settings.seed)
        incumbent = make_scheduler("critical_path").schedule(problem, simulator, rng)
    stages = [
        Imitation(episodes=max(settings.sim_episodes // 4, 1)),
        SimRL(episodes=settings.sim_episodes),
        RealRL(episodes=MOST_EPISODES, budget_executions=settings.executions, incumbent=incumbent),
    ]
    with (
        CpuExecutor(workload, 2) as executor,
        display.step(f"{name}, executions", settings.executions) as advance,
    ):
        watch = Watch(advance, settings.executions)
        trainer = Trainer(
            problem,
            DualPolicy(seed=settings.seed),
            stages,
            simulated=simulated_objective(simulator),
            measured=measured_objective(executor),
            seed=settings.seed,
            callbacks=[watch],
        )
        result = trainer.fit()
        initial, final = trainer.state.initial, result.measured
        assert initial is not None and final is not None
        fresh = executor.measure([initial, final], repeats=settings.repeats, warmup=2)
    report = result.stages["real_rl"]
    return {
        **{key: value for key, value in report.items() if is_number(value)},
        "kept": same(initial, final),
        "initial_fresh": fresh[0].makespans.tolist(),
        "final_fresh": fresh[1].makespans.tolist(),
    }


def same(one: Placement, other: Placement) -> bool:
    """Whether two placements run alike under `fifo`."""
    return bool(np.array_equal(one.devices, other.devices))


def usable(cell: Cell) -> bool:
    """Whether a journal's cell is whole."""
    regrets = ("regret_mean", "regret_added", "regret_incumbent", "regret_worst")
    numbers = ("executions", *regrets)
    runs = [cell.get(name) for name in ("initial_fresh", "final_fresh")]
    return (
        all(is_number(cell.get(name)) for name in numbers)
        and isinstance(cell.get("kept"), bool)
        and all(isinstance(row, list) and row and all(map(is_number, row)) for row in runs)
    )


HEADER = [
    "workload",
    "executions",
    "placements",
    "regret of a run",
    "of the incumbent's: noise",
    "added by exploring",
    "worst median after 10",
    "initial, afresh",
    "final, afresh",
    "final over initial: median [quartiles]",
    "never slower",
]


def table_row(name: str, cell: Cell) -> list[str]:
    """One workload's results beside their targets."""
    initial, final = np.array(cell["initial_fresh"]), np.array(cell["final_fresh"])
    low, middle, high = np.percentile(final / initial, [25, 50, 75])
    return [
        name,
        f"{cell['executions']:.0f}",
        f"{cell.get('placements_executed', 0):.0f}",
        f"{cell['regret_mean']:.1%}",
        f"{cell['regret_incumbent']:.1%}",
        verdict(cell["regret_added"], MEAN_REGRET),
        verdict(cell["regret_worst"], WORST_REGRET),
        f"{1e3 * np.median(initial):.1f} ms",
        f"{1e3 * np.median(final):.1f} ms",
        "kept the initial one" if cell["kept"] else f"{middle:.3f} [{low:.3f}, {high:.3f}]",
        "yes" if cell["kept"] or not slower(initial, final) else "NO",
    ]


def verdict(value: float, target: float) -> str:
    """A value and whether it is within its target; NaN is not."""
    return f"{value:.1%} (<= {target:.0%}: {'met' if value <= target else 'MISSED'})"


def slower(initial: np.ndarray, final: np.ndarray) -> bool:
    """Whether a sign test over paired rounds says that the final placement is slower."""
    decided = int((final != initial).sum())
    lost = int((final > initial).sum())
    return decided > 0 and sign_test(lost, decided) <= LIKELY


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--executions", type=int, default=300, help="of each workload")
    parser.add_argument("--initial", choices=INITIAL, default="simulated", help="placement")
    parser.add_argument("--repeats", type=int, default=31, help="rounds of the fresh measurement")
    parser.add_argument("--sim-episodes", type=int, default=3200, help="of simulated training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="forget finished workloads")
    parser.add_argument("--journal", type=Path, default=ROOT / "runs" / "bench_real_rl.jsonl")
    parser.add_argument("--output", type=Path, help="also write the table here, as Markdown")
    options = parser.parse_args(arguments)
    for label in ("executions", "repeats", "sim_episodes"):
        if getattr(options, label) < 1:
            parser.error(f"--{label.replace('_', '-')} must be 1 or more")
    if options.seed < 0:
        parser.error("--seed must be 0 or more")
    return options


def main(arguments: list[str] | None = None) -> dict[str, Cell]:
    """Measures, prints and returns the results by workload."""
    options = parse(arguments)
    settings = Settings(
        options.executions, options.initial, options.repeats, options.sim_episodes, options.seed
    )
    console = Console(markup=False)
    journal = Journal(options.journal, options.fresh, usable)
    title = f"fine-tuning from the {settings.initial} placement; {machine()}"
    results: dict[str, Cell] = {}
    rows: list[list[str]] = []
    for name in options.workloads:
        key = f"{name}/{settings}"
        cell = journal.cells.get(key)
        if cell is None:
            cell = journal.add(key, **fine_tune(name, settings, ProgressDisplay(console)))
        results[name] = cell
        rows.append(table_row(name, cell))
        if options.output is not None:
            lines = [HEADER, ["---"] * len(HEADER), *rows]
            text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            write_text_atomically(options.output, f"{text}\n\n{title}\n")
    table = Table(*HEADER, title=title)
    for row in rows:
        table.add_row(*row)
    wide = console if console.is_terminal else Console(file=console.file, width=200)
    wide.print(table)
    return results


if __name__ == "__main__":
    main()
