"""What all entry points share: how errors, Ctrl-C and termination end the process."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from doppler.errors import ConfigurationError, DopplerError

EXIT_ERROR, EXIT_INTERRUPTED, EXIT_TERMINATED = 2, 130, 143


class JobError(CompactHydraException):
    """Tells Hydra that one job of a multirun failed; printed without a traceback."""


def entry_point(main: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Wraps a script's main function.

    A `DopplerError` (also one raised while Hydra builds an object) is printed as one short message
    and ends the process with status 2; in a multirun it fails that job alone, the others go on,
    and the process ends with status 1. Ctrl-C ends with status 130 and SIGTERM with 143, both
    after every `finally` has run. Anything else keeps its traceback, because it is a defect.
    """

    @functools.wraps(main)
    def wrapped(config: DictConfig) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminate)
        try:
            main(config)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(EXIT_INTERRUPTED)
        except Exception as error:
            message = short_message(error)
            if message is None or os.environ.get("HYDRA_FULL_ERROR", "0") != "0":
                raise
            if in_multirun():
                raise JobError(f"error: {message}") from None
            print(f"error: {message}", file=sys.stderr)
            sys.exit(EXIT_ERROR)

    return wrapped


def short_message(error: BaseException) -> str | None:
    """What to tell the user of an error of theirs; None for a defect, which keeps its traceback."""
    if isinstance(error, DopplerError):
        return str(error)
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: a value is needed, pass {error.full_key}=<value>"
    if isinstance(error, OmegaConfBaseException):
        return f"configuration, {error.full_key}: {str(error).splitlines()[0]}"
    if isinstance(error, InstantiationException):
        cause = error.__cause__
        inner = None if cause is None else short_message(cause)
        if inner is not None:
            return inner
        if isinstance(cause, TypeError):  # an option that the built class does not have
            return " ".join(str(error).split())
    return None


def in_multirun() -> bool:
    """Whether this process runs the jobs of `-m`."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def task_overrides() -> list[str]:
    """The overrides of the command line, those of Hydra itself left out."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def check_positive(value: Any, name: str) -> None:
    """Raises `ConfigurationError` unless a value, where given, is a number above 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"{name} is {value!r}, a number above 0 is needed")


def check_count(value: Any, name: str, least: int = 1) -> None:
    """Raises `ConfigurationError` unless a value is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} is {value!r}, a whole number >= {least} is needed")


def check_list(value: Any, name: str) -> list[Any]:
    """Returns a configured list as a plain one.

    Raises:
        ConfigurationError: it is no list.
    """
    if not isinstance(value, list | tuple | ListConfig):
        raise ConfigurationError(f"{name} is {value!r}, a list is needed: {name}=[...]")
    return list(value)


def _terminate(signum: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)
