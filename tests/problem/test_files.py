"""Round trips of problem and placement files, and atomic writing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from doppler import (
    CostModel,
    DataflowGraph,
    Device,
    Link,
    Placement,
    PlacementProblem,
    Topology,
    load_problem,
    save_problem,
)
from doppler.errors import DopplerError, FileFormatError, InvalidPlacementError, InvalidProblemError
from doppler.files import write_text_atomically
from doppler.problem import InputTensor


@pytest.fixture
def problem() -> PlacementProblem:
    """Three ops in a row, two unlike devices that talk through a host."""
    graph = DataflowGraph.from_edges(
        "row",
        3,
        [(0, 1), (1, 2)],
        kinds=["einsum", "einsum", "reduction"],
        flops=[1, 2, 3],
        output_bytes=[8, 16, 24],
        meta_op=[0, 0, 1],
        roles=["shard", "shard", "reduction"],
        op_names=["a", "b", "c"],
        num_inputs=4,
    )
    topology = Topology(
        "pair",
        (Device("big", memory_bytes=1e9), Device("small", compute_slots=2)),
        tuple(
            Link(s, t, 1e3, 0.25, bus)
            for s, t, bus in ((0, 2, None), (2, 0, "down"), (1, 2, None), (2, 1, "down"))
        ),
        hosts=("host",),
    )
    costs = CostModel(
        op_seconds=np.array([[1.0, 2.0], [1.5, 3.0], [0.1, 0.2]]),
        transfer_volume=np.array([8.0, 16.0, 24.0]),
        link_latency=np.full(4, 0.25),
        link_seconds_per_unit=np.full(4, 1e-3),
        source="by hand",
    )
    return PlacementProblem(
        graph,
        topology,
        costs,
        pinned=[-1, 1, -1],
        colocation=[4, -1, 4],
        inputs=(
            InputTensor("w", 8.0, (0, 2)),
            InputTensor("x", 16, (1,), 0),
            InputTensor("y", 0.0, (1, 2), "first_consumer"),
        ),
    )


def test_json_round_trip(problem: PlacementProblem, tmp_path: Path) -> None:
    save_problem(problem, tmp_path / "p.json")
    again = load_problem(tmp_path / "p.json")
    for name in ("kinds", "roles", "op_names", "num_inputs", "name"):
        assert getattr(again.graph, name) == getattr(problem.graph, name)
    for name in ("flops", "output_bytes", "meta_op", "edges", "topological_order"):
        assert np.array_equal(getattr(again.graph, name), getattr(problem.graph, name))
    assert again.topology == problem.topology
    assert again.inputs == problem.inputs
    assert again.input_ops is None
    for name in ("pinned", "colocation"):
        assert np.array_equal(getattr(again, name), getattr(problem, name))
    for name in ("op_seconds", "transfer_volume", "link_latency", "link_seconds_per_unit"):
        found, expected = getattr(again.cost_model, name), getattr(problem.cost_model, name)
        assert np.array_equal(found, expected)


def test_explicit_inputs_survive_the_round_trip(problem: PlacementProblem, tmp_path: Path) -> None:
    explicit = problem.with_explicit_inputs()
    save_problem(explicit, tmp_path / "p.json")
    again = load_problem(tmp_path / "p.json")
    assert again.is_input_op.tolist() == [False, False, False, True, True]
    assert again.inputs == explicit.inputs == problem.inputs[:1]
    assert np.array_equal(again.graph.edges, explicit.graph.edges)
    assert again.graph.op_names == explicit.graph.op_names
    for name in ("pinned", "colocation"):
        assert np.array_equal(getattr(again, name), getattr(explicit, name))


def test_files_without_the_optional_sections(problem: PlacementProblem, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save_problem(PlacementProblem(problem.graph, problem.topology, problem.cost_model), path)
    document = json.loads(path.read_text())
    assert document["version"] == 1
    assert set(document) == {"format", "version", "graph", "topology", "cost_model"}
    again = load_problem(path)
    assert not again.constrained
    assert again.inputs == () and again.with_explicit_inputs() is again


def test_route_through_the_host_by_hand(problem: PlacementProblem) -> None:
    # Two hops of 0.25 s each, 16 B at 1000 B/s twice.
    assert problem.transfer_seconds(1, 0, 1) == pytest.approx(0.5 + 2 * 0.016)
    assert problem.topology.routes[0][1] == (0, 3)
    assert problem.mean_transfer_seconds[1] == pytest.approx(0.532)


def test_published_graphs_survive_the_round_trip(shared_data: Path, tmp_path: Path) -> None:
    files = sorted((shared_data / "doppler").rglob("*.txt"))
    assert len(files) == 8
    for path in files:
        problem = load_problem(path, num_devices=4)
        save_problem(problem, tmp_path / "p.json")
        again = load_problem(tmp_path / "p.json", num_devices=4)
        assert np.array_equal(again.graph.edges, problem.graph.edges)
        assert np.array_equal(again.cost_model.op_seconds, problem.cost_model.op_seconds)
        assert problem.graph.flops is None


def test_published_sizes(shared_data: Path) -> None:
    sizes = {}
    for path in sorted((shared_data / "doppler").glob("gdp_*.txt")):
        graph = load_problem(path, num_devices=4).graph
        sizes[path.stem] = (graph.num_ops + graph.num_inputs, graph.num_ops)
    assert sizes == {
        "gdp_chain_mm_112nodes": (112, 76),
        "gdp_ffnn_192nodes": (192, 180),
        "gdp_full_transformer_layer_261nodes": (261, 229),
        "gdp_transformer_block_215nodes": (215, 182),
    }


def test_placement_round_trip(problem: PlacementProblem, tmp_path: Path) -> None:
    placement = Placement([0, 1, 0], [2, 0, 1], {"scheduler": "by hand", "seconds": 0.5})
    placement.save(tmp_path / "placement.json", problem)
    again = Placement.load(tmp_path / "placement.json", problem)
    assert again.devices.tolist() == [0, 1, 0]
    assert again.order is not None
    assert again.order.tolist() == [2, 0, 1]
    assert again.info == placement.info


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("placement", [0, 1], InvalidPlacementError, "expected (3,)"),
        ("placement", [0, 0, 0], InvalidPlacementError, "op 1: device 0, but it is pinned to"),
        ("placement", [0, 1, 1], InvalidPlacementError, "op 2: device 1, but the ops of its coloc"),
        ("placement", [0, 1, 2], InvalidPlacementError, "op 2: device 2"),
        ("placement", [0, 1, -1], InvalidPlacementError, "op 2: device -1"),
        ("placement", [0, 0.5, 1], InvalidPlacementError, "is not a whole number"),
        ("placement", [0, None, 1], InvalidPlacementError, "is not a whole number"),
        (
            "placement",
            [True, False, True],
            InvalidPlacementError,
            "is not a whole number",
        ),
        ("order", [0, 1, 1], InvalidPlacementError, "op 1 appears 2 times"),
        ("order", [0, 1, 3], InvalidPlacementError, "position 2"),
        ("num_ops", 4, FileFormatError, "num_ops: 4"),
        ("num_devices", 4, FileFormatError, "num_devices: 4"),
        ("format", "x", FileFormatError, "not a placement file"),
        ("version", 2, FileFormatError, "version"),
    ],
)
def test_bad_placement_files(
    problem: PlacementProblem,
    tmp_path: Path,
    field: str,
    value: object,
    error: type[DopplerError],
    message: str,
) -> None:
    path = tmp_path / "placement.json"
    Placement([1, 1, 1], [2, 0, 1]).save(path, problem)
    document = json.loads(path.read_text())
    document[field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(error) as caught:
        Placement.load(path, problem)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_costs_that_do_not_fit_the_graph(problem: PlacementProblem) -> None:
    graph = DataflowGraph.from_edges("pair", 2, [(0, 1)])
    with pytest.raises(InvalidProblemError, match=r"op_seconds: shape \(3, 2\), expected \(2, 2\)"):
        PlacementProblem(graph, problem.topology, problem.cost_model)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    from doppler.files import write_atomically

    path = tmp_path / "file.txt"
    write_text_atomically(path, "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(DopplerError, match="cannot be written"):
        write_text_atomically(tmp_path / "plain" / "x.json", "{}")
