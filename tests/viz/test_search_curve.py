"""Pictures of searches: what the lines say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from doppler.errors import ConfigurationError
from doppler.viz import plot_search_curve
from doppler.viz.figure import check_picture
from doppler.viz.search_curve import format_effort

CURVE = [(0.0, 1, 8e-3), (0.5, 100, 5e-3), (20.0, 90_000, 4e-3)]


def test_steps_go_on_to_the_end_above_the_bound(tmp_path: Path, drawn: list) -> None:
    path = plot_search_curve(
        [("annealing", CURVE)],
        tmp_path / "c.png",
        lower_bound=3.2e-3,
        title="g",
        ends=[(30.0, 2e5)],
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    seconds, evaluations = drawn[0].axes
    for panel, x in ((seconds, [0.5, 0.5, 20, 30]), (evaluations, [1, 100, 90_000, 2e5])):
        curve = panel.get_lines()[0]
        assert panel.get_xscale() == "log"
        assert curve.get_drawstyle() == "steps-post"
        assert curve.get_xdata() == pytest.approx(x)  # 0 s has no place on a logarithmic axis
        assert curve.get_ydata() == pytest.approx([8, 5, 4, 4])
        dashed = [line for line in panel.get_lines() if line.get_linestyle() == "--"]
        assert [list(line.get_ydata()) for line in dashed] == [[3.2, 3.2]]
    assert seconds.get_ylabel() == "best simulated makespan [ms]"
    assert (seconds.get_xlabel(), evaluations.get_xlabel()) == ("seconds", "evaluations")
    labels = [text.get_text() for text in evaluations.get_legend().get_texts()]
    assert labels == ["annealing: 4.000 ms", "lower bound 3.200 ms"]
    (gap,) = evaluations.child_axes
    assert gap.get_ylabel() == "above the lower bound [%]"
    assert np.allclose(gap._functions[0](np.array([3.2, 4.0])), [0, 25])


def test_several_searches_without_a_bound(tmp_path: Path, drawn: list) -> None:
    plot_search_curve([("a", CURVE), ("b", CURVE[:1])], tmp_path / "c.png")
    left, right = drawn[0].axes
    assert not right.child_axes
    assert not [line for line in left.get_lines() if line.get_linestyle() == "--"]
    assert [t.get_text() for t in right.get_legend().get_texts()] == ["a: 4.000 ms", "b: 8.000 ms"]
    colours = {line.get_color() for line in left.get_lines()}
    assert len(colours) == 2


def test_labels_are_plain_numbers(tmp_path: Path, drawn: list) -> None:
    plot_search_curve([("a", CURVE)], tmp_path / "c.png")
    shown = [t.get_text() for panel in drawn[0].axes for t in panel.get_xticklabels()]
    assert {"1", "10", "100", "1 k", "10 k", "100 k"} <= set(shown)
    assert not any("$" in text for text in shown)
    assert [format_effort(x) for x in (0.02, 5, 2e3, 5e6, 1e9)] == [
        "0.02", "5", "2 k", "5 M", "1 G",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("curves", "options", "message"),
    [
        ([], {}, "at least one curve"),
        ([("a", [])], {}, "curve 'a': one point"),
        ([("a", [(1, 2)])], {}, "curve 'a': one point"),
        ([("a", [(1, 2, np.inf)])], {}, "all of them finite"),
        ([("a", [(1, 2, "x")])], {}, "not triples of numbers"),
        ([("a", CURVE)], {"ends": [(1, 1), (2, 2)]}, "2 ends for 1 curves"),
    ],
)
def test_what_is_no_curve_is_refused(
    tmp_path: Path, curves: list, options: dict, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plot_search_curve(curves, tmp_path / "c.png", **options)
    assert list(tmp_path.iterdir()) == []


def test_picture_names_are_checked_without_a_picture(tmp_path: Path) -> None:
    check_picture(tmp_path / "c.svg")
    with pytest.raises(ConfigurationError, match=r"c\.xyz: no picture format"):
        check_picture(tmp_path / "c.xyz")
    assert list(tmp_path.iterdir()) == []
