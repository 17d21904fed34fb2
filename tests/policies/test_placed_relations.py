"""Relations of an op to what is placed, by hand on two small graphs."""

from __future__ import annotations

import numpy as np
import pytest

from doppler.construction import Construction
from doppler.construction.relations import DEVICE_FEATURES, OP_FEATURES, PlacementRelations
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem import PlacementProblem


def two_sums() -> PlacementProblem:
    r"""Products 0..3, sums 4 = 0 + 1 and 5 = 2 + 3, total 6 = 4 + 5; every op 2 s, transfer 1 s.

    0   1   2   3
     \ /     \ /
      4       5
       \     /
          6
    """
    graph = DataflowGraph.from_edges(
        "two_sums", 7, [(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (5, 6)]
    )
    topology = make_topology("ideal", 2)
    costs = CostModel(np.full((7, 2), 2.0), np.ones(7), np.zeros(2), np.ones(2), "test")
    return PlacementProblem(graph, topology, costs)


def placed(*steps: tuple[int, int]) -> tuple[Construction, PlacementRelations]:
    problem = two_sums()
    construction = Construction(problem, "contention_free", 1)
    relations = PlacementRelations(problem, 1, scale=10.0)
    for op, device in steps:
        ops, devices = np.array([op]), np.array([device])
        construction.step(ops, devices)
        relations.step(ops, devices, construction.finish)
    return construction, relations


def device_rows(steps: list[tuple[int, int]], op: int) -> list[dict[str, float]]:
    construction, relations = placed(*steps)
    ops = np.array([op])
    out = np.full((1, 2, len(DEVICE_FEATURES)), np.nan, np.float32)
    relations.device_features(ops, construction.device_features(ops), out)
    return [dict(zip(DEVICE_FEATURES, row.tolist())) for row in out[0]]


def test_co_producers_are_seen_one_and_two_levels_on() -> None:
    first, second = device_rows([(0, 1)], op=1)  # 0 meets 1 in op 4
    assert (first["co_producers"], second["co_producers"]) == (0.0, 1.0)
    assert (first["co_producer_share"], second["co_producer_share"]) == (0.0, 1.0)
    # Two on, op 6 has half its producers' inputs' half placed: (1 / 2) / 2.
    assert (first["second_co_producers"], second["second_co_producers"]) == (0.0, 0.25)
    first, second = device_rows([(0, 1)], op=2)  # 0 and 2 meet only in op 6
    assert (first["co_producers"], second["co_producers"]) == (0.0, 0.0)
    assert (first["second_co_producer_share"], second["second_co_producer_share"]) == (0.0, 1.0)


def test_inputs_waves_and_times() -> None:
    first, second = device_rows([(0, 0), (1, 1)], op=4)
    assert first["input_share"] == second["input_share"] == 0.5
    assert first["earliest_start"] == pytest.approx(0.3)  # finish 2 + transfer 1, over scale 10
    assert first["predecessor_last_finish"] == pytest.approx(0.2)
    assert first["wave_load"] == 0.0  # no other sum is placed
    first, second = device_rows([(0, 0), (2, 0)], op=1)
    # Products on device 0: 4 s; a fair share of the wave is 8 s / 2.
    assert (first["wave_load"], second["wave_load"]) == (1.0, 0.0)
    # Start 4 against 0, in ops of 2 s: 2 / (1 + 2); finish likewise; load 2 above the mean: 1 / 2.
    assert first["start_behind_best"] == pytest.approx(2 / 3)
    assert first["finish_behind_best"] == pytest.approx(2 / 3)
    assert (first["load_above_mean"], second["load_above_mean"]) == (0.5, -0.5)
    assert (first["empty"], second["empty"]) == (0.0, 1.0)
    assert first["relative_op_seconds"] == 0.0


def test_the_papers_features_alone() -> None:
    construction, relations = placed((0, 0))
    ops = np.array([1])
    out = np.empty((1, 2, 5), np.float32)
    times = construction.device_features(ops)
    relations.device_features(ops, times, out)
    assert out == pytest.approx(times / 10.0)


def test_candidates_and_their_features() -> None:
    construction, relations = placed((0, 0), (1, 0))
    ids, features, _ = relations.candidates(construction.candidates, construction.device_free)
    assert ids.tolist() == [[2, 3, 4]]
    rows = [dict(zip(OP_FEATURES, row.tolist())) for row in features[0]]
    assert rows[0] == dict.fromkeys(OP_FEATURES, 0.0)
    # Op 4 shares consumer 6 with op 5, not placed; its inputs were completed one step ago; it may
    # start at 4 on device 0 while ops 2 and 3 may start at 0 on device 1.
    assert rows[2]["consumer_progress"] == 0.0
    assert rows[2]["ready_recency"] == 1.0
    assert rows[2]["start_behind_first"] == pytest.approx(2 / 3)


def test_progress_and_recency_point_at_the_started_sum() -> None:
    construction, relations = placed((0, 0), (2, 1))
    ids, features, _ = relations.candidates(construction.candidates, construction.device_free)
    assert ids.tolist() == [[1, 3]]
    assert features[0, :, 0].tolist() == [1.0, 1.0]  # each one's sum only waits for it
    assert features[0, :, 1].tolist() == [0.5, 1.0]  # begun two steps and one step ago


def test_reset_forgets() -> None:
    construction, relations = placed((0, 1), (1, 1), (4, 0))
    construction.reset()
    relations.reset()
    out = np.empty((1, 2, len(DEVICE_FEATURES)), np.float32)
    ops = np.array([1])
    relations.device_features(ops, construction.device_features(ops), out)
    assert np.array_equal(out[0, 0], out[0, 1])
    _, features, _ = relations.candidates(construction.candidates, construction.device_free)
    assert not features.any()


def test_uneven_lists_are_padded() -> None:
    problem = two_sums()
    relations = PlacementRelations(problem, 2, scale=1.0)
    mask = np.zeros((2, 7), bool)
    mask[0, [1, 5]] = True
    mask[1, 3] = True
    ids, features, counts = relations.candidates(mask, np.zeros((2, 2)))
    assert ids.tolist() == [[1, 5], [3, 7]]
    assert counts.tolist() == [2, 1]
    assert not features[1, 1].any()
