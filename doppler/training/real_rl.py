"""Stage III: the same update with measured makespans, around an incumbent that is never lost.

Measurements are noisy and drift. So everything is compared within rounds: a round runs the
incumbent and all candidates once, in a shuffled sequence; medians over the same rounds decide. A
candidate that looks better is measured again, against the incumbent alone, and replaces it only if
it wins there too. At the end the final incumbent meets the placement that the stage started from,
and unless the final one wins, the stage returns what it started from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from doppler.errors import ConfigurationError
from doppler.schedule import Placement
from doppler.training.journal import JOURNAL_NAME, MeasurementJournal
from doppler.training.likelihood import LossWeights, accumulate_gradient
from doppler.training.rollout import EpisodeRunner
from doppler.training.stage import ReinforceStage

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer


@dataclass
class RealRL(ReinforceStage):
    """REINFORCE on measured makespans, divided by the incumbent's of the same rounds.

    Args:
        repeats: rounds per update.
        confirm_repeats: rounds in which a challenger meets the incumbent.
        final_repeats: rounds in which the final incumbent meets the initial placement.
        confidence: how sure a sign test over paired rounds must be that a challenger is faster.
        incumbent: what to start from; None for the best placement of the earlier stages, or the
            policy's greedy one.
    """

    episodes: int = 64
    batch_size: int = 4
    learning_rate: float = 1e-4
    final_learning_rate: float = 1e-5
    exploration: float = 0.0
    repeats: int = 3
    confirm_repeats: int = 9
    final_repeats: int = 15
    confidence: float = 0.9
    incumbent: Placement | None = None

    name: ClassVar[str] = "real_rl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("repeats", "confirm_repeats", "final_repeats")
        self.require_number("confidence", least=0.5)
        self.require(self.confidence < 1.0, "confidence", "in [0.5, 1)")

    def prepare(self, trainer: Trainer) -> None:
        if trainer.measured is None:
            raise ConfigurationError("stage real_rl: the trainer was given no measured objective")
        self._runner = EpisodeRunner(
            trainer.policy, trainer.problem, trainer.network, self.batch_size
        )
        path = None if trainer.folder is None else trainer.folder / JOURNAL_NAME
        self._journal = MeasurementJournal(path, trainer.measured)

    def start(self, trainer: Trainer) -> None:
        start = self.incumbent or trainer.state.best() or self._greedy(trainer)
        problem = trainer.problem
        order = problem.graph.topological_order if start.order is None else start.order
        trainer.state.initial = Placement(
            problem.check_placement(start.devices), problem.check_order(order), dict(start.info)
        )
        trainer.state.incumbent = trainer.state.initial

    def update(self, trainer: Trainer) -> dict[str, Any]:
        state = trainer.state
        exploration = self.scheduled(self.exploration, self.final_exploration, state.update)
        tables = trainer.policy.encode(self._runner.features)
        batch = self._runner.run(trainer.rng, exploration=exploration, tables=tables)
        incumbent = _known(state.incumbent)
        candidates = [Placement(*row) for row in zip(batch.placements, batch.ops)]
        runs = self._rounds(trainer, [incumbent, *candidates], self.repeats, "candidates")
        medians = np.median(runs, axis=0)
        weights = self.advantages(trainer, medians[1:] / medians[0])
        report = accumulate_gradient(
            trainer.policy,
            self._runner.features,
            batch,
            LossWeights(weights, self.sel_entropy, self.plc_entropy),
            tables=tables,
        )
        stepped = self.step(trainer, report.loss)
        best = int(np.argmin(medians[1:]))
        if medians[1 + best] < medians[0]:
            self._challenge(trainer, candidates[best])
        return {
            "loss": report.loss,
            "entropy_sel": report.sel_entropy,
            "entropy_plc": report.plc_entropy,
            "exploration": exploration,
            "measured_makespan_mean": float(medians[1:].mean()),
            "measured_makespan_min": float(medians[1:].min()),
            "measured_makespan_incumbent": float(medians[0]),
            **stepped,
        }

    def end(self, trainer: Trainer) -> dict[str, Any]:
        """Final incumbent against initial placement; the incumbent is what is returned."""
        state = trainer.state
        initial, final = _known(state.initial), _known(state.incumbent)
        replaced = final is not initial and not (
            np.array_equal(final.devices, initial.devices)
            and np.array_equal(final.order, initial.order)  # type: ignore[arg-type]
        )
        kept = [initial, final] if replaced else [initial]
        medians = np.median(self._rounds(trainer, kept, self.final_repeats, "final"), axis=0)
        better = bool(replaced and medians[-1] < medians[0])
        chosen = final if better else initial
        makespan = float(medians[-1] if better else medians[0])
        state.incumbent = Placement(
            chosen.devices, chosen.order, {**chosen.info, "measured_makespan": makespan}
        )
        return {
            "improved": better,
            "initial_measured_makespan": float(medians[0]),
            "final_measured_makespan": makespan,
            "measured_rounds": state.measured_rounds,
        }

    def close(self) -> None:
        journal = getattr(self, "_journal", None)
        if journal is not None:
            journal.close()

    def _challenge(self, trainer: Trainer, challenger: Placement) -> None:
        state = trainer.state
        pair = [_known(state.incumbent), challenger]
        runs = self._rounds(trainer, pair, self.confirm_repeats, "challenge")
        medians = np.median(runs, axis=0)
        wins = int((runs[:, 1] < runs[:, 0]).sum())
        decided = int((runs[:, 1] != runs[:, 0]).sum())
        if decided == 0 or medians[1] >= medians[0]:
            return
        if sign_test(wins, decided) <= 1.0 - self.confidence:
            state.incumbent = Placement(
                challenger.devices,
                challenger.order,
                {"measured_makespan": float(medians[1])},
            )

    def _rounds(
        self, trainer: Trainer, placements: list[Placement], repeats: int, purpose: str
    ) -> np.ndarray:
        """Measured makespans, each round in its own shuffled sequence. # (repeats, rows) [s]"""
        devices = np.stack([placement.devices for placement in placements])
        orders = np.stack([placement.order for placement in placements])  # type: ignore[misc]
        runs = np.empty((repeats, len(placements)))
        for row in range(repeats):
            sequence = trainer.rng.permutation(len(placements))
            runs[row, sequence] = self._journal.measure(
                trainer.state.measured_rounds,
                devices[sequence],
                orders[sequence],
                stage=self.name,
                update=trainer.state.update,
                purpose=purpose,
            )
            trainer.state.measured_rounds += 1
        return runs

    def _greedy(self, trainer: Trainer) -> Placement:
        runner = EpisodeRunner(trainer.policy, trainer.problem, trainer.network, 1)
        batch = runner.run(trainer.rng, greedy=True, record=False)
        return Placement(batch.placements[0], batch.ops[0])


def sign_test(wins: int, trials: int) -> float:
    """Chance of at least so many wins if either side wins with probability 1/2."""
    return sum(math.comb(trials, k) for k in range(wins, trials + 1)) / 2**trials


def _known(placement: Placement | None) -> Placement:
    if placement is None:
        raise RuntimeError("real_rl was not started")
    return placement
