"""Dataflow graphs: validated arrays, levels and critical paths."""

from doppler.graph.dataflow_graph import ROLES, DataflowGraph
from doppler.graph.levels import (
    b_levels,
    critical_path,
    hop_depths,
    path_successors,
    t_levels,
)

__all__ = [
    "ROLES",
    "DataflowGraph",
    "b_levels",
    "critical_path",
    "hop_depths",
    "path_successors",
    "t_levels",
]
