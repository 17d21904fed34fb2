"""Every malformed problem file gets one clear error that names file, line or op, and field."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doppler import load_problem, save_problem
from doppler.errors import DopplerError, FileFormatError

# Two ops in a row behind one input: 0 -> 1.
PUBLISHED = [
    "3",
    "0, ",
    "0, ",
    "1, ",
    "10000000000,5000000000,einsummable",
    "20000000000,0,formation",
]


def published(**changed: str | None) -> str:
    """The file above with lines replaced (or dropped) by number."""
    lines: list[str | None] = list(PUBLISHED)
    for key, value in changed.items():
        lines[int(key.removeprefix("line")) - 1] = value
    return "\n".join(line for line in lines if line is not None) + "\n"


BAD_PUBLISHED = {
    "empty file": ("", ["empty"]),
    "one line": ("3\n", ["truncated"]),
    "op line missing": (published(line6=None), ["line 6", "1 op lines", "truncated"]),
    "op line too many": (published(line6="1,1,a\n1,1,b"), ["line 7", "3 op lines"]),
    "vertices not a number": (
        published(line1="three"),
        ["line 1", "number of vertices", "'three'"],
    ),
    "two vertex counts": (published(line1="3, 4"), ["line 1", "one number"]),
    "source not a number": (published(line3="x, "), ["line 3", "edge sources", "entry 0", "'x'"]),
    "target is fractional": (published(line4="1.5, "), ["line 4", "edge targets", "'1.5'"]),
    "more sources than targets": (published(line3="0, 0, "), ["line 4", "1 edge targets for 2"]),
    "hole between commas": (published(line3="0, , 0"), ["line 3", "entry 1", "''"]),
    "dangling edge": (published(line4="7, "), ["lines 3 and 4", "edge 0 (0 -> 7)", "dangling"]),
    "negative op id": (published(line3="-1, "), ["-1 -> 1", "dangling"]),
    "self edge": (published(line4="0, "), ["op 0 consumes its own output"]),
    "duplicate edge": (published(line3="0, 0", line4="1, 1"), ["edge 0 -> 1 appears twice"]),
    "cycle": (published(line3="0, 1", line4="1, 0"), ["cycle through ops"]),
    "NaN amount": (published(line5="nan,1,a"), ["line 5", "op 0", "compute amount", "nan"]),
    "infinite amount": (published(line6="1,inf,a"), ["line 6", "op 1", "transfer amount", "inf"]),
    "negative amount": (published(line6="-1,1,a"), ["line 6", "op 1", "compute amount", "-1"]),
    "missing amount": (published(line6="1,a"), ["line 6", "op 1", "'1,a'"]),
    "empty amount": (published(line5=",1,a"), ["line 5", "op 0", "compute amount", "''"]),
    "missing type": (published(line5="1,1,"), ["line 5", "op 0"]),
    "line cut in the middle": (published(line6="2000"), ["line 6", "op 1", "'2000'"]),
}


@pytest.mark.parametrize("case", BAD_PUBLISHED)
def test_bad_published_text(case: str, tmp_path: Path) -> None:
    text, expected = BAD_PUBLISHED[case]
    path = tmp_path / "graph.txt"
    path.write_text(text)
    with pytest.raises(FileFormatError) as caught:
        load_problem(path, num_devices=2)
    for part in [str(path), *expected]:
        assert part in str(caught.value)


def test_good_published_text(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(published())
    problem = load_problem(path, num_devices=2)
    assert problem.graph.edges.tolist() == [[0, 1]]
    assert problem.graph.kinds == ("einsummable", "formation")
    assert problem.graph.num_inputs == 1
    assert problem.cost_model.op_seconds.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert problem.transfer_seconds(0, 0, 1) == 0.5
    assert problem.transfer_seconds(0, 1, 1) == 0.0


def test_published_text_without_edges_or_inputs(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(published(line1="2", line2="", line3="", line4=""))
    problem = load_problem(path, num_devices=3)
    assert problem.graph.num_edges == 0
    assert problem.num_devices == 3


def test_published_text_needs_a_number_of_devices(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(published())
    with pytest.raises(FileFormatError, match="pass num_devices"):
        load_problem(path)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "source.txt"
    path.write_text(published())
    save_problem(load_problem(path, num_devices=2), tmp_path / "source.json")
    loaded: dict[str, Any] = json.loads((tmp_path / "source.json").read_text())
    return loaded


def edit(*keys: Any, to: Any = None, drop: bool = False) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        target: Any = document
        for key in keys[:-1]:
            target = target[key]
        if drop:
            del target[keys[-1]]
        else:
            target[keys[-1]] = to

    return apply


BAD_JSON: dict[str, tuple[Callable[[dict[str, Any]], None], list[str]]] = {
    "other format": (edit("format", to="x"), ["format"]),
    "newer version": (edit("version", to=99), ["version", "99"]),
    "no graph": (edit("graph", drop=True), ["'graph'", "missing"]),
    "graph is a list": (edit("graph", to=[]), ["file, graph"]),
    "no edges": (edit("graph", "edges", drop=True), ["graph", "'edges'", "missing"]),
    "num_ops is text": (edit("graph", "num_ops", to="2"), ["graph, num_ops"]),
    "num_ops is zero": (edit("graph", "num_ops", to=0), ["num_ops: 0"]),
    "edge of three": (edit("graph", "edges", 0, to=[0, 1, 1]), ["edges[0]"]),
    "edge of floats": (edit("graph", "edges", 0, to=[0, 1.5]), ["edges[0]"]),
    "cycle": (edit("graph", "edges", to=[[0, 1], [1, 0]]), ["cycle"]),
    "NaN duration": (edit("cost_model", "op_seconds", 1, 0, to=float("nan")), ["op_seconds[1, 0]"]),
    "negative volume": (edit("cost_model", "transfer_volume", 1, to=-1), ["transfer_volume[1]"]),
    "text duration": (
        edit("cost_model", "op_seconds", 0, 1, to="1"),
        ["op_seconds, op 0, entry 1"],
    ),
    "ragged durations": (edit("cost_model", "op_seconds", 1, to=[1.0]), ["op_seconds, op 1"]),
    "op missing": (
        edit("cost_model", "op_seconds", 1, drop=True),
        ["op_seconds", "num_ops: 2, but cost_model, op_seconds has 1 rows"],
    ),
    "flops too short": (edit("graph", "flops", to=[1.0]), ["flops", "shape (1,)"]),
    "flops negative": (edit("graph", "flops", to=[1.0, -2.0]), ["op 1", "flops", "-2.0"]),
    "unknown role": (edit("graph", "roles", to=["shard", "boss"]), ["op 1", "roles", "'boss'"]),
    "unknown field": (edit("graph", "colour", to=1), ["unknown field 'colour'"]),
    "unknown device field": (
        edit("topology", "devices", 0, "watts", to=1),
        ["devices[0]", "watts"],
    ),
    "no devices": (edit("topology", "devices", to=[]), ["no devices"]),
    "device without name": (
        edit("topology", "devices", 0, "name", drop=True),
        ["devices[0]", "name"],
    ),
    "zero memory": (edit("topology", "devices", 0, "memory_bytes", to=0), ["memory_bytes"]),
    "link to nowhere": (edit("topology", "links", 0, "target", to=9), ["link 0 -> 9"]),
    "link twice": (edit("topology", "links", 1, to={"source": 0, "target": 1}), ["appears twice"]),
    "no way back": (edit("topology", "links", 1, drop=True), ["no route"]),
    "bus is a number": (edit("topology", "links", 0, "bus", to=3), ["link 0 -> 1, bus: 3"]),
    "bus without a name": (edit("topology", "links", 0, "bus", to=""), ["link 0 -> 1, bus: ''"]),
    "pin is text": (edit("constraints", to={"pinned": ["0", 1]}), ["constraints, pinned", "'0'"]),
    "pins too short": (edit("constraints", to={"pinned": [0]}), ["pinned", "shape (1,)"]),
    "pins are no list": (edit("constraints", to={"pinned": 1}), ["constraints, pinned"]),
    "pin to nowhere": (edit("constraints", to={"pinned": [0, 2]}), ["pinned, op 1", "device 2"]),
    "pin below -1": (edit("constraints", to={"pinned": [-2, 0]}), ["pinned, op 0", "device -2"]),
    "group below -1": (edit("constraints", to={"colocation": [-2, 0]}), ["colocation, op 0"]),
    "contradicting pins": (
        edit("constraints", to={"pinned": [0, 1], "colocation": [3, 3]}),
        ["colocation group 3: op 0 is pinned to device 0, op 1 to device 1"],
    ),
    "constraint unknown": (edit("constraints", to={"near": []}), ["unknown field 'near'"]),
    "constraints a list": (edit("constraints", to=[]), ["file, constraints"]),
    "inputs no list": (edit("inputs", to={}), ["file, inputs"]),
    "input no object": (edit("inputs", to=[3]), ["inputs[0]: an object"]),
    "input without size": (edit("inputs", to=[{"name": "x", "consumers": [0]}]), ["inputs[0]"]),
    "input field unknown": (
        edit("inputs", to=[{"name": "x", "size": 1, "consumers": [0], "colour": 1}]),
        ["inputs[0]", "colour"],
    ),
    "input without consumers": (
        edit("inputs", to=[{"name": "x", "size": 1, "consumers": []}]),
        ["input 'x', consumers"],
    ),
    "input of no op": (
        edit("inputs", to=[{"name": "x", "size": 1, "consumers": [2]}]),
        ["input 'x', consumers: 2"],
    ),
    "input nowhere": (
        edit("inputs", to=[{"name": "x", "size": 1, "consumers": [0], "location": 2}]),
        ["input 'x', location: device 2"],
    ),
    "input somewhere": (
        edit("inputs", to=[{"name": "x", "size": 1, "consumers": [0], "location": "here"}]),
        ["input 'x', location: 'here'", "first_consumer"],
    ),
    "input of negative size": (
        edit("inputs", to=[{"name": "x", "size": -1, "consumers": [0]}]),
        ["input 'x', size: -1"],
    ),
    "two inputs of a name": (
        edit("inputs", to=[{"name": "x", "size": 1, "consumers": [0]}] * 2),
        ["two inputs are called 'x'"],
    ),
    "input op that is none": (edit("input_ops", to=[5]), ["input_ops, entry 0: op 5"]),
    "input op that takes time": (edit("input_ops", to=[0]), ["input_ops, op 0", "takes no time"]),
    "negative bandwidth": (edit("topology", "links", 0, "bandwidth", to=-1), ["bandwidth"]),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_json(case: str, document: dict[str, Any], tmp_path: Path) -> None:
    change, expected = BAD_JSON[case]
    change(document)
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError) as caught:
        load_problem(path)
    for part in [str(path), *expected]:
        assert part in str(caught.value)
    assert str(caught.value).count("\n") <= 1


def test_truncated_json(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    text = json.dumps(document)
    for length in (1, len(text) // 2, len(text) - 1):
        path.write_text(text[:length])
        with pytest.raises(FileFormatError, match="truncated"):
            load_problem(path)


def test_every_single_deletion_is_refused_or_harmless(
    document: dict[str, Any], tmp_path: Path
) -> None:
    """Dropping any one field fails as a `DopplerError` or leaves a problem that validates."""
    path = tmp_path / "problem.json"
    for section in ("graph", "topology", "cost_model"):
        for key in document[section]:
            changed = copy.deepcopy(document)
            del changed[section][key]
            path.write_text(json.dumps(changed))
            try:
                load_problem(path)
            except DopplerError as error:
                assert key in str(error)


def test_missing_file_and_binary_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no such file"):
        load_problem(tmp_path / "absent.json")
    with pytest.raises(FileFormatError, match="cannot be read as text"):
        load_problem(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(FileFormatError, match="cannot be read as text"):
        load_problem(tmp_path / "binary")


def test_other_number_of_devices(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="holds 2 devices, num_devices=3"):
        load_problem(path, num_devices=3)
