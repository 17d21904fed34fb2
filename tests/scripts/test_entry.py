"""How errors, Ctrl-C and bars end up on the screen."""

from __future__ import annotations

import io
import os
import signal

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from doppler.errors import ConfigurationError
from scripts import progress
from scripts.entry import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_TERMINATED, entry_point, short_message
from scripts.progress import ProgressDisplay


def exit_status(raised: BaseException) -> int | str | None:
    """What the process would end with if the script's main function raised that."""

    @entry_point
    def main(config: DictConfig) -> None:
        raise raised

    with pytest.raises(SystemExit) as ended:
        main(OmegaConf.create({}))
    return ended.value.code


def test_a_library_error_is_one_message_and_status_2(capsys: pytest.CaptureFixture) -> None:
    assert exit_status(ConfigurationError("topology 'x' is unknown")) == EXIT_ERROR == 2
    assert capsys.readouterr().err == "error: topology 'x' is unknown\n"


def test_an_error_inside_instantiate_is_told_without_hydras_words(
    capsys: pytest.CaptureFixture,
) -> None:
    with pytest.raises(InstantiationException) as raised:
        instantiate({"_target_": "doppler.workloads.make_workload", "name": "nope"})
    assert exit_status(raised.value) == EXIT_ERROR
    message = capsys.readouterr().err
    assert message.startswith("error: workload 'nope' is unknown")
    assert "Traceback" not in message


def test_an_option_that_a_class_does_not_have_is_a_user_error() -> None:
    with pytest.raises(InstantiationException) as raised:
        instantiate({"_target_": "doppler.schedulers.CriticalPath", "tiez": "id"})
    message = short_message(raised.value)
    assert message is not None
    assert "tiez" in message
    assert "\n" not in message


def test_a_missing_value_names_its_key() -> None:
    config = OmegaConf.create({"workload": {"path": "???"}})
    with pytest.raises(Exception, match="path") as raised:
        _ = config.workload.path
    assert short_message(raised.value) == (
        "workload.path: a value is needed, pass workload.path=<value>"
    )


def test_a_defect_keeps_its_traceback() -> None:
    @entry_point
    def main(config: DictConfig) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        main(OmegaConf.create({}))


def test_hydra_full_error_keeps_the_traceback_of_every_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    @entry_point
    def main(config: DictConfig) -> None:
        raise ConfigurationError("told in full")

    with pytest.raises(ConfigurationError):
        main(OmegaConf.create({}))


def test_ctrl_c_ends_with_130() -> None:
    assert exit_status(KeyboardInterrupt()) == EXIT_INTERRUPTED == 130


def test_sigterm_runs_every_finally_and_ends_with_143() -> None:
    cleaned = []
    before = signal.getsignal(signal.SIGTERM)

    @entry_point
    def main(config: DictConfig) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append(True)

    try:
        with pytest.raises(SystemExit) as ended:
            main(OmegaConf.create({}))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == EXIT_TERMINATED == 143
    assert cleaned


def test_a_pipe_gets_a_line_now_and_then_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 5.0, 16.0, 16.0, 16.0, 20.0, 31.5])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    display = ProgressDisplay(Console(file=stream, width=60))
    with display.step("stage sim_rl", 30) as advance:
        advance(10, "")
        advance(20, "best 3 ms")
        advance(30, "best 2 ms")
    assert stream.getvalue().splitlines() == [
        "stage sim_rl: 20 of 30 after 16 s  best 3 ms",
        "stage sim_rl: 30 of 30 after 32 s  best 2 ms",
    ]


def test_a_terminal_gets_a_bar() -> None:
    stream = io.StringIO()
    display = ProgressDisplay(Console(file=stream, width=120, force_terminal=True))
    with display.step("evaluation", 4) as advance:
        advance(4, "done")
    assert "evaluation" in stream.getvalue()
    assert "4/4" in stream.getvalue()


def test_a_note_too_long_for_the_terminal_is_cut_not_the_bar() -> None:
    stream = io.StringIO()
    display = ProgressDisplay(Console(file=stream, width=80, force_terminal=True))
    with display.step("annealing", 100) as advance:
        advance(100, "x" * 100)
    shown = stream.getvalue()
    assert "100/100" in shown
    assert "━" * 8 in shown
    assert "xxx…" in shown
