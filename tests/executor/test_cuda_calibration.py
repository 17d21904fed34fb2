"""Calibrating CUDA devices, on a pretence of CUDA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_fakes import FakeCuda
from executor_fakes import FakeWorkload, random_graph

from doppler.executor import Profile, calibrate
from doppler.executor.cuda import executor as cuda_module


def test_a_profile_of_logical_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[FakeCuda] = []

    def pretend() -> FakeCuda:
        made.append(FakeCuda())
        return made[-1]

    monkeypatch.setattr(cuda_module, "TorchStreams", pretend)
    monkeypatch.setattr("doppler.executor.calibration.calibrate.EMPTY_OPS", 20)
    monkeypatch.setattr("doppler.executor.calibration.calibrate.RELAY_SIZES", (1 << 12, 1 << 16))
    workload = FakeWorkload(random_graph(20, seed=2, density=0.2))
    profile = calibrate(workload, 2, repeats=2, warmup=1, backend="cuda")
    assert profile.environment["backend"] == "cuda"
    assert profile.environment["logical_devices"] is True
    assert [device.name for device in profile.topology().devices] == [
        "cuda0.logical0",
        "cuda0.logical1",
    ]
    for timing in profile.kernels.values():  # launching, then 1 ms each
        assert timing.busy == pytest.approx(1e-3, rel=0.02)
        assert timing.alone == pytest.approx(1e-3, rel=0.02)
    assert 0 <= profile.dispatch_gap < 1e-4
    assert profile.copies is not None
    sizes, seconds = np.array(profile.copies.sweep).T
    assert sizes.tolist() == [1 << 12, 1 << 16]
    assert seconds == pytest.approx(2e-4, rel=0.2)  # of one copy, whatever its size
    assert all(cuda.violations == [] for cuda in made)
    path = tmp_path / "profile.json"
    profile.save(path)
    again = Profile.load(path, strict=False)
    assert again.topology() == profile.topology()
