"""Budgets, interruption, threads and repeatability of searches."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import numpy as np
import pytest
from search_problems import SEARCHES, constrained, drawn, random_problem, rng, search

from doppler import Placement
from doppler.errors import ConfigurationError
from doppler.schedulers import SCHEDULERS, make_scheduler
from doppler.schedulers.anytime import Run
from doppler.schedulers.search import SimulatedSearch, base
from doppler.schedulers.search.base import Space
from doppler.schedulers.search.chains import Chain
from doppler.simulator import Simulator


def search_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("doppler-search")]


@pytest.mark.parametrize("begin", ["random", "critical_path", "lists"])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_budget_of_evaluations_is_spent_and_not_exceeded(name, begin):
    problem = random_problem(12, 2, 0)
    for choose in ("fifo", "given"):
        simulator = Simulator(problem, choose=choose)
        for evaluations in (1, 2, 5, 32, 33, 35, 500, 1003):
            scheduler = search(name, evaluations, begin=begin, chains=3)
            info = scheduler.schedule(problem, simulator, rng()).info
            assert info["evaluations"] == evaluations
            assert "interrupted" not in info


class Counted(Simulator):
    """Counts the placements that Python asks for."""

    asked = 0

    def makespans(self, placements, *args, **options):
        self.asked += len(placements)
        return super().makespans(placements, *args, **options)


def test_the_beginning_counts():
    problem = random_problem(12, 2, 0)
    for evaluations in (1, 20, 32, 100):
        simulator = Counted(problem)
        scheduler = search("annealing", evaluations, begin="critical_path")
        scheduler.schedule(problem, simulator, rng())
        assert simulator.asked == min(evaluations, 32) + 1  # the result is simulated again
    simulator = Counted(problem)
    info = search("annealing", 35, begin="lists").schedule(problem, simulator, rng()).info
    assert info["evaluations"] == 35
    assert simulator.asked in (33, 34)  # the last of HEFT, PEFT and DLS might ask too often


@pytest.mark.parametrize("name", SEARCHES)
def test_where_nothing_can_change_a_search_ends_at_once(name):
    alone = random_problem(12, 1, 0)
    stuck = random_problem(4, 2, 1)
    fixed = drawn(stuck.graph.edges.tolist(), [1.0] * 4, 1.0, pinned=[0, 1, 1, 0])
    for problem in (alone, fixed, drawn([], [1.0], 0.0, 1)):
        simulator = Simulator(problem)
        for options in ({"budget_s": 60.0}, {"begin": "random", "budget_s": 60.0}):
            began = perf_counter()
            placement = search(name, None, **options).schedule(problem, simulator, rng())
            assert perf_counter() - began < 1.0
            assert placement.info["evaluations"] <= 37
            assert placement.info["simulated_makespan"] == simulator.makespan(placement)


def test_moves_that_change_nothing_do_not_go_on_for_ever():
    # No op exchanges a tensor, so that there are no pairs
    problem = drawn([], [1.0] * 4)
    only = {"move": 0, "swap": 0, "cluster": 0, "critical": 0, "tail": 0, "meta_op": 0}
    for name in ("annealing", "late_acceptance", "random_restarts"):  # genetic crosses parents
        began = perf_counter()
        scheduler = search(name, None, budget_s=60.0, moves={**only, "pair": 1})
        scheduler.schedule(problem, Simulator(problem), rng())
        assert perf_counter() - began < 2.0


@pytest.mark.parametrize("name", SEARCHES)
def test_a_budget_of_seconds_is_kept(name):
    problem = random_problem(60, 3, 1)
    simulator = Simulator(problem)
    search(name, 10).schedule(problem, simulator, rng())  # loads the kernels
    for budgets in ({"budget_s": 0.4}, {"budget_s": 0.4, "budget_evals": 10**9}):
        info = search(name, None, **budgets).schedule(problem, simulator, rng()).info
        assert 0.4 <= info["seconds"] < 0.8
        assert info["evaluations"] > 1000
    info = search(name, 100, budget_s=60.0).schedule(problem, simulator, rng()).info
    assert info["evaluations"] == 100 and info["seconds"] < 1.0


@pytest.mark.parametrize("choose", ["fifo", "given"])
@pytest.mark.parametrize("name", SEARCHES)
def test_the_curve_falls_to_the_result(name, choose):
    problem = random_problem(40, 3, 2)
    simulator = Simulator(problem, choose=choose)
    info = search(name, 3000, begin="random").schedule(problem, simulator, rng()).info
    seconds, evaluations, makespans = np.array(info["curve"]).T
    assert len(makespans) > 3
    assert (np.diff(makespans) < 0).all() and makespans[-1] == info["simulated_makespan"]
    assert (np.diff(seconds) >= 0).all() and seconds[0] > 0 and seconds[-1] <= info["seconds"]
    assert (np.diff(evaluations) > 0).all() and evaluations[0] >= 1
    assert evaluations[-1] <= info["evaluations"]


def test_the_best_is_kept_where_the_search_walks_on():
    problem = random_problem(40, 3, 2)
    simulator = Simulator(problem)
    heat = {"initial_temperature": 50.0, "final_temperature": 50.0, "begin": "random"}
    hot = search("annealing", 3000, **heat)
    placement = hot.schedule(problem, simulator, rng())
    assert placement.info["curve"][-1][2] == placement.info["simulated_makespan"]
    assert placement.info["simulated_makespan"] == simulator.makespan(placement)
    few = search("annealing", 50, **heat)
    first = few.schedule(problem, simulator, rng(), start=placement)
    # At this temperature the walk itself gets worse at once.
    assert first.info["simulated_makespan"] <= placement.info["simulated_makespan"]


@pytest.mark.parametrize("choose", ["fifo", "given"])
@pytest.mark.parametrize("name", SEARCHES)
def test_threads_change_nothing_and_the_seed_everything(name, choose):
    problem = random_problem(40, 3, 3)
    simulator = Simulator(problem, choose=choose)
    found = [
        search(name, 3000, num_threads=threads, chains=3).schedule(problem, simulator, rng(seed))
        for seed, threads in ((0, 1), (0, 2), (0, None), (1, 1))
    ]
    for same in found[1:3]:
        np.testing.assert_array_equal(same.devices, found[0].devices)
        np.testing.assert_array_equal(same.order, found[0].order)
        assert same.info["simulated_makespan"] == found[0].info["simulated_makespan"]
    assert (found[3].devices != found[0].devices).any()


def test_chains_differ_and_the_best_counts():
    problem = random_problem(90, 4, 3)
    simulator = Simulator(problem)
    one, many = (
        search("annealing", 200 * chains, chains=chains, begin="random")
        .schedule(problem, simulator, rng(7))
        .info["simulated_makespan"]
        for chains in (1, 8)
    )
    assert many < one  # the first of the eight is the one


EVERY_SCHEDULER = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from search_problems import SCHEDULERS, SEARCHES, Simulator, constrained, make_scheduler, search
from dataclasses import replace

problem = constrained()
problem = replace(problem, graph=replace(problem.graph, meta_op=np.arange(problem.num_ops)))
small = constrained(1, 7, 2)
for name in sorted(SCHEDULERS):
    for choose in ("fifo", "given"):
        for threads in (1, 2):
            place = small if name in ("exhaustive", "cp_sat") else problem
            simulator = Simulator(place, choose=choose)
            scheduler = make_scheduler(name)
            if name in SEARCHES:
                scheduler = search(name, 600, num_threads=threads)
            elif threads == 2 and name != "cp_sat":
                continue
            elif name == "cp_sat":
                scheduler = make_scheduler(name, num_workers=threads, restarts=8)
            found = scheduler.schedule(place, simulator, np.random.default_rng(5))
            print(name, choose, found.devices.tolist(), found.order.tolist())
"""


def test_no_scheduler_depends_on_hashes_or_threads():
    here = str(Path(__file__).parent)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", EVERY_SCHEDULER, here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "2")
    ]
    outputs = [run.communicate()[0].splitlines() for run in runs]
    assert all(run.returncode == 0 for run in runs)
    assert outputs[0] == outputs[1] == outputs[2]
    assert {line.split()[0] for line in outputs[0]} == set(SCHEDULERS)
    for name in SEARCHES:
        for choose in ("fifo", "given"):
            lines = [line for line in outputs[0] if line.startswith(f"{name} {choose} ")]
            assert len(lines) == 2 and len(set(lines)) == 1


@pytest.mark.parametrize("choose", ["fifo", "given"])
@pytest.mark.parametrize("name", SEARCHES)
def test_an_interrupted_search_returns_the_best_so_far(name, choose):
    problem = random_problem(40, 3, 4)
    simulator = Simulator(problem, choose=choose)

    def watch(run: Run) -> None:
        if run.best is not None:
            raise KeyboardInterrupt

    began = perf_counter()
    scheduler = search(name, None, budget_s=60.0)
    placement = scheduler.schedule(problem, simulator, rng(), watch=watch)
    assert perf_counter() - began < 5.0
    assert placement.info["interrupted"] is True
    assert placement.info["simulated_makespan"] == simulator.makespan(placement)
    assert placement.info["curve"][-1][2] == placement.info["simulated_makespan"]
    assert not search_threads()


def test_control_c_interrupts():
    problem = random_problem(40, 3, 4)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    scheduler = search("annealing", None, budget_s=60.0)
    info = scheduler.schedule(problem, Simulator(problem), rng()).info
    timer.join()
    assert info["interrupted"] is True and info["seconds"] < 3.0


def test_a_watch_sees_the_run():
    problem = random_problem(40, 3, 4)
    seen: list[tuple[float, int, float]] = []
    scheduler = search("annealing", None, budget_s=0.5)
    placement = scheduler.schedule(
        problem,
        Simulator(problem),
        rng(),
        watch=lambda run: seen.append((run.fraction, run.evaluations, run.makespan)),
    )
    assert len(seen) >= 3
    assert [point[0] for point in seen] == sorted(point[0] for point in seen)
    assert seen[-1] == (1.0, placement.info["evaluations"], placement.info["simulated_makespan"])


@dataclass(frozen=True, kw_only=True)
class Failing(SimulatedSearch):
    """Its second chain fails at its third turn."""

    name: ClassVar[str] = "failing"

    def make_chain(self, run: Run, space: Space, seed: int, index: int) -> Chain:
        return FailingChain(search("annealing").make_chain(run, space, seed, index))


class FailingChain:
    made: ClassVar[list[FailingChain]] = []

    def __init__(self, chain: Chain) -> None:
        self.chain, self.turns, self.number = chain, 0, len(self.made)
        self.made.append(self)

    def __getattr__(self, name: str):
        return getattr(self.chain, name)

    def advance(self, fraction: float, evaluations: int) -> int:
        self.turns += 1
        if self.number % 2 and self.turns == 3:
            raise RuntimeError("a chain broke")
        return self.chain.advance(fraction, evaluations)


def test_errors_of_a_chain_end_the_search():
    problem = random_problem(40, 3, 5)
    began = perf_counter()
    with pytest.raises(RuntimeError, match="a chain broke"):
        Failing(budget_s=60.0, num_threads=2).schedule(problem, Simulator(problem), rng())
    assert perf_counter() - began < 5.0
    assert not search_threads()


def test_errors_of_a_watch_end_the_search():
    problem = random_problem(40, 3, 5)

    def watch(run: Run) -> None:
        raise RuntimeError("a watch broke")

    began = perf_counter()
    with pytest.raises(RuntimeError, match="a watch broke"):
        search("annealing", None, budget_s=60.0).schedule(
            problem, Simulator(problem), rng(), watch=watch
        )
    assert perf_counter() - began < 5.0
    assert not search_threads()


def test_a_search_can_be_copied_and_proposes():
    problem = constrained()
    simulator = Simulator(problem)
    for name in SEARCHES:
        scheduler = pickle.loads(pickle.dumps(search(name, 200)))
        proposal = scheduler.propose(problem, simulator, rng(4))
        placement = scheduler.schedule(problem, simulator, rng(4))
        np.testing.assert_array_equal(proposal.devices, placement.devices)
        assert proposal.makespan == placement.info["simulated_makespan"]


def test_a_read_only_start_is_left_alone():
    problem = random_problem(20, 2, 0)
    devices, order = np.zeros(20, np.int64), np.arange(20)
    start = Placement(devices, order)
    for name in SEARCHES:
        for choose in ("fifo", "given"):
            search(name).schedule(problem, Simulator(problem, choose=choose), rng(), start=start)
    assert not start.devices.any() and (start.order == np.arange(20)).all()


COMMON = [
    ({"budget_s": None, "budget_evals": None}, "give budget_s or budget_evals; both are None"),
    ({"budget_s": 0}, "budget_s: 0 is not a finite number above 0"),
    ({"budget_s": float("nan")}, "budget_s: nan is not"),
    ({"budget_s": True}, "budget_s: True is not"),
    ({"budget_s": "10"}, "budget_s: '10' is not"),
    ({"budget_evals": 0}, "budget_evals: 0 is below 1"),
    ({"budget_evals": 1e6}, "budget_evals: 1000000.0 is not a whole number"),
    ({"begin": "heft"}, "begin: 'heft' is not one of random, critical_path"),
    ({"chains": 0}, "chains: 0 is below 1"),
    ({"num_threads": 0}, "num_threads: 0 is below 1"),
    ({"moves": {"jump": 1}}, "moves: 'jump' is unknown"),
]
OWN = [
    ("annealing", {"chains": 10**9}, "chains: 1000000000 is above 1024"),
    ("annealing", {"moves": None}, "moves: None is not a mapping"),
    ("annealing", {"moves": {"move": 1e308}}, r"moves.move: 1e\+308 is not a number from 0 to"),
    ("late_acceptance", {"history": 10**12}, "history: 1000000000000 is above"),
    ("genetic", {"population": 10**12}, "population: 1000000000000 is above"),
    ("annealing", {"initial_temperature": 0.0001}, "final_temperature: 0.001 is above the initial"),
    ("annealing", {"final_temperature": 0}, "final_temperature: 0 is not"),
    ("annealing", {"final_temperature": "low"}, "final_temperature: 'low' is not"),
    ("annealing", {"initial_temperature": float("nan")}, "initial_temperature: nan is not"),
    ("annealing", {"initial_temperature": float("inf")}, "initial_temperature: inf is not"),
    ("late_acceptance", {"history": 0}, "history: 0 is below 1"),
    ("random_restarts", {"patience": 2.5}, "patience: 2.5 is not a whole number"),
    ("genetic", {"population": 1}, "population: 1 member has no one to be crossed with"),
    ("genetic", {"population": 0}, "population: 0 is below 1"),
    ("genetic", {"islands": 0}, "islands: 0 is below 1"),
    ("genetic", {"patience": 0}, "patience: 0 is below 1"),
    ("genetic", {"crossover": 1.5}, "crossover: 1.5 is not a number from 0 to 1"),
    ("genetic", {"crossover": float("nan")}, "crossover: nan is not a number"),
]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [(name, *case) for name in SEARCHES for case in COMMON] + OWN,
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ConfigurationError, match=f"scheduler '{name}'.*{message}"):
        make_scheduler(name, **options)


def test_an_interrupt_while_kernels_compile_is_not_lost(monkeypatch):
    """The tiny search that compiles them takes it in, the search that was meant must not go on."""
    monkeypatch.setattr(base, "_compiled", set())

    def interrupted(run, chains, num_threads):
        run.interrupted = True

    monkeypatch.setattr(base, "run_chains", interrupted)
    problem = random_problem(12, 2, 0)
    with pytest.raises(KeyboardInterrupt):
        search("annealing", 100).schedule(problem, Simulator(problem), rng())
    assert not base._compiled
