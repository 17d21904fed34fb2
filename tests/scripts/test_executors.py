"""The executors from the configuration: what they build, and what they refuse before it starts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from doppler.errors import ConfigurationError
from doppler.executor.cuda import executor as cuda_module
from doppler.hardware import make_topology
from doppler.workloads import make_workload
from scripts import run_distributed

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "executor"))
from cuda_fakes import FakeCuda  # noqa: E402


def make_setup(preset: str = "cpu", **settings: Any) -> Any:
    workload = make_workload("chainmm", num_shards=4, block=16)
    options = {"network": "serial_links", "choose": "b_level", "seed": 3}
    return SimpleNamespace(
        workload=workload,
        profile=None,
        problem=workload.problem(make_topology(preset, 2)),
        settings=SimpleNamespace(**{**options, "execution": "work_conserving", **settings}),
    )


def execution(name: str, *overrides: str) -> Any:
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose("place", [f"executor={name}", *overrides])
    return instantiate(config.executor)


@pytest.mark.parametrize("name", ["cpu", "cuda", "distributed", "emulated"])
def test_the_executor_has_the_settings_of_the_simulator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_module, "TorchStreams", lambda: FakeCuda(2))
    setup = make_setup("v100" if name == "cuda" else "cpu")
    rules = ["serial_links", "work_conserving"]
    if name != "distributed":
        rules = ["one_port", "bulk_synchronous"]
        setup.settings.network, setup.settings.execution = rules
    made = execution(name, "executor.timeout_s=7")
    assert made.measures == (name != "emulated")
    with made.build(setup) as executor:
        assert executor.backend == name
        assert executor.problem is setup.problem and executor.num_devices == 2
        assert [executor.network, executor.execution] == rules
        assert (executor.choose, executor.seed, executor.timeout_s) == ("b_level", 3, 7.0)
        if name == "distributed":
            assert executor.fleet.connections == []  # nothing has started


@pytest.mark.parametrize("name", ["cpu", "cuda", "distributed"])
def test_inputs_have_the_seed_that_was_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_module, "TorchStreams", lambda: FakeCuda(2))
    setup = make_setup("v100" if name == "cuda" else "cpu")
    with execution(name, "executor.input_seed=5").build(setup) as executor:
        assert executor.input_seed == 5


def test_every_option_reaches_the_cuda_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_module, "TorchStreams", lambda: FakeCuda(2))
    made = execution(
        "cuda", "executor.gpus=[1]", "executor.depth=3", "executor.copies=staged",
        "executor.allow_tf32=true",
    )  # fmt: skip
    with made.build(make_setup("v100")) as executor:
        assert executor.devices.gpus == (1, 1)
        assert (executor.depth, executor.copies, executor.allow_tf32) == (3, "staged", True)
        assert executor.check([0, 1] * (executor.workload.graph.num_ops // 2)).passed


def test_without_cuda_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ConfigurationError, match=r"executor=cuda needs a CUDA device.*executor=cpu"
    ):
        execution("cuda").build(make_setup("v100"))


@pytest.mark.parametrize(
    ("name", "suits", "other", "message"),
    [
        ("cpu", "cpu", "p100", "executor=cpu runs CPU devices, the topology is p100x2"),
        ("cuda", "v100", "cpu", "executor=cuda runs GPUs, the topology is cpux2"),
        ("distributed", "cpu", "p100", "executor=distributed runs processes on CPUs, .* p100x2"),
    ],
)
def test_what_is_about_other_devices_is_refused(
    name: str, suits: str, other: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        execution(name).build(make_setup(other))
    from_file = make_setup(suits)
    from_file.workload = None
    with pytest.raises(ConfigurationError, match=f"executor={name} needs kernels, a problem file"):
        execution(name).build(from_file)


def test_gpus_need_a_profile_of_gpus() -> None:
    setup = make_setup("v100")
    setup.profile = SimpleNamespace(environment={"backend": "cpu"})
    with pytest.raises(ConfigurationError, match="calibrated on these GPUs"):
        execution("cuda").build(setup)


def test_what_processes_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one_port cannot be kept to"):
        execution("distributed").build(make_setup(network="one_port"))
    with pytest.raises(ConfigurationError, match="not bulk_synchronous"):
        execution("distributed").build(make_setup(execution="bulk_synchronous"))


def test_without_torchrun_the_entry_point_says_how(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert run_distributed.main([]) == 2
    assert "torchrun --nproc-per-node" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_distributed.parse(["--workload", "nonsense"])
