"""Gantt charts and learning curves: what they say, and that they can be written."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from doppler import CostModel, DataflowGraph, PlacementProblem, Schedule, load_problem
from doppler.errors import ConfigurationError, FileFormatError
from doppler.hardware import Device, Link, Topology, fully_connected
from doppler.simulator import Simulator
from doppler.viz import plot_gantt, plot_learning_curve, read_metrics
from doppler.viz.figure import format_seconds, new_figure


def chain_schedule(num_devices: int = 2, slots: int = 1, origin: str = "simulated") -> Schedule:
    """0 -> 1 -> 2, op 1 on the other device: two transfers, makespan 7.000 s.

    device 0: [0: 0-1]                [2: 5-7]
    device 1:          [1: 2-4]
    links:       0-1 [1-2]     1-0 [4-5]
    """
    graph = DataflowGraph.from_edges(
        "chain", 3, [(0, 1), (1, 2)], kinds=["mm", "add", "mm"], output_bytes=[8, 8, 8]
    )
    links = tuple(Link(s, d, 8.0) for s in range(num_devices) for d in range(num_devices) if s != d)
    devices = tuple(Device(f"d{i}", compute_slots=slots) for i in range(num_devices))
    topology = Topology("pair", devices, links)
    costs = CostModel(
        op_seconds=np.repeat([[1.0], [2.0], [2.0]], num_devices, axis=1),
        transfer_volume=[8, 8, 8],
        link_latency=np.zeros(len(links)),
        link_seconds_per_unit=np.full(len(links), 1 / 8),
        source="by hand",
    )
    back = next(i for i, link in enumerate(links) if (link.source, link.target) == (1, 0))
    return Schedule(
        problem=PlacementProblem(graph, topology, costs),
        devices=np.array([0, 1, 0]),
        start=np.array([0.0, 2.0, 5.0]),
        finish=np.array([1.0, 4.0, 7.0]),
        transfer_ops=np.array([0, 1]),
        transfer_targets=np.array([1, 0]),
        transfer_links=np.array([0, back]),
        transfer_start=np.array([1.0, 4.0]),
        transfer_finish=np.array([2.0, 5.0]),
        network="serial_links",
        choose="fifo",
        origin=origin,
    )


def test_panels_share_the_time_axis_and_name_origin_and_makespan(
    tmp_path: Path, drawn: list
) -> None:
    pair = [("A", chain_schedule()), ("B", chain_schedule(origin="measured"))]
    path = plot_gantt(pair, tmp_path / "gantt.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = drawn[0].axes
    assert left.get_title() == "A\nsimulated: makespan 7.000 s, utilisation 36%"
    assert right.get_title() == "B\nmeasured: makespan 7.000 s, utilisation 36%"
    assert left.get_xlim() == right.get_xlim() == (0, 7)
    rows = [label.get_text() for label in left.get_yticklabels()]
    assert rows == ["d0", "d1", "d0 → d1", "d1 → d0"]
    assert {text.get_text() for text in left.texts} == {"0", "1", "2", "43%", "29%"}


def test_bars_lie_on_the_row_of_their_device_and_link(tmp_path: Path, drawn: list) -> None:
    plot_gantt([("A", chain_schedule())], tmp_path / "gantt.png")
    ops, transfers, _ = drawn[0].axes[0].collections
    boxes = [path.get_extents() for path in ops.get_paths()]
    assert [(b.x0, b.x1) for b in boxes] == [(0, 1), (2, 4), (5, 7)]
    assert boxes[0].y0 == boxes[2].y0 < boxes[1].y0
    hops = [path.get_extents() for path in transfers.get_paths()]
    assert [(b.x0, b.x1) for b in hops] == [(1, 2), (4, 5)]
    assert hops[0].y0 > boxes[1].y1
    assert hops[1].y0 > hops[0].y1


def test_colours_follow_meta_ops_where_known_else_kinds(tmp_path: Path, drawn: list) -> None:
    schedule = chain_schedule()
    plot_gantt([("A", schedule)], tmp_path / "kinds.png")
    first, second, third = drawn[0].axes[0].collections[0].get_facecolors()
    assert (first == third).all()
    assert (first != second).any()
    graph = DataflowGraph.from_edges("chain", 3, [(0, 1), (1, 2)], meta_op=[0, 0, 1])
    problem = PlacementProblem(graph, schedule.problem.topology, schedule.problem.cost_model)
    plot_gantt([("A", Schedule(**{**vars(schedule), "problem": problem}))], tmp_path / "meta.png")
    first, second, third = drawn[1].axes[0].collections[0].get_facecolors()
    assert (first == second).all()
    assert (first != third).any()


def test_ops_that_run_at_once_on_one_device_get_a_lane_each(tmp_path: Path, drawn: list) -> None:
    schedule = chain_schedule(slots=2)
    together = Schedule(
        **{**vars(schedule), "devices": np.array([0, 1, 0]), "start": np.array([0.0, 2.0, 0.5])}
    )
    plot_gantt([("A", together)], tmp_path / "lanes.png")
    boxes = [path.get_extents() for path in drawn[0].axes[0].collections[0].get_paths()]
    assert boxes[0].y1 <= boxes[2].y0


def test_a_schedule_without_transfers_has_device_rows_only(tmp_path: Path, drawn: list) -> None:
    graph = DataflowGraph.from_edges("one", 1, [])
    topology = fully_connected(1, name="solo")
    costs = CostModel(np.array([[2e-3]]), np.zeros(1), np.zeros(0), np.zeros(0), "by hand")
    none = np.zeros(0)
    schedule = Schedule(
        PlacementProblem(graph, topology, costs), np.zeros(1, int), np.zeros(1), np.array([2e-3]),
        none.astype(int), none.astype(int), none.astype(int), none, none, "one_port", "fifo",
    )  # fmt: skip
    plot_gantt([("A", schedule)], tmp_path / "solo.png")
    (panel,) = drawn[0].axes
    assert panel.get_xlim() == (0, 2)
    assert panel.get_xlabel() == "time [ms]"
    assert [label.get_text() for label in panel.get_yticklabels()] == ["solo0"]


def test_gantt_refuses_nothing_to_draw_other_devices_and_unknown_formats(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        plot_gantt([], tmp_path / "a.png")
    with pytest.raises(ConfigurationError, match="same devices"):
        plot_gantt([("A", chain_schedule(2)), ("B", chain_schedule(3))], tmp_path / "a.png")
    with pytest.raises(ConfigurationError, match=r"a\.xyz"):
        plot_gantt([("A", chain_schedule())], tmp_path / "a.xyz")
    with pytest.raises(ConfigurationError, match="2 notes for 1 panels"):
        plot_gantt([("A", chain_schedule())], tmp_path / "a.png", notes=["x", "y"])
    assert list(tmp_path.iterdir()) == []


def test_the_critical_chain_is_outlined_unless_unwanted(tmp_path: Path, drawn: list) -> None:
    """All of the chain's ops and hops, and not op 3, which runs beside them."""
    graph = DataflowGraph.from_edges("chain", 4, [(0, 1), (1, 2)])
    topology = fully_connected(2)
    costs = CostModel(np.ones((4, 2)), np.ones(4), np.zeros(2), np.ones(2), "by hand")
    schedule = Simulator(PlacementProblem(graph, topology, costs)).run([0, 1, 0, 1])
    plot_gantt([("A", schedule)], tmp_path / "chain.png")
    outlines = drawn[0].axes[0].collections[2]
    assert [path.get_extents().x0 for path in outlines.get_paths()] == [0, 2, 4, 1, 3]
    assert not len(outlines.get_facecolors())
    assert "critical chain" in [text.get_text() for text in drawn[0].legends[0].get_texts()]
    plot_gantt([("A", schedule)], tmp_path / "plain.png", critical_chain=False)
    assert len(drawn[1].axes[0].collections) == 2
    assert "critical chain" not in [text.get_text() for text in drawn[1].legends[0].get_texts()]


def test_a_note_is_one_more_title_line_of_its_panel(tmp_path: Path, drawn: list) -> None:
    pair = [("A", chain_schedule()), ("B", chain_schedule())]
    plot_gantt(pair, tmp_path / "notes.png", notes=["", "tie-sensitive: 182 to 295 s"])
    titles = [axes.get_title().splitlines() for axes in drawn[0].axes]
    assert [len(lines) for lines in titles] == [2, 3]
    assert titles[1][2] == "tie-sensitive: 182 to 295 s"


@pytest.mark.parametrize(("num_devices", "link_rows"), [(4, 12), (8, 8)])
def test_a_published_layer_stays_readable(
    tmp_path: Path, drawn: list, shared_data: Path, num_devices: int, link_rows: int
) -> None:
    """A row per link where there are few, per sender where there are many; no bars overlap."""
    file = shared_data / "doppler" / "gdp_full_transformer_layer_261nodes.txt"
    problem = load_problem(file, num_devices)
    schedule = Simulator(problem).run(np.arange(problem.num_ops) % num_devices)
    plot_gantt([("round robin", schedule)], tmp_path / "layer.png")
    (panel,) = drawn[0].axes
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert len(labels) == num_devices + link_rows
    assert labels[num_devices] == ("out of ideal0" if num_devices == 8 else "ideal0 → ideal1")
    width, height = drawn[0].get_size_inches()
    assert width == 12
    assert height < 13
    boxes = [p.get_extents() for group in panel.collections[:2] for p in group.get_paths()]
    assert len(boxes) == problem.num_ops + len(schedule.transfer_ops)
    rows: dict = {}
    for box in boxes:
        rows.setdefault((round(box.y0, 6), round(box.y1, 6)), []).append((box.x0, box.x1))
    edges = sorted(rows)
    assert all(above[1] <= below[0] + 1e-6 for above, below in pairwise(edges))
    for spans in rows.values():
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(sorted(spans)))
    written = {text.get_text() for text in panel.texts} & {str(op) for op in range(229)}
    longest = np.argsort(schedule.start - schedule.finish)[:12]
    assert {str(op) for op in longest} <= written


METRICS = """stage,update,episodes,loss,simulated_makespan_mean,simulated_makespan_best
imitation,1,8,2.0,,
imitation,2,16,1.0,,
sim_rl,1,24,0.5,0.004,0.003
sim_rl,2,32,0.4,0.003,0.002
"""


def test_learning_curve_has_a_column_per_stage_with_units_of_its_own(
    tmp_path: Path, drawn: list
) -> None:
    metrics = tmp_path / "metrics.csv"
    metrics.write_text(METRICS)
    path = plot_learning_curve(metrics, tmp_path / "curve.png", "seed 0")
    assert path.read_bytes().startswith(b"\x89PNG")
    imitated, simulated, imitation_loss, simulated_loss = drawn[0].axes
    assert [axes.get_title() for axes in (imitated, simulated)] == [
        "stage imitation", "stage sim_rl",
    ]  # fmt: skip
    assert not imitated.get_lines()
    assert simulated.get_ylabel() == "makespan [ms]"
    curves = {line.get_label(): line for line in simulated.get_lines()}
    assert list(curves["simulated makespan mean"].get_xdata()) == [24, 32]
    assert np.allclose(curves["simulated makespan mean"].get_ydata(), [4, 3])
    (before,), (after,) = imitation_loss.get_lines(), simulated_loss.get_lines()
    assert list(before.get_xdata()) == [8, 16]
    assert list(after.get_ydata()) == [0.5, 0.4]


def test_metrics_are_read_back_with_nan_where_a_cell_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(METRICS)
    stages, values = read_metrics(path)
    assert stages == ["imitation", "imitation", "sim_rl", "sim_rl"]
    assert np.isnan(values["simulated_makespan_best"][0])
    assert values["simulated_makespan_best"][3] == 0.002


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("episodes,loss\n1,2\n", r"metrics\.csv, line 1: the column 'stage' is missing"),
        ("stage,loss\nimitation,2\n", "the column 'episodes' is missing"),
        ("stage,episodes,loss\nimitation,1,high\n", r"line 2, loss: 'high' is not a number"),
        ("stage,episodes,loss\n", "no rows"),
        (None, "cannot be read"),
    ],
)
def test_bad_metrics_files_are_named_with_line_and_column(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "metrics.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FileFormatError, match=message):
        plot_learning_curve(path, tmp_path / "curve.png")


def test_seconds_are_shown_in_a_unit_that_suits() -> None:
    assert format_seconds(84.634) == "84.63 s"
    assert format_seconds(0.0012043) == "1.204 ms"
    assert format_seconds(0.00123) == "1.230 ms"
    assert format_seconds(1234.4) == "1234 s"
    assert format_seconds(2.5e-7) == "250.0 ns"
    assert format_seconds(0.0) == "0.000 s"


def test_pictures_say_what_to_install_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match="pip install matplotlib"):
        new_figure(1.0, 1.0)
