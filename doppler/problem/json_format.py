"""This project's own problem format: one JSON object, versioned; `docs/formats.md` describes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from doppler.checks import shown
from doppler.errors import DopplerError, FileFormatError
from doppler.files import parse_json, write_text_atomically
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Device, Link, Topology
from doppler.problem.inputs import InputTensor
from doppler.problem.placement_problem import PlacementProblem

FORMAT = "doppler-problem"
VERSION = 1

_LARGEST = 1 << 63
"""What numpy's whole numbers end at."""

_SECTIONS = ("graph", "topology", "cost_model")
_OPTIONAL_SECTIONS = ("constraints", "inputs", "input_ops")
_GRAPH_COLUMNS = ("kinds", "flops", "output_bytes", "meta_op", "roles", "op_names")
_COST_FIELDS = ("op_seconds", "transfer_volume", "link_latency", "link_seconds_per_unit")


def write_json_problem(problem: PlacementProblem, path: Path) -> None:
    """Writes `problem` to `path` under a temporary name and renames it."""
    graph, topology, costs = problem.graph, problem.topology, problem.cost_model
    columns = {name: getattr(graph, name) for name in _GRAPH_COLUMNS}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "graph": {
            "name": graph.name,
            "num_ops": graph.num_ops,
            "num_inputs": graph.num_inputs,
            "edges": graph.edges.tolist(),
            **{name: list(map(_plain, v)) for name, v in columns.items() if v is not None},
        },
        "topology": {
            "name": topology.name,
            "devices": [vars(device) for device in topology.devices],
            "hosts": list(topology.hosts),
            # JSON has no infinity; an unbounded link leaves its bandwidth out
            "links": [
                {k: v for k, v in vars(link).items() if v != float("inf") and v is not None}
                for link in topology.links
            ],
        },
        "cost_model": {
            "source": costs.source,
            **{name: getattr(costs, name).tolist() for name in _COST_FIELDS},
        },
        **_optional_sections(problem),
    }
    write_text_atomically(path, json.dumps(document, allow_nan=False) + "\n")


def _optional_sections(problem: PlacementProblem) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    columns = {"pinned": problem.pinned, "colocation": problem.colocation}
    stated = {name: values.tolist() for name, values in columns.items() if values is not None}
    if stated:
        sections["constraints"] = stated
    if problem.inputs:
        sections["inputs"] = [
            {**vars(tensor), "consumers": [int(op) for op in tensor.consumers]}
            for tensor in problem.inputs
        ]
    if problem.input_ops is not None:
        sections["input_ops"] = [int(op) for op in np.flatnonzero(problem.input_ops)]
    return sections


def problem_from_json(text: str, path: str, num_devices: int | None) -> PlacementProblem:
    """Parses this project's JSON format.

    Raises:
        FileFormatError: naming file, op and field.
    """
    document = parse_json(text, path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FileFormatError(f'{path}, format: not a problem file ("format": "{FORMAT}" expected)')
    if document.get("version") != VERSION or type(document["version"]) is not int:
        raise FileFormatError(
            f"{path}, version: {shown(document.get('version'))} is not {VERSION}, "
            "the version that this release reads"
        )
    with _located(path):
        _check_num_ops(document)
        _no_other_keys(document, ("format", "version", *_SECTIONS, *_OPTIONAL_SECTIONS), "file")
        problem = PlacementProblem(
            _graph(_mapping(document, "graph", "file")),
            _topology(_mapping(document, "topology", "file")),
            _cost_model(_mapping(document, "cost_model", "file")),
            **_constraints(document),
            inputs=tuple(_records(document, "inputs", InputTensor, {}, "file")),
            input_ops=_input_ops(document),
        )
    if num_devices is not None and num_devices != problem.num_devices:
        raise FileFormatError(
            f"{path}: the file holds {problem.num_devices} devices, num_devices={num_devices} was "
            "asked for"
        )
    return problem


def _check_num_ops(document: dict[str, Any]) -> None:
    """Refuses a number of ops that the columns do not bear out, before anything is allocated."""
    num_ops = _get(_mapping(document, "graph", "file"), "num_ops", "graph", int)
    rows = len(_get(_mapping(document, "cost_model", "file"), "op_seconds", "cost_model", list))
    if num_ops != rows:
        raise FileFormatError(
            f"graph, num_ops: {shown(num_ops)}, but cost_model, op_seconds has {rows} rows"
        )


def _graph(data: dict[str, Any]) -> DataflowGraph:
    _no_other_keys(data, ("name", "num_ops", "num_inputs", "edges", *_GRAPH_COLUMNS), "graph")
    edges = _get(data, "edges", "graph", list)
    for index, edge in enumerate(edges):
        whole = isinstance(edge, list) and len(edge) == 2 and all(type(v) is int for v in edge)
        if not whole:
            raise FileFormatError(
                f"graph, edges[{index}]: {shown(edge)} is not [producer, consumer]"
            )
    columns: dict[str, Any] = {}
    for name in _GRAPH_COLUMNS:
        if name in data:
            kind = int if name == "meta_op" else float if name in _GRAPH_COLUMNS[1:3] else str
            columns[name] = _column(_get(data, name, "graph", list), kind, f"graph, {name}")
    return DataflowGraph.from_edges(
        _get(data, "name", "graph", str),
        _get(data, "num_ops", "graph", int),
        edges,
        num_inputs=_get({"num_inputs": 0, **data}, "num_inputs", "graph", int),
        **columns,
    )


def _constraints(document: dict[str, Any]) -> dict[str, Any]:
    if "constraints" not in document:
        return {}
    data = _mapping(document, "constraints", "file")
    _no_other_keys(data, ("pinned", "colocation"), "constraints")
    return {name: _column(data[name], int, f"constraints, {name}") for name in data}


def _input_ops(document: dict[str, Any]) -> np.ndarray | None:
    if "input_ops" not in document:
        return None
    num_ops = _get(_mapping(document, "graph", "file"), "num_ops", "graph", int)
    mask = np.zeros(num_ops, bool)
    for entry, op in enumerate(_column(document["input_ops"], int, "input_ops")):
        if not 0 <= op < num_ops:
            raise FileFormatError(
                f"input_ops, entry {entry}: op {op}, ops are numbered 0 to {num_ops - 1}"
            )
        mask[op] = True
    return mask


def _topology(data: dict[str, Any]) -> Topology:
    _no_other_keys(data, ("name", "devices", "hosts", "links"), "topology")
    return Topology(
        name=_get(data, "name", "topology", str),
        devices=tuple(_records(data, "devices", Device, {}, "topology")),
        links=tuple(_records(data, "links", Link, {"bandwidth": float("inf")}, "topology")),
        hosts=tuple(_column(data.get("hosts", []), str, "topology, hosts")),
    )


def _cost_model(data: dict[str, Any]) -> CostModel:
    _no_other_keys(data, ("source", *_COST_FIELDS), "cost_model")
    arrays: dict[str, Any] = {}
    for name in _COST_FIELDS:
        values = _get(data, name, "cost_model", list)
        if name == "op_seconds":
            rows = [
                _column(r, float, f"cost_model, op_seconds, op {i}") for i, r in enumerate(values)
            ]
            widths = {len(row) for row in rows}
            if len(widths) > 1:
                odd = next(i for i, row in enumerate(rows) if len(row) != len(rows[0]))
                raise FileFormatError(
                    f"cost_model, op_seconds, op {odd}: {len(rows[odd])} devices, op 0 has "
                    f"{len(rows[0])}"
                )
            arrays[name] = rows
        else:
            arrays[name] = _column(values, float, f"cost_model, {name}")
    return CostModel(source=_get(data, "source", "cost_model", str), **arrays)


def _records(
    data: dict[str, Any], key: str, build: Callable[..., Any], defaults: dict[str, Any], where: str
) -> Iterator[Any]:
    """Builds an object per entry of a list; "inputs" may be left out."""
    if key == "inputs" and key not in data:
        return
    for index, record in enumerate(_get(data, key, where, list)):
        if not isinstance(record, dict):
            raise FileFormatError(f"{where}, {key}[{index}]: an object expected")
        try:
            yield build(**{**defaults, **record})
        except TypeError as error:
            raise FileFormatError(f"{where}, {key}[{index}]: {error}") from error


def _column(values: object, kind: type, where: str) -> list[Any]:
    if not isinstance(values, list):
        raise FileFormatError(f"{where}: a list expected")
    allowed = (int, float) if kind is float else (kind,)
    limit = int(sys.float_info.max) if kind is float else _LARGEST
    for index, value in enumerate(values):
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise FileFormatError(
                f"{where}, entry {index}: {shown(value)} is not of type {kind.__name__}"
            )
        if isinstance(value, int) and not -limit <= value < limit:
            raise FileFormatError(f"{where}, entry {index}: {shown(value)} has too many digits")
    return values


def _get(data: dict[str, Any], key: str, where: str, kind: type) -> Any:
    if key not in data:
        raise FileFormatError(f"{where}: the field {key!r} is missing")
    if not isinstance(data[key], kind) or isinstance(data[key], bool):
        raise FileFormatError(f"{where}, {key}: {shown(data[key])} is not of type {kind.__name__}")
    return data[key]


def _mapping(data: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value: dict[str, Any] = _get(data, key, where, dict)
    return value


def _no_other_keys(data: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise FileFormatError(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(known)}")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


@contextmanager
def _located(path: str) -> Iterator[None]:
    """Puts the file's name in front of whatever is found wrong inside it."""
    try:
        yield
    except DopplerError as error:
        raise FileFormatError(f"{path}, {error}") from error
