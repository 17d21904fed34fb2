"""Problem and placement files made to break the reader: one clear error each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doppler import (
    CostModel,
    DataflowGraph,
    Placement,
    PlacementProblem,
    load_problem,
    save_problem,
)
from doppler.errors import (
    ConfigurationError,
    DopplerError,
    FileFormatError,
    InvalidGraphError,
)
from doppler.hardware import Device, Link, Topology

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def problem() -> PlacementProblem:
    devices = (Device("a", compute_slots=np.int64(2)), Device("b"))  # type: ignore[arg-type]
    links = (Link(0, 1, 1e9), Link(1, 0, 1e9))
    return PlacementProblem(
        DataflowGraph.from_edges("pair", 2, [(0, 1)]),
        Topology("two", devices, links),
        CostModel(np.ones((2, 2)), np.ones(2), np.zeros(2), np.ones(2), "by hand"),
    )


HOSTILE: list[tuple[str, list[str]]] = [
    ("graph.num_ops", ["1000000000000", str(2**70), "true", "2.0"]),
    ("graph.num_inputs", ['"abc"', "null", "[1]", "NaN", "{}", "true", "-3", "1.7", str(2**70)]),
    ("graph.edges", [f"[[0, {2**70}]]", "[[0, true]]", "[[0]]", "[[0.9, 1.9]]"]),
    ("graph.name", ['""', '" "', '"a\\nb"', '"\\ud800"', "3"]),
    ("topology.hosts", ["null", "5", '"ab"', '[["x"]]', "[1]"]),
    ("topology.devices.0.name", ["3", '""', "null"]),
    ("topology.devices.0.flops_per_second", ["true", "Infinity", "1" + "0" * 400]),
    ("topology.devices.0.memory_bytes", ["Infinity", "1" + "0" * 400, '"1"']),
    ("topology.devices.0.compute_slots", ["NaN", "Infinity", "1" + "0" * 400, "true"]),
    ("topology.links.0.source", ['"1"', "null", "[1]", "0.0", "true"]),
    ("topology.links.0.target", ['"1"', "null", "[1]", "1.0", "true"]),
    ("topology.links.0.latency", ["true", '"1"']),
    ("cost_model.op_seconds", ["[[1, 1], [1, 1" + "0" * 400 + "]]", "[[1, 1], [1, 1e999]]"]),
    ("version", ["true", "1.0"]),
]


@pytest.mark.parametrize(
    ("field", "text"), [(f, t) for f, texts in HOSTILE for t in texts], ids=lambda v: v[:30]
)
def test_hostile_values(problem: PlacementProblem, tmp_path: Path, field: str, text: str) -> None:
    path = tmp_path / "problem.json"
    save_problem(problem, path)
    document: Any = json.loads(path.read_text())
    *outer, last = field.split(".")
    inside = document
    for key in outer:
        inside = inside[int(key)] if key.isdigit() else inside[key]
    inside[last] = "HERE"
    path.write_text(json.dumps(document).replace('"HERE"', text))
    with pytest.raises(FileFormatError, match=r"problem\.json, ") as caught:
        load_problem(path)
    assert last in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEEP, "nested too deeply"),
        ('{"version": ' + "1" * 5000 + "}", "cannot be read: .*digits"),
        ('{"format": 1, "format": 2}', "'format' appears twice"),
        ("{", "truncated"),
    ],
    ids=["deep", "digits", "repeated", "truncated"],
)
def test_hostile_json(problem: PlacementProblem, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=rf"file\.json.*{message}"):
        load_problem(path)
    with pytest.raises(FileFormatError, match=rf"file\.json.*{message}"):
        Placement.load(path, problem)


@pytest.mark.parametrize("value", [2**70, True, 0.5, "0", None])
def test_hostile_placements_name_their_file(
    problem: PlacementProblem, tmp_path: Path, value: Any
) -> None:
    path = tmp_path / "placement.json"
    for field in ("placement", "order"):
        Placement(np.array([0, 1]), np.array([0, 1])).save(path, problem)
        document = json.loads(path.read_text())
        document[field] = [0, value]
        path.write_text(json.dumps(document))
        with pytest.raises(DopplerError, match=rf"placement\.json: .*{field}.*whole number"):
            Placement.load(path, problem)


def test_a_byte_order_mark_and_numpy_numbers_are_read(
    problem: PlacementProblem, tmp_path: Path
) -> None:
    path = tmp_path / "problem.json"
    save_problem(problem, path)
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    assert load_problem(path).topology.devices[0].compute_slots == 2


def test_paths_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="path: None is not the path"):
        load_problem(None)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match=r"cannot be read as text: .*null"):
        load_problem("a\0b")
    with pytest.raises(ConfigurationError, match="num_devices: 0 is below 1"):
        load_problem(tmp_path / "none.stg", 0)


@pytest.mark.parametrize("edges", [[0, 1, 1], [(0.9, 1.9)], [(0, 1, 1)], [("0", "1")], [(0, None)]])
def test_edges_are_pairs_of_whole_numbers(edges: Any) -> None:
    with pytest.raises(InvalidGraphError, match="graph 'g', edges"):
        DataflowGraph.from_edges("g", 2, edges)


@pytest.mark.parametrize("number", ["1" * 23, "1" * 5000, "1_0", "\u0663", "1.5", "0x1"])
def test_text_formats_read_plain_digits_only(tmp_path: Path, number: str) -> None:
    path = tmp_path / "graph.txt"
    for lines, line in (
        ([number, "", "0", "1", "1,1,a", "1,1,b"], 1),
        (["2", "", number, "1", "1,1,a", "1,1,b"], 3),
        (["2", "", "0", number, "1,1,a", "1,1,b"], 4),
    ):
        path.write_text("\n".join(lines), encoding="utf-8")
        with pytest.raises(FileFormatError, match=rf"graph\.txt, line {line}, "):
            load_problem(path, 2)
    path = tmp_path / "graph.stg"
    for lines, line in (
        ([number, "0 0 0", "1 1 1 0", "2 0 1 1"], 1),
        (["1", "0 0 0", f"1 {number} 1 0", "2 0 1 1"], 3),
        (["1", "0 0 0", f"1 1 1 {number}", "2 0 1 1"], 3),
    ):
        path.write_text("\n".join(lines), encoding="utf-8")
        with pytest.raises(FileFormatError, match=rf"graph\.stg, line {line}, "):
            load_problem(path, 2)


@pytest.mark.parametrize("amount", ["1" * 400, "1_0", "\u0663", "nan", "-1", "1e999"])
def test_amounts_are_plain_finite_numbers(tmp_path: Path, amount: str) -> None:
    path = tmp_path / "graph.txt"
    for row in (f"{amount},1,b", f"1,{amount},b"):
        path.write_text("\n".join(["2", "", "0", "1", "1,1,a", row]), encoding="utf-8")
        with pytest.raises(FileFormatError, match=r"graph\.txt, line 6, op 1, .* amount") as error:
            load_problem(path, 2)
        assert len(str(error.value)) < 300
