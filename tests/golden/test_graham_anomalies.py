"""Anomalies of list scheduling, so that nobody "fixes" them: better conditions, longer runs.

Source: Graham (1969), "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied
Mathematics 17(2). His m processors and priority list are a device with m compute slots under the
choose-task rule `given`. All times were worked out by hand.
"""

from __future__ import annotations

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, Device, Link, PlacementProblem, Topology
from doppler.simulator import Simulator
from doppler.simulator.oracle import OracleSimulator

EDGES = [(0, 8), (3, 4), (3, 5), (3, 6), (3, 7)]
SECONDS = [3, 2, 2, 2, 4, 4, 4, 4, 9]


def shared_memory(slots: int, seconds: list[float], edges: list[tuple[int, int]]):
    """Identical processors that pick from one list: one device with several slots."""
    graph = DataflowGraph.from_edges("graham", len(seconds), edges)
    topology = Topology("processors", (Device("all", compute_slots=slots),))
    costs = CostModel(
        np.array(seconds, float)[:, None],
        np.zeros(len(seconds)),
        np.zeros(0),
        np.zeros(0),
        "Graham (1969)",
    )
    return PlacementProblem(graph, topology, costs)


CASES = {
    # T1 is op 0 and so on. Three processors:
    #   [T1 . . |T9 . . . . . . . . ]      0-3, 3-12
    #   [T2 . |T4 . |T5 . . . |T7 . . . ]  0-2, 2-4, 4-8, 8-12
    #   [T3 . |     |T6 . . . |T8 . . . ]  0-2, 4-8, 8-12
    "as it was": (3, SECONDS, EDGES, [0, 0, 0, 2, 4, 4, 8, 8, 3], 12),
    # Every op one second faster: T5, T6 and T7 start together, T9 last.
    #   [T1 . |T5 . . |T8 . . ]            0-2, 2-5, 5-8
    #   [T2|T4|T6 . . |T9 . . . . . . . ]  0-1, 1-2, 2-5, 5-13
    #   [T3|  |T7 . . ]                    0-1, 2-5
    "faster ops": (3, [s - 1 for s in SECONDS], EDGES, [0, 0, 0, 1, 2, 2, 2, 5, 5], 13),
    # One processor more: T4 runs at once, T5 to T8 come before T9.
    #   [T1 . . |T8 . . . ]                0-3, 3-7
    #   [T2 . |T5 . . . |T9 . . .  . . ]   0-2, 2-6, 6-15
    #   [T3 . |T6 . . . ]                  0-2, 2-6
    #   [T4 . |T7 . . . ]                  0-2, 2-6
    "one processor more": (4, SECONDS, EDGES, [0, 0, 0, 0, 2, 2, 2, 3, 6], 15),
    # T5 and T6 no longer wait for T4: they take the processors before it.
    #   [T1 . . |T6 . . . |T9 . . . . . ]  0-3, 3-7, 7-16
    #   [T2 . |T4 . |T7 . . . ]            0-2, 2-4, 4-8
    #   [T3 . |T5 . . . |T8 . . . ]        0-2, 2-6, 6-10
    "fewer edges": (3, SECONDS, [(0, 8), (3, 6), (3, 7)], [0, 0, 0, 2, 2, 3, 4, 6, 7], 16),
}


@pytest.mark.parametrize("simulator", [Simulator, OracleSimulator])
@pytest.mark.parametrize("case", CASES)
def test_graham_s_list_schedules(case: str, simulator) -> None:
    slots, seconds, edges, starts, makespan = CASES[case]
    problem = shared_memory(slots, seconds, edges)
    schedule = simulator(problem, choose="given").run(np.zeros(9, np.int64), np.arange(9))
    assert schedule.start.tolist() == starts
    assert schedule.makespan == makespan
    schedule.validate()


@pytest.mark.parametrize("network", ["contention_free", "serial_links", "one_port"])
@pytest.mark.parametrize("simulator", [Simulator, OracleSimulator])
def test_a_faster_op_can_lengthen_a_run_under_fifo(network: str, simulator) -> None:
    """One placement, communication free; op 0 takes 3 s, then 1 s.

    0:d0 --> 2:d1(4)
    1:d2(2) --> 3:d1(1) --> 4:d2(5)

    Op 0 in 3 s:  d1 [. . 3 |2 . . . ]           op 3 2-3, op 2 3-7
                  d2 [1 . |. |4 . . . . ]        op 4 3-8: makespan 8
    Op 0 in 1 s:  d1 [. |2 . . . |3 ]            op 2 is first: 1-5, op 3 5-6
                  d2 [1 . |. . . . |4 . . . . ]  op 4 6-11: makespan 11
    """
    topology = Topology(
        "free",
        tuple(Device(f"d{d}") for d in range(3)),
        tuple(Link(s, d, 1.0) for s in range(3) for d in range(3) if s != d),
    )
    graph = DataflowGraph.from_edges("anomaly", 5, [(0, 2), (1, 3), (3, 4)])
    makespans = []
    for first in (3.0, 1.0):
        seconds = np.array([first, 2, 4, 1, 5])
        costs = CostModel(
            np.repeat(seconds[:, None], 3, axis=1), np.zeros(5), np.zeros(6), np.ones(6), "by hand"
        )
        problem = PlacementProblem(graph, topology, costs)
        makespans.append(simulator(problem, network).makespan([0, 2, 1, 1, 2]))
    assert makespans == [8, 11]
