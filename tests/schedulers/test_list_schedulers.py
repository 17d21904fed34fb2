"""Classical list schedulers: the papers' examples, hand-drawn cases, and a slow exact reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example as given_example
from hypothesis import given, settings

from doppler.errors import ConfigurationError
from doppler.schedulers import make_scheduler
from doppler.schedulers.lists import Cpop, Dls, Etf, Heft, ListScheduler, Peft, Plan
from doppler.schedulers.lists.ranks import (
    downward_ranks,
    longest_path,
    optimistic_costs,
    upward_ranks,
)
from tests.schedulers import list_reference as reference
from tests.schedulers.list_reference import Example, Reference, examples


def uniform(seconds: list[list[int]], volume: dict[tuple[int, int], int]) -> Example:
    """Links that take a second for a unit of volume."""
    size = len(seconds[0])
    rate = [[int(s != t) for t in range(size)] for s in range(size)]
    return Example(seconds, volume, [[0] * size for _ in range(size)], rate)


def from_one(volume: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Edges of ops that the paper numbers from 1."""
    return {(a - 1, b - 1): units for (a, b), units in volume.items()}


TOPCUOGLU = uniform(
    [
        [14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10],
        [13, 16, 9], [7, 15, 11], [5, 11, 14], [18, 12, 20], [21, 7, 16],
    ],
    from_one({
        (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16,
        (3, 7): 23, (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11,
        (9, 10): 13,
    }),
)  # fmt: skip
"""Topcuoglu, Hariri and Wu (2002), figure 2."""

ARABNEJAD = uniform(
    [
        [22, 21, 36], [22, 18, 18], [32, 27, 43], [7, 10, 4], [29, 27, 35],
        [26, 17, 24], [14, 25, 30], [29, 23, 36], [15, 21, 8], [13, 16, 33],
    ],
    from_one({
        (1, 2): 17, (1, 3): 31, (1, 4): 29, (1, 5): 13, (1, 6): 7, (2, 8): 3, (2, 9): 30,
        (3, 7): 16, (4, 8): 11, (4, 9): 7, (5, 9): 57, (6, 8): 5, (7, 10): 9, (8, 10): 42,
        (9, 10): 7,
    }),
)  # fmt: skip
"""Arabnejad and Barbosa (2014), figure 1."""

# equal devices, volumes on the edges      unequal devices, the same graph
#   0 (2) --1--> 2 (2)                       0 (2, 4) --1--> 2 (2, 6)
#     \--5--> 3 (4)    1 (3) --4--> 2          \--5--> 3 (8, 2)    1 (3, 3) --4--> 2
VOLUMES = {(0, 2): 1, (1, 2): 4, (0, 3): 5}
EQUAL = uniform([[2, 2], [3, 3], [2, 2], [4, 4]], VOLUMES)
UNEQUAL = uniform([[2, 4], [3, 3], [2, 6], [8, 2]], VOLUMES)


def one_based(ops: np.ndarray) -> list[int]:
    return (ops + 1).tolist()


def test_heft_on_the_example_of_its_paper() -> None:
    model = TOPCUOGLU.model
    ranks = upward_ranks(model)
    published = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
    np.testing.assert_allclose(ranks, published, atol=1e-3)
    plan = Heft().plan(model)
    assert plan.makespan == 80
    # The published schedule, processor by processor
    lanes = [[op + 1 for op in plan.order if plan.devices[op] == p] for p in range(3)]
    assert lanes == [[2, 8], [4, 6, 9, 10], [1, 3, 5, 7]]
    assert plan.start[[0, 2, 3, 1, 4, 5, 8, 6, 7, 9]].tolist() == [
        0, 9, 18, 27, 28, 26, 56, 38, 57, 73,
    ]  # fmt: skip
    assert one_based(plan.order) == [1, 3, 4, 6, 2, 5, 7, 9, 8, 10]


def test_cpop_on_the_example_of_its_paper() -> None:
    model = TOPCUOGLU.model
    down = downward_ranks(model)
    np.testing.assert_allclose(
        down, [0, 31, 25, 22, 24, 27, 62.333, 66.667, 63.667, 93.333], atol=1e-3
    )
    path = longest_path(model, upward_ranks(model))
    assert one_based(path) == [1, 2, 9, 10]
    plan = Cpop().plan(model)
    assert plan.devices[path].tolist() == [1, 1, 1, 1]
    assert plan.makespan == 86


def test_peft_on_the_example_of_its_paper() -> None:
    model = ARABNEJAD.model
    costs = optimistic_costs(model)
    assert costs[0].tolist() == [64, 68, 86] and costs[4].tolist() == [28, 37, 28]
    assert costs.mean(axis=1).round().tolist() == [73, 41, 37, 44, 31, 42, 17, 21, 16, 0]
    plan = Peft().plan(model)
    assert plan.makespan == 122
    assert np.bincount(plan.devices).tolist() == [5, 3, 2]
    assert Heft().plan(model).makespan == 133


def test_etf_by_hand() -> None:
    # Static levels 6, 5, 2, 4. 0 starts at 0, before 1 for its level: device 0 until 2. 1 on 1
    # until 3. 3 can start at 2 beside 0; 2 at 3 beside 1 (0's tensor is there at 3).
    plan = Etf().plan(EQUAL.model)
    assert plan.devices.tolist() == [0, 1, 1, 0]
    assert plan.start.tolist() == [0, 0, 3, 2] and plan.makespan == 6
    # Equally early everywhere: where it finishes first
    assert Etf().plan(uniform([[3, 2, 2]], {}).model).devices.tolist() == [1]


def test_dls_by_hand() -> None:
    # Medians 3, 3, 4, 5; levels 8, 7, 4, 5; levels plus Delta: 0: 9 7, 1: 7 7, 2: 6 2, 3: 2 8.
    # 0 on device 0 until 2 (9). 1 on 1 until 3 (7). Then 3 has 2 - 2 or 8 - 7; 2 has 6 - 7 or
    # 2 - 3: 3 on 1 from 7 to 9. 2 has 6 - 7 or 2 - 9: on 0 from 7 to 9.
    plan = Dls().plan(UNEQUAL.model)
    assert plan.devices.tolist() == [0, 1, 0, 1]
    assert plan.start.tolist() == [0, 0, 7, 7] and plan.makespan == 9


def test_heft_fills_gaps_only_with_insertion() -> None:
    # 0 (1) --9--> 1 (9, slow on 0: 99)   2 (4) alone, and only device 1 is fast enough for it
    problem = uniform([[1, 99], [99, 9], [99, 4]], {(0, 1): 9})
    plan = Heft().plan(problem.model)
    assert plan.devices.tolist() == [0, 1, 1] and plan.start.tolist() == [0, 10, 0]
    plain = Heft(insertion=False).plan(problem.model)
    assert plain.devices.tolist() == [0, 1, 1] and plain.start.tolist() == [0, 10, 19]


def test_critical_path_membership_survives_rounding() -> None:
    # Four equally long paths of tenths and thirds whose sums differ in the last bits
    #   0 -> 1 .. 4 -> 5
    seconds = [[1, 1, 2]] * 6
    volume = {(0, k): 1 for k in range(1, 5)} | {(k, 5): 1 for k in range(1, 5)}
    model = uniform(seconds, volume).model
    noise = 1 + 1e-15 * np.arange(len(model.edge_seconds))
    model = model._replace(mean_seconds=model.mean_seconds / 10, edge_seconds=noise / 3)
    assert longest_path(model, upward_ranks(model)).tolist() == [0, 1, 5]
    assert Cpop().plan(model).devices[[0, 1, 5]].tolist() == [0, 0, 0]


CASES: list[tuple[ListScheduler, Callable[[Example], Reference]]] = [
    (Heft(), reference.heft),
    (Heft(insertion=False), lambda example: reference.heft(example, insertion=False)),
    (Cpop(), reference.cpop),
    (Peft(), reference.peft),
    (Etf(), reference.etf),
    (Dls(), reference.dls),
]


def assert_equal(plan: Plan, expected: Reference) -> None:
    ops = range(len(plan.devices))
    assert plan.devices.tolist() == [expected.place[op] for op in ops]
    np.testing.assert_allclose(plan.start, [float(expected.start[op]) for op in ops], atol=1e-9)
    np.testing.assert_allclose(plan.finish, [float(expected.finish[op]) for op in ops], atol=1e-9)


@pytest.mark.parametrize(
    ("scheduler", "slow"), CASES, ids=["heft", "heft_append", "cpop", "peft", "etf", "dls"]
)
@settings(max_examples=80, deadline=None)
@given(drawn=examples())
@given_example(drawn=TOPCUOGLU)
@given_example(drawn=ARABNEJAD)
@given_example(drawn=UNEQUAL)
def test_kernels_equal_the_plain_reference(
    scheduler: ListScheduler, slow: Callable[[Example], Reference], drawn: Example
) -> None:
    assert_equal(scheduler.plan(drawn.model), slow(drawn))


@pytest.mark.parametrize("name", ["heft", "cpop", "peft", "etf", "dls"])
def test_wrong_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"scheduler '{name}': unknown option 'seed'"):
        make_scheduler(name, seed=1)
    with pytest.raises(ConfigurationError, match="scheduler 'heft', insertion: 1 is not true or"):
        make_scheduler("heft", insertion=1)
