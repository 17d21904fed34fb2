"""Searches in the simulator: chains of moves that are evaluated and kept or undone."""

from __future__ import annotations

from doppler.schedulers.search.annealing import SimulatedAnnealing
from doppler.schedulers.search.base import SimulatedSearch

__all__ = ["SimulatedAnnealing", "SimulatedSearch"]
