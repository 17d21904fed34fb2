"""Overlays and scatters: what lies where, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_pictures import chain_schedule

from doppler.errors import ConfigurationError
from doppler.viz import ScatterPanel, plot_overlay, plot_scatter
from doppler.viz.overlay import difference


def measured():
    """The chain of `chain_schedule`, 1 s later from op 1 on: makespan 8 s."""
    schedule = chain_schedule(origin="measured")
    later = np.array([0.0, 1.0, 1.0])
    return replace(schedule, start=schedule.start + later, finish=schedule.finish + later)


def test_an_overlay_has_both_schedules_in_the_halves_of_each_row(
    tmp_path: Path, drawn: list
) -> None:
    path = plot_overlay(chain_schedule(), measured(), tmp_path / "overlay.png", title="chain")
    assert path.read_bytes().startswith(b"\x89PNG")
    (panel,) = drawn[0].axes
    assert panel.get_title() == (
        "chain\nmakespan simulated (above) 7.000 s and measured (below) 8.000 s: -12.5%"
    )
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert labels == ["d0", "d1", "d0 → d1", "d1 → d0"]
    ops, hops, ops_below, hops_below, finishes = panel.collections
    above = [p.get_extents() for p in ops.get_paths()]
    below = [p.get_extents() for p in ops_below.get_paths()]
    assert [(b.x0, b.x1) for b in above] == [(0, 1), (2, 4), (5, 7)]
    assert [(b.x0, b.x1) for b in below] == [(0, 1), (3, 5), (6, 8)]
    for upper, lower in zip(above, below, strict=True):
        assert upper.y1 == pytest.approx(lower.y0)  # y grows downwards
        assert upper.height == pytest.approx(lower.height)
    assert above[0].y0 == above[2].y0 < above[1].y0
    assert len(hops.get_paths()) == len(hops_below.get_paths()) == 2
    assert np.allclose(ops.get_facecolors(), ops_below.get_facecolors())
    ends = [segment[:, 0].tolist() for segment in finishes.get_segments()]
    assert ends == [[1, 1], [4, 5], [7, 8]]
    marks = [line.get_xdata()[0] for line in panel.lines]
    assert marks == [7, 8] and panel.get_xlim()[0] == 0


def test_two_schedules_of_one_origin_are_numbered(tmp_path: Path, drawn: list) -> None:
    assert difference(measured(), measured()) == (
        "makespan measured 1 (above) 8.000 s and measured 2 (below) 8.000 s: +0.0%"
    )
    plot_overlay(measured(), measured(), tmp_path / "overlay.svg", shifts=False)
    assert len(drawn[0].axes[0].collections) == 4


def test_overlays_of_different_things_are_refused(tmp_path: Path) -> None:
    one = chain_schedule()
    moved = replace(one, devices=np.array([0, 1, 1]))
    with pytest.raises(ConfigurationError, match="op 2 runs on device 0 and on device 1"):
        plot_overlay(one, moved, tmp_path / "x.png")
    with pytest.raises(ConfigurationError, match="same devices"):
        plot_overlay(one, chain_schedule(num_devices=3), tmp_path / "x.png")
    graph = replace(one.problem, graph=replace(one.problem.graph, name="other"))
    assert plot_overlay(one, replace(one, problem=graph), tmp_path / "x.png").exists()
    with pytest.raises(ConfigurationError, match="format"):
        plot_overlay(one, one, tmp_path / "x.docx")


def panel(**changes: object) -> ScatterPanel:
    values: dict = {
        "title": "toy",
        "simulated": np.array([0.010, 0.011, 0.030]),
        "measured": np.array([0.012, 0.010, 0.031]),
        "kinds": ["random", "scheduler", "random"],
    }
    return ScatterPanel(**{**values, **changes})


def test_a_scatter_has_measured_to_the_right(tmp_path: Path, drawn: list) -> None:
    low, high = np.array([0.011, 0.010, 0.030]), np.array([0.013, 0.012, 0.032])
    wide = panel(low=low, high=high)
    even = panel(title="even", simulated=np.array([0.010, 0.011, 0.015]), measured=low)
    path = plot_scatter([wide, even, even], tmp_path / "s.png", band=0.1, title="all")
    assert path.read_bytes().startswith(b"\x89PNG")
    first, second, third = drawn[0].axes
    assert [ax.get_xscale() for ax in (first, third)] == ["log", "log"]
    assert first.get_xlim() == first.get_ylim()
    clouds = [c.get_offsets().data.tolist() for c in first.collections if len(c.get_offsets())]
    assert [pytest.approx([12.0, 10.0]), pytest.approx([31.0, 30.0])] in clouds
    assert [pytest.approx([10.0, 11.0])] in clouds
    assert [pytest.approx([12.0, 10.0])] in clouds  # the ring around the favourite
    assert second.get_xlabel() == "measured makespan [ms]"
    texts = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert texts == ["random", "scheduler", "simulator's favourite", "within 10%"]


def test_makespans_that_differ_little_have_linear_axes(tmp_path: Path, drawn: list) -> None:
    near = panel(simulated=np.array([1.0, 1.1, 1.2]), measured=np.array([1.0, 1.1, 1.3]))
    plot_scatter([near], tmp_path / "s.svg")
    (ax,) = drawn[0].axes
    assert ax.get_xscale() == "linear" and ax.get_xlim() == ax.get_ylim()
    alone = panel(simulated=np.ones(1), measured=np.ones(1), kinds=["x"])
    plot_scatter([alone], tmp_path / "s.svg")


@pytest.mark.parametrize(
    "panels",
    [
        [],
        [panel(kinds=["x"])],
        [panel(simulated=np.empty(0), measured=np.empty(0), kinds=[])],
        [panel(simulated=np.ones(6), measured=np.ones(6), kinds=list("abcdef"))],
    ],
)
def test_impossible_scatters_are_refused(panels: list, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        plot_scatter(panels, tmp_path / "s.png")
