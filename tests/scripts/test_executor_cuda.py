"""executor=cuda: from the configuration to devices, and what it refuses."""

from __future__ import annotations

import sys
from dataclasses import dataclass
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

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "executor"))
from cuda_fakes import FakeCuda  # noqa: E402


@dataclass
class FakeSetup:
    workload: Any
    problem: Any
    profile: Any = None
    settings: Any = None

    def __post_init__(self) -> None:
        self.settings = SimpleNamespace(
            network="one_port", choose="b_level", seed=3, execution="bulk_synchronous"
        )


def setup(topology: str = "v100") -> FakeSetup:
    workload = make_workload("chainmm", num_shards=4, block=16)
    return FakeSetup(workload, workload.problem(make_topology(topology, 2)))


def execution(*overrides: str) -> Any:
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose("place", ["executor=cuda", *overrides])
    return instantiate(config.executor)


def test_every_option_reaches_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_module, "TorchStreams", lambda: FakeCuda(2))
    made = execution(
        "executor.gpus=[1]", "executor.depth=3", "executor.copies=staged",
        "executor.allow_tf32=true", "executor.timeout_s=7", "executor.input_seed=5",
    )  # fmt: skip
    assert made.measures
    given = setup()
    with made.build(given) as executor:
        assert executor.problem is given.problem
        assert executor.devices.gpus == (1, 1)
        options = (executor.depth, executor.copies, executor.allow_tf32, executor.timeout_s)
        assert options == (3, "staged", True, 7.0)
        rules = (executor.network, executor.choose, executor.execution)
        assert rules == ("one_port", "b_level", "bulk_synchronous")
        assert (executor.seed, executor.input_seed) == (3, 5)
        assert executor.check([0, 1] * (executor.workload.graph.num_ops // 2)).passed


def test_without_cuda_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ConfigurationError, match=r"executor=cuda needs a CUDA device.*executor=cpu"
    ):
        execution().build(setup())


def test_what_is_not_about_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_module, "TorchStreams", FakeCuda)
    with pytest.raises(ConfigurationError, match="runs GPUs, the topology is cpux2"):
        execution().build(setup("cpu"))
    on_cpu = setup()
    on_cpu.profile = SimpleNamespace(environment={"backend": "cpu"})
    with pytest.raises(ConfigurationError, match="calibrated on these GPUs"):
        execution().build(on_cpu)
    from_file = setup()
    from_file.workload = None
    with pytest.raises(ConfigurationError, match="needs kernels"):
        execution().build(from_file)
