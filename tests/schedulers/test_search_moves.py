"""Moves of a local search: what each changes, that it can be undone, and the critical chain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from search_problems import constrained, drawn, random_problem, rng

from doppler import PlacementProblem
from doppler.errors import ConfigurationError
from doppler.schedulers.search.local_search import _find_critical
from doppler.schedulers.search.moves import LARGEST_CLUSTER, apply_move, pick_kind, undo_move
from doppler.schedulers.search.neighbourhood import (
    CLUSTER,
    CRITICAL,
    DEFAULT_WEIGHTS,
    META_OP,
    MOVE,
    MOVES,
    ORDER_SHIFT,
    ORDER_SWAP,
    PAIR,
    SWAP,
    TAIL,
    Neighbourhood,
    check_weights,
    make_neighbourhood,
)
from doppler.schedulers.search.state import NUM_CRITICAL, State, make_state
from doppler.simulator import Simulator
from doppler.simulator.search import search_tables


# Not cached: a cache in this folder does not notice when the moves change.
@njit
def apply(hood: Neighbourhood, s: State, kind: int) -> bool:
    return apply_move(hood, s, kind)


@njit
def undo(hood: Neighbourhood, s: State, kind: int) -> None:
    undo_move(hood, s, kind)


@njit
def draw_kinds(hood: Neighbourhood, s: State, counts: np.ndarray) -> None:
    for _ in range(20_000):
        counts[pick_kind(hood, s)] += 1


def start(problem: PlacementProblem, seed: int, orders: bool = True) -> tuple[Neighbourhood, State]:
    """A random state; every second movable unit counts as critical."""
    hood = make_neighbourhood(problem, DEFAULT_WEIGHTS, orders)
    generator = rng(seed)
    devices = generator.integers(0, problem.num_devices, problem.num_ops)
    order = generator.permutation(problem.num_ops) if orders else None
    s = make_state(hood, problem.conform(devices), order, seed)
    critical = hood.movable[::2]
    s.critical[: len(critical)] = critical
    s.counts[NUM_CRITICAL] = len(critical)
    return hood, s


def sharded(seed: int) -> PlacementProblem:
    """Twelve ops of four meta-ops."""
    problem = random_problem(12, 3, seed)
    graph = replace(problem.graph, meta_op=np.arange(12) // 3)
    return replace(problem, graph=graph, colocation=[-1] * 9 + [2, 2, -1])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), layout=st.sampled_from([constrained, sharded]))
def test_every_move_keeps_to_the_constraints_and_can_be_undone(seed, layout):
    problem = layout(seed % 1000)
    hood, s = start(problem, seed)
    drawn_at_all = np.flatnonzero(np.diff(hood.chances, prepend=0.0) > 0)  # not all have groups
    kinds = rng(seed).permutation(np.repeat(drawn_at_all, 8))
    for turn, kind in enumerate(kinds.tolist()):
        devices, order, position = s.devices.copy(), s.order.copy(), s.position.copy()
        changed = apply(hood, s, kind)
        assert changed == ((s.devices != devices).any() or (s.order != order).any())
        problem.check_placement(s.devices)
        assert (s.order[s.position] == np.arange(problem.num_ops)).all()
        assert (s.position[s.order] == np.arange(problem.num_ops)).all()
        if kind in (ORDER_SHIFT, ORDER_SWAP):
            assert (s.devices == devices).all()
        else:
            assert (s.order == order).all()
        if turn % 3:  # others stay, so that moves meet many placements
            undo(hood, s, kind)
            np.testing.assert_array_equal(s.devices, devices)
            np.testing.assert_array_equal(s.order, order)
            np.testing.assert_array_equal(s.position, position)


def seen(problem: PlacementProblem, kind: int, count: int = 300):
    """Moves of a kind: state before, and after; what changes nothing is left out."""
    hood, s = start(problem, 5)
    for _ in range(count):
        devices, order = s.devices.copy(), s.order.copy()
        if apply(hood, s, kind):
            yield hood, devices, order, s


def moved_units(hood: Neighbourhood, before: np.ndarray, after: np.ndarray) -> list[int]:
    return np.unique(hood.unit_of[before != after]).tolist()


def unit_devices(hood: Neighbourhood, devices: np.ndarray) -> np.ndarray:
    return devices[hood.unit_ops[hood.unit_ptr[:-1]]]


def test_units_are_groups_and_what_is_pinned_does_not_move():
    problem = constrained()
    hood, _ = start(problem, 0)
    members = np.split(hood.unit_ops, hood.unit_ptr[1:-1])
    groups = [unit.tolist() for unit in members if len(unit) > 1]
    # x (op 12) is pinned; y (13) is consumed first by 1 or 6 and follows it
    assert [2, 3] in groups
    assert [1, 5, 9] in groups or [1, 5, 9, 13] in groups
    fixed = {hood.unit_of[op] for op in (2, 3, 11, 12)}
    assert set(hood.movable.tolist()) == set(range(len(members))) - fixed
    near = {
        (unit, other)
        for unit in range(len(members))
        for other in hood.near_units[hood.near_ptr[unit] : hood.near_ptr[unit + 1]].tolist()
    }
    wanted = set()
    for a, b in hood.unit_of[problem.graph.edges].tolist():
        wanted |= {(a, b), (b, a)} if a != b else set()
    assert near == {(a, b) for a, b in wanted if b not in fixed}


def test_a_move_moves_one_unit_anywhere():
    targets = set()
    for hood, devices, _, s in seen(constrained(), MOVE):
        (unit,) = moved_units(hood, devices, s.devices)
        targets.add((unit, unit_devices(hood, s.devices)[unit]))
    assert len(targets) == 3 * len(hood.movable)


@pytest.mark.parametrize("kind", [SWAP, CRITICAL])
def test_a_swap_exchanges_devices(kind):
    swaps = singles = 0
    for hood, devices, _, s in seen(constrained(), kind):
        units = moved_units(hood, devices, s.devices)
        if kind == CRITICAL:
            assert set(units) & set(hood.movable[::2].tolist())
        if kind == CRITICAL and len(units) == 1:
            singles += 1
            continue
        swaps += 1
        one, other = units
        before, after = unit_devices(hood, devices), unit_devices(hood, s.devices)
        assert (after[one], after[other]) == (before[other], before[one])
    assert swaps > 50 and (singles > 50) == (kind == CRITICAL)


def test_a_pair_ends_on_one_device():
    both = 0
    for hood, devices, _, s in seen(constrained(), PAIR):
        units = moved_units(hood, devices, s.devices)
        assert len(set(unit_devices(hood, s.devices)[units])) == 1
        if len(units) == 2:
            both += 1
            assert (
                units[1] in hood.near_units[hood.near_ptr[units[0]] : hood.near_ptr[units[0] + 1]]
            )
        assert len(units) <= 2
    assert both > 20


def test_a_cluster_is_connected_and_moves_as_one():
    sizes = set()
    for hood, devices, _, s in seen(random_problem(40, 2, 1), CLUSTER):
        units = moved_units(hood, devices, s.devices)
        sizes.add(len(units))
        assert len(set(unit_devices(hood, devices)[units])) == 1
        assert len(set(unit_devices(hood, s.devices)[units])) == 1
        reached, grown = {units[0]}, True
        while grown:
            near = {
                int(other)
                for unit in reached
                for other in hood.near_units[hood.near_ptr[unit] : hood.near_ptr[unit + 1]]
                if other in units
            }
            grown = not near <= reached
            reached |= near
        assert reached == set(units)
    assert sizes == set(range(1, LARGEST_CLUSTER + 1))


@pytest.mark.parametrize("kind", [META_OP, TAIL])
def test_two_devices_exchange_units(kind):
    sizes = set()
    for hood, devices, _, s in seen(sharded(0), kind):
        units = moved_units(hood, devices, s.devices)
        before, after = unit_devices(hood, devices), unit_devices(hood, s.devices)
        pair = set(before[units]) | set(after[units])
        assert len(pair) == 2
        if kind == META_OP:
            groups = np.split(hood.group_units, hood.group_ptr[1:-1])
            (scope,) = [g for g in groups if set(units) <= set(g.tolist())]
        else:
            first = min(hood.movable.tolist().index(unit) for unit in units)
            scope = hood.movable[first:]
        # all of them on the two devices changed, and no others
        assert {unit for unit in scope.tolist() if before[unit] in pair} == set(units)
        sizes.add(len(units))
    assert len(sizes) >= 3


def test_groups_are_meta_ops_or_levels():
    hood, _ = start(sharded(0), 0)
    groups = [np.sort(g).tolist() for g in np.split(hood.group_units, hood.group_ptr[1:-1])]
    unit = hood.unit_of
    expected = [sorted({int(unit[op]) for op in range(3 * m, 3 * m + 3)}) for m in range(4)]
    assert sorted(groups) == sorted(expected)
    #  0 -> 1 -> 3,  0 -> 2 -> 4: levels 0 | 1 2 | 3 4, and the first is no group
    levels = drawn([(0, 1), (0, 2), (1, 3), (2, 4)], [1.0] * 5)
    hood, _ = start(levels, 0)
    groups = np.split(hood.unit_ops[hood.unit_ptr[hood.group_units]], hood.group_ptr[1:-1])
    assert sorted(np.sort(g).tolist() for g in groups) == [[1, 2], [3, 4]]


def test_movable_units_are_in_the_order_of_time():
    #  3 (5 s) -> 0,  2 (1 s) -> 1: t-levels 5, 1, 0, 0
    hood, _ = start(drawn([(3, 0), (2, 1)], [1.0, 1.0, 1.0, 5.0]), 0)
    assert hood.unit_ops[hood.unit_ptr[hood.movable]].tolist() == [2, 3, 1, 0]


def test_orders_exchange_two_ops_or_shift_one():
    for _, _, order, s in seen(random_problem(90, 2, 0), ORDER_SWAP):
        one, other = np.flatnonzero(s.order != order)
        assert (s.order[one], s.order[other]) == (order[other], order[one])
    lengths = set()
    for _, _, order, s in seen(random_problem(90, 2, 0), ORDER_SHIFT):
        places = np.flatnonzero(s.order != order)
        first, last = places[0], places[-1]
        window, was = s.order[first : last + 1].tolist(), order[first : last + 1].tolist()
        assert window in (was[1:] + was[:1], was[-1:] + was[:-1])
        lengths.add(last - first)
    assert max(lengths) == 32 and min(lengths) == 1


def test_exchanged_ops_mostly_share_a_device():
    same = [
        len(set(s.devices[s.order[s.order != order]])) == 1
        for _, _, order, s in seen(random_problem(90, 4, 0), ORDER_SWAP)
    ]
    assert np.mean(same) > 0.7  # a quarter would by chance


def test_kinds_are_drawn_as_often_as_they_weigh():
    weights = check_weights("test", {"move": 4.0, "swap": 0.0, "tail": 0.0, "order_swap": 3.0})
    for orders in (False, True):
        hood = make_neighbourhood(constrained(), weights, orders)
        counts = np.zeros(len(MOVES))
        draw_kinds(hood, start(constrained(), 3)[1], counts)
        usable = np.array([weights[kind] for kind in MOVES])
        usable[[ORDER_SWAP, ORDER_SHIFT]] *= orders
        assert (counts[usable == 0] == 0).all()
        np.testing.assert_allclose(counts / 20_000, usable / usable.sum(), atol=0.015)


def test_only_kinds_that_can_change_something_are_drawn():
    pinned = replace(random_problem(5, 2, 0), pinned=[0, 1, 0, 1, 0])
    assert not make_neighbourhood(pinned, DEFAULT_WEIGHTS, False).chances.any()
    assert not make_neighbourhood(random_problem(5, 1, 0), DEFAULT_WEIGHTS, False).chances.any()
    hood = make_neighbourhood(pinned, DEFAULT_WEIGHTS, True)
    assert hood.chances[ORDER_SWAP - 1] == 0 and hood.chances[-1] == 1
    no_groups = make_neighbourhood(drawn([(0, 1)], [1.0, 1.0]), DEFAULT_WEIGHTS, False)
    assert no_groups.chances[META_OP] == no_groups.chances[META_OP - 1]


# On device 0: 0 from 0 to 2, 4 from 2 to 3, 3 from 8 to 9; on device 1: 2 from 0 to 4, and 1, whose
# input is there at 3, from 4 to 7. Its output reaches 3 at 8.
#
#   0 (2) ---> 1 (3) ---> 3 (1)        dev 0  0 0 4 . . . . . 3
#   2 (4)      4 (1) --/               dev 1  2 2 2 2 1 1 1
HELD_UP = ([(0, 1), (1, 3), (4, 3)], [2.0, 3.0, 4.0, 1.0, 1.0], 1.0)
HELD_UP_DEVICES = np.array([0, 1, 1, 0, 0])


@pytest.mark.parametrize("network", ["contention_free", "serial_links"])
def test_the_critical_chain_is_what_held_the_last_op_up(network):
    for more, chain in (
        ({}, [3, 1, 2]),
        ({"pinned": [-1, 1, -1, -1, -1]}, [3, 2]),
        ({"colocation": [-1, 9, 9, -1, -1]}, [3, 1]),
    ):
        problem = drawn(*HELD_UP, **more)
        simulator = Simulator(problem, network=network)
        assert simulator.makespan(HELD_UP_DEVICES) == 9.0
        hood = make_neighbourhood(problem, DEFAULT_WEIGHTS, False)
        s = make_state(hood, HELD_UP_DEVICES, None, 0)
        _find_critical(search_tables(simulator), hood, s)
        units = s.critical[: s.counts[NUM_CRITICAL]]
        firsts = hood.unit_ops[hood.unit_ptr[units]].tolist()
        assert firsts == chain


def test_a_critical_chain_follows_the_tensor_that_came_last():
    #  0 (3) -> 2 with 1 s, 1 (2) -> 2 with 4 s; 2 on device 0, 0 and 1 elsewhere: 1 holds 2 up
    problem = drawn([(0, 2), (1, 2)], [3.0, 2.0, 1.0], [1.0, 4.0, 0.0], 3)
    hood = make_neighbourhood(problem, DEFAULT_WEIGHTS, False)
    s = make_state(hood, np.array([1, 2, 0]), None, 0)
    _find_critical(search_tables(Simulator(problem)), hood, s)
    assert s.critical[: s.counts[NUM_CRITICAL]].tolist() == [2, 1]


@pytest.mark.parametrize("seed", range(3))
def test_critical_units_can_move(seed):
    problem = constrained(seed)
    hood, s = start(problem, seed, orders=False)
    _find_critical(search_tables(Simulator(problem)), hood, s)
    critical = s.critical[: s.counts[NUM_CRITICAL]].tolist()
    assert critical and len(set(critical)) == len(critical)
    assert set(critical) <= set(hood.movable.tolist())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"jump": 1.0}, "moves: 'jump' is unknown; the kinds are move, swap"),
        ({"tail": -1.0}, "moves.tail: -1.0 is not a number from 0 to"),
        ({"tail": np.inf}, "moves.tail: inf"),
        ({"swap": True}, "moves.swap: True"),
        ({"swap": "often"}, "moves.swap: 'often'"),
        (
            {"move": 0, "pair": 0, "cluster": 0, "critical": 0},
            "moves: one of move, pair, cluster, critical must be above 0",
        ),
    ],
)
def test_wrong_weights_are_refused(weights, message):
    with pytest.raises(ConfigurationError, match=f"search, {message}"):
        check_weights("search", weights)
