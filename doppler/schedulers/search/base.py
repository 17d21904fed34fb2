"""What all searches in the simulator share: where they begin, their chains, and their result."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem import PlacementProblem
from doppler.schedulers.anytime import AnytimeScheduler, Run
from doppler.schedulers.base import Proposal, Scheduler, check_count
from doppler.schedulers.critical_path import CriticalPath, critical_path_priorities
from doppler.schedulers.lists import Dls, Heft, Peft
from doppler.schedulers.repair import TRIES, memory_may_bind, repaired
from doppler.schedulers.search.chains import Chain, run_chains
from doppler.schedulers.search.neighbourhood import (
    Neighbourhood,
    check_weights,
    make_neighbourhood,
)
from doppler.schedulers.search.state import State, best_of, make_state
from doppler.simulator import Simulator
from doppler.simulator.search import SearchTables, search_tables

BEGINNINGS = ("random", "critical_path", "lists")
MOST_CHAINS = 1024
_BEGINNING_RESTARTS = 32
"""Critical-path runs of which a search begins with the best."""
_LISTS: tuple[tuple[Scheduler, int], ...] = ((Heft(), 100_000), (Peft(), 100_000), (Dls(), 5_000))
"""Other list schedulers that a search may begin with, for graphs of up to so many ops."""

_compiled: set[tuple[type, str, str, str]] = set()
"""What `SimulatedSearch._compile` has been through in this process."""


@dataclass(frozen=True)
class Found:
    """A placement.

    Args:
        makespan: simulated. [s]
        devices: # (num_ops,)
        order: where orders are searched. # (num_ops,)
    """

    makespan: float
    devices: np.ndarray
    order: np.ndarray | None


@dataclass(frozen=True)
class Space:
    """What is searched.

    Args:
        tables: the simulator.
        hood: what may move.
        order: priorities to begin with, or None where orders are not searched. # (num_ops,)
        devices: a placement to begin with, or None to begin at random. # (num_ops,)
        op_seconds: mean duration of an op, the unit of temperatures. [s]
    """

    tables: SearchTables
    hood: Neighbourhood
    order: np.ndarray | None
    devices: np.ndarray | None
    op_seconds: float

    def beginning(self, run: Run, seed: int) -> np.ndarray:
        """Where a chain begins. # (num_ops,)"""
        if self.devices is not None:
            return self.devices
        problem = run.problem
        rng = np.random.default_rng(seed)
        devices = problem.conform(rng.integers(0, problem.num_devices, problem.num_ops))
        # Where nothing fits all makespans are infinite, and a search finds no way down.
        return _fitting(run, devices, self.order, rng)

    def state(self, run: Run, seed: int, history: int = 0) -> State:
        """A chain's state at its beginning."""
        return make_state(self.hood, self.beginning(run, seed), self.order, seed, history)


@dataclass(frozen=True, kw_only=True)
class SimulatedSearch(AnytimeScheduler):
    """A search that asks the simulator about every placement; with `choose=given` also of orders.

    With an objective over tie orders or noise (`RobustSimulator`) the search minimises the nominal
    makespan; of the best placements of its chains the objective then picks one.

    Args:
        begin: "random"; "critical_path", the best of some critical-path runs; or "lists", the best
            of these, HEFT, PEFT and, on graphs of up to 5 000 ops, DLS. A placement that is handed
            to `schedule` as `start` goes before all.
        chains: independent searches; the best is the result.
        num_threads: most threads to use, all available cores where None; does not change what is
            found with a budget of evaluations.
        moves: how often each kind of move is tried, where not the default
            (`neighbourhood.DEFAULT_WEIGHTS`).

    Raises:
        ConfigurationError: an impossible option.
    """

    begin: str = "lists"
    chains: int = 2
    num_threads: int | None = None
    moves: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"scheduler {self.name!r}"
        if self.begin not in BEGINNINGS:
            raise ConfigurationError(
                f"{where}, begin: {self.begin!r} is not one of {', '.join(BEGINNINGS)}"
            )
        check_count(where, "chains", self.chains, MOST_CHAINS)
        if self.num_threads is not None:
            check_count(where, "num_threads", self.num_threads, MOST_CHAINS)
        check_weights(where, self.moves)

    @abstractmethod
    def make_chain(self, run: Run, space: Space, seed: int, index: int) -> Chain:
        """The chain of an index; must depend on nothing but its arguments."""

    def search(self, run: Run) -> Proposal:
        """See `AnytimeScheduler.search`."""
        nominal = getattr(run.simulator, "simulator", run.simulator)
        self._compile(nominal)
        run.restart_clock()
        given = nominal.choose == "given"
        tables = search_tables(nominal)
        hood = make_neighbourhood(run.problem, check_weights(self.name, self.moves), orders=given)
        beginning, order = self._beginning(run, nominal, given)
        space = Space(
            tables=tables,
            hood=hood,
            order=order,
            devices=None if beginning is None else beginning.devices,
            op_seconds=float(run.problem.mean_op_seconds.mean()),
        )
        seeds = run.rng.integers(0, 2**63, self.chains)
        chains = [
            self.make_chain(run, space, seed, index) for index, seed in enumerate(seeds.tolist())
        ]
        run_chains(run, chains, self.num_threads)
        found = [Found(*best_of(chain.best)) for chain in chains]
        # The budget may end before the first chain, and another objective may prefer the beginning.
        return _proposal(run, nominal, found if beginning is None else [*found, beginning])

    def _compile(self, simulator: Any) -> None:
        """Compiles the kernels on a tiny problem, so that no budget goes into it."""
        key = (type(self), self.begin, simulator.network, simulator.choose)
        if key in _compiled:
            return
        _compiled.add(key)
        graph = DataflowGraph.from_edges("compile", 4, np.array([[0, 1], [0, 2], [1, 3], [2, 3]]))
        topology = make_topology("ideal", 2)
        costs = CostModel(
            np.ones((4, 2)), np.ones(4), np.zeros(2), np.ones(2), source="to compile kernels"
        )
        problem = PlacementProblem(graph, topology, costs)
        tiny = Simulator(problem, simulator.network, simulator.choose)
        quick = replace(self, budget_s=None, budget_evals=200 * self.chains)
        run = Run(problem, tiny, np.random.default_rng(0), budget_evals=quick.budget_evals)
        quick.search(run)
        if run.interrupted:  # it is the search that was meant
            _compiled.discard(key)
            raise KeyboardInterrupt

    def _beginning(
        self, run: Run, simulator: Any, given: bool
    ) -> tuple[Found | None, np.ndarray | None]:
        """A placement to begin with, unless that is random, and an order, where it is searched."""
        if run.start is None and self.begin == "random":
            return None, _priority_order(run) if given else None
        if run.start is not None:
            devices = run.start.devices.copy()  # kernels do not take what is read-only
            order = run.start.order
            if given:
                order = _priority_order(run) if order is None else order.copy()
            makespan, evaluations = simulator.makespan(devices, order), 1
        else:
            proposal = self._best_list(run, simulator)
            assert proposal.makespan is not None
            devices, order = proposal.devices, proposal.order
            makespan, evaluations = proposal.makespan, proposal.evaluations
        if not np.isfinite(makespan):
            run.evaluations += evaluations
            devices = _fitting(run, devices, order if given else None, run.rng)
            makespan, evaluations = simulator.makespan(devices, order), 1
        found = Found(makespan, devices, order if given else None)
        run.record(makespan, devices, found.order, evaluations)
        return found, found.order

    def _best_list(self, run: Run, simulator: Any) -> Proposal:
        """The best list schedule, with the evaluations of all."""
        restarts = min(_BEGINNING_RESTARTS, run.budget_evals or _BEGINNING_RESTARTS)
        best = CriticalPath(restarts=restarts).propose(run.problem, simulator, run.rng)
        evaluations = best.evaluations
        for scheduler, most_ops in _LISTS if self.begin == "lists" else ():
            # A list scheduler may ask three times, where memory is tight.
            spent = run.fraction >= 1 or evaluations + 3 > (run.budget_evals or np.inf)
            if run.problem.num_ops > most_ops or spent:
                continue
            other = scheduler.propose(run.problem, simulator, run.rng)
            evaluations += other.evaluations
            assert best.makespan is not None and other.makespan is not None
            best = other if other.makespan < best.makespan else best
        best.evaluations = evaluations
        return best


def _fitting(
    run: Run, devices: np.ndarray, order: np.ndarray | None, rng: np.random.Generator
) -> np.ndarray:
    """A placement repaired so that it fits in the devices' memory, if it can be within budget."""
    nominal = getattr(run.simulator, "simulator", run.simulator)
    left = TRIES if run.budget_evals is None else run.budget_evals - run.evaluations - 1
    if not memory_may_bind(nominal):
        return devices
    fitting, tries = repaired(nominal, devices, order, rng, left)
    run.evaluations += tries
    return devices if fitting is None else fitting


def _priority_order(run: Run) -> np.ndarray:
    priorities = critical_path_priorities(run.problem)
    return np.lexsort((np.arange(run.problem.num_ops), -priorities))


def _proposal(run: Run, nominal: Any, found: list[Found]) -> Proposal:
    best = min(found, key=lambda one: one.makespan)
    exact = run.simulator is nominal
    value = best.makespan
    if not exact:
        orders = None if best.order is None else np.array([one.order for one in found])
        values = run.simulator.makespans(np.array([one.devices for one in found]), orders)
        best, value = found[int(np.argmin(values))], float(values.min())
    devices, order = best.devices.copy(), best.order
    started = _start_order(nominal, devices, order, np.isfinite(best.makespan))
    if order is None:
        order = started
    else:
        # As priorities they give the same schedule, unless transfers wait for one another.
        again = run.simulator.makespan(devices, started)
        if again <= value:
            order, value = started, again
            if exact:
                run.record(value, devices, order)
    return Proposal(
        devices=devices,
        order=np.array(order),
        evaluations=run.evaluations,
        makespan=float(value) if exact else None,
    )


def _start_order(
    simulator: Any, devices: np.ndarray, order: np.ndarray | None, fits: bool
) -> np.ndarray:
    """The ops in the order in which they start, which a policy can imitate. # (num_ops,)"""
    topological = simulator.problem.graph.topological_order
    if not fits:
        return np.array(topological)
    place = np.empty(len(devices), np.int64)
    place[topological] = np.arange(len(devices))
    return np.lexsort((place, simulator.run(devices, order).start))
