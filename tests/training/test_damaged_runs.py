"""Damaged, edited and contested run folders are refused, each with one message that says why."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from doppler.errors import CheckpointError
from doppler.policies import DualPolicy, PolicyConfig
from doppler.simulator import LognormalNoise, Simulator
from doppler.training import (
    Callback,
    Checkpoints,
    CsvMetrics,
    SimRL,
    Trainer,
    load_policy_from_checkpoint,
    simulated_objective,
    simulator_identity,
)
from doppler.training.journal import MeasurementJournal
from doppler.training.lock import locked_folder
from doppler.workloads.random_dags import layered_dag

SMALL = PolicyConfig(hidden_width=8, message_rounds=2, head_width=8)


class Stop(Callback):
    def on_update(self, trainer: Trainer, metrics: dict) -> None:
        if metrics["total_updates"] == 2:
            raise KeyboardInterrupt


def make_trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    task = layered_dag(12, 2, seed=1)
    settings = {"network": "contention_free", **options}
    return Trainer(
        task,
        DualPolicy(SMALL),
        [SimRL(episodes=16, batch_size=4)],
        simulated=simulated_objective(Simulator(task, **settings)),
        network="contention_free",
        callbacks=callbacks,
        checkpoints=Checkpoints(folder),
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that stopped after two of four updates."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(KeyboardInterrupt):
        make_trainer(folder, Stop()).fit()
    return folder / "checkpoint.pt"


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 0.999])
def test_a_flipped_byte_is_noticed(checkpoint: Path, tmp_path: Path, share: float) -> None:
    damaged, policy_file = tmp_path / "checkpoint.pt", tmp_path / "policy.pt"
    DualPolicy(SMALL).save(policy_file)
    for source, target in ((checkpoint, damaged), (policy_file, policy_file)):
        raw = bytearray(source.read_bytes())
        raw[int(share * len(raw))] ^= 0x10
        target.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: cannot be read as a checkpoint"):
        make_trainer(tmp_path).fit(resume=True)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: cannot be read as a checkpoint"):
        load_policy_from_checkpoint(damaged)
    with pytest.raises(CheckpointError, match=r"policy\.pt: cannot be read as a policy file"):
        DualPolicy.load(policy_file)


def set_to(*keys: Any, value: Any) -> Callable[[dict], None]:
    def edit(document: dict) -> None:
        *path, last = keys
        for key in path:
            document = document[key]
        document[last] = value

    return edit


def drop(*keys: Any) -> Callable[[dict], None]:
    def edit(document: dict) -> None:
        *path, last = keys
        for key in path:
            document = document[key]
        del document[last]

    return edit


def spoil(*keys: Any) -> Callable[[dict], None]:
    def edit(document: dict) -> None:
        for key in keys:
            document = document[key]
        document.view(-1)[0] = float("nan")

    return edit


MOMENT = ("optimiser", "state", 0, "exp_avg")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop("identity"), "identity: is missing"),
        (drop("policy"), "policy: is missing"),
        (drop("optimiser"), "optimiser: is missing"),
        (drop("rng"), "rng: is missing"),
        (drop("state"), "state: is missing"),
        (set_to("policy", value=3), "policy: is no table"),
        (spoil("policy", "sel.last.weight"), r"policy\.sel\.last\.weight: .* not finite"),
        (drop("policy", "sel.last.weight"), r"policy\.sel\.last\.weight: is missing"),
        (set_to("policy", "extra", value=torch.zeros(1)), r"policy\.extra: .* no such"),
        (
            set_to("policy", "sel.last.bias", value=torch.zeros(2)),
            r"policy\.sel\.last\.bias: .*shape \(2,\), expected",
        ),
        (spoil(*MOMENT), r"optimiser\.state\[0\]\.exp_avg: .* not finite"),
        (set_to(*MOMENT, value=torch.zeros(7)), r"optimiser\.state\[0\]\.exp_avg: .*shape"),
        (set_to("optimiser", "state", 999, value={}), r"optimiser\.state\[999\]: belongs to no"),
        (set_to("optimiser", "param_groups", 0, "lr", value=float("nan")), r"\.lr: is nan"),
        (set_to("rng", "state", value="x"), "rng: not the state of a PCG64"),
        (set_to("state", "stage", value=99), r"state\.stage: 99, but the run has 1 stages"),
        (set_to("state", "stage", value=0.0), r"state\.stage: 0\.0 is not a whole number"),
        (set_to("state", "update", value=-5), r"state\.update: -5 is below 0"),
        (set_to("state", "update", value=1.5), r"state\.update: 1\.5 is not a whole number"),
        (set_to("state", "update", value=True), r"state\.update: True is not a whole number"),
        (set_to("state", "update", value=5), r"state\.update: 5, but this stage has 4 updates"),
        (set_to("state", "seconds", value=float("inf")), r"state\.seconds: inf is not a finite"),
        (set_to("state", "started", value=1), r"state\.started: 1 is not true or false"),
        (drop("state", "reward_mean"), r"state\.reward_mean: is missing"),
        (set_to("state", "archive", "capacity", value=0), r"archive\.capacity: 0 is below 1"),
        (set_to("state", "archive", "makespans", 0, value=-1.0), r"archive\.makespans: not a"),
        (
            set_to("state", "archive", "placements", 0, value=torch.full((12,), 9)),
            r"archive\.placements\[0\]: .*device 9",
        ),
        (
            set_to("state", "archive", "orders", 0, value=torch.zeros(12, dtype=torch.int64)),
            r"archive\.orders\[0\]: .*appears 12 times",
        ),
        (
            set_to("state", "archive", "target", "devices", value=torch.full((12,), 9)),
            r"archive\.target: .*device 9",
        ),
        (
            set_to("state", "archive", "target", "makespan", value=-1.0),
            r"archive\.target\.makespan: -1",
        ),
    ],
)
def test_an_edited_checkpoint_is_refused(
    checkpoint: Path, tmp_path: Path, edit: Callable[[dict], None], message: str
) -> None:
    document = torch.load(checkpoint, weights_only=True)
    edit(document)
    torch.save(document, tmp_path / "checkpoint.pt")
    trainer = make_trainer(tmp_path)
    before = [weight.clone() for weight in trainer.policy.parameters()]
    with pytest.raises(CheckpointError, match=rf"checkpoint\.pt, .*{message}"):
        trainer.fit(resume=True)
    if "policy" not in message:
        assert all(torch.equal(*pair) for pair in zip(before, trainer.policy.parameters()))


def test_the_policy_of_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    policy, identity = load_policy_from_checkpoint(checkpoint)
    trainer = make_trainer(checkpoint.parent)
    assert identity["problem"]["name"] == trainer.problem.name
    stored = torch.load(checkpoint, weights_only=True)["policy"]
    assert all(torch.equal(stored[name], value) for name, value in policy.state_dict().items())
    with pytest.raises(CheckpointError, match=r"gone\.pt: no such checkpoint"):
        load_policy_from_checkpoint(tmp_path / "gone.pt")
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        load_policy_from_checkpoint(tmp_path)
    document = torch.load(checkpoint, weights_only=True)
    for key, value, message in (
        ("head_width", 9, r"policy\..*: .*expected"),
        ("head_width", "8", "policy, head_width: '8' is not a whole number"),
        ("head_width", 10**9, "policy, head_width: 1000000000 is above"),
        ("depth", 1, "policy: unknown option 'depth'"),
        ("shared_encoder", 0, "policy, shared_encoder: 0 is neither true nor false"),
    ):
        config = document["identity"]["policy"]
        edited = {**document, "identity": {"policy": {**config, key: value}}}
        torch.save(edited, tmp_path / "edited.pt")
        with pytest.raises(CheckpointError, match=rf"edited\.pt, {message}"):
            load_policy_from_checkpoint(tmp_path / "edited.pt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choose": "b_level"}, "objective.choose is 'fifo' there, 'b_level' here"),
        ({"noise": LognormalNoise(0.2)}, "objective.noise is 'none' there"),
        ({"execution": "bulk_synchronous"}, "objective.execution is 'work_conserving' there"),
        ({"network": "one_port"}, "objective.network is 'contention_free' there"),
    ],
)
def test_a_resumed_run_keeps_its_objective(checkpoint: Path, options: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        make_trainer(checkpoint.parent, **options).fit(resume=True)


def test_simulators_are_told_apart() -> None:
    task = layered_dag(12, 2, seed=1)

    def identity(**options: Any) -> dict:
        return simulator_identity(Simulator(task, **options))

    assert identity(choose="random", seed=1) == identity(choose="random", seed=1)
    assert identity(choose="random", seed=1) != identity(choose="random", seed=2)
    assert identity(noise=LognormalNoise(0.1)) != identity(noise=LognormalNoise(0.2))
    assert simulator_identity(Simulator(task), samples=4)["samples"] == 4
    trainer = Trainer(
        task, DualPolicy(SMALL), [SimRL(episodes=4)], objective_identity={"samples": 4}
    )
    assert trainer.identity()["objective"] == {"samples": 4}


def test_pins_are_part_of_a_problem() -> None:
    from dataclasses import replace

    from doppler.training.checkpoint import problem_identity

    task = layered_dag(12, 2, seed=1)
    pins = [np.full(12, -1), np.full(12, -1)]
    pins[0][3], pins[1][3] = 0, 1
    hashes = {problem_identity(replace(task, pinned=pin))["sha256"] for pin in pins}
    assert len(hashes | {problem_identity(task)["sha256"]}) == 3


def test_two_trainers_do_not_share_a_folder(tmp_path: Path) -> None:
    class Second(Callback):
        def on_update(self, trainer: Trainer, metrics: dict) -> None:
            if metrics["total_updates"] == 1:
                with pytest.raises(CheckpointError, match="another process trains in this folder"):
                    make_trainer(tmp_path, CsvMetrics(tmp_path / "m.csv")).fit(resume=True)

    assert make_trainer(tmp_path, Second()).fit().completed
    assert not (tmp_path / "m.csv").exists()
    assert make_trainer(tmp_path).fit(resume=True).completed  # released at the end


def hold_and_die(folder: Path, ready: Any) -> None:
    with locked_folder(folder):
        ready.set()
        os.kill(os.getpid(), 9)


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold_and_die, args=(tmp_path, ready))
    process.start()
    process.join(30)
    assert ready.is_set()
    with locked_folder(tmp_path):
        pass


@pytest.mark.parametrize("kind", ["binary", "folder"])
def test_metrics_that_are_none_are_refused(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(checkpoint.read_bytes())
    path = tmp_path / "metrics.csv"
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match=r"metrics\.csv: cannot be read as metrics"):
        make_trainer(tmp_path, CsvMetrics(path)).fit(resume=True)


ROUND = {"round": 0, "placements": ["a"], "measured_makespans": [1.0]}


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        json.dumps({**ROUND, "round": "0"}).encode(),
        json.dumps({**ROUND, "measured_makespans": [1.0, 2.0]}).encode(),
        json.dumps({**ROUND, "measured_makespans": ["x"]}).encode(),
        json.dumps({**ROUND, "measured_makespans": [float("nan")]}).encode(),
    ],
)
def test_lines_that_are_no_measurements_are_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "measurements.jsonl"
    path.write_bytes(json.dumps(ROUND).encode() + b"\n" + line + b"\n")
    with pytest.raises(CheckpointError, match=r"measurements\.jsonl, line 2: not a line"):
        MeasurementJournal(path, lambda placements, orders: np.ones(len(placements)))


def test_a_file_without_a_digest_is_checked_by_its_checksums(tmp_path: Path) -> None:
    policy, path = DualPolicy(SMALL), tmp_path / "policy.pt"
    policy.save(path)
    torch.save(torch.load(path, weights_only=True), path)  # as earlier versions wrote it
    assert DualPolicy.load(path).config == policy.config
    raw = path.read_bytes()
    value = policy.encoders[0].state_dict()
    weights = max(value.values(), key=torch.numel).numpy().tobytes()
    at = raw.index(weights) + 8
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    with pytest.raises(CheckpointError, match=r"policy\.pt: cannot be read.*is damaged"):
        DualPolicy.load(path)
