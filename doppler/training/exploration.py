"""Rates placements against the incumbent, executing only those that are worth it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.errors import CheckpointError
from doppler.schedule import Placement
from doppler.simulator import Simulator
from doppler.training.journal import JOURNAL_NAME, MeasurementJournal
from doppler.training.measuring import RECENT, Measuring
from doppler.training.racing import log_ratio, race
from doppler.training.recalibration import CostFactors, CostRecalibration
from doppler.training.regret import brake
from doppler.training.sequential_test import SequentialTest
from doppler.training.shadow import Known, Margin, placement_key, shadow_margin

if TYPE_CHECKING:
    from doppler.training.real_rl import RealRL
    from doppler.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Rated:
    """What is known of a batch of candidates.

    Args:
        log_ratios: of makespans to the incumbent's, measured where they were executed now or
            before, else predicted; infinite where a placement cannot run. # (rows,)
        known: what was measured of each row, None where it never was. # (rows,)
        executed: how many different placements were run now.
        skipped: how many rows were only simulated.
        margin: that decided.
        noise: deviation of one paired log ratio.
    """

    log_ratios: np.ndarray
    known: list[Known | None]
    executed: int
    skipped: int
    margin: Margin
    noise: float


class Explorer:
    """Measures in rounds and keeps the accounts in `trainer.state.measuring`.

    Args:
        trainer: with a measured objective.
        stage: what may be executed.
    """

    def __init__(self, trainer: Trainer, stage: RealRL) -> None:
        self.trainer = trainer
        self.stage = stage
        measured = trainer.measured
        assert measured is not None
        rules = dict(getattr(measured, "rules", {}))
        # What an objective of unknown rules does with the order is unknown, so it counts.
        self.ordered = rules.get("choose", "given") == "given"
        self._rules: dict[str, Any] = {"network": trainer.network, **rules}
        self._first = Simulator(trainer.problem, **self._rules)
        self._recalibration: CostRecalibration | None = None
        if stage.recalibration > 0:
            signatures = getattr(measured, "signatures", None)
            self._recalibration = CostRecalibration(
                trainer.problem, signatures, stage.recalibration
            )
        summarise = None if self._recalibration is None else self._recalibration.summarise
        path = None if trainer.folder is None else trainer.folder / JOURNAL_NAME
        self.journal = MeasurementJournal(path, measured, summarise)

    @property
    def measuring(self) -> Measuring:
        assert self.trainer.state.measuring is not None
        return self.trainer.state.measuring

    @property
    def incumbent(self) -> Placement:
        assert self.trainer.state.incumbent is not None
        return self.trainer.state.incumbent

    @property
    def incumbent_median(self) -> float:
        """Of its last runs. [s]"""
        return float(np.median(self.measuring.incumbent_runs))

    def begin(self) -> None:
        """Forgets everything, for a new stage."""
        recalibration = self._recalibration
        factors = None if recalibration is None else CostFactors.ones(recalibration.num_groups)
        self.trainer.state.measuring = Measuring(factors=factors)

    def check(self) -> None:
        """Raises `CheckpointError` unless all that `begin` makes was restored, and fits."""
        state = self.trainer.state
        for label in ("initial", "incumbent"):
            placement = getattr(state, label)
            if placement is None or placement.order is None:
                raise CheckpointError(f"state.{label}: no placement with its order")
        if state.measuring is None:
            raise CheckpointError("state.measuring: is missing")
        factors, recalibration = state.measuring.factors, self._recalibration
        groups = 0 if recalibration is None else recalibration.num_groups
        if (0 if factors is None else len(factors.ops)) != groups:
            raise CheckpointError(
                f"state.measuring.factors: not of the {groups} groups of equal ops of this problem"
            )

    def close(self) -> None:
        self.journal.close()

    def rate(self, candidates: Sequence[Placement], others: Sequence[Placement] = ()) -> Rated:
        """Compares placements with the incumbent, by simulation and, where worth it, in a race.

        Args:
            candidates: sampled ones.
            others: worth looking at besides; rated behind them, not counted as skipped or known.
        """
        measuring = self.measuring
        if not measuring.incumbent_runs:
            self._measure_incumbent(self.stage.repeats)
        placements = [*candidates, *others]
        keys = [placement_key(placement, self.ordered) for placement in placements]
        own = placement_key(self.incumbent, self.ordered)
        simulator = self.simulator()
        margin, predicted = self._predict(simulator, placements)
        noise = measuring.noise.sigma
        rows = self._worth_executing(keys, own, predicted, margin)
        if rows:
            self._race(simulator, [placements[row] for row in rows], [keys[row] for row in rows])
        else:
            # Keeps up with the machine's drift, and lets the regret recover as service goes on.
            self._measure_incumbent(1)
        entries = [None if key == own else measuring.ledger.entries.get(key) for key in keys]
        log_ratios = np.log(predicted)
        for row, known in enumerate(entries):
            if known is not None:
                log_ratios[row] = known.log_ratio
            elif keys[row] == own:
                log_ratios[row] = 0.0
        count = len(candidates)
        skipped = sum(k is None and key != own for k, key in zip(entries[:count], keys))
        measuring.counts.idle = 0 if rows else measuring.counts.idle + 1
        measuring.counts.executed += len(rows)
        measuring.counts.skipped += skipped
        measuring.counts.known += count - skipped - sum(row < count for row in rows)
        return Rated(log_ratios, entries, len(rows), skipped, margin, noise)

    def _predict(
        self, simulator: Simulator, placements: Sequence[Placement]
    ) -> tuple[Margin, np.ndarray]:
        """The margin, and the predicted ratios to the incumbent's makespan. # (rows,)"""
        measuring = self.measuring
        simulated = self._simulate(simulator, [self.incumbent, *placements])
        margin = shadow_margin(
            self._log_errors(simulator, simulated[0]),
            self.stage.shadow_margin,
            brake(measuring.regret, self.stage.regret_limit),
            measuring.counts.idle,
        )
        return margin, margin.predicted(_ratios(simulated[1:], simulated[0]))

    def _worth_executing(
        self, keys: Sequence[str], own: str, predicted: np.ndarray, margin: Margin
    ) -> list[int]:
        """Rows to execute: never executed, within the margin, of these the best predicted."""
        new: dict[str, int] = {}
        for row in np.argsort(predicted, kind="stable").tolist():
            if not predicted[row] <= 1.0 + margin.width or len(new) >= self.stage.executed:
                break
            if keys[row] != own and keys[row] not in self.measuring.ledger.entries:
                new.setdefault(keys[row], row)
        return sorted(new.values())

    def challenge(self, challenger: Known) -> bool:
        """Lets a placement meet the incumbent until a sequential test is sure; see there."""
        challenger.challenged = True
        test = SequentialTest(1.0 - self.stage.confidence, self.stage.confirm_repeats)
        pair = [self.incumbent, challenger.placement]
        runs: list[np.ndarray] = []
        while test.open:
            seconds = self.round(pair, "challenge")
            test.add(float(seconds[1]), float(seconds[0]))
            runs.append(seconds)
        seconds = np.array(runs)
        ratios = [log_ratio(new, old) for old, new in runs]
        challenger.log_ratios.extend(ratios)
        self._account(seconds[:, 0], [seconds[:, 1]])
        if test.better:
            self._replace(challenger, seconds[:, 1], float(np.median(ratios)))
        return test.better

    def round(self, placements: Sequence[Placement], purpose: str) -> np.ndarray:
        """One run of each, in a shuffled sequence. # (rows,) [s]"""
        state = self.trainer.state
        devices = np.stack([placement.devices for placement in placements])
        orders = np.stack([placement.order for placement in placements])  # type: ignore[misc]
        sequence = self.trainer.rng.permutation(len(placements))
        measured = self.journal.round(
            state.measured_rounds,
            devices[sequence],
            orders[sequence],
            stage=self.stage.name,
            update=state.update,
            purpose=purpose,
        )
        state.measured_rounds += 1
        factors = self.measuring.factors
        if self._recalibration is not None and factors is not None:
            for trace in measured.traces or ():
                self._recalibration.observe(factors, trace)
        seconds = np.empty(len(placements))
        seconds[sequence] = measured.makespans
        return seconds

    def simulator(self) -> Simulator:
        """With the costs as they are known now."""
        factors = self.measuring.factors
        if self._recalibration is None or factors is None or not any(factors.op_runs):
            return self._first
        return Simulator(self._recalibration.recalibrated(factors), **self._rules)

    def _race(self, simulator: Simulator, candidates: list[Placement], keys: Sequence[str]) -> None:
        """Executes candidates that were never executed; `simulator` knows nothing of it yet."""
        measuring = self.measuring

        def measure(active: list[int]) -> np.ndarray:
            return self.round([self.incumbent, *(candidates[i] for i in active)], "candidates")

        raced = race(measure, len(candidates), self.stage.repeats, measuring.noise.sigma)
        measuring.noise.add(raced.log_ratios)
        self._account(raced.incumbent, raced.candidates)
        self._compare(
            simulator, [self.incumbent, *candidates], [raced.incumbent, *raced.candidates]
        )
        for placement, key, ratios in zip(candidates, keys, raced.log_ratios, strict=True):
            measuring.ledger.add(key, placement, ratios.tolist())

    def _measure_incumbent(self, repeats: int) -> None:
        rounds = [self.round([self.incumbent], "incumbent") for _ in range(repeats)]
        self._account(np.concatenate(rounds), [])

    def _account(self, incumbent: np.ndarray, others: Sequence[np.ndarray]) -> None:
        """Takes runs that were made together into the regret."""
        measuring = self.measuring
        measuring.incumbent_runs = [*measuring.incumbent_runs, *incumbent.tolist()][-RECENT:]
        measuring.regret.add(incumbent, others, self.incumbent_median)

    def _replace(self, challenger: Known, runs: np.ndarray, log_ratio_to_old: float) -> None:
        """Makes a challenger the incumbent, and the incumbent one of the known placements."""
        state, measuring, old = self.trainer.state, self.measuring, self.incumbent
        entries = measuring.ledger.entries
        entries.pop(placement_key(challenger.placement, self.ordered), None)
        measuring.ledger.rebase(log_ratio_to_old)
        key = placement_key(old, self.ordered)
        measuring.ledger.add(key, old, [-log_ratio_to_old]).challenged = True
        state.incumbent = Placement(
            challenger.placement.devices,
            challenger.placement.order,
            {"measured_makespan": float(np.median(runs))},
        )
        measuring.incumbent_runs = runs.tolist()[-RECENT:]
        measuring.counts.replaced += 1

    def _compare(
        self, before: Simulator, placements: list[Placement], runs: Sequence[np.ndarray]
    ) -> None:
        """Adds the simulators' errors on what was just measured; neither knew of it."""
        medians = np.array([np.median(seconds) for seconds in runs])
        good = np.isfinite(medians) & (medians > 0)
        counts = self.measuring.counts
        counts.compared += int(good.sum())
        for simulator, label in ((before, "error"), (self._first, "first_error")):
            errors = np.abs(self._simulate(simulator, placements)[good] / medians[good] - 1.0)
            setattr(counts, label, getattr(counts, label) + float(errors.sum()))

    def _log_errors(self, simulator: Simulator, incumbent: float) -> np.ndarray:
        """Log of (measured ratio / simulated ratio) of known placements. # (placements,)"""
        known = self.measuring.ledger.entries.values()
        rows = [(row.placement, row.log_ratio) for row in known if math.isfinite(row.log_ratio)]
        if not rows:
            return np.zeros(0)
        placements, measured = zip(*rows, strict=True)
        simulated = self._simulate(simulator, placements)
        errors = np.array(measured) - np.log(_ratios(simulated, incumbent))
        return errors[np.isfinite(errors)]

    def _simulate(self, simulator: Simulator, placements: Sequence[Placement]) -> np.ndarray:
        """Simulated makespans. # (placements,) [s]"""
        devices = np.stack([placement.devices for placement in placements])
        orders: Any = None
        if simulator.choose == "given":
            orders = np.stack([placement.order for placement in placements])  # type: ignore[misc]
        return simulator.makespans(devices, orders)


def _ratios(seconds: np.ndarray, incumbent: float) -> np.ndarray:
    """Ratios of makespans, all above 0; an incumbent that cannot run counts as very slow."""
    least, most = 1e-12, 1e12
    return np.maximum(seconds, least) / min(max(incumbent, least), most)
