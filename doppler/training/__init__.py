"""Training: roll-outs, the three stages, checkpoints and callbacks."""

from doppler.training.callbacks import METRICS, Callback, CsvMetrics
from doppler.training.checkpoint import load_policy_from_checkpoint
from doppler.training.decoding import best_of_samples
from doppler.training.imitation import CriticalPathTeacher, Imitation, PlacementTeacher
from doppler.training.objectives import (
    Objective,
    SimulatedObjective,
    measured_objective,
    simulated_objective,
    simulator_identity,
)
from doppler.training.real_rl import RealRL
from doppler.training.rollout import EpisodeRunner, Episodes, RolloutBatch
from doppler.training.runners import make_runner, rollout
from doppler.training.sim_rl import SimRL
from doppler.training.stage import Stage
from doppler.training.trainer import Checkpoints, Trainer, TrainingResult

__all__ = [
    "METRICS",
    "Callback",
    "Checkpoints",
    "CriticalPathTeacher",
    "CsvMetrics",
    "EpisodeRunner",
    "Episodes",
    "Imitation",
    "Objective",
    "PlacementTeacher",
    "RealRL",
    "RolloutBatch",
    "SimRL",
    "SimulatedObjective",
    "Stage",
    "Trainer",
    "TrainingResult",
    "best_of_samples",
    "load_policy_from_checkpoint",
    "make_runner",
    "measured_objective",
    "rollout",
    "simulated_objective",
    "simulator_identity",
]
