"""Pictures of learners: what the lines say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from doppler.errors import ConfigurationError
from doppler.viz import CurvePanel, TrainingCurve, plot_training_curves
from doppler.viz.training_curves import BEST, EPISODES, MEAN, SECONDS, common_grid

NAN = np.nan
# seconds, episodes, best, mean of the batch; the reference is 10 s
FAST = np.array([[1.0, 10, 20.0, 30.0], [4.0, 40, 15.0, 22.0], [8.0, 80, 11.0, 18.0]])
SLOW = np.array([[2.0, 10, 18.0, 26.0], [16.0, 80, 13.0, 20.0]])
SEARCH = np.array([[0.0, 1, 14.0, NAN], [6.0, 900, 10.0, NAN]])


def test_runs_are_steps_from_where_all_began_to_where_one_ended() -> None:
    x, values = common_grid([FAST, SLOW], SECONDS, BEST)
    assert (x[0], x[-1]) == (2.0, 8.0)
    assert values[:, 0].tolist() == [20.0, 18.0]
    assert values[:, -1].tolist() == [11.0, 18.0]  # the slow one's next step is at 16 s
    assert values[0, np.searchsorted(x, 3.9)] == 20.0
    assert values[0, np.searchsorted(x, 4.1)] == 15.0
    x, values = common_grid([FAST, SLOW], EPISODES, MEAN)
    assert (x[0], x[-1]) == (10.0, 80.0)
    assert values[:, -1].tolist() == [18.0, 20.0]


def test_points_without_numbers_are_left_out() -> None:
    gap = np.array([[1.0, 5, 12.0, NAN], [2.0, 6, 11.0, 13.0], [9.0, 9, 11.0, NAN]])
    x, values = common_grid([gap], SECONDS, MEAN)
    assert (x[0], x[-1]) == (2.0, 2.0)
    assert set(values[0]) == {13.0}
    x, values = common_grid([gap, SEARCH], SECONDS, MEAN)
    assert len(x) == 0


def panel() -> CurvePanel:
    curves = [TrainingCurve("ours", [FAST, SLOW]), TrainingCurve("annealing", [SEARCH], True)]
    return CurvePanel("ChainMM, fifo", 10.0, curves)


def test_two_rows_per_problem_ratios_over_seconds_and_episodes(tmp_path: Path, drawn: list) -> None:
    path = plot_training_curves([panel(), panel()], tmp_path / "c.png", title="60 s")
    assert path.read_bytes().startswith(b"\x89PNG")
    axes = drawn[0].axes
    assert len(axes) == 8
    names = [ax.get_xlabel() for ax in axes[:4]]
    assert names == ["seconds of training", "episodes", "seconds of training", "episodes"]
    assert axes[0].get_ylabel() == "best found / best known"
    assert axes[2].get_ylabel() == "mean of the batch / best known"
    ours = {line.get_label(): line for line in axes[0].get_lines()}["ours"]
    assert ours.get_ydata()[0] == pytest.approx(1.9)  # halfway between 2.0 and 1.8
    assert ours.get_ydata()[-1] == pytest.approx(1.45)
    assert len(axes[0].collections) == 1  # a band for two runs, none for one
    assert "annealing" not in [line.get_label() for line in axes[2].get_lines()]
    legend = drawn[0].legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "annealing"]
    left, right = (ax.get_ylim() for ax in axes[:2])
    assert left == right and left[0] <= 1.0 <= 2.0 <= left[1]


def test_searches_alone_have_one_row(tmp_path: Path, drawn: list) -> None:
    one = CurvePanel("g", 10.0, [TrainingCurve("annealing", [SEARCH], True)])
    plot_training_curves([one], tmp_path / "c.svg")
    assert len(drawn[0].axes) == 2
    (line, end, _) = drawn[0].axes[0].get_lines()
    assert end.get_xydata().tolist() == [[6.0, 1.0]]
    assert line.get_xdata()[0] > 0  # 0 s has no place on a logarithmic axis
    assert line.get_ydata()[-1] == 1.0


@pytest.mark.parametrize(
    ("panels", "message"),
    [
        ([], "at least one panel"),
        ([CurvePanel("g", 10.0, [])], "g: a panel needs a curve"),
        ([CurvePanel("g", 10.0, [TrainingCurve("a", [])])], "g: a panel needs a curve"),
        ([CurvePanel("g", 0.0, [TrainingCurve("a", [FAST])])], "g: the reference 0"),
        ([CurvePanel("g", 1.0, [TrainingCurve("a", [FAST[:, :3]])])], r"g, a: .*\(points, 4\)"),
        ([CurvePanel("g", 1.0, [TrainingCurve(str(i), [FAST]) for i in range(11)])], "11 curves"),
    ],
)
def test_what_is_no_picture_is_refused(tmp_path: Path, panels: list, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plot_training_curves(panels, tmp_path / "c.png")
    assert list(tmp_path.iterdir()) == []
