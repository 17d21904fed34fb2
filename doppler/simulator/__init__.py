"""Work-conserving event simulation: one compiled kernel, one slow readable oracle."""

from doppler.schedule.networks import NETWORKS
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator.engine import replication_seeds
from doppler.simulator.noise import EmpiricalNoise, LognormalNoise, NoiseFactors, NoiseModel
from doppler.simulator.robustness import STATISTICS, Robustness, RobustSimulator
from doppler.simulator.simulator import CHOOSE_RULES, Simulator

__all__ = [
    "CHOOSE_RULES",
    "EXECUTIONS",
    "NETWORKS",
    "STATISTICS",
    "EmpiricalNoise",
    "LognormalNoise",
    "NoiseFactors",
    "NoiseModel",
    "RobustSimulator",
    "Robustness",
    "Simulator",
    "replication_seeds",
]
