"""The comparators' configurations: every setting in sight, and the published run as published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler.errors import ConfigurationError
from doppler.policies import PAPER_POLICY, DualPolicy, Policy
from doppler.training import Imitation, SimRL, make_runner
from doppler.workloads.random_dags import layered_dag

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
COMPARATORS = ("sel_only", "plc_only", "joint", "placeto", "gdp")


@pytest.fixture(autouse=True)
def hydra_configs() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base=None):
        yield


def composed(*overrides: str) -> DictConfig:
    return compose("train", overrides=list(overrides))


@pytest.mark.parametrize("option", COMPARATORS)
def test_a_comparator_is_an_option_that_shows_its_settings_at_their_defaults(option: str) -> None:
    config = composed(f"policy={option}", "seed=4").policy
    policy = instantiate(config)
    assert isinstance(policy, Policy) and policy.kind == option
    assert policy.config == policy.config_type()
    # One head has one encoder; what selects no op does not look at candidates.
    unread = {"shared_encoder", *({"sel_state_features"} - set(config.config))}
    known = {name for name in vars(policy.config) if name != "kind"}
    assert known - unread == set(config.config) - {"_target_"}
    assert ("sel_state_features" in config.config) == (option in ("sel_only", "joint"))
    assert config.seed == 4
    assert make_runner(policy, layered_dag(6, 2, seed=0)).policy is policy
    smaller = instantiate(composed(f"policy={option}", "policy.config.hidden_width=8").policy)
    assert smaller.config.hidden_width == 8


def test_the_published_run_has_the_published_settings() -> None:
    config = composed("experiment=doppler_paper")
    assert list(config.stages) == ["imitation", "sim_rl"]
    policy = instantiate(config.policy)
    assert type(policy) is DualPolicy and policy.config == PAPER_POLICY
    imitation, sim_rl = instantiate(config.imitation), instantiate(config.sim_rl)
    assert type(imitation) is Imitation and type(sim_rl) is SimRL
    for stage in (imitation, sim_rl):
        assert (stage.episodes, stage.batch_size) == (4000, 1)
        assert (stage.learning_rate, stage.final_learning_rate) == (1e-4, 1e-7)
        assert stage.gradient_clip >= 1e9
    assert sim_rl.scheduled(1e-4, 1e-7, 3999) == 1e-7
    assert (sim_rl.exploration, sim_rl.final_exploration) == (0.2, 0.0)
    assert (sim_rl.sel_entropy, sim_rl.plc_entropy) == (1e-2, 1e-2)
    assert (sim_rl.baseline, sim_rl.normalise) == ("running_mean", False)
    assert (sim_rl.elite_batch, sim_rl.polish_every) == (0, 0)
    llama = composed("experiment=doppler_paper", "sim_rl.episodes=8000", "imitation.episodes=8000")
    assert instantiate(llama.sim_rl).num_updates == 8000


def test_impossible_shapes_are_refused_by_name() -> None:
    config = composed("policy=gdp", "policy.config.attention_heads=5").policy
    with pytest.raises(Exception, match="attention_heads: 5 do not divide") as raised:
        instantiate(config)
    assert isinstance(raised.value.__cause__ or raised.value, ConfigurationError)
