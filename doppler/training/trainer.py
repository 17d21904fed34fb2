"""The trainer: runs the stages, reports to callbacks, writes checkpoints, resumes from them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from doppler.checks import number, whole_number
from doppler.errors import CheckpointError, ConfigurationError
from doppler.policies import Policy
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.training.callbacks import Callback
from doppler.training.checkpoint import load_checkpoint, problem_identity, save_checkpoint
from doppler.training.lock import locked_folder
from doppler.training.objectives import Objective
from doppler.training.restore import restore
from doppler.training.runners import make_runner
from doppler.training.stage import Stage
from doppler.training.state import TrainingState

CHECKPOINT_NAME = "checkpoint.pt"


@dataclass(frozen=True)
class TrainingResult:
    """What came of a run.

    Args:
        simulated: best placement by the simulated objective (info: `simulated_makespan`), or None.
        measured: `real_rl`'s final placement, or None without that stage.
        stages: what each finished stage reported.
        completed: False if a time budget ended it.
        reason: why `simulated` is None, to be shown in its place; None where there is one.
        episodes, evaluations, seconds: what it took.
    """

    simulated: Placement | None
    measured: Placement | None
    stages: dict[str, dict[str, Any]]
    completed: bool
    episodes: int
    evaluations: int
    seconds: float
    reason: str | None = None


class Trainer:
    """Trains one policy on one problem, stage by stage.

    Torch runs on one thread during `fit`: the heads' products are too small for more.

    Args:
        problem: what is placed.
        policy: trained in place.
        stages: in the order in which they run.
        simulated: objective of `sim_rl`, see `doppler.training.objectives`.
        measured: objective of `real_rl`.
        network: network model of the policies' earliest-start estimates; best the simulator's.
        seed: of all randomness in training (not of the policy's initial weights).
        callbacks: told of progress.
        checkpoints: where and how often state is saved; None keeps nothing on disk.
        budget_s: stop after so many seconds of training in all; the stage that it cuts short still
            reports, and resuming with more time goes on within it. [s]
        objective_identity: what tells the simulated objective from others; None for its own
            attribute `identity`, if any. A resumed run must share it.

    Raises:
        ConfigurationError: no stages, or an impossible seed or budget.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        policy: Policy,
        stages: Sequence[Stage],
        *,
        simulated: Objective | None = None,
        measured: Objective | None = None,
        network: str = "serial_links",
        seed: int = 0,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        budget_s: float | None = None,
        objective_identity: Mapping[str, Any] | None = None,
    ) -> None:
        if not stages:
            raise ConfigurationError("trainer: no stages; name at least one")
        if budget_s is not None:
            number(budget_s, "trainer, budget_s", ConfigurationError, above=True)
        self.problem = problem
        self.policy = policy
        self.stages = tuple(stages)
        self.simulated = simulated
        self.measured = measured
        self.network = network
        self.seed = whole_number(seed, "trainer, seed", 0)
        if objective_identity is None:
            objective_identity = getattr(simulated, "identity", None)
        self.objective_identity = objective_identity
        self.callbacks = tuple(callbacks)
        self.checkpoints = checkpoints
        self.budget_s = budget_s
        self.state = TrainingState()
        self.rng = np.random.default_rng(seed)
        self.optimiser = self._new_optimiser()
        self._interrupted = False

    @property
    def stage(self) -> Stage:
        """The present stage (the last one once all are done)."""
        return self.stages[min(self.state.stage, len(self.stages) - 1)]

    @property
    def folder(self) -> Path | None:
        """The run folder, or None if nothing is kept."""
        return self.checkpoints.folder if self.checkpoints else None

    def fit(self, resume: bool = False) -> TrainingResult:
        """Runs all stages from the beginning, or from the run folder's checkpoint.

        Ctrl-C finishes the present update, writes a checkpoint and raises `KeyboardInterrupt`; a
        second Ctrl-C raises it at once.

        Args:
            resume: continue from the checkpoint.

        Raises:
            CheckpointError: nothing to resume from, a damaged checkpoint or one of another run, a
                fresh start in a folder that holds a run already, or another process that trains
                in the folder now.
            TrainingError: training diverged; the last checkpoint is from before.
            KeyboardInterrupt: see above.
        """
        with locked_folder(self.folder):
            return self._fit(resume)

    def _fit(self, resume: bool) -> TrainingResult:
        self._begin(resume)
        with _one_torch_thread(), self._deferred_interrupt():
            try:
                for callback in self.callbacks:
                    callback.on_start(self, resume)
                completed = self._run_stages()
            finally:
                for callback in self.callbacks:
                    callback.on_end(self)
        state = self.state
        return TrainingResult(
            simulated=state.best(),
            measured=state.incumbent,
            stages=state.results,
            completed=completed,
            episodes=state.episodes,
            evaluations=state.evaluations,
            seconds=state.seconds,
            reason=self._why_no_placement(),
        )

    def simulate(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        """Simulated makespans of a batch, which is counted and offered to the archive. [s]"""
        if self.simulated is None:
            raise ConfigurationError("trainer: it was given no simulated objective")
        makespans = np.asarray(self.simulated(placements, orders), np.float64)
        self.state.evaluations += len(makespans)
        self.state.archive.add(makespans, placements, orders)
        return makespans

    def try_policy(self, trials: int) -> None:
        """Simulates the greedy episode and `trials` sampled ones for the archive."""
        for batch_size, greedy in ((1, True), (trials, False)):
            if batch_size:
                runner = make_runner(self.policy, self.problem, self.network, batch_size)
                batch = runner.run(self.rng, greedy=greedy, record=False)
                self.simulate(batch.placements, batch.ops)

    def save(self) -> None:
        """Writes a checkpoint now; does nothing without a run folder."""
        if self.checkpoints is None:
            return
        contents = {
            "policy": self.policy.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "rng": self.rng.bit_generator.state,
            "state": self.state.state_dict(),
        }
        save_checkpoint(self.checkpoints.path, self.identity(), contents)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with this run to be resumed by it."""
        return {
            "problem": problem_identity(self.problem),
            "policy": asdict(self.policy.config),
            "stages": [{"name": stage.name, **stage.options()} for stage in self.stages],
            "network": self.network,
            "seed": self.seed,
            **({} if self.objective_identity is None else {"objective": self.objective_identity}),
        }

    def _why_no_placement(self) -> str | None:
        """Why there is no best simulated placement, or None if there is one."""
        state = self.state
        if len(state.archive):
            return None
        if state.evaluations == 0:
            return "no placement was simulated"
        return (
            f"no placement within memory was found: all {state.evaluations} that were simulated "
            "need more memory on a device than it has"
        )

    def _begin(self, resume: bool) -> None:
        if self.checkpoints is None:
            if resume:
                raise CheckpointError("trainer: nothing to resume from, no run folder was given")
            return
        path = self.checkpoints.path
        if not resume:
            if path.exists():
                raise CheckpointError(
                    f"{path}: this folder holds a run already; resume it or choose another folder"
                )
            self.save()
            return
        document = load_checkpoint(path, self.identity())
        restore(self, document, path)

    def _run_stages(self) -> bool:
        for index in range(self.state.stage, len(self.stages)):
            if self._over_budget():
                return False
            stage = self.stages[index]
            try:
                stage.prepare(self)
                self._run_stage(stage)
            finally:
                stage.close()
            if self.state.update < stage.num_updates and self._over_budget():
                return False  # not finished: its last checkpoint is from before its end
            self.state.enter_stage(index + 1)
            self.optimiser = self._new_optimiser()
            self.save()
        return True

    def _run_stage(self, stage: Stage) -> None:
        state = self.state
        if not state.started:
            stage.start(self)
            state.started = True
            self._tell(lambda callback: callback.on_stage_start(self, stage))
        while state.update < stage.num_updates:
            if self._over_budget():
                self.save()  # so that a resumed run goes on within this stage
                break
            if stage.spent(self):
                break
            self._update(stage)
        with self._timed():
            state.results[stage.name] = stage.end(self)
        self._tell(lambda callback: callback.on_stage_end(self, stage))

    def _update(self, stage: Stage) -> None:
        state = self.state
        with self._timed():
            metrics = stage.update(self)
        state.update += 1
        state.total_updates += 1
        state.episodes += stage.batch_size
        metrics.update(
            stage=stage.name,
            update=state.update,
            total_updates=state.total_updates,
            episodes=state.episodes,
            evaluations=state.evaluations,
            seconds=state.seconds,
        )
        try:
            self._tell(lambda callback: callback.on_update(self, metrics))
        except KeyboardInterrupt:
            self._interrupted = True
        if self._interrupted:
            self.save()
            raise KeyboardInterrupt
        if self.checkpoints and state.update % self.checkpoints.every == 0:
            self.save()

    def _tell(self, event: Callable[[Callback], None]) -> None:
        """Tells every callback, also those after one that asks for an interruption."""
        interrupted = False
        for callback in self.callbacks:
            try:
                event(callback)
            except KeyboardInterrupt:
                interrupted = True
        if interrupted:
            raise KeyboardInterrupt

    def _over_budget(self) -> bool:
        return self.budget_s is not None and self.state.seconds >= self.budget_s

    def _new_optimiser(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.policy.parameters())

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - started
            self.state.seconds += elapsed
            self.state.stage_seconds += elapsed

    @contextmanager
    def _deferred_interrupt(self) -> Iterator[None]:
        """Turns the first Ctrl-C into a request to stop after the present update."""
        self._interrupted = False
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals
            return
        previous = signal.getsignal(signal.SIGINT)

        def request(number: int, frame: Any) -> None:
            self._interrupted = True
            signal.signal(signal.SIGINT, previous)

        signal.signal(signal.SIGINT, request)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a trainer saves its state.

    Args:
        folder: the run folder.
        every: updates between two checkpoints within a stage.
    """

    folder: Path
    every: int = 50

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        whole_number(self.every, "checkpoints, every", 1)

    @property
    def path(self) -> Path:
        return self.folder / CHECKPOINT_NAME


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
