"""What every scheduler is: a problem and a simulator in, one placement out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from doppler.checks import whole_number
from doppler.errors import CapacityError, InvalidPlacementError
from doppler.problem import PlacementProblem
from doppler.schedule import Placement

if TYPE_CHECKING:
    from doppler.simulator import Simulator


@dataclass
class Proposal:
    """What a scheduler's `propose` returns.

    Args:
        devices: # (num_ops,)
        order: a topological order of the ops, most urgent first. # (num_ops,)
        evaluations: simulations that it took, the final one left out.
        makespan: simulated makespan, or None where it was not simulated. [s]
        info: more to record, for example the best-so-far curve of a search.
    """

    devices: np.ndarray
    order: np.ndarray
    evaluations: int = 0
    makespan: float | None = None
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scheduler(ABC):
    """A heuristic or a search; subclasses are frozen dataclasses of options and give `propose`.

    Attributes:
        name: by which it is chosen.
        may_repair: whether ops may be moved to make what it proposes fit in the devices' memory.
    """

    name: ClassVar[str]
    may_repair: ClassVar[bool] = True

    def schedule(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Placement:
        """Places all ops of a problem.

        Args:
            problem: what is placed.
            simulator: judges placements; its network model is the one that is planned for.
            rng: the only source of randomness.

        Returns:
            A placement with an order, whose `info` has `scheduler`, `simulated_makespan` [s],
            `seconds` (spent here) and `evaluations` (simulations); with a `RobustSimulator` also
            `simulated_mean` or `simulated_p95` [s]; and `repaired`, if what was proposed did not
            fit in the devices' memory and ops had to be moved.

        Raises:
            CapacityError: the placement needs more memory than a device has.
            InvalidPlacementError: what was proposed is no placement of this problem, or does not
                simulate to the makespan that was said.
            UnknownQuantityError: the scheduler needs what the problem's source does not say.
        """
        began = perf_counter()
        proposal = self.propose(problem, simulator, rng)
        return self._placement(proposal, simulator, rng, perf_counter() - began)

    def _placement(
        self, proposal: Proposal, simulator: Simulator, rng: np.random.Generator, seconds: float
    ) -> Placement:
        """The placement of a proposal, checked and simulated."""
        self._check(proposal, simulator.problem)
        makespan = float(simulator.makespans(proposal.devices[None], proposal.order[None])[0])
        evaluations = proposal.evaluations + (proposal.makespan is None)
        if proposal.makespan is not None and not np.isclose(proposal.makespan, makespan, 1e-9, 0.0):
            raise InvalidPlacementError(
                f"scheduler {self.name!r} proposes a placement of simulated makespan "
                f"{proposal.makespan:g} s, but it simulates to {makespan:g} s"
            )
        if not np.isfinite(makespan):
            repaired, tries = self._fitted(proposal, simulator, rng)
            evaluations += tries
            if repaired is not None:
                proposal, makespan = repaired, float(repaired.makespan or 0.0)
        if not np.isfinite(makespan):
            simulator.run(proposal.devices, proposal.order)  # names device, time and tensors
            raise CapacityError(
                f"scheduler {self.name!r}: no placement fits in the devices' memory"
            )
        info = {
            "scheduler": self.name,
            "simulated_makespan": makespan,
            "seconds": seconds,
            "evaluations": evaluations,
        }
        statistic = getattr(simulator, "statistic", "makespan")
        if statistic != "makespan":  # a `RobustSimulator` was minimised
            info[f"simulated_{statistic}"] = makespan
            schedule = simulator.run(proposal.devices, proposal.order)
            info["simulated_makespan"] = schedule.makespan
        return Placement(proposal.devices, proposal.order, {**proposal.info, **info})

    def _check(self, proposal: Proposal, problem: PlacementProblem) -> None:
        """Raises `InvalidPlacementError` unless a proposal is a placement of the problem."""
        if not isinstance(proposal, Proposal):
            raise InvalidPlacementError(
                f"scheduler {self.name!r}: propose returned a {type(proposal).__name__}, not a "
                "Proposal"
            )
        try:
            proposal.devices = problem.check_placement(proposal.devices)
            proposal.order = problem.check_order(proposal.order)
        except InvalidPlacementError as error:
            raise InvalidPlacementError(f"scheduler {self.name!r}: {error}") from error

    def _fitted(
        self, proposal: Proposal, simulator: Simulator, rng: np.random.Generator
    ) -> tuple[Proposal | None, int]:
        """A proposal that fits in the devices' memory, made from one that does not, if possible."""
        from doppler.schedulers.repair import memory_may_bind, repaired  # it is built on searches

        nominal = getattr(simulator, "simulator", simulator)
        if not self.may_repair or not memory_may_bind(nominal):
            return None, 0
        devices, tries = repaired(nominal, proposal.devices, proposal.order, rng)
        if devices is None:
            return None, tries
        makespan = float(simulator.makespans(devices[None], proposal.order[None])[0])
        if not np.isfinite(makespan):
            return None, tries + 1
        info = {**proposal.info, "repaired": True}
        return Proposal(devices, proposal.order, proposal.evaluations, makespan, info), tries + 1

    @abstractmethod
    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        """Finds a placement; arguments as in `schedule`."""


def check_count(owner: str, field_name: str, value: int, most: int = 10**9) -> None:
    """Raises `ConfigurationError` unless an option is a whole number from 1 to `most`."""
    whole_number(value, f"{owner}, {field_name}", 1, most=most)


def best_of(makespans: np.ndarray) -> int:
    """Index of the least makespan, ties to the lower one."""
    return int(np.argmin(makespans))
