"""The archive keeps the best different placements with the orders that built them."""

from __future__ import annotations

import numpy as np

from doppler.training.archive import EliteArchive


def filled(capacity: int, *batches: list[float]) -> EliteArchive:
    archive = EliteArchive(capacity)
    for batch in batches:
        add(archive, *batch)
    return archive


def add(archive: EliteArchive, *batch: float) -> None:
    placements = np.array([[int(m), 0, 1] for m in np.nan_to_num(batch, posinf=99)])
    archive.add(np.array(batch), placements, np.tile([2, 0, 1], (len(batch), 1)))


def test_best_first_and_no_more_than_fit() -> None:
    archive = filled(3, [5.0, 3.0, 9.0], [4.0, 8.0], [7.0])
    assert archive.makespans == [3.0, 4.0, 5.0]
    assert [row[0] for row in archive.placements] == [3, 4, 5]


def test_equal_makespans_count_once_and_what_cannot_run_never() -> None:
    archive = filled(4, [5.0, 5.0, np.inf], [5.0, np.inf])
    assert archive.makespans == [5.0]


def test_samples_follow_the_stored_orders() -> None:
    archive = filled(2, [5.0, 3.0])
    episodes = archive.sample(20, np.random.default_rng(0))
    assert episodes is not None
    assert (episodes.ops == [2, 0, 1]).all()
    assert set(episodes.placements[:, 0].tolist()) == {3, 5}
    assert (episodes.placements[:, 1:] == [0, 1]).all()
    best = archive.sample(20, np.random.default_rng(0), best=1)
    assert best is not None
    assert set(best.placements[:, 0].tolist()) == {3}
    assert EliteArchive(2).sample(3, np.random.default_rng(0)) is None


def test_the_target_gives_way_to_what_is_better_by_a_margin() -> None:
    archive = EliteArchive(2)
    assert archive.follow(0.1) is None
    targets = []
    for makespan in (10.0, 9.5, 8.9, 8.8):
        add(archive, makespan)
        target = archive.follow(0.1)
        assert target is not None and target.placement[0] == int(target.makespan)
        targets.append(target.makespan)
    assert targets == [10.0, 10.0, 8.9, 8.9]
    again = EliteArchive.from_state_dict(archive.state_dict()).target
    assert again is not None and again.makespan == 8.9
    assert again.placement.tolist() == [8, 0, 1] and again.order.tolist() == [2, 0, 1]
    assert archive.follow(0.0).makespan == 8.8  # type: ignore[union-attr]


def test_rows_are_copies() -> None:
    archive = EliteArchive(1)
    placements = np.zeros((1, 3), np.int64)
    archive.add(np.array([1.0]), placements, np.arange(3)[None])
    placements[:] = 7
    assert archive.placements[0].tolist() == [0, 0, 0]


def test_state_survives_a_round_trip() -> None:
    archive = filled(3, [5.0, 3.0])
    again = EliteArchive.from_state_dict(archive.state_dict())
    assert again.makespans == archive.makespans
    assert again.capacity == 3
    for one, two in zip(archive.placements + archive.orders, again.placements + again.orders):
        assert np.array_equal(one, two)
