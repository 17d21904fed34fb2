"""DOPPLER gym: place the ops of a dataflow graph on devices so that the graph finishes soonest.

The library knows nothing of Gymnasium, Hydra or the command line; see `envs` and `scripts`.
"""

from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, Device, Link, Topology
from doppler.problem import PlacementProblem, load_problem, save_problem
from doppler.schedule import Placement, Schedule

__version__ = "0.1.0"

__all__ = [
    "CostModel",
    "DataflowGraph",
    "Device",
    "Link",
    "Placement",
    "PlacementProblem",
    "Schedule",
    "Topology",
    "load_problem",
    "save_problem",
]
