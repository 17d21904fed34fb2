"""executor=distributed: what it builds, and what it refuses before any process starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from doppler.errors import ConfigurationError
from doppler.hardware import make_topology
from doppler.workloads import make_workload
from scripts import run_distributed
from scripts.executor_distributed import DistributedExecution


def make_setup(preset: str = "cpu", **settings: Any) -> Any:
    workload = make_workload("ffnn", num_shards=2)
    options = {"network": "serial_links", "choose": "b_level", "seed": 3}
    return SimpleNamespace(
        workload=workload,
        profile=None,
        problem=workload.problem(make_topology(preset, 2)),
        settings=SimpleNamespace(**{**options, "execution": "work_conserving", **settings}),
    )


def test_the_executor_has_the_settings_of_the_simulator() -> None:
    setup = make_setup()
    with DistributedExecution(timeout_s=7.0, input_seed=5).build(setup) as executor:
        assert executor.problem is setup.problem and executor.num_devices == 2
        assert (executor.choose, executor.seed) == ("b_level", 3)
        assert (executor.timeout_s, executor.input_seed) == (7.0, 5)
        assert executor.fleet.connections == []  # nothing has started


def test_what_processes_cannot_run_is_refused() -> None:
    execution = DistributedExecution()
    with pytest.raises(ConfigurationError, match="a problem file has none"):
        execution.build(SimpleNamespace(**{**vars(make_setup()), "workload": None}))
    with pytest.raises(ConfigurationError, match="the topology is p100x2"):
        execution.build(make_setup("p100"))
    with pytest.raises(ConfigurationError, match="one_port cannot be kept to"):
        execution.build(make_setup(network="one_port"))
    with pytest.raises(ConfigurationError, match="not bulk_synchronous"):
        execution.build(make_setup(execution="bulk_synchronous"))


def test_without_torchrun_the_entry_point_says_how(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert run_distributed.main([]) == 2
    assert "torchrun --nproc-per-node" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_distributed.parse(["--workload", "nonsense"])
