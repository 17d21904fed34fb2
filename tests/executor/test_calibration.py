"""Traces, calibration and profiles."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from executor_fakes import FakeWorkload, random_graph

from doppler.errors import ConfigurationError, FileFormatError, ProfileError
from doppler.executor import (
    CopyTiming,
    CpuExecutor,
    KernelTiming,
    Profile,
    calibrate,
    describe_environment,
)
from doppler.executor.calibration import calibrate as calibration_module
from doppler.executor.calibration.calibrate import _spread
from doppler.executor.calibration.timings import MOST_FACTORS
from doppler.executor.calibration.traces import dispatch_gaps, ready_times, transfer_delays
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule
from doppler.simulator import Simulator


def golden_schedule() -> Schedule:
    r"""Two devices; op 0 (device 0) feeds 1 (device 0), 2 and 3 (device 1); 1 and 2 feed 4.

        device 0   0:[0, 2]  1:[2.5, 4]                    4:[9, 10]
        link 0->1           0:[2.2, 3]
        device 1                        2:[3.5, 5] 3:[5.25, 6]
        link 1->0                                 2:[6, 7]
    """  # fmt: skip
    graph = DataflowGraph.from_edges(
        "golden",
        5,
        [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4)],
        flops=np.ones(5),
        output_bytes=[10.0, 20.0, 30.0, 40.0, 50.0],
    )
    topology = make_topology("cpu", 2)
    costs = CostModel(np.ones((5, 2)), np.ones(5), np.zeros(2), np.ones(2), "test")
    return Schedule(
        problem=PlacementProblem(graph, topology, costs),
        devices=np.array([0, 0, 1, 1, 0]),
        start=np.array([0.0, 2.5, 3.5, 5.25, 9.0]),
        finish=np.array([2.0, 4.0, 5.0, 6.0, 10.0]),
        transfer_ops=np.array([0, 2]),
        transfer_targets=np.array([1, 0]),
        transfer_links=np.array([0, 1]),
        transfer_start=np.array([2.2, 6.0]),
        transfer_finish=np.array([3.0, 7.0]),
        network="serial_links",
        choose="fifo",
    )


def test_ready_times_are_the_latest_local_finish_or_arrival() -> None:
    assert ready_times(golden_schedule()).tolist() == [0.0, 2.0, 3.0, 3.0, 7.0]


def test_dispatch_gaps_count_ops_that_waited_for_their_device() -> None:
    # 1 was ready when 0 ended, 3 when 2 ended; 4 had to wait for a transfer, 2 was the first.
    assert dispatch_gaps(golden_schedule()).tolist() == [0.5, 0.25]


def test_transfer_delays_run_from_the_producer_or_the_link_that_became_free() -> None:
    sizes, seconds = transfer_delays(golden_schedule())
    assert sizes.tolist() == [10.0, 30.0]
    assert seconds.tolist() == [1.0, 2.0]


def test_a_transfer_that_queued_is_delayed_from_when_its_link_became_free() -> None:
    graph = DataflowGraph.from_edges(
        "two", 4, [(0, 2), (1, 3)], flops=np.ones(4), output_bytes=[1.0, 2.0, 3.0, 4.0]
    )
    costs = CostModel(np.ones((4, 2)), np.ones(4), np.zeros(2), np.ones(2), "test")
    schedule = Schedule(
        problem=PlacementProblem(graph, make_topology("cpu", 2), costs),
        devices=np.array([0, 0, 1, 1]),
        start=np.array([0.0, 1.0, 5.0, 8.0]),
        finish=np.array([1.0, 2.0, 6.0, 9.0]),
        transfer_ops=np.array([0, 1]),
        transfer_targets=np.array([1, 1]),
        transfer_links=np.array([0, 0]),
        transfer_start=np.array([1.5, 4.5]),
        transfer_finish=np.array([4.0, 7.0]),
        network="serial_links",
        choose="fifo",
    )
    assert transfer_delays(schedule)[1].tolist() == [3.0, 3.0]


def profile_by_hand(num_devices: int = 2) -> Profile:
    """add1 takes 1 s alone and 2 s busy, add2 3 and 4; 0.5 s between ops; 1 s + 2 B/s."""
    return Profile(
        workloads=("fake",),
        environment=describe_environment("cpu", num_devices),
        kernels={
            "add1": KernelTiming(busy=2.0, alone=1.0, variation=0.1, samples=7),
            "add2": KernelTiming(busy=4.0, alone=3.0, variation=0.2, samples=9),
        },
        dispatch_gap=0.5,
        dispatch_empty=0.25,
        copies=CopyTiming(1.0, 0.5, 2.0, ((4, 1.0), (8, 3.0))),
        info={"repeats": 3},
    )


def chain_workload(num_ops: int = 3) -> FakeWorkload:
    graph = DataflowGraph.from_edges(
        "fake",
        num_ops,
        [(op, op + 1) for op in range(num_ops - 1)],
        flops=np.ones(num_ops),
        output_bytes=np.full(num_ops, 256.0),
    )
    return FakeWorkload(graph)


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = profile_by_hand()
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile


def test_a_profile_knows_the_spread_of_its_kernels(tmp_path: Path) -> None:
    profile, workload = profile_by_hand(), chain_workload()
    kernels = dict(profile.kernels)
    kernels["add1"] = replace(kernels["add1"], factors=(0.5, 1.5))
    measured = replace(profile, kernels=kernels)
    measured.save(tmp_path / "profile.json")
    noise = Profile.load(tmp_path / "profile.json").noise(workload)
    # op 0 is an add1: 2 s times 0.5 or 1.5, and the gap of 0.5 s, over 2.5 s
    assert list(noise.samples["add1"]) == [1.5 / 2.5, 3.5 / 2.5]
    # add2 has no samples: lognormal with a variation of 0.2 around 4 of its 4.5 s
    drawn = np.array(noise.samples["add2"])
    assert drawn.mean() == pytest.approx(1.0)
    assert drawn.std() == pytest.approx(0.2 * 4.0 / 4.5, rel=0.03)
    topology = profile.topology(2)
    problem = workload.problem(topology, profile.cost_model(workload, topology))
    factors = noise.draw(problem, np.random.default_rng(0))
    assert factors.ops[0] in (0.6, 1.4)
    assert (factors.transfers == 1.0).all()
    with pytest.raises(ProfileError, match="was not measured"):
        replace(profile, kernels={}).noise(workload)


@pytest.mark.parametrize("factors", ["[1, -1]", '["1"]', "[NaN]", "3"])
def test_bad_factors_in_a_profile_are_refused(tmp_path: Path, factors: str) -> None:
    path = tmp_path / "profile.json"
    profile_by_hand().save(path)
    path.write_text(path.read_text().replace('"factors": []', f'"factors": {factors}', 1))
    with pytest.raises(FileFormatError, match="factors"):
        Profile.load(path)


def test_many_durations_are_kept_as_quantiles() -> None:
    durations = np.random.default_rng(0).lognormal(0.0, 0.3, 5000)
    kept = np.array(_spread(durations))
    assert len(kept) == MOST_FACTORS and kept.mean() == pytest.approx(1.0)
    assert kept.std() == pytest.approx(durations.std() / durations.mean(), rel=0.1)
    assert _spread(np.array([3.0, 1.0])) == (0.5, 1.5)


def test_a_profile_makes_topology_and_cost_model() -> None:
    profile, workload = profile_by_hand(), chain_workload()
    topology = profile.topology(2)
    assert [(link.source, link.target) for link in topology.links] == [(0, 1), (1, 0)]
    assert all((link.latency, link.bandwidth) == (1.0, 2.0) for link in topology.links)
    busy = profile.cost_model(workload, topology)
    assert busy.op_seconds.tolist() == [[2.5, 2.5], [4.5, 4.5], [4.5, 4.5]]
    alone = profile.cost_model(workload, topology, "alone")
    assert alone.op_seconds.tolist() == [[1.5, 1.5], [3.5, 3.5], [3.5, 3.5]]
    # 0 and 1 on device 0, 2 on device 1: 2.5 + 4.5, then 1 + 256 / 2 for the copy, then 4.5.
    makespan = Simulator(workload.problem(topology, busy)).makespan([0, 0, 1])
    assert makespan == pytest.approx(2.5 + 4.5 + 129.0 + 4.5)


def test_a_profile_refuses_what_it_did_not_measure() -> None:
    profile, workload = profile_by_hand(), chain_workload()
    with pytest.raises(ProfileError, match=r"2 devices.*not 3.*topology.num_devices=3"):
        profile.topology(3)
    with pytest.raises(ProfileError, match="2 devices"):
        profile.cost_model(workload, make_topology("cpu", 4))
    with pytest.raises(ConfigurationError, match="condition 'idle'"):
        profile.cost_model(workload, profile.topology(), "idle")
    workload.kernels[1] = SimpleNamespace(signature="mul7")
    with pytest.raises(
        ProfileError, match=r"op 1 .*'mul7' was not measured.*scripts/calibrate.py workload=fake"
    ):
        profile.cost_model(workload, profile.topology())


@pytest.mark.parametrize(
    ("entry", "value"),
    [("torch_version", "1.0.0"), ("cpu_model", "abacus"), ("num_cpus", 4096)],
)
def test_a_stale_or_foreign_profile_is_refused(tmp_path: Path, entry: str, value: object) -> None:
    path = tmp_path / "old.json"
    profile_by_hand().save(path)
    document = json.loads(path.read_text())
    document["environment"][entry] = value
    path.write_text(json.dumps(document))
    with pytest.raises(
        ProfileError, match=rf"old.json.*{entry} .*renew it with: python scripts/calibrate.py"
    ):
        Profile.load(path)
    assert Profile.load(path, strict=False).environment[entry] == value


DAMAGES = {
    "format": ({"format": "doppler-graph"}, "format"),
    "version": ({"version": 99}, "version"),
    "no environment": ({"environment": None}, "environment"),
    "no devices": ({"environment": {"backend": "cpu", "num_devices": 0}}, "num_devices"),
    "kernels": ({"kernels": []}, "kernels"),
    "negative": (
        {"kernels": {"k": {"busy": -1.0, "alone": 1.0, "variation": 0.0, "samples": 1}}},
        r"kernels\['k'\].busy",
    ),
    "missing": ({"kernels": {"k": {"busy": 1.0, "alone": 1.0, "variation": 0.0}}}, "samples"),
    "gap": ({"dispatch_gap": "soon"}, "dispatch_gap"),
    "nan": ({"dispatch_empty": float("nan")}, "dispatch_empty"),
    "bandwidth": (
        {"copies": {"bandwidth": 0, "latency": 0, "latency_alone": 0, "sweep": []}},
        "copies.bandwidth",
    ),
    "sweep": (
        {"copies": {"bandwidth": 1, "latency": 0, "latency_alone": 0, "sweep": [[1]]}},
        "copies.sweep",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_profile_is_refused_by_file_and_field(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "bad.json"
    profile_by_hand().save(path)
    change, named = DAMAGES[damage]
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileFormatError, match=rf"bad.json, .*{named}"):
        Profile.load(path)


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('{"format": "doppler-pro')
    with pytest.raises(FileFormatError, match=r"cut.json.*cannot be read"):
        Profile.load(path)
    with pytest.raises(FileFormatError, match=r"none.json.*cannot be read"):
        Profile.load(tmp_path / "none.json")


@pytest.fixture
def short_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_module, "RELAY_SIZES", (4096, 65536, 1 << 20))
    monkeypatch.setattr(calibration_module, "EMPTY_OPS", 100)


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_calibration_measures_every_signature(short_sweep: None, num_devices: int) -> None:
    workload = FakeWorkload(random_graph(20, seed=21))
    steps: list[tuple[int, int]] = []
    profile = calibrate(
        workload, num_devices, repeats=2, warmup=1, progress=lambda *step: steps.append(step)
    )
    total = 2 * 3 + 1 + (3 if num_devices > 1 else 0)
    assert steps == [(i, total) for i in range(1, total + 1)]
    signatures = [kernel.signature for kernel in workload.kernels]
    assert set(profile.kernels) == set(signatures)
    for signature, timing in profile.kernels.items():
        assert timing.samples == signatures.count(signature)  # one of the two runs is kept
        assert 0 < timing.alone < 1 and 0 < timing.busy < 1
        assert timing.flops == 64.0 and timing.traffic is not None and 0 <= timing.share <= 1
    assert 0 < profile.dispatch_empty < 1e-2 and 0 < profile.dispatch_gap < 1
    assert profile.dispatch_gap_alone is not None and 0 < profile.dispatch_gap_alone < 1
    assert profile.info["regression"]["kernels"] == len(profile.kernels)
    assert (profile.copies is None) == (num_devices == 1)
    topology = profile.topology(num_devices)
    problem = workload.problem(topology, profile.cost_model(workload, topology))
    with CpuExecutor(workload, num_devices, problem=problem) as executor:
        schedule = executor.run(np.arange(20) % num_devices)
    assert schedule.problem is problem


def test_calibration_sees_how_much_the_others_work(short_sweep: None) -> None:
    graph = DataflowGraph.from_edges(
        "naps", 12, [], flops=np.ones(12), output_bytes=np.full(12, 256.0)
    )
    workload = FakeWorkload(graph)

    def nap(operands: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(0.004)
        return operands[0].clone()

    workload.kernels = [workload.kernel(op, nap) for op in range(12)]
    profile = calibrate(workload, 2, repeats=3, warmup=0)
    assert 0.5 < profile.kernels["add1"].share <= 1
    assert profile.kernels["add1"].alone > 0.004


def with_total(seconds: float) -> Schedule:
    schedule = golden_schedule()
    return replace(schedule, start=np.zeros(5), finish=np.full(5, seconds / 5))


@pytest.mark.parametrize(
    ("totals", "kept"),
    [
        ([7.0], [7.0]),
        ([9.0, 1.0], [1.0]),
        ([50.0, 2.0, 3.0], [2.0, 3.0]),
        ([4.0, 99.0, 1.0, 3.0, 5.0, 2.0], [2.0, 3.0, 4.0]),
    ],
)
def test_the_middle_half_of_the_runs_counts(totals: list[float], kept: list[float]) -> None:
    chosen = calibration_module._middle_half([with_total(total) for total in totals])
    assert [schedule.finish.sum() for schedule in chosen] == pytest.approx(kept)


def test_a_kernels_durations_are_averaged() -> None:
    samples = calibration_module._Samples()
    samples.busy["k"] = [1.0, 3.0, 2.0, 10.0]
    samples.alone["k"] = [1.0, 2.0]
    samples.shares["k"] = [0.5, 0.75, 1.0, 0.75]
    samples.transfers["k"] = [0.0, 2.0, 1.0, 3.0]
    samples.sizes["k"] = (7.0, 9.0)
    timing = calibration_module._timing(samples, "k")
    assert (timing.busy, timing.alone, timing.samples) == (4.0, 1.5, 4)
    assert timing.variation == pytest.approx(np.std([1, 3, 2, 10]) / 4.0)
    assert (timing.share, timing.flops, timing.traffic) == (0.75, 7.0, 9.0)
    assert timing.transfers == 1.5


def test_interruptions_are_told_from_what_the_others_do() -> None:
    # k: 2 s + 0.5 s per transfer + 3 s x share of the others; j: 7 s + 0.5 s per transfer
    samples = calibration_module._Samples()
    samples.transfers = {"k": [0.0, 1.0, 2.0, 3.0, 1.0], "j": [4.0, 1.0]}
    samples.shares = {"k": [0.5, 1.0, 0.0, 0.25, 0.75], "j": [1.0, 1.0]}
    samples.alone = {"k": [3.0], "j": [1.0]}
    samples.busy = {
        "k": [2.0 + 0.5 * n + 3.0 * s for n, s in zip([0, 1, 2, 3, 1], [0.5, 1, 0, 0.25, 0.75])],
        "j": [9.0, 7.5],
    }
    assert calibration_module._fit_interruption(samples) == pytest.approx(0.5)
    samples.busy = {name: [10.0 - value for value in row] for name, row in samples.busy.items()}
    assert calibration_module._fit_interruption(samples) == 0.0  # copies do not make ops faster


def test_copies_are_fitted_through_an_outlier() -> None:
    # 10 s + bytes / 4, but for one size; in busy runs transfers wait 30 s more than bytes / 4.
    sweep = [(size, 10.0 + size / 4.0) for size in (4, 8, 16, 32, 64, 128)]
    sweep[2] = (16, 500.0)
    samples = calibration_module._Samples()
    samples.transfer_bytes, samples.transfer_delays = [8.0, 16.0], [32.0, 34.0]
    samples.busy, samples.alone = {"k": [1.0, 2.0]}, {"k": [1.0]}
    samples.shares, samples.transfers = {"k": [1.0, 1.0]}, {"k": [0.0, 4.0]}
    copies = calibration_module._fit_copies(sweep, samples)
    assert copies.interruption == pytest.approx(0.25)
    assert copies.bandwidth == pytest.approx(4.0)
    assert copies.latency_alone == pytest.approx(10.0)
    assert copies.latency == pytest.approx(30.0)


def test_calibration_refuses_impossible_wishes() -> None:
    workload = FakeWorkload(random_graph(4, seed=22))
    with pytest.raises(ConfigurationError, match="no workload"):
        calibrate([], 2)
    with pytest.raises(ConfigurationError, match="repeats: 0"):
        calibrate(workload, 2, repeats=0)
    with pytest.raises(ConfigurationError, match="backend 'tpu'"):
        calibrate(workload, 2, backend="tpu")


def test_the_environment_names_machine_and_software() -> None:
    environment = describe_environment("cpu", 3)
    assert environment["num_devices"] == 3
    assert environment["torch_version"] == torch.__version__
    assert environment["num_cpus"] >= 1
    json.dumps(environment, allow_nan=False)
