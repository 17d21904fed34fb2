"""Searches in the simulator: chains of moves that are evaluated and kept or undone."""

from __future__ import annotations

from doppler.schedulers.search.annealing import SimulatedAnnealing
from doppler.schedulers.search.base import SimulatedSearch
from doppler.schedulers.search.genetic import Genetic
from doppler.schedulers.search.late_acceptance import LateAcceptance
from doppler.schedulers.search.random_restarts import RandomRestarts

__all__ = ["Genetic", "LateAcceptance", "RandomRestarts", "SimulatedAnnealing", "SimulatedSearch"]
