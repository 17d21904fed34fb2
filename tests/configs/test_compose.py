"""Every configuration composes and builds; what is unknown raises and says what is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler import Topology
from doppler.policies import PAPER_POLICY, Policy, PolicyConfig
from doppler.schedulers import SCHEDULERS, Scheduler, make_scheduler
from doppler.training import Stage
from doppler.training.loggers import NoLogger
from doppler.workloads import WORKLOADS, Workload
from envs.sb3 import ActorCritic
from scripts.problems import FileTopology, ProblemFile, SimulatorSettings, build_workload
from scripts.report import build_schedulers
from scripts.run_folder import resolved
from scripts.train import check_options

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SCRIPTS = ("train", "evaluate", "place")
SHARED_GROUPS = ("workload", "topology", "simulator", "executor")


@contextmanager
def hydra_configs() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base=None):
        yield


def composed(script: str, *overrides: str) -> DictConfig:
    with hydra_configs():
        return compose(script, overrides=list(overrides))


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def test_every_group_of_the_design_has_options() -> None:
    groups = {path.parent.name for path in CONFIGS.glob("*/*.yaml")}
    assert groups == {*SHARED_GROUPS, "policy", "scheduler", "stage", "logger", "experiment"}
    assert options("workload") == sorted([*WORKLOADS, "file"])
    assert options("scheduler") == sorted(SCHEDULERS)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group in SHARED_GROUPS for option in options(group)]
)
def test_every_option_composes_and_builds_in_every_script(
    script: str, group: str, option: str
) -> None:
    config = composed(script, f"{group}={option}", "++workload.path=graph.txt")
    if config.workload._target_ != "scripts.problems.ProblemFile":
        del config.workload.path
    assert isinstance(instantiate(config.simulator), SimulatorSettings)
    assert isinstance(instantiate(config.topology), Topology | FileTopology)
    assert isinstance(build_workload(config.workload), Workload | ProblemFile)
    assert instantiate(config.executor).repeats >= 0
    resolved(config)


def test_calibrate_composes_with_every_workload_that_has_kernels() -> None:
    for option in options("workload"):
        if option != "file":
            assert build_workload(composed("calibrate", f"workload={option}").workload).name


@pytest.mark.parametrize("option", options("policy"))
def test_every_policy_builds(option: str) -> None:
    kind = ActorCritic if option == "actor_critic" else Policy
    assert isinstance(instantiate(composed("train", f"policy={option}").policy), kind)


@pytest.mark.parametrize("option", options("logger"))
def test_every_logger_builds(option: str) -> None:
    assert isinstance(instantiate(composed("train", f"logger={option}").logger), NoLogger)


@pytest.mark.parametrize("option", options("scheduler"))
def test_every_scheduler_builds_and_carries_its_own_name(option: str) -> None:
    scheduler = instantiate(composed("place", f"scheduler={option}").scheduler)
    assert isinstance(scheduler, Scheduler)
    assert scheduler.name == option


@pytest.mark.parametrize("script", ["train", "evaluate"])
@pytest.mark.parametrize("option", options("scheduler"))
def test_every_scheduler_can_be_a_row_of_the_tables(script: str, option: str) -> None:
    config = composed(script, f"+scheduler@schedulers.added={option}")
    assert build_schedulers(config)["added"].name == option
    if "budget_s" in config.schedulers.added:
        config = composed(
            script, f"+scheduler@schedulers.added={option}", "schedulers.added.budget_s=5"
        )
        assert build_schedulers(config)["added"] == make_scheduler(option, budget_s=5)


@pytest.mark.parametrize("experiment", [None, *options("experiment")])
def test_every_experiment_composes_and_builds_all_its_parts(experiment: str | None) -> None:
    config = composed("train", *([] if experiment is None else [f"experiment={experiment}"]))
    check_options(config)
    for name in ("imitation", "sim_rl", "real_rl"):
        stage = instantiate(config[name])
        assert isinstance(stage, Stage)
        assert stage.name == name
    for part in ("simulator", "topology", "executor", "logger", "policy"):
        instantiate(config[part])
    for scheduler in config.schedulers.values():
        instantiate(scheduler)
    if "path" in list(config.workload):  # which file is for the user to say
        config.workload.path = "graph.txt"
    build_workload(config.workload)
    resolved(config)


@pytest.mark.parametrize("experiment", options("experiment"))
def test_experiments_hold_overrides_and_begin_with_their_command(experiment: str) -> None:
    lines = (CONFIGS / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert any(f"experiment={experiment}" in line for line in lines[:4] if line.startswith("#"))
    assert not any("_target_" in line for line in lines)


def test_stages_and_policy_show_every_setting_at_the_library_s_default() -> None:
    config = composed("train")
    for name in ("imitation", "sim_rl", "real_rl"):
        configured, default = instantiate(config[name]), type(instantiate(config[name]))()
        objects = {"teacher", "incumbent"}  # given from Python
        assert set(config[name]) - {"_target_"} >= set(default.options()) - objects, name
        assert configured.options() == default.options(), name
    assert instantiate(config.policy).config == PolicyConfig()
    assert instantiate(composed("train", "policy=paper").policy).config == PAPER_POLICY


@pytest.mark.parametrize("script", [*SCRIPTS, "calibrate"])
@pytest.mark.parametrize("key", ["sede=1", "workload.blocks=3", "workload.scael=paper"])
def test_unknown_keys_raise(script: str, key: str) -> None:
    with pytest.raises(ConfigCompositionException, match=r"Could not override"):
        composed(script, key)


def test_unknown_options_raise_with_the_list_of_options() -> None:
    with pytest.raises(ConfigCompositionException) as raised:
        composed("train", "topology=a100")
    for option in options("topology"):
        assert option in str(raised.value)


def test_a_problem_file_chooses_topology_simulator_and_executor() -> None:
    config = composed("train", "workload=file", "workload.path=x", "topology.num_devices=4")
    assert config.simulator.cost._target_ == "scripts.problems.FileCost"
    assert config.executor._target_ == "scripts.executors.NoExecution"
    assert config.topology == {"_target_": "scripts.problems.FileTopology", "num_devices": 4}


def test_devices_that_are_not_here_are_simulated_only() -> None:
    for topology in ("p100", "v100", "host_staged", "ideal"):
        config = composed("train", f"topology={topology}")
        assert config.simulator.cost._target_ == "scripts.problems.PresetCost"
        assert config.executor.repeats == 0


def test_seeds_reach_policy_and_simulator() -> None:
    config = composed("train", "seed=7")
    assert config.policy.seed == 7
    assert config.simulator.seed == 7
