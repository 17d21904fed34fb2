"""Stage III: the same update with measured makespans, around an incumbent that is never lost.

Measurements are noisy and drift. So everything is compared within rounds: a round runs the
incumbent and all candidates once, in a shuffled sequence, and ratios within rounds decide.

- *Shadow exploration.* A sampled placement is executed only if its makespan, simulated relative to
  the incumbent's, is within a margin; others are learnt from by simulation. The margin follows the
  error that the simulator was seen to make, and closes as the regret nears its limit
  (`doppler.training.shadow`). The best placements of the simulated stage are candidates too.
- *Racing.* A placement that is clearly worse leaves its rounds early; one that was executed before
  is not executed again (`doppler.training.racing`).
- *Re-calibration.* The simulator's costs follow the traces of the runs
  (`doppler.training.recalibration`). The policy goes on seeing the original ones.
- *Noise.* A reward is minus the log of the median ratio; advantages are divided by at least the
  noise of such a ratio, so that a batch of equals teaches little.
- *Trust region.* A step after which the policy differs too much is halved until it does not
  (`doppler.training.trust_region`).
- *Replacement.* A candidate that looks better meets the incumbent alone, in rounds that a
  sequential test asks for one by one (`doppler.training.sequential_test`). At the end the final
  incumbent meets the placement that the stage started from, and unless it wins there too, the stage
  returns what it started from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from doppler.errors import ConfigurationError
from doppler.policies.dual_policy import PolicyTables
from doppler.schedule import Placement
from doppler.training.exploration import Explorer, Rated
from doppler.training.likelihood import LossWeights, accumulate_gradient, log_likelihoods
from doppler.training.rollout import RolloutBatch
from doppler.training.runners import make_runner
from doppler.training.sequential_test import sign_test
from doppler.training.shadow import placement_key
from doppler.training.stage import ReinforceStage
from doppler.training.trust_region import backtrack, estimated_kl

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer


@dataclass
class RealRL(ReinforceStage):
    """REINFORCE on measured makespans relative to the incumbent's; safe beside production.

    Args:
        executed: most new placements that are run per update, those of the best predictions. The
            episodes of a batch beyond them cost next to nothing.
        repeats: most rounds in which a new placement is run.
        confirm_repeats: most rounds in which a challenger meets the incumbent.
        final_repeats: rounds in which the final incumbent meets the initial placement.
        confidence: how sure a test must be that a challenger is faster: one that is not replaces
            the incumbent with a probability of at most 1 - confidence.
        kl_limit: most that a step may change the policies: KL(before || after) per decision, SEL's
            and PLC's together, estimated on the choices of the batch.
        shadow_margin: widest margin of simulated makespans over the incumbent's to be executed.
        regret_limit: mean regret of an execution, relative to the incumbent, at which only
            placements are executed that are predicted to be no worse than the incumbent. Of what
            noise alone causes, at most half of the limit counts.
        recalibration: least weight of a new run in the costs of the simulator, below 1; 0 leaves
            them as they were.
        budget_executions: stop after so many executions, with their update; None for no limit.
        incumbent: what to start from; None for the best placement of the earlier stages, or the
            policy's greedy one.
    """

    episodes: int = 256
    batch_size: int = 16
    learning_rate: float = 1e-4
    final_learning_rate: float = 1e-5
    exploration: float = 0.0
    executed: int = 4
    repeats: int = 5
    confirm_repeats: int = 15
    final_repeats: int = 15
    confidence: float = 0.9
    kl_limit: float = 0.01
    shadow_margin: float = 0.1
    regret_limit: float = 0.05
    recalibration: float = 0.1
    budget_executions: int | None = None
    incumbent: Placement | None = None

    name: ClassVar[str] = "real_rl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("executed", "repeats", "confirm_repeats", "final_repeats")
        self.require_number("confidence", least=0.5)
        self.require(self.confidence < 1.0, "confidence", "in [0.5, 1)")
        self.require_number("kl_limit", above=0.0)
        self.require_number("shadow_margin", least=0.0)
        self.require_number("regret_limit", above=0.0)
        self.require_number("recalibration", least=0.0)
        self.require(self.recalibration < 1.0, "recalibration", "in [0, 1)")
        if self.budget_executions is not None:
            self.require_counts("budget_executions")

    def prepare(self, trainer: Trainer) -> None:
        if trainer.measured is None:
            raise ConfigurationError("stage real_rl: the trainer was given no measured objective")
        self._runner = make_runner(
            trainer.policy, trainer.problem, trainer.network, self.batch_size
        )
        self._explorer = Explorer(trainer, self)
        if trainer.state.started:
            self._explorer.check()

    def start(self, trainer: Trainer) -> None:
        start = self.incumbent or trainer.state.best() or self._greedy(trainer)
        problem = trainer.problem
        order = problem.graph.topological_order if start.order is None else start.order
        trainer.state.initial = Placement(
            problem.check_placement(start.devices), problem.check_order(order), dict(start.info)
        )
        trainer.state.incumbent = trainer.state.initial
        self._explorer.begin()

    def update(self, trainer: Trainer) -> dict[str, Any]:
        state, explorer = trainer.state, self._explorer
        exploration = self.scheduled(self.exploration, self.final_exploration, state.update)
        tables = trainer.policy.encode(self._runner.features)
        batch = self._runner.run(trainer.rng, exploration=exploration, tables=tables)
        candidates = [Placement(*row) for row in zip(batch.placements, batch.ops)]
        archive = state.archive
        elites = [Placement(*row) for row in zip(archive.placements, archive.orders)]
        rated = explorer.rate(candidates, elites)
        rewarded = self._learn(trainer, batch, tables, rated)
        incumbent = explorer.incumbent_median
        seconds = incumbent * np.exp(rated.log_ratios)
        self._challenge(rated)
        return {
            **rewarded,
            "exploration": exploration,
            "measured_makespan_incumbent": incumbent,
            **_measured(rated, seconds),
            "placements_executed": rated.executed,
            "placements_skipped": rated.skipped,
            "shadow_margin": rated.margin.width,
            "shadow_error": rated.margin.error,
            "measurement_noise": rated.noise,
            **explorer.measuring.report(),
        }

    def spent(self, trainer: Trainer) -> bool:
        measuring, most = trainer.state.measuring, self.budget_executions
        enough = most is not None and measuring is not None and measuring.regret.executions >= most
        return enough or super().spent(trainer)

    def end(self, trainer: Trainer) -> dict[str, Any]:
        """Final incumbent against initial placement; the incumbent is what is returned."""
        state, explorer = trainer.state, self._explorer
        initial, final = state.initial, explorer.incumbent
        assert initial is not None
        replaced = placement_key(final, True) != placement_key(initial, True)
        kept = [initial, final] if replaced else [initial]
        runs = np.stack([explorer.round(kept, "final") for _ in range(self.final_repeats)])
        medians = np.median(runs, axis=0)
        better = bool(replaced and medians[-1] < medians[0] and self._sure(runs))
        chosen = final if better else initial
        makespan = float(medians[-1] if better else medians[0])
        state.incumbent = Placement(
            chosen.devices, chosen.order, {**chosen.info, "measured_makespan": makespan}
        )
        counts = explorer.measuring.counts
        return {
            "improved": better,
            "initial_measured_makespan": float(medians[0]),
            "final_measured_makespan": makespan,
            "measured_rounds": state.measured_rounds,
            "placements_executed": counts.executed,
            "placements_skipped": counts.skipped,
            "placements_known": counts.known,
            "incumbents": 1 + counts.replaced,
            **explorer.measuring.report(),
        }

    def close(self) -> None:
        explorer = getattr(self, "_explorer", None)
        if explorer is not None:
            explorer.close()

    def _learn(
        self, trainer: Trainer, batch: RolloutBatch, tables: PolicyTables, rated: Rated
    ) -> dict[str, Any]:
        """One step of the optimiser within the trust region."""
        policy, features = trainer.policy, self._runner.features
        log_ratios = bounded(rated.log_ratios[: len(batch.ops)])
        weights = self.advantages(trainer, log_ratios, rated.noise)
        report = accumulate_gradient(
            policy,
            features,
            batch,
            LossWeights(weights, self.sel_entropy, self.plc_entropy),
            tables=tables,
        )
        parameters = list(policy.parameters())
        before = [parameter.detach().clone() for parameter in parameters]
        stepped = self.step(trainer, report.loss)

        def divergence() -> float:
            sel, plc = log_likelihoods(policy, features, batch)
            return estimated_kl(report.sel_log_likelihood, sel) + estimated_kl(
                report.plc_log_likelihood, plc
            )

        scale, kl = backtrack(parameters, before, divergence, self.kl_limit)
        return {
            "loss": report.loss,
            "entropy_sel": report.sel_entropy,
            "entropy_plc": report.plc_entropy,
            "policy_kl": kl,
            "step_scale": scale,
            **stepped,
        }

    def _challenge(self, rated: Rated) -> None:
        """The best that was rated and did not yet meets the incumbent, if it looks better."""
        for row in np.argsort(rated.log_ratios, kind="stable").tolist():
            known = rated.known[row]
            if rated.log_ratios[row] >= 0.0:
                return
            if known is not None and not known.challenged:
                self._explorer.challenge(known)
                return

    def _sure(self, runs: np.ndarray) -> bool:
        """Whether a sign test says that the second column is faster. # (rounds, 2) [s]"""
        wins = int((runs[:, 1] < runs[:, 0]).sum())
        decided = int((runs[:, 1] != runs[:, 0]).sum())
        return decided > 0 and sign_test(wins, decided) <= 1.0 - self.confidence

    def _greedy(self, trainer: Trainer) -> Placement:
        runner = make_runner(trainer.policy, trainer.problem, trainer.network, 1)
        batch = runner.run(trainer.rng, greedy=True, record=False)
        return Placement(batch.placements[0], batch.ops[0])


def _measured(rated: Rated, seconds: np.ndarray) -> dict[str, float]:
    """Makespans of the rows that were measured, in terms of the incumbent's median."""
    rows = [row for row, known in enumerate(rated.known) if known is not None]
    if not rows:
        return {}
    return {
        "measured_makespan_mean": float(seconds[rows].mean()),
        "measured_makespan_min": float(seconds[rows].min()),
    }


def bounded(log_ratios: np.ndarray) -> np.ndarray:
    """Log ratios with infinite ones (placements that cannot run) as twice the worst. # (rows,)"""
    finite = np.isfinite(log_ratios)
    if not finite.any():
        return np.zeros_like(log_ratios)
    return np.where(finite, log_ratios, log_ratios[finite].max() + np.log(2.0))
