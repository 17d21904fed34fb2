"""Fixtures for the tests of scripts: commands in this process, small problem files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra

from doppler import (
    CostModel,
    DataflowGraph,
    Device,
    Link,
    PlacementProblem,
    Topology,
    save_problem,
)

Command = Callable[..., int]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "formats.md"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a script in this process from an empty folder; returns the exit status."""
    monkeypatch.chdir(tmp_path)

    def run(script: ModuleType, *arguments: str) -> int:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", [script.__name__, *arguments])
        try:
            script.main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return run


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """The problem file that the documentation shows."""
    path = tmp_path / "pair.json"
    path.write_text(re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.S)[0])
    return path


@pytest.fixture
def uneven(tmp_path: Path) -> PlacementProblem:
    """Eight ops on three unlike devices, written to uneven.json.

    0   1       0 is pinned to device 2
    |\\ /|       3 and 5 run together
    2   3       6 makes 9 B: device 1, the fastest, holds 8 B
    |\\ /|
    4   5       meta-ops: {0, 1}, {2, 3}, {4, 5}, {6, 7}
    |   |
    6   7
    """
    graph = DataflowGraph.from_edges(
        "uneven", 8,
        [(0, 2), (0, 3), (1, 3), (1, 2), (2, 4), (2, 5), (3, 4), (3, 5), (4, 6), (5, 7)],
        meta_op=[0, 0, 1, 1, 2, 2, 3, 3], output_bytes=[2.0, 1.0, 1.0, 1.0, 2.0, 1.0, 9.0, 1.0],
    )  # fmt: skip
    devices = tuple(Device(f"d{d}", memory_bytes=m) for d, m in enumerate((12.0, 8.0, 20.0)))
    links = tuple(
        Link(s, t, bandwidth) for s, t, bandwidth in
        [(0, 1, 1.0), (1, 0, 2.0), (0, 2, 4.0), (2, 0, 4.0), (1, 2, 1.0), (2, 1, 8.0)]
    )  # fmt: skip
    costs = CostModel(
        op_seconds=np.outer([2, 3, 5, 1, 4, 2, 3, 2], [1.0, 0.5, 2.0]),
        transfer_volume=graph.output_bytes,
        link_latency=np.full(6, 0.25),
        link_seconds_per_unit=[1 / link.bandwidth for link in links],
        source="by hand",
    )
    problem = PlacementProblem(
        graph, Topology("uneven", devices, links), costs,
        pinned=np.array([2, -1, -1, -1, -1, -1, -1, -1]),
        colocation=np.array([-1, -1, -1, 0, -1, 0, -1, -1]),
    )  # fmt: skip
    save_problem(problem, tmp_path / "uneven.json")
    return problem
