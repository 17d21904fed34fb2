"""Loggers: what they leave in the run folder, that they finish, and that wandb stays out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wandb_files import exit_records, read_records, run_files

from doppler.errors import ConfigurationError
from doppler.training.loggers import CsvLogger, NoLogger, WandbLogger

UPDATES: list[dict[str, Any]] = [
    {"stage": "imitation", "total_updates": 1, "update": 1, "episodes": 8, "loss": 2.0},
    {"stage": "sim_rl", "total_updates": 2, "update": 1, "episodes": 16, "loss": float("nan"),
     "simulated_makespan_best": 0.25},
]  # fmt: skip


def log_a_run(logger: NoLogger, folder: Path, exit_code: int = 0) -> None:
    trainer: Any = SimpleNamespace(state=SimpleNamespace(total_updates=0))
    folder.mkdir(parents=True, exist_ok=True)
    logger.start(folder, "a run", {"seed": 3, "workload": {"name": "ffnn"}})
    logger.on_start(trainer, False)
    for metrics in UPDATES:
        logger.on_update(trainer, dict(metrics))
    logger.on_end(trainer)
    picture, placement = folder / "gantt.png", folder / "placement.json"
    picture.write_bytes(
        bytes.fromhex(
            "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
            "0000000c49444154789c6360606000000004000146dd8d650000000049454e44ae426082"
        )
    )
    placement.write_text("{}")
    logger.log_table("results", [{"scheduler": "random", "bytes_moved": None, "speed_up": 1.5}])
    logger.log_picture("gantt", picture)
    logger.log_file(placement, "placement")
    logger.log_summary({"episodes": 16})
    logger.finish(exit_code)


def test_no_logger_leaves_nothing(tmp_path: Path) -> None:
    log_a_run(NoLogger(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gantt.png", "placement.json"}


def test_csv_logger_writes_the_metrics(tmp_path: Path) -> None:
    log_a_run(CsvLogger(), tmp_path)
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("1,imitation,1,8,")


def test_a_logger_must_be_started(tmp_path: Path) -> None:
    trainer: Any = None
    with pytest.raises(ConfigurationError, match="before it was started"):
        CsvLogger().on_start(trainer, False)


def test_wandb_refuses_an_unknown_mode() -> None:
    with pytest.raises(ConfigurationError, match=r"offine.*offline, online, disabled"):
        WandbLogger(mode="offine")


@pytest.fixture(scope="module")
def wandb_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Two offline runs of one process whose home is a folder of its own: runs, home, output."""
    base = tmp_path_factory.mktemp("wandb")
    home = base / "home"
    home.mkdir()
    code = (
        "import sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_loggers import log_a_run\n"
        "from doppler.training.loggers import WandbLogger\n"
        "assert 'wandb' not in sys.modules\n"
        "import os\n"
        "logger = WandbLogger(group='pair')\n"
        f"log_a_run(logger, Path({str(base)!r}) / 'one')\n"
        f"log_a_run(WandbLogger(), Path({str(base)!r}) / 'two', exit_code=1)\n"
        "import wandb\n"
        "print('open run:', wandb.run)\n"
        "print('left over:', [v for v in os.environ if v.startswith('WANDB_') and 'DIR' in v])\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    for variable in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        environment.pop(variable, None)
    environment["HOME"] = str(home)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=base, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return base, home, done.stdout


def test_each_wandb_run_of_a_process_is_its_own_and_is_finished(
    wandb_runs: tuple[Path, Path, str],
) -> None:
    base, _, output = wandb_runs
    ids = {(base / name / "wandb" / "run_id.txt").read_text() for name in ("one", "two")}
    assert len(ids) == 2
    assert "open run: None" in output
    assert exit_records(base / "one", expected=1) == [0]
    assert exit_records(base / "two", expected=1) == [1]


def test_a_wandb_run_holds_config_metrics_table_picture_and_artifacts(
    wandb_runs: tuple[Path, Path, str],
) -> None:
    (stream,) = run_files(wandb_runs[0] / "one")
    records = read_records(stream)
    config = {
        item.key: json.loads(item.value_json)
        for record in records
        if record.HasField("run")
        for item in record.run.config.update
    }
    assert config["seed"] == 3
    logged: dict[str, Any] = {}
    for record in records:
        if record.HasField("history"):
            for item in record.history.item:
                logged["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    assert logged["imitation/loss"] == 2.0
    assert "sim_rl/loss" not in logged  # not a number
    assert logged["sim_rl/simulated_makespan_best"] == 0.25
    assert logged["total_updates"] == 2
    assert logged["results/_type"] == "table-file"
    assert logged["gantt/_type"] == "image-file"
    kinds = [record.artifact.type for record in records if record.HasField("artifact")]
    assert "placement" in kinds


def test_wandb_leaves_home_and_environment_alone(wandb_runs: tuple[Path, Path, str]) -> None:
    base, home, output = wandb_runs
    assert "left over: []" in output
    assert [str(path) for path in home.rglob("*") if path.is_file()] == []
    assert {path.name for path in base.iterdir()} == {"home", "one", "two"}
