"""Grouped bar charts: heights, ratios and refusals."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from doppler.errors import ConfigurationError
from doppler.viz import plot_bars


def test_bars_have_their_makespans_and_groups_their_ratio(tmp_path: Path, drawn: list) -> None:
    panels = {"slow": {"a": (2.0, 3.0), "b": (4.0, 4.0)}, "fast": {"a": (0.002, 0.005)}}
    path = plot_bars(panels, ["one", "two"], tmp_path / "bars.png", "title")
    assert path.read_bytes().startswith(b"\x89PNG")
    slow, fast = drawn[0].axes
    assert [bar.get_height() for bar in slow.patches] == [2, 4, 3, 4]
    assert [bar.get_height() for bar in fast.patches] == [2, 5]
    assert fast.get_ylabel() == "makespan [ms]"
    ticks = [tick.get_text() for tick in slow.get_xticklabels()]
    assert ticks == ["a\nratio 1.50", "b\nratio 1.00"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["one", "two"]
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in slow.patches)
    assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(spans))


@pytest.mark.parametrize(
    ("panels", "series", "message"),
    [
        ({}, ["one"], "at least one panel"),
        ({"x": {}}, ["one"], "one group"),
        ({"x": {"a": (1.0,)}}, ["one", "two"], "x, a: 1 makespans for 2 series"),
        ({"x": {"a": ()}}, [], "0 series"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, panels: dict, series: list[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plot_bars(panels, series, tmp_path / "bars.png")
    assert list(tmp_path.iterdir()) == []
