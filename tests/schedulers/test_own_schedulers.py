"""Schedulers that users write: what they return is checked, and they keep the base's promises."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from doppler.errors import InvalidPlacementError
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.schedulers import AnytimeScheduler, Proposal, Run, Scheduler
from doppler.simulator import RobustSimulator, Simulator
from doppler.workloads import layered_dag


class Own(Scheduler):
    """Proposes what it is given."""

    name: ClassVar[str] = "own"

    def __init__(self, proposal: Any) -> None:
        object.__setattr__(self, "proposal", proposal)

    def propose(self, problem: PlacementProblem, simulator: Any, rng: Any) -> Any:
        return self.proposal  # type: ignore[attr-defined]


def problem() -> PlacementProblem:
    return layered_dag(12, num_devices=3, seed=1)


def place(proposal: Any, simulator: Any = None) -> Placement:
    simulator = simulator or Simulator(problem())
    return Own(proposal).schedule(simulator.problem, simulator, np.random.default_rng(0))


ORDER = np.arange(12)
ZEROS = np.zeros(12, np.int64)


def test_lists_do_as_well_as_arrays() -> None:
    placement = place(Proposal([0] * 12, list(range(12))))  # type: ignore[arg-type]
    assert placement.devices.tolist() == [0] * 12
    assert placement.info["simulated_makespan"] == Simulator(problem()).makespan(ZEROS)
    assert placement.info["evaluations"] == 1


@pytest.mark.parametrize(
    ("proposal", "complaint"),
    [
        ([0] * 12, "returned a list, not a Proposal"),
        (None, "returned a NoneType, not a Proposal"),
        (Proposal(ZEROS + 3, ORDER), "op 0: device 3"),
        (Proposal(ZEROS[:11], ORDER), "shape"),
        (Proposal(ZEROS, ORDER * 0), "op 0 appears 12 times"),
        (Proposal(ZEROS + 0.5, ORDER), "placement"),
        (Proposal(ZEROS, ORDER, makespan=1e-9), "of simulated makespan 1e-09 s, but it simulates"),
        (Proposal(ZEROS, ORDER, makespan=float("nan")), "of simulated makespan nan s"),
    ],
)
def test_what_is_no_placement_is_refused(proposal: Any, complaint: str) -> None:
    with pytest.raises(InvalidPlacementError, match=f"scheduler 'own'.*{complaint}"):
        place(proposal)


def test_a_true_makespan_is_believed() -> None:
    makespan = Simulator(problem()).makespan(ZEROS)
    placement = place(Proposal(ZEROS, ORDER, evaluations=7, makespan=makespan))
    assert placement.info["simulated_makespan"] == makespan
    assert placement.info["evaluations"] == 7


class Forgetful(AnytimeScheduler):
    """Puts everything on device 0, whatever it starts from."""

    name: ClassVar[str] = "forgetful"

    def search(self, run: Run) -> Proposal:
        makespan = float(run.simulator.makespan(ZEROS, ORDER))
        run.record(makespan, ZEROS, evaluations=1)
        return Proposal(ZEROS, ORDER, run.evaluations, makespan)


@pytest.mark.parametrize("choose", ["fifo", "given"])
@pytest.mark.parametrize("statistic", ["makespan", "mean"])
def test_a_result_is_never_worse_than_the_start(choose: str, statistic: str) -> None:
    nominal = Simulator(problem(), choose=choose)
    simulator: Any = RobustSimulator(nominal, statistic) if statistic != "makespan" else nominal
    spread = np.arange(12) % 3
    start = Placement(spread, problem().graph.topological_order)
    assert simulator.makespan(spread, start.order) < simulator.makespan(ZEROS, ORDER)
    found = Forgetful().schedule(problem(), simulator, np.random.default_rng(0), start=start)
    assert found.devices.tolist() == spread.tolist()
    assert found.info["simulated_makespan"] == nominal.makespan(spread, start.order)
    key = f"simulated_{statistic}"
    assert found.info[key] == simulator.makespan(spread, start.order)
