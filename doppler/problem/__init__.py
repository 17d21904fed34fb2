"""Placement problems (graph, topology, costs) and the files that hold them."""

from doppler.problem.files import load_problem, save_problem
from doppler.problem.inputs import InputTensor
from doppler.problem.placement_problem import PlacementProblem

__all__ = ["InputTensor", "PlacementProblem", "load_problem", "save_problem"]
