"""What repeated runs say, on numbers worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from test_calibration import golden_schedule

from doppler.errors import ConfigurationError
from doppler.executor import Measurement, describe_environment
from doppler.executor.measurement import find_outliers, trimmed_mean

HAND = [10.0, 12.0, 11.0, 13.0, 50.0, 11.0, 12.0, 10.0]
"""Sorted: 10 10 11 11 12 12 13 50. Median 11.5, distances .5 .5 .5 .5 1.5 1.5 1.5 38.5: MAD 1."""


def measurement(makespans: list[float], **options: object) -> Measurement:
    environment = {"clock": "an hourglass"}
    return Measurement(np.array(makespans), golden_schedule(), environment, **options)  # type: ignore[arg-type]


def test_the_numbers_of_a_measurement() -> None:
    m = measurement(HAND, warmup=2)
    assert (m.repeats, m.warmup, m.clock) == (8, 2, "an hourglass")
    assert (m.median, m.estimate, m.mad, m.min) == (11.5, 11.5, 1.0, 10.0)
    # quartiles at positions 1.75 and 5.25 of the sorted runs
    assert (m.q1, m.q3) == (10.75, 12.25)
    assert m.iqr == 1.5 and m.spread == pytest.approx(1.5 / 11.5)


@pytest.mark.parametrize(
    ("estimator", "value"),
    # a quarter of 8 is 2: the trimmed mean is that of 11 11 12 12
    [("median", 11.5), ("mean", 16.125), ("trimmed_mean", 11.5), ("min", 10.0)],
)
def test_estimators(estimator: str, value: float) -> None:
    m = measurement(HAND, estimator=estimator)
    assert m.estimate == pytest.approx(value)
    assert m.estimated_by("median").estimate == 11.5
    assert m.median == 11.5


def test_a_trimmed_mean_drops_a_quarter_at_either_end() -> None:
    assert trimmed_mean(np.array([100.0, 1.0, 2.0, 3.0, 6.0])) == pytest.approx(11 / 3)
    assert trimmed_mean(np.array([1.0, 2.0, 6.0])) == 3.0


def test_outliers_are_flagged_and_kept() -> None:
    m = measurement(HAND)
    # 38.5 over 1.4826 is a score of 26; 1.5 is 1.01
    assert m.outliers == (4,)
    assert len(m.makespans) == 8 and m.makespans[4] == 50.0
    assert str(m) == "11500.00 ms [10750.00, 12250.00], 1 outlier of 8 runs (run 4)"
    assert str(m.estimated_by("mean")).startswith("16125.00 ms [10750.00, 12250.00] (mean), 1 ")


def test_the_threshold_of_outliers() -> None:
    # median 0, distances 0 1 1 1 x: the median one is 1, the limit is 3.5 * 1.4826 = 5.1891
    values = np.array([0.0, -1.0, 1.0, -1.0, 5.18])
    assert find_outliers(values).tolist() == []
    values[4] = 5.20
    assert find_outliers(values).tolist() == [4]


def test_equal_runs_leave_the_mean_deviation() -> None:
    # median 1, MAD 0, mean deviation (0 * 8 + 1 + 0.1) / 10 = 0.11; limit 3.5 * 1.2533 * 0.11
    values = np.array([1.0] * 8 + [2.0, 1.1])
    assert find_outliers(values).tolist() == [8]
    assert find_outliers(np.ones(5)).tolist() == []
    assert find_outliers(np.array([7.0])).tolist() == []


def test_many_outliers_are_not_all_listed() -> None:
    values = list(np.linspace(1, 1.1, 20)) + [9.0] * 7
    assert measurement(values).outlier_note() == (
        ", 7 outliers of 27 runs (run 20, 21, 22, 23, 24, ...)"
    )


def test_schedules_are_summarised_with_the_median_run() -> None:
    golden = golden_schedule()
    runs = [replace(golden, finish=golden.finish * k) for k in (3.0, 1.0, 2.0, 4.0)]
    m = Measurement.from_schedules(runs, {}, warmup=1, estimator="min")
    assert m.makespans.tolist() == [30.0, 10.0, 20.0, 40.0]
    assert m.schedule is runs[2] and m.estimate == 10.0 and m.clock is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "mode"}, "estimator 'mode' is unknown; known: median"),
        ({"estimator": None}, "estimator None"),
        ({"warmup": -1}, "warmup: -1"),
    ],
)
def test_impossible_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        measurement(HAND, **options)


def test_no_runs_are_no_measurement() -> None:
    with pytest.raises(ConfigurationError, match="at least one run"):
        measurement([])
    with pytest.raises(ConfigurationError, match="at least one run"):
        Measurement.from_schedules([], {})


def test_the_environment_names_devices_threads_and_load() -> None:
    environment = describe_environment("cpu", 2)
    assert len(environment["device_names"]) == 2
    assert environment["torch_threads"] >= 1 and environment["threads_per_device"] == 1
    for entry in ("governor", "load_average", "affinity", "clock"):
        assert entry in environment
    if environment["affinity"] is not None:
        assert len(environment["affinity"]) == environment["num_cpus"]
    json.dumps(environment, allow_nan=False)
    assert describe_environment("cuda", 1, ["a card"])["device_names"] == ["a card"]
