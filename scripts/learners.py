"""The learners that benchmarks compare: each a configuration of `scripts/train.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from doppler.errors import ConfigurationError
from scripts import train
from scripts.entry import short_message
from scripts.progress import ProgressDisplay

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
LEARNERS: dict[str, tuple[str, ...]] = {
    "doppler": ("policy=doppler",),
    "doppler_paper": ("experiment=doppler_paper",),
    "paper_network": ("policy=paper",),
    "sel_only": ("policy=sel_only",),
    "plc_only": ("policy=plc_only",),
    "joint": ("policy=joint",),
    "placeto": ("policy=placeto",),
    "gdp": ("policy=gdp",),
    "sb3_ppo": ("experiment=sb3_ppo",),
    "maskable_ppo": ("experiment=maskable_ppo",),
}
"""Overrides of configs/train.yaml by name."""
AS_PUBLISHED = ("doppler_paper",)
"""Learners whose stages keep their own lengths, whatever the seconds."""


def compose_training(overrides: Sequence[str], who: str) -> DictConfig:
    """configs/train.yaml with overrides.

    Args:
        overrides: as on the command line of `scripts/train.py`.
        who: is told in the error.

    Raises:
        ConfigurationError: they do not compose.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base=None):
            return compose("train", overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"{who}: {' '.join(overrides)}: {reason}") from error


def learner_config(
    name: str, graph: Path, choose: str, seed: int = 0, seconds: float | None = None
) -> DictConfig:
    """How a learner is trained on a published graph, in simulation alone.

    Args:
        name: of `LEARNERS`.
        graph: the problem file, for 4 devices.
        choose: the simulator's choose rule.
        seed: of weights and training.
        seconds: budget of all stages together; None for none. [s]

    Raises:
        ConfigurationError: an unknown learner, or one whose configuration does not exist.
    """
    if name not in LEARNERS:
        raise ConfigurationError(f"learner {name!r} is unknown; known: {', '.join(LEARNERS)}")
    config = compose_training(
        [
            "workload=file",
            "topology.num_devices=4",
            "simulator.network=contention_free",
            f"simulator.choose={choose}",
            "logger=none",
            f"seed={seed}",
            f"budget_s={'null' if seconds is None else repr(float(seconds))}",
            *LEARNERS[name],
        ],
        f"learner {name!r}",
    )
    config.workload.path = str(graph.resolve())
    config.stages = [stage for stage in config.stages if stage != "real_rl"]
    config.schedulers = {}  # they have rows of their own
    return config


def build_learner(config: DictConfig, progress: ProgressDisplay) -> train.Run:
    """The parts of a training run, as `scripts/train.py` builds them.

    Raises:
        DopplerError: parts that cannot be built.
    """
    try:
        return train.build(config, progress)
    except InstantiationException as error:
        raise ConfigurationError(short_message(error) or str(error)) from error
