"""Exploring beside an incumbent: sequential tests, races, the shadow's margin, the regret."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import numpy as np
import pytest

from doppler.errors import ConfigurationError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.policies import DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.simulator import Simulator
from doppler.training import Callback, RealRL, Trainer
from doppler.training.exploration import Explorer
from doppler.training.racing import PairedNoise, clearly_worse, log_ratio, race
from doppler.training.real_rl import bounded
from doppler.training.regret import Regret, brake
from doppler.training.sequential_test import SequentialTest
from doppler.training.shadow import CAPACITY, Ledger, placement_key, shadow_margin

SMALL = PolicyConfig(hidden_width=8, message_rounds=2, head_width=8)


def challenge(wins: str, alpha: float = 0.1, most_rounds: int = 15) -> SequentialTest:
    test = SequentialTest(alpha, most_rounds)
    for letter in wins:
        assert test.open
        test.add({"w": 1.0, "l": 3.0, "=": 2.0}[letter], 2.0)
    return test


def test_sequential_test_by_hand() -> None:
    """1.6 ** 4 = 6.55 < 10 <= 1.6 ** 5 = 10.49; 0.4 ** 2 = 0.16 > 0.1 >= 0.4 ** 3 = 0.064."""
    assert challenge("wwww").open
    assert challenge("wwwww").better
    assert challenge("wwlww").log_likelihood_ratio == pytest.approx(np.log(1.6**4 * 0.4))
    assert challenge("ll").open
    lost = challenge("lll")
    assert not lost.open
    assert not lost.better
    equal = challenge("===", most_rounds=3)
    assert not equal.open
    assert not equal.better
    assert challenge("wwwww", alpha=0.05).open


@pytest.mark.parametrize("alpha", [0.1, 0.02])
def test_equals_and_worse_ones_replace_the_incumbent_rarely(alpha: float) -> None:
    rng = np.random.default_rng(0)
    trials, taken, slower, faster = 1500, 0, 0, 0
    for edge in (0.0, 0.02, -0.1):
        for rounds in rng.lognormal([edge, 0.0], 0.05, (trials, 60, 2)).tolist():
            test = SequentialTest(alpha, 60)
            while test.open:
                test.add(*rounds[test.rounds])
            taken += test.better and edge == 0.0
            slower += test.better and edge > 0.0
            faster += test.better and edge < 0.0
    assert taken / trials <= alpha
    assert taken / trials >= alpha / 5  # not for never replacing anything
    assert slower < taken
    assert faster / trials > 0.85


def test_a_race_stops_those_that_are_clearly_worse() -> None:
    """Log ratios 0, 0.068, 0.41; noise of 0.05 gives bounds of 0.072 at round 3, 0.0625 at 4."""
    asked: list[list[int]] = []

    def measure(active: list[int]) -> np.ndarray:
        asked.append(active)
        return np.array([2.0, *(2.0 * [1.0, 1.07, 1.5][number] for number in active)])

    result = race(measure, 3, 5, 0.05)
    assert asked == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1], [0]]
    assert [len(runs) for runs in result.candidates] == [5, 4, 3]
    assert result.log_ratios[2] == pytest.approx(np.log([1.5] * 3))
    assert len(result.incumbent) == 5
    assert not clearly_worse([9.0, 9.0], 0.05)  # two runs are too few


def test_racing_saves_runs_and_keeps_what_is_close() -> None:
    truth = np.array([1.0, 0.97, 1.02, 1.3, 1.5, 1.4])

    def runs(most: int, noise: float) -> tuple[int, np.ndarray]:
        rng = np.random.default_rng(3)
        result = race(
            lambda active: (
                truth[[0, *(i + 1 for i in active)]] * rng.lognormal(0, 0.05, 1 + len(active))
            ),
            5,
            most,
            noise,
        )
        counts = np.array([len(values) for values in result.candidates])
        return len(result.incumbent) + int(counts.sum()), counts

    raced, counts = runs(10, 0.07)
    every, _ = runs(10, 1e9)
    assert every == 60
    assert raced <= 0.7 * every
    assert (counts[:2] == 10).all()
    assert (counts[2:] == 3).all()


def test_noise_of_pairs_by_hand() -> None:
    noise = PairedNoise()
    assert noise.sigma == 0.05
    noise.add([np.array([0.1, 0.3]), np.array([0.5]), np.array([np.inf, 0.0])])
    assert noise.squares == pytest.approx(0.02)
    assert noise.degrees == 1
    assert noise.sigma == pytest.approx(np.sqrt((0.02 + 2 * 0.05**2) / 3))
    noise.add([])
    assert noise.squares == pytest.approx(0.018)
    rng = np.random.default_rng(0)
    for _ in range(100):
        noise.add([0.2 + rng.normal(0, 0.1, 5) for _ in range(4)])
    assert noise.sigma == pytest.approx(0.1, rel=0.15)


def test_log_ratios_of_what_cannot_run() -> None:
    assert log_ratio(3.0, 2.0) == pytest.approx(np.log(1.5))
    assert log_ratio(np.inf, 1.0) == np.inf
    assert log_ratio(np.inf, np.inf) == 0.0
    assert -100 < log_ratio(1.0, np.inf) < -10
    assert bounded(np.array([0.1, np.inf])) == pytest.approx([0.1, 0.1 + np.log(2)])
    assert bounded(np.array([np.inf])).tolist() == [0.0]


def test_margins_by_hand() -> None:
    first = shadow_margin(np.array([]), 0.1)
    assert (first.bias, first.width) == (0.0, 0.05)
    assert shadow_margin(np.array([-0.3, -0.2]), 0.1).bias == 0.0  # few: only slowness is believed
    assert shadow_margin(np.array([0.3, 0.2]), 0.1).bias == pytest.approx(0.25)
    exact = shadow_margin(np.zeros(10), 0.1)
    assert (exact.bias, exact.error, exact.width) == (0.0, 0.0, 0.02)
    errors = np.log([1.1] * 5 + [1.1 * 1.04] * 3 + [1.1 / 1.04] * 3)
    biased = shadow_margin(errors, 0.1)
    assert biased.bias == pytest.approx(np.log(1.1))
    assert biased.width == pytest.approx(0.04)
    assert biased.predicted(np.array([1.0])) == pytest.approx([1.1])
    assert shadow_margin(errors, 0.03).width == 0.03
    assert shadow_margin(errors, 0.1, left=0.25).width == pytest.approx(0.01)
    assert shadow_margin(errors, 0.1, idle=2).width == pytest.approx(0.04 * 1.25**2)
    assert shadow_margin(errors, 0.1, idle=50).width == pytest.approx(0.1)
    # Half as slow again as predicted: at most 1.2 / 1.5 - 1 < 0 is safe, so nothing is.
    assert shadow_margin(np.log([1.0] * 8 + [1.5] * 4), 0.1).width == 0.0


def test_regret_by_hand() -> None:
    regret = Regret()
    regret.add(np.array([1.0, 1.2]), [np.array([0.5, np.inf]), np.full(7, 9.0)], 1.0)
    assert regret.executions == 10
    assert regret.mean == pytest.approx((0.2 + 7 * 8.0) / 10)
    assert regret.explored_mean == pytest.approx(7 * 8.0 / 8)
    assert regret.worst == 0.0  # the first ten are free
    # Within rounds: 1.0 / 1.0, 1.1 / 1.0, 1.5 / 1.2; the slow last round was slow for all.
    regret.add(np.array([1.0, 1.0, 1.2]), [np.array([1.0, 1.1, 1.5]), np.array([0.2])], 1.0)
    assert regret.worst == pytest.approx(0.1)
    assert regret.executions == 17


def test_what_exploring_adds_is_beyond_what_noise_adds() -> None:
    regret = Regret()
    assert regret.added == 0.0
    # The incumbent's own runs: 0.1 on average; the others' 0.3, 2 of 4 runs.
    regret.add(np.array([1.0, 1.2]), [np.array([1.2, 1.4])], 1.0)
    assert regret.own_mean == pytest.approx(0.1) and regret.mean == pytest.approx(0.2)
    assert regret.added == pytest.approx(2 * (0.3 - 0.1) / 4)
    better = Regret()
    better.add(np.array([1.0, 1.2]), [np.array([0.5, 0.5])], 1.0)
    assert better.added == 0.0
    assert brake(Regret(), 0.05) == 1.0
    # 40 of 90 runs explored; the other 50 have 0.02 each of noise, as do the 40.
    for added, left in ((0.5, 1.0), (2.0, 0.4), (3.0, 0.0)):
        explored = 40 * 0.02 + added
        values = Regret(90, 50 * 0.02 + explored, 40, explored)
        assert brake(values, 0.05) == pytest.approx(left)
    assert brake(Regret(90, 90 * 0.3, 40, 40 * 0.3), 0.05) == 1.0  # nothing but noise


def test_a_ledger_follows_the_incumbent_and_forgets_the_oldest() -> None:
    ledger = Ledger()
    order = np.arange(2)
    one = Placement(np.array([0, 1]), order)
    ledger.add("one", one, [0.1, 0.3, 0.2])
    ledger.add("one", one, [0.4])
    assert ledger.entries["one"].log_ratio == pytest.approx(0.25)
    ledger.rebase(-0.1)
    assert ledger.entries["one"].log_ratio == pytest.approx(0.35)
    again = Ledger.from_state_dict(ledger.state_dict())
    assert again.state_dict()["log_ratios"] == ledger.state_dict()["log_ratios"]
    for number in range(CAPACITY):
        ledger.add(str(number), one, [0.0])
    assert "one" not in ledger.entries
    turned = Placement(np.array([0, 1]), np.array([1, 0]))
    assert placement_key(one, False) == placement_key(turned, False)
    assert placement_key(one, True) != placement_key(turned, True)


SECONDS = np.random.default_rng(0).uniform(0.5, 1.5, 16)


@pytest.fixture(scope="module")
def flat() -> PlacementProblem:
    """Sixteen ops without edges on two devices: as many good placements as one likes."""
    costs = CostModel(
        np.repeat(SECONDS[:, None], 2, 1), np.ones(16), np.zeros(2), np.ones(2), "test"
    )
    graph = DataflowGraph.from_edges("flat", 16, [])
    return PlacementProblem(graph, make_topology("ideal", 2), costs)


def balanced() -> Placement:
    """Longest op first, each to the device of less load."""
    devices, load = np.zeros(16, np.int64), np.zeros(2)
    for op in np.argsort(-SECONDS):
        devices[op] = np.argmin(load)
        load[devices[op]] += SECONDS[op]
    return Placement(devices)


class Machine:
    """Truth: the simulator, wrong by up to `error` for each placement; runs have noise."""

    rules: ClassVar = {"choose": "fifo"}

    def __init__(self, simulator: Simulator, noise: float, error: float, seed: int) -> None:
        self.simulator, self.noise, self.error, self.seed = simulator, noise, error, seed
        self.rng = np.random.default_rng(seed)
        self.executed: list[tuple[bytes, float]] = []

    def truth(self, placements: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(placements, np.int64)
        keys = [[zlib.crc32(row.tobytes()), self.seed] for row in rows]
        wrong = [np.random.default_rng(key).uniform(-1.0, 1.0) for key in keys]
        return self.simulator.makespans(rows) * (1.0 + self.error * np.array(wrong))

    def __call__(self, placements: np.ndarray, orders: np.ndarray) -> np.ndarray:
        seconds = self.truth(placements)
        self.executed += zip((row.tobytes() for row in placements), seconds.tolist())
        return seconds * self.rng.lognormal(0.0, self.noise, len(seconds))


def tune(machine: Machine, start: Placement, callbacks: Any = (), **options: Any) -> Trainer:
    stage = RealRL(incumbent=start, **options)
    problem = machine.simulator.problem
    trainer = Trainer(
        problem,
        DualPolicy(SMALL, seed=machine.seed),
        [stage],
        measured=machine,
        seed=machine.seed,
        callbacks=callbacks,
    )
    trainer.fit()
    return trainer


class Rows(Callback):
    def __init__(self) -> None:
        self.rows: list[dict] = []

    def on_update(self, trainer: Trainer, metrics: dict) -> None:
        self.rows.append(dict(metrics))


@pytest.mark.parametrize("seed", [5])
def test_regret_stays_in_bounds_with_a_wrong_simulator(flat: PlacementProblem, seed: int) -> None:
    """A simulator that is 10 % wrong, noise of 5 %, 300 executions or more."""
    machine = Machine(Simulator(flat), noise=0.05, error=0.1, seed=seed)
    start = balanced()
    trainer = tune(machine, start, episodes=2400, batch_size=8)
    result = trainer.state.results["real_rl"]
    assert result["executions"] >= 300
    assert 0.0 < result["regret_mean"] <= 0.05
    assert result["regret_worst"] <= 0.25
    assert trainer.state.incumbent is not None
    before, after = machine.truth(np.stack([start.devices, trainer.state.incumbent.devices]))
    assert after <= before
    truth = np.array([seconds for _, seconds in machine.executed])
    assert truth[10:].max() / after <= 1.45  # of the best of all, when others were incumbents
    assert len({key for key, _ in machine.executed}) >= 6


def test_a_better_placement_is_found_and_kept(flat: PlacementProblem) -> None:
    found = 0
    for seed in (1, 2, 6):
        machine = Machine(Simulator(flat), noise=0.05, error=0.1, seed=seed)
        start = balanced()
        trainer = tune(machine, start, episodes=160)
        assert trainer.state.incumbent is not None
        before, after = machine.truth(np.stack([start.devices, trainer.state.incumbent.devices]))
        assert after <= before
        found += after < 0.97 * before
    assert found >= 2


def test_what_simulates_badly_is_not_executed(flat: PlacementProblem) -> None:
    machine = Machine(Simulator(flat), noise=0.02, error=0.0, seed=0)
    start = balanced()
    rows = Rows()
    tune(machine, start, [rows], episodes=160, exploration=0.5, final_exploration=0.5)
    own = float(machine.truth(start.devices[None])[0])
    ratios = np.array([seconds for _, seconds in machine.executed]) / own
    assert ratios.max() <= 1.1 + 1e-9
    assert sum(row["placements_skipped"] for row in rows.rows) > 100
    assert all(row["shadow_margin"] <= 0.1 for row in rows.rows)


def test_a_known_placement_is_not_executed_again(flat: PlacementProblem) -> None:
    """The second time, the same candidates are rated as before, and the incumbent runs once."""
    machine = Machine(Simulator(flat), noise=0.01, error=0.0, seed=2)
    start, order = balanced(), np.arange(16)
    trainer = tune(machine, start, episodes=4, batch_size=4)
    explorer = Explorer(trainer, RealRL(shadow_margin=9.0, recalibration=0.0))
    explorer.begin()
    swapped = [np.argsort(SECONDS)[[i, i + 1]] for i in (2, 5, 8)]
    rows = [np.where(np.isin(order, pair), 1 - start.devices, start.devices) for pair in swapped]
    candidates = [Placement(row, order) for row in rows]
    candidates.append(Placement(rows[0], order[::-1]))  # the executor does not read the order
    first = explorer.rate(candidates)
    assert 1 <= first.executed <= 3
    measured = [known is not None for known in first.known]
    before = len(machine.executed)
    again = explorer.rate(candidates)
    assert again.executed == 0
    assert len(machine.executed) == before + 1
    assert again.log_ratios[measured].tolist() == first.log_ratios[measured].tolist()


def test_advantages_of_equals_are_small(flat: PlacementProblem) -> None:
    stage = RealRL()
    trainer = Trainer(flat, DualPolicy(SMALL), [stage], measured=Machine(Simulator(flat), 0, 0, 0))
    log_ratios = np.array([0.01, -0.01])
    assert stage.advantages(trainer, log_ratios, 0.1) == pytest.approx([-0.2, 0.2])
    assert stage.advantages(trainer, log_ratios, 0.001) == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("executed", 0),
        ("kl_limit", 0.0),
        ("shadow_margin", -0.1),
        ("regret_limit", 0.0),
        ("recalibration", 1.0),
        ("recalibration", float("nan")),
    ],
)
def test_impossible_limits_are_refused(label: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"stage real_rl, {label}: .* is (not|below)"):
        RealRL(**{label: value})  # type: ignore[arg-type]
