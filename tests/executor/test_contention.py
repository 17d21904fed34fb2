"""Durations between alone and busy, and estimates of kernels that were not measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from executor_fakes import FakeWorkload
from test_calibration import chain_workload, golden_schedule, profile_by_hand

from doppler.errors import ConfigurationError, FileFormatError, ProfileError
from doppler.executor import KernelTiming, Profile
from doppler.executor.calibration.contention import predict
from doppler.executor.calibration.regression import fit_regression, kernel_sizes
from doppler.executor.calibration.traces import others_at_work, transfers_at_work
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.problem import PlacementProblem
from doppler.schedule import Placement
from doppler.simulator import Simulator


def test_others_at_work_is_the_overlap_with_other_devices_ops() -> None:
    # device 0   0:[0, 2]  1:[2.5, 4]           4:[9, 10]
    # device 1                 2:[3.5, 5] 3:[5.25, 6]       1 and 2 share 0.5 of their 1.5 s
    third = pytest.approx([0.0, 1 / 3, 1 / 3, 0.0, 0.0])
    assert others_at_work(golden_schedule()) == third


def test_transfers_at_work_are_those_that_an_op_meets() -> None:
    # [2.2, 3] meets op 1 [2.5, 4]; [6, 7] touches op 3 [5.25, 6] at its end only
    assert transfers_at_work(golden_schedule()).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_others_at_work_is_shared_among_all_other_devices() -> None:
    # device 0   0:[0, 4]        device 1   1:[0, 1] 2:[3, 4]        device 2 idles
    graph = DataflowGraph.from_edges("three", 4, [], flops=np.ones(4), output_bytes=np.ones(4))
    topology = make_topology("cpu", 3)
    costs = CostModel(np.ones((4, 3)), np.ones(4), np.zeros(6), np.ones(6), "test")
    schedule = replace(
        golden_schedule(),
        problem=PlacementProblem(graph, topology, costs),
        devices=np.array([0, 1, 1, 0]),
        start=np.array([0.0, 0.0, 3.0, 4.0]),
        finish=np.array([4.0, 1.0, 4.0, 4.0]),
    )
    assert others_at_work(schedule).tolist() == [0.25, 0.5, 0.5, 0.0]


def test_contention_is_linear_from_alone_to_busy_and_beyond() -> None:
    timing = KernelTiming(busy=2.0, alone=1.0, variation=0.0, samples=1, share=0.8)
    assert [timing.contention(share) for share in (0.0, 0.4, 0.8, 1.0)] == [0.0, 0.5, 1.0, 1.25]
    assert replace(timing, share=0.0).contention(0.1) == pytest.approx(0.4)  # no division by 0


def test_a_contended_cost_model_scales_kernels_and_dispatch() -> None:
    # add1: 1 s alone, 2 s busy; add2: 3 and 4; gap 0.5 s busy and 0.1 s alone
    profile, workload = replace(profile_by_hand(), dispatch_gap_alone=0.1), chain_workload()
    costs = profile.contended_cost_model(
        workload, profile.topology(), np.array([0.0, 0.5, 2.0]), "made up"
    )
    assert costs.op_seconds[:, 0] == pytest.approx([1.1, 3.8, 5.9])
    alone = profile.cost_model(workload, profile.topology(), "alone")
    assert alone.op_seconds[:, 0] == pytest.approx([1.1, 3.1, 3.1])
    assert alone.source.startswith("calibrated alone on ")


def test_transfers_interrupt_ops() -> None:
    # add1: 1 s alone; of its 2 s when busy 2 x 0.25 s are interruptions
    by_hand, workload = profile_by_hand(), chain_workload(1)
    assert by_hand.copies is not None
    timing = KernelTiming(2.0, 1.0, 0.0, 3, transfers=2.0)
    profile = replace(
        by_hand,
        kernels={"add1": timing},
        dispatch_gap=0.0,
        copies=replace(by_hand.copies, interruption=0.25),
    )
    for contention, transfers, seconds in (
        (1.0, None, 2.0),
        (0.0, None, 1.0),
        (1.0, 0.0, 1.5),
        (1.0, 4.0, 2.5),
        (0.0, 4.0, 2.0),
    ):
        costs = profile.contended_cost_model(
            workload,
            profile.topology(),
            np.array([contention]),
            "made up",
            None if transfers is None else np.array([transfers]),
        )
        assert costs.op_seconds[0, 0] == pytest.approx(seconds)


def test_durations_never_fall_below_zero() -> None:
    profile, workload = profile_by_hand(), chain_workload(1)
    odd = replace(profile, kernels={"add1": KernelTiming(1.0, 9.0, 0.0, 1)})
    costs = odd.contended_cost_model(workload, profile.topology(), np.array([5.0]), "made up")
    assert costs.op_seconds.tolist() == [[0.0, 0.0]]


def two_ops(share: float) -> tuple[Profile, FakeWorkload, PlacementProblem]:
    """Two independent ops of 1 s alone and 2 s busy, nothing else takes time."""
    graph = DataflowGraph.from_edges("two", 2, [], flops=np.ones(2), output_bytes=np.ones(2))
    workload = FakeWorkload(graph)
    kernels = {"add1": KernelTiming(2.0, 1.0, 0.0, 3, share=share)}
    profile = replace(profile_by_hand(), kernels=kernels, dispatch_gap=0.0)
    topology = profile.topology()
    return profile, workload, workload.problem(topology, profile.cost_model(workload, topology))


@pytest.mark.parametrize(
    ("devices", "share", "seconds"),
    [
        ([0, 0], 1.0, 2.0),  # one after the other, each alone: 1 + 1
        ([0, 1], 1.0, 2.0),  # at once, as busy as in the calibration
        ([0, 1], 0.5, 3.0),  # at once, the calibration had them meet for half of the time only
    ],
)
def test_a_prediction_knows_what_the_others_do(
    devices: list[int], share: float, seconds: float
) -> None:
    profile, workload, problem = two_ops(share)
    schedule = predict(profile, workload, problem, Placement(devices))
    assert schedule.makespan == pytest.approx(seconds)
    schedule.validate()
    assert "contention" in schedule.problem.cost_model.source
    busy = predict(profile, workload, problem, Placement(devices), passes=0)
    assert busy.makespan == Simulator(problem).makespan(devices)


def test_a_prediction_takes_the_simulators_rules() -> None:
    profile, workload, problem = two_ops(1.0)

    def build(problem: PlacementProblem) -> Simulator:
        return Simulator(problem, choose="given")

    schedule = predict(profile, workload, problem, Placement([0, 0], [1, 0]), build)
    assert schedule.start.tolist() == [1.0, 0.0]
    with pytest.raises(ConfigurationError, match="passes: -1"):
        predict(profile, workload, problem, Placement([0, 0]), passes=-1)


def kernels_by_law() -> dict[str, KernelTiming]:
    """Kind mm: 1 + 2 F + 3 B, alone half of it; kind add: one kernel that fits mm's law too."""
    kernels = {}
    for kind, flops, traffic in (
        ("mm", 0.0, 1.0),
        ("mm", 1.0, 0.0),
        ("mm", 2.0, 5.0),
        ("mm", 7.0, 1.0),
        ("mm", 3.0, 3.0),
        ("add", 4.0, 4.0),
    ):
        busy = 1 + 2 * flops + 3 * traffic
        kernels[f"{kind}|{flops}|{traffic}"] = KernelTiming(
            busy, busy / 2, 0.1, 5, share=0.9, flops=flops, traffic=traffic
        )
    return kernels


def test_a_regression_finds_the_law_of_the_measured_kernels() -> None:
    regression = fit_regression(kernels_by_law())
    assert regression is not None
    for kind in ("mm", "add", "unseen"):
        timing = regression.timing(f"{kind}|x", 10.0, 100.0)
        assert timing.busy == pytest.approx(321.0) and timing.alone == pytest.approx(160.5)
        assert (timing.samples, timing.share, timing.variation) == (0, 0.9, pytest.approx(0.1))
    assert regression.error == pytest.approx(0.0, abs=1e-9)
    assert regression.signatures == 6


def test_a_kind_with_enough_kernels_has_its_own_law() -> None:
    kernels = kernels_by_law()
    for size in (1.0, 2.0, 3.0, 4.0):  # ten times as slow
        kernels[f"slow|{size}"] = KernelTiming(
            20 * size, 10 * size, 0.1, 5, flops=size, traffic=0.0
        )
    regression = fit_regression(kernels)
    assert regression is not None
    assert regression.timing("slow|9", 9.0, 0.0).busy == pytest.approx(180.0)
    assert regression.timing("mm|9", 9.0, 0.0).busy == pytest.approx(19.0)


def test_the_error_of_a_regression_is_that_on_kernels_left_out() -> None:
    # Only launches: the best constant for 1 1 1 2 is (1 + 1 + 1 + 1/2) / (1 + 1 + 1 + 1/4) = 14/13,
    # 1/13 off for the 1 left out; leaving out the 2 is 1/2 off. The median of the five is 1/13.
    kernels = {
        f"k|{number}": KernelTiming(busy, busy, 0.1, 5, flops=0.0, traffic=0.0)
        for number, busy in enumerate([1.0, 1.0, 1.0, 1.0, 2.0])
    }
    regression = fit_regression(kernels)
    assert regression is not None and regression.error == pytest.approx(1 / 13)
    assert "over 5 measured kernels, median error 8%" in regression.describe()


def test_no_estimate_is_below_zero() -> None:
    kernels = {
        f"k|{size}": KernelTiming(10.0 - size, 10.0 - size, 0.1, 5, flops=size, traffic=1.0)
        for size in (1.0, 2.0, 3.0, 4.0, 5.0)
    }
    regression = fit_regression(kernels)
    assert regression is not None and regression.timing("k|99", 99.0, 1.0).busy > 0


def test_too_few_measured_kernels_estimate_nothing() -> None:
    kernels = kernels_by_law()
    three = dict(list(kernels.items())[:3])
    assert fit_regression(three) is None
    unsized = replace(kernels["add|4.0|4.0"], flops=None)
    assert fit_regression({**three, "add|4.0|4.0": unsized}) is None
    assert fit_regression({**three, "add|4.0|4.0": kernels["add|4.0|4.0"]}) is not None


def test_sizes_are_flops_and_all_bytes_touched() -> None:
    # 8 x 8 floats are 256 B: op 0 reads an input, op 1 an input and op 0; each writes 256 B
    assert kernel_sizes(chain_workload(2)) == {"add1": (1.0, 512.0), "add2": (1.0, 768.0)}
    workload = chain_workload(1)
    workload.kernels[0] = SimpleNamespace(signature="k")
    assert kernel_sizes(workload) == {"k": None}


def test_a_profile_estimates_and_says_how_many_ops(tmp_path: Path) -> None:
    profile, workload = replace(profile_by_hand(), kernels=kernels_by_law()), chain_workload()
    profile.save(tmp_path / "profile.json")
    profile = Profile.load(tmp_path / "profile.json")
    costs = profile.cost_model(workload, profile.topology())
    # add1: 1 + 2 * 1 + 3 * 512 and the gap of 0.5 s
    assert costs.op_seconds[0].tolist() == pytest.approx([1539.5, 1539.5])
    assert "3 of 3 ops estimated: regression on FLOPs and bytes over 6" in costs.source
    assert set(profile.noise(workload).samples) == {"add1", "add2"}
    one = {**kernels_by_law(), "add2": KernelTiming(4.0, 3.0, 0.2, 9)}
    costs = replace(profile, kernels=one).cost_model(workload, profile.topology())
    assert costs.op_seconds[:, 0].tolist() == pytest.approx([1539.5, 4.5, 4.5])
    assert "1 of 3 ops estimated" in costs.source


def test_an_earlier_version_is_refused_with_the_command_that_renews_it(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    profile_by_hand().save(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": 1}))
    command = r"scripts/calibrate.py workload=fake topology.num_devices=2"
    with pytest.raises(ProfileError, match=rf"old.json, version: 1, .*renew it with: .*{command}"):
        Profile.load(path)
    for version in (0, 4, "1", True, None):
        path.write_text(json.dumps({**document, "version": version}))
        with pytest.raises(FileFormatError, match=r"old.json, version: .* is not 3"):
            Profile.load(path)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("share", 1.5, "share: 1.5 is above 1"),
        ("share", -1, "share"),
        ("flops", "many", "flops"),
        ("traffic", -4, "traffic"),
    ],
)
def test_bad_sizes_and_shares_are_refused(
    tmp_path: Path, entry: str, value: object, message: str
) -> None:
    path = tmp_path / "bad.json"
    profile_by_hand().save(path)
    document = json.loads(path.read_text())
    document["kernels"]["add1"][entry] = value
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=rf"bad.json, kernels\['add1'\]\.{message}"):
        Profile.load(path)


@pytest.mark.parametrize(("entry", "value"), [("threads_per_device", 4), ("device_names", ["x"])])
def test_other_threads_or_devices_make_a_profile_foreign(
    tmp_path: Path, entry: str, value: object
) -> None:
    profile = profile_by_hand()
    foreign = replace(profile, environment={**profile.environment, entry: value})
    foreign.save(tmp_path / "foreign.json")
    with pytest.raises(ProfileError, match=rf"{entry} .*renew it with: python scripts/calibrate"):
        Profile.load(tmp_path / "foreign.json")


def test_the_command_that_renews_names_the_executor() -> None:
    profile = profile_by_hand()
    assert profile.renew_command.endswith("topology.num_devices=2")
    cuda = replace(profile, environment={**profile.environment, "backend": "cuda"})
    assert cuda.renew_command.endswith("topology.num_devices=2 executor=cuda")
