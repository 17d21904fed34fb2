"""Exact scheduling: proven optima and bounds of small problems, enumeration of tiny ones."""

from doppler.schedulers.exact.cp_sat import CpSat
from doppler.schedulers.exact.exhaustive import Exhaustive, Optima, find_optima
from doppler.schedulers.exact.solver import ExactResult, SolverOptions, solve

__all__ = [
    "CpSat",
    "ExactResult",
    "Exhaustive",
    "Optima",
    "SolverOptions",
    "find_optima",
    "solve",
]
