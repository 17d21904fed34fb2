"""The text format of the published DOPPLER graphs (Yao et al. 2026, code release).

By line: number of vertices, inputs included; ids of the input vertices (only their count matters);
source op of every edge; target op of every edge; then per op its compute amount, the transfer
amount of its output and its type. The published simulator reads amount / 1e10 as seconds, and a
transfer takes the producer's transfer seconds on any link. Bytes, FLOPs and meta-ops are unknown.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from doppler.checks import shown, text_int
from doppler.errors import FileFormatError, InvalidGraphError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem.placement_problem import PlacementProblem

AMOUNTS_PER_SECOND = 1e10


def problem_from_published_text(text: str, path: str, num_devices: int | None) -> PlacementProblem:
    """Parses the published format.

    Args:
        text: the file's content.
        path: named in errors; its stem names the graph.
        num_devices: how many equal devices to place on.

    Raises:
        FileFormatError: naming file, line, op and field.
    """
    lines = [line.strip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) < 5:
        raise FileFormatError(
            f"{path}: {len(lines)} lines; the published format has at least 5 (vertices, inputs, "
            "edge sources, edge targets, one line per op); is the file truncated?"
        )
    vertices = _ints(lines[0], path, 1, "number of vertices")
    if len(vertices) != 1:
        raise FileFormatError(f"{path}, line 1, number of vertices: one number expected")
    inputs = _ints(lines[1], path, 2, "input ids")
    num_ops = vertices[0] - len(inputs)
    rows = lines[4:]
    if len(rows) != num_ops:
        raise FileFormatError(
            f"{path}, line {5 + min(len(rows), max(num_ops, 0))}: {len(rows)} op lines, but lines "
            f"1 and 2 announce {vertices[0]} vertices - {len(inputs)} inputs = {num_ops} ops; is "
            "the file truncated?"
        )
    sources = _ints(lines[2], path, 3, "edge sources")
    targets = _ints(lines[3], path, 4, "edge targets")
    if len(sources) != len(targets):
        raise FileFormatError(
            f"{path}, line 4: {len(targets)} edge targets for {len(sources)} edge sources in line 3"
        )
    parsed = [_op_line(row, path, op) for op, row in enumerate(rows)]
    if num_devices is None:
        raise FileFormatError(
            f"{path}: the published format names no devices; pass num_devices (the published "
            "graphs were cut for 4)"
        )
    try:
        graph = DataflowGraph.from_edges(
            Path(path).stem,
            num_ops,
            np.array([sources, targets], np.int64).T,
            kinds=[kind for _, _, kind in parsed],
            num_inputs=len(inputs),
        )
    except InvalidGraphError as error:
        raise FileFormatError(f"{path}, lines 3 and 4: {error}") from error
    topology = make_topology("ideal", num_devices)
    compute = np.array([seconds for seconds, _, _ in parsed])
    cost_model = CostModel(
        op_seconds=np.repeat(compute[:, None], num_devices, axis=1),
        transfer_volume=np.array([seconds for _, seconds, _ in parsed]),
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="published file, seconds = amount / 1e10",
    )
    return PlacementProblem(graph, topology, cost_model)


def _ints(line: str, path: str, number: int, field: str) -> list[int]:
    values = []
    for position, token in enumerate(line.rstrip(", ").split(",")):
        if not token.strip() and len(line.strip(", ")) == 0:
            return []
        values.append(text_int(token, f"{path}, line {number}, {field}, entry {position}"))
    return values


def _op_line(row: str, path: str, op: int) -> tuple[float, float, str]:
    where = f"{path}, line {5 + op}, op {op}"
    fields = [field.strip() for field in row.split(",")]
    if len(fields) != 3 or not fields[2]:
        raise FileFormatError(f"{where}: {row!r} is not 'compute amount, transfer amount, op type'")
    amounts = []
    for label, token in (("compute amount", fields[0]), ("transfer amount", fields[1])):
        try:
            # Python also reads 1_0 and the digits of other scripts
            amount = float(token if token.isascii() and "_" not in token else "none")
        except ValueError as error:
            raise FileFormatError(f"{where}, {label}: {shown(token)} is not a number") from error
        if not (np.isfinite(amount) and amount >= 0):
            raise FileFormatError(f"{where}, {label}: {shown(token)} is not a finite amount >= 0")
        amounts.append(amount / AMOUNTS_PER_SECOND)
    return amounts[0], amounts[1], fields[2]
