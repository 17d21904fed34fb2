"""Training from the command line, on a tiny problem: files, resuming, interrupting, multirun."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from wandb_files import exit_records

from doppler import Placement, save_problem
from doppler.errors import ConfigurationError
from doppler.executor import KernelTiming, Profile
from doppler.hardware import make_topology
from doppler.policies import DualPolicy, PlcOnlyPolicy
from doppler.simulator import EmpiricalNoise, Simulator
from doppler.training import TrainingResult
from doppler.workloads import make_workload
from scripts import train, training_progress
from scripts.problems import PresetCost, Setup, SimulatorSettings, noisy_objective

TINY = [
    "workload=chainmm", "workload.block=8", "workload.num_shards=4",
    "policy.config.hidden_width=8", "policy.config.head_width=8", "policy.config.message_rounds=1",
    "imitation.episodes=8", "imitation.batch_size=4", "imitation.trials=2",
    "sim_rl.episodes=16", "sim_rl.batch_size=4",
]  # fmt: skip
SIMULATED = [*TINY, "topology=p100", "topology.num_devices=2", "stages=[imitation,sim_rl]"]

Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs `python scripts/train.py ...` in this process; returns the exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        try:
            train.main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return run


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["policy"]


def interrupt_at(monkeypatch: pytest.MonkeyPatch, total_updates: int) -> None:
    plain = training_progress.TrainingProgress.on_update

    def on_update(self, trainer, metrics):  # type: ignore[no-untyped-def]
        plain(self, trainer, metrics)
        if metrics["total_updates"] == total_updates:
            raise KeyboardInterrupt

    monkeypatch.setattr(training_progress.TrainingProgress, "on_update", on_update)


def test_a_run_leaves_everything_in_its_folder(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command(*SIMULATED, "run_dir=out") == 0
    folder = tmp_path / "out"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.yaml", "checkpoint.pt", "metrics.csv", "problem.json", "results.csv", "results.md",
        "summary.json", "learning_curve.png", "placement_imitation.json", "placement_sim_rl.json",
        "gantt_doppler_sim.png",
    }  # fmt: skip
    assert not any(path.name.endswith((".tmp", ".log")) for path in folder.iterdir())
    rows = list(csv.DictReader((folder / "results.csv").open()))
    assert [row["scheduler"] for row in rows] == [
        "single device", "random", "round robin", "critical path", "enumerative",
        "DOPPLER-SIM", "DOPPLER-SYS",
    ]  # fmt: skip
    placement = json.loads((folder / "placement_sim_rl.json").read_text())
    assert placement["scheduler"] == "DOPPLER-SIM"
    assert placement["simulated_makespan"] == float(rows[5]["simulated_makespan_s"])
    document = summary(folder)
    assert document["status"] == "finished"
    assert document["episodes"] == 24
    assert document["equal_evaluations"]["evaluations"] == 24
    printed = capsys.readouterr().out
    assert "critical path / policy = " in printed
    assert "DOPPLER-SYS: stage real_rl was not run" in printed
    assert str(folder) in printed
    stages = [row["stage"] for row in csv.DictReader((folder / "metrics.csv").open())]
    assert stages == ["imitation"] * 2 + ["sim_rl"] * 4


def test_all_three_stages_on_cpu_devices_end_in_a_checked_measured_table(
    command: Command, tmp_path: Path
) -> None:
    status = command(
        *TINY, "topology=cpu", "simulator=preset", "run_dir=out", "real_rl.episodes=4",
        "real_rl.repeats=1", "real_rl.confirm_repeats=1", "real_rl.final_repeats=3",
        "executor.repeats=15", "logger=none",
    )  # fmt: skip
    assert status == 0
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    assert len(rows) == 7
    for row in rows:
        assert row["measured_runs"] == "15"
        assert row["result_check"] == "passed"
        assert float(row["measured_makespan_median_s"]) > 0
    assert not (tmp_path / "out" / "metrics.csv").exists()
    assert (tmp_path / "out" / "gantt_doppler_sys.png").exists()
    assert (tmp_path / "out" / "placement_real_rl.json").exists()


def test_an_interrupted_run_goes_on_to_the_same_weights(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    assert command(*SIMULATED, "run_dir=whole", "seed=5") == 0
    for stop in (1, 4):  # in imitation, in sim_rl
        folder = tmp_path / f"stopped_at_{stop}"
        with monkeypatch.context() as patch:
            interrupt_at(patch, stop)
            assert command(*SIMULATED, f"run_dir={folder}", "seed=5", "logger=wandb") == 130
        assert summary(folder)["status"] == "interrupted"
        assert exit_records(folder, expected=1) == [1]
        assert f"resume={folder}" in capsys.readouterr().err
        assert command(f"resume={folder}", "logger=csv") == 0
        assert summary(folder)["status"] == "finished"
        whole, resumed = weights(tmp_path / "whole"), weights(folder)
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
        assert (folder / "metrics.csv").read_text().count("\n") == 7
    with (tmp_path / "whole" / "results.csv").open() as first, (folder / "results.csv").open() as b:
        assert first.read() == b.read()


def test_multirun_gives_every_job_its_own_folder_and_goes_on_after_a_failure(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    status = command(
        "-m", *SIMULATED, "workload.block=0,8,16", "hydra.sweep.dir=jobs", "schedulers={}",
        "sim_rl.episodes=4", "logger=none",
    )  # fmt: skip
    assert status == 1  # the first job asks for blocks of size 0
    found = {path.parent.name for path in (tmp_path / "jobs").glob("*/summary.json")}
    assert found == {"1", "2"}
    assert "block: 0 is not a whole number above 0" in capsys.readouterr().err
    blocks = [(tmp_path / "jobs" / job / "config.yaml").read_text() for job in ("1", "2")]
    assert "block: 8" in blocks[0]
    assert "block: 16" in blocks[1]


def test_resuming_is_refused_with_one_message(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command(*SIMULATED, "run_dir=out", "stages=[imitation]", "logger=none") == 0
    capsys.readouterr()

    def refusal(*arguments: str) -> str:
        assert command(*arguments) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert "Traceback" not in message
        assert len(message.splitlines()) <= 4
        return message

    assert "seed cannot be set with it" in refusal("resume=out", "seed=1")
    assert "imitation.episodes cannot" in refusal("resume=out", "imitation.episodes=9")
    assert "no such folder" in refusal("resume=nowhere")
    assert "holds a run already" in refusal(*SIMULATED, "run_dir=out")
    (tmp_path / "empty").mkdir()
    assert "not a run folder" in refusal("resume=empty")
    document = summary(tmp_path / "out")
    (tmp_path / "out" / "summary.json").write_text(json.dumps({**document, "version": 99}))
    assert "version: 99 is not 1" in refusal("resume=out")
    (tmp_path / "out" / "summary.json").write_text(json.dumps(document))
    checkpoint = (tmp_path / "out" / "checkpoint.pt").read_bytes()
    (tmp_path / "out" / "checkpoint.pt").write_bytes(checkpoint[:100])
    assert "checkpoint.pt" in refusal("resume=out")
    (tmp_path / "out" / "checkpoint.pt").unlink()
    assert "no checkpoint.pt" in refusal("resume=out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stages=[imitation,simrl]"], "stages: 'simrl' is unknown; the stages are imitation"),
        (["stages=[]"], "must name at least one stage"),
        (["stages=[sim_rl,sim_rl]"], "each once"),
        (["topology=p100"], "real_rl needs real devices"),
        (["workload=file", "stages=[sim_rl]"], "workload.path: a value is needed"),
        (["workload=file", "workload.path=no.txt", "stages=[sim_rl]"], "no.txt: no such file"),
        (["workload.num_shards=7"], "num_shards"),
        (["topology=p100", "stages=[sim_rl]", "simulator.network=token_ring"], "token_ring"),
        (["topology=p100", "stages=[sim_rl]", "simulator.choose=lifo"], "lifo"),
        (["topology=p100", "topology.num_devices=0", "stages=[sim_rl]"], "num_devices"),
        (["topology=p100", "stages=[sim_rl]", "simulator=calibrated"], "measures CPU devices"),
        (["topology=p100", "executor=cpu"], "executor=cpu runs CPU devices"),
        (["topology=p100", "stages=[sim_rl]", "sim_rl.baseline=none_such"], "baseline"),
        (["logger=wandb", "logger.mode=offine"], "offine"),
        (["checkpoint_every=0"], "checkpoint_every is 0"),
        (["workload=file", "workload.path=x", "topology=v100", "stages=[sim_rl]"], "topology="),
        (["simulator.cost.profile=no.json"], "no.json"),
    ],
)
def test_bad_options_end_with_one_message_and_no_folder(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str],
    message: str,
) -> None:  # fmt: skip
    assert command(*arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert len(printed.splitlines()) <= 4
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_a_problem_file_is_complete_in_its_folder(
    command: Command, tmp_path: Path
) -> None:
    tiny = [option for option in TINY if not option.startswith("workload")]
    save_problem(make_workload("chainmm", num_shards=4, block=8).problem(
        make_topology("p100", 2)), tmp_path / "graph.json")  # fmt: skip
    assert command(
        *tiny, "workload=file", "workload.path=graph.json", "stages=[imitation,sim_rl]",
        "run_dir=out", "logger=none", "simulator.noise=0.1",
    ) == 0  # fmt: skip
    (tmp_path / "graph.json").unlink()
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere" / "results.csv").read_text()
    (tmp_path / "elsewhere" / "results.csv").unlink()
    assert command("resume=elsewhere") == 0  # nothing left to train: evaluates again
    assert (tmp_path / "elsewhere" / "results.csv").read_text() == before


def test_one_run_dir_for_many_jobs_is_refused(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command("-m", *SIMULATED, "seed=0,1", "run_dir=out", "hydra.sweep.dir=jobs") == 1
    assert "set hydra.sweep.dir in its place" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_noise_is_drawn_by_the_batch_and_nothing_else() -> None:
    problem = make_workload("chainmm", num_shards=4, block=8).problem(make_topology("p100", 2))
    settings = SimulatorSettings(cost=PresetCost(), noise=0.2)
    noisy = Setup(None, problem, settings, None).training_simulator()
    plain = settings.build(problem)
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 2, (2, 3, problem.num_ops))
    orders = np.tile(problem.graph.topological_order, (3, 1))
    draw = noisy_objective(noisy)(first, orders)
    assert (draw == noisy_objective(noisy)(first, orders)).all()
    assert (draw != plain.makespans(first)).all()
    ratios = [noisy_objective(noisy)(batch, orders) / plain.makespans(batch) for batch in
              (first, second)]  # fmt: skip
    assert not np.allclose(*ratios)
    assert plain.noise is None


def test_noise_may_be_empirical_or_a_model() -> None:
    workload = make_workload("chainmm", num_shards=4, block=8)
    problem = workload.problem(make_topology("p100", 2))

    def setup(noise: object, profile: Profile | None = None) -> Setup:
        settings = SimulatorSettings(cost=PresetCost(), noise=noise)  # type: ignore[arg-type]
        return Setup(workload, problem, settings, profile)

    assert setup(0.0).training_simulator().noise is None
    given = EmpiricalNoise([0.5, 1.5])
    assert setup(given).training_simulator().noise is given
    with pytest.raises(ConfigurationError, match="use simulator=calibrated"):
        setup("empirical").training_simulator()
    with pytest.raises(ConfigurationError, match="'loud' is neither"):
        setup("loud").training_simulator()
    timing = KernelTiming(1.0, 1.0, 0.1, 2, (0.5, 1.5))
    profile = Profile(
        ("chainmm",), {"num_devices": 2}, {k.signature: timing for k in workload.kernels}, 0.0, 0.0
    )
    simulator = setup("empirical", profile).training_simulator()
    devices = np.zeros(problem.num_ops, np.int64)
    run, plain = simulator.run(devices), Simulator(problem).run(devices)
    ratios = (run.finish - run.start) / (plain.finish - plain.start)
    assert set(np.round(ratios, 6).tolist()) == {0.5, 1.5}


def test_a_time_budget_stops_training_and_the_rest_is_still_reported(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert command(*SIMULATED, "run_dir=out", "budget_s=1e-9", "logger=none") == 0
    assert "stopped by budget_s" in capsys.readouterr().out
    document = summary(tmp_path / "out")
    assert document["completed"] is False
    assert document["episodes"] < 24
    assert command("resume=out", "budget_s=null", "logger=none") == 0
    assert summary(tmp_path / "out")["episodes"] == 24


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("seed=-1", "seed is -1"),
        ("seed=1.5", "seed is 1.5"),
        ("budget_s=abc", "budget_s is 'abc'"),
        ("checkpoint_every=0", "checkpoint_every is 0"),
        ("stages=5", "stages is 5"),
        ("stages=[]", "at least one stage"),
        ("schedulers.single_device.device=99", "device: 99"),
        ("schedulers.enumerative=null", "schedulers.enumerative is null"),
        ("simulator.noise=-1", "noise"),
    ],
)
def test_impossible_options_are_refused_before_a_folder_is_made(
    command: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    argument: str,
    message: str,
) -> None:
    assert command(*SIMULATED, argument, "run_dir=out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_not_written_to(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").write_text("precious")
    assert command(*SIMULATED, "run_dir=out") == 2
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "out" / "config.yaml").read_text() == "precious"


def test_a_folder_of_a_run_that_failed_at_once_can_be_used_again(
    command: Command, tmp_path: Path
) -> None:
    from scripts.run_folder import RunFolder

    (tmp_path / "out").mkdir()
    folder = RunFolder(tmp_path / "out")
    folder.write_summary("running", {})
    assert command(*SIMULATED, "run_dir=out") == 2
    folder.write_summary("failed", {})
    assert command(*SIMULATED, "run_dir=out") == 0


def test_policies_that_ran_in_vain_or_changed_nothing_say_so() -> None:
    placement = Placement([0, 1])
    nothing = TrainingResult(None, None, {}, True, 1, 1, 1.0, "devices too small")
    (row, _) = train.policy_rows(["sim_rl"], nothing, DualPolicy())
    assert "too small" in str(row.reason)
    same = TrainingResult(placement, Placement([0, 1]), {}, True, 1, 1, 1.0)
    (_, row) = train.policy_rows(["sim_rl", "real_rl"], same, DualPolicy())
    assert "nothing measured faster" in str(row.reason)
    other = TrainingResult(placement, Placement([1, 1]), {}, True, 1, 1, 1.0)
    assert [
        row.reason for row in train.policy_rows(["sim_rl", "real_rl"], other, DualPolicy())
    ] == [None, None]


def test_a_whole_run_is_logged_to_wandb_and_finished(command: Command, tmp_path: Path) -> None:
    assert command(*SIMULATED, "run_dir=out", "logger=wandb") == 0
    assert exit_records(tmp_path / "out", expected=1) == [0]
    assert (tmp_path / "out" / "trace.json").exists()
    logged = {path.suffix for path in (tmp_path / "out" / "wandb").rglob("media/images/*")}
    assert logged == {".png"}


def test_rows_are_named_after_the_policy() -> None:
    result = TrainingResult(Placement([0]), None, {}, True, 1, 1, 0.0)
    (row, _) = train.policy_rows(["sim_rl"], result, PlcOnlyPolicy())
    assert row.label == "PLC-ONLY-SIM"
    (row, _) = train.policy_rows(["sim_rl"], result, DualPolicy())
    assert row.label == "DOPPLER-SIM"
