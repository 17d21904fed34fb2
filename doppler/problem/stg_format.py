"""The text format of the Standard Task Graph Set (Kasahara Laboratory, Waseda University).

The first line holds the number of tasks, the two dummies left out; then comes one line per task,
dummies included: id, processing time, number of predecessors and their ids. Lines that start with
`#` are comments. The set knows no communication: transfers take no time here. The dummies, an entry
and an exit of no length, order nothing that matters and are dropped: op `v` is task `v + 1`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from doppler.checks import text_int
from doppler.errors import FileFormatError, InvalidGraphError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem.placement_problem import PlacementProblem

Lines = list[tuple[int, list[str]]]
"""Line numbers from 1, and the words of the lines that are neither empty nor comments."""


def is_stg_text(text: str, path: str) -> bool:
    """Tells an STG file by its name, or by its first task line: whole numbers without commas."""
    if Path(path).suffix == ".stg":
        return True
    lines = _content(text)
    return len(lines) > 1 and len(lines[1][1]) > 2 and not any("," in w for w in lines[1][1])


def problem_from_stg_text(text: str, path: str, num_devices: int | None) -> PlacementProblem:
    """Parses an STG file; one unit of processing time becomes one second.

    Args:
        text: the file's content.
        path: named in errors; its stem names the graph.
        num_devices: how many equal devices to place on.

    Raises:
        FileFormatError: naming file, line, task and field.
    """
    lines = _content(text)
    if not lines:
        raise FileFormatError(f"{path}: only comments; the number of tasks is missing")
    num_tasks = _announced(lines[0], path)
    tasks = lines[1:]
    if len(tasks) != num_tasks + 2:
        number = tasks[min(len(tasks), num_tasks + 3) - 1][0] if tasks else lines[0][0]
        raise FileFormatError(
            f"{path}, line {number}: {len(tasks)} task lines, but line {lines[0][0]} announces "
            f"{num_tasks} tasks and two dummies = {num_tasks + 2}; is the file truncated?"
        )
    seconds = np.zeros(num_tasks)
    edges: list[tuple[int, int]] = []
    for task, (number, words) in enumerate(tasks):
        where = f"{path}, line {number}, task {task}"
        values = _whole_numbers(words, where)
        duration, predecessors = _task(values, task, num_tasks + 2, where)
        if 0 < task <= num_tasks:
            seconds[task - 1] = duration
            edges += [(before - 1, task - 1) for before in predecessors if before > 0]
        elif duration != 0 or (task == 0 and predecessors):
            raise FileFormatError(
                f"{where}, processing time: {duration} with predecessors {predecessors}; the first "
                "and the last task are dummies of processing time 0, the first without predecessors"
            )
    if num_devices is None:
        raise FileFormatError(f"{path}: an STG file names no devices; pass num_devices")
    try:
        graph = DataflowGraph.from_edges(
            Path(path).stem,
            num_tasks,
            edges,
            kinds=["task"] * num_tasks,
            op_names=[f"task_{task}" for task in range(1, num_tasks + 1)],
        )
    except InvalidGraphError as error:
        raise FileFormatError(f"{path}, predecessors (op v is task v + 1): {error}") from error
    topology = make_topology("ideal", num_devices)
    cost_model = CostModel(
        op_seconds=np.repeat(seconds[:, None], num_devices, axis=1),
        transfer_volume=np.zeros(num_tasks),
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="Standard Task Graph Set, one second per unit, communication free",
    )
    return PlacementProblem(graph, topology, cost_model)


def _content(text: str) -> Lines:
    numbered = enumerate(text.splitlines(), start=1)
    return [
        (number, line.split())
        for number, line in numbered
        if line.strip() and line.strip()[0] != "#"
    ]


def _announced(line: tuple[int, list[str]], path: str) -> int:
    number, words = line
    where = f"{path}, line {number}, number of tasks"
    values = _whole_numbers(words, where)
    if len(values) != 1 or values[0] < 1:
        raise FileFormatError(f"{where}: {' '.join(words)!r} is not one whole number >= 1")
    return values[0]


def _whole_numbers(words: list[str], where: str) -> list[int]:
    return [text_int(word, f"{where}, entry {at}") for at, word in enumerate(words)]


def _task(values: list[int], task: int, limit: int, where: str) -> tuple[int, list[int]]:
    """Processing time and predecessors of a task line, checked."""
    if len(values) < 3:
        raise FileFormatError(
            f"{where}: {len(values)} entries; id, processing time, number of predecessors and "
            "their ids are expected"
        )
    if values[0] != task:
        raise FileFormatError(f"{where}, id: {values[0]}; ids ascend from 0, one task a line")
    if values[1] < 0:
        raise FileFormatError(f"{where}, processing time: {values[1]} is below 0")
    predecessors = values[3:]
    if len(predecessors) != values[2]:
        raise FileFormatError(
            f"{where}, number of predecessors: {values[2]}, but {len(predecessors)} ids follow "
            "(STG files with communication times are not read)"
        )
    for before in predecessors:
        if not 0 <= before < limit - 1:
            raise FileFormatError(
                f"{where}, predecessors: {before} is not in 0 to {limit - 2}, the tasks before the "
                "last dummy"
            )
        if predecessors.count(before) > 1:
            raise FileFormatError(f"{where}, predecessors: {before} appears twice")
    return values[1], predecessors
