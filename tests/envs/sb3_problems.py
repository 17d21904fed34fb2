"""Tiny problems and trainers for the tests of the Stable-Baselines3 stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem import PlacementProblem
from doppler.simulator import Simulator
from doppler.training import Callback, Checkpoints, Trainer, simulated_objective
from envs.sb3 import PPO, ActorCritic, ActorCriticConfig, MaskablePPO

OPTIMUM = 9.0
"""Of `six_ops`; see there. [s]"""
SMALL = ActorCriticConfig(hidden_width=16, message_rounds=2, head_width=16)
STAGES = {"maskable_ppo": MaskablePPO, "sb3_ppo": PPO}


def six_ops(**rules: Any) -> PlacementProblem:
    r"""Two chains that meet: 0 -> 2 -> 4 -> 5 and 1 -> 3 -> 5; moving a tensor takes 2 s.

    Seconds 3, 2, 3, 4, 1, 1 on either of two devices. With a chain per device, and op 5 after the
    first one, ops 0, 2, 4 run until 7, op 3's output arrives at 8 and op 5 ends at 9. Op 5 cannot
    start earlier: on the other device it waits for op 4's output until 9, and whatever leaves a
    chain in between costs 2 s more; on one device everything takes 14 s.
    """
    graph = DataflowGraph.from_edges("six", 6, [(0, 2), (2, 4), (4, 5), (1, 3), (3, 5)])
    seconds = np.array([3.0, 2.0, 3.0, 4.0, 1.0, 1.0])
    costs = CostModel(
        np.repeat(seconds[:, None], 2, axis=1), np.full(6, 2.0), np.zeros(2), np.ones(2), "test"
    )
    return PlacementProblem(graph, make_topology("ideal", 2), costs, **rules)


def constrained() -> PlacementProblem:
    """`six_ops` with op 1 pinned to device 1, and ops 0 and 4 together."""
    return six_ops(pinned=[-1, 1, -1, -1, -1, -1], colocation=[0, -1, -1, -1, 0, -1])


class Recorder(Callback):
    """Keeps the metrics and the learning rates that the optimiser had."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.rates: list[float] = []

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        self.rows.append(dict(metrics))
        self.rates.append(trainer.optimiser.param_groups[0]["lr"])


class StopAfter(Callback):
    """Interrupts after so many updates, as Ctrl-C does."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        if metrics["total_updates"] == self.updates:
            raise KeyboardInterrupt


def make_trainer(
    name: str,
    problem: PlacementProblem | None = None,
    *,
    folder: Path | None = None,
    callbacks: tuple[Callback, ...] = (),
    seed: int = 0,
    network: ActorCritic | None = None,
    **options: Any,
) -> Trainer:
    """A trainer of one stage on `six_ops` or another problem."""
    problem = problem or six_ops()
    simulator = Simulator(problem, network="contention_free")
    settings: dict[str, Any] = {"batch_size": 8, "minibatches": 2, **options}
    return Trainer(
        problem,
        network or ActorCritic(SMALL, seed=0),  # type: ignore[arg-type]
        [STAGES[name](**settings)],
        simulated=simulated_objective(simulator),
        network="contention_free",
        seed=seed,
        callbacks=callbacks,
        checkpoints=None if folder is None else Checkpoints(folder, 2),
    )
