"""Work-conserving event simulation: one compiled kernel, one slow readable oracle."""

from doppler.schedule.networks import NETWORKS
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator.noise import LognormalNoise, NoiseFactors, NoiseModel
from doppler.simulator.simulator import CHOOSE_RULES, Simulator

__all__ = [
    "CHOOSE_RULES",
    "EXECUTIONS",
    "NETWORKS",
    "LognormalNoise",
    "NoiseFactors",
    "NoiseModel",
    "Simulator",
]
