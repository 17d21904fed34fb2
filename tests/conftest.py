"""Fixtures for all tests."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from doppler import PlacementProblem, Schedule
from doppler.schedule import lower_bounds

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_finish() -> None:
    """Measuring collects garbage before each round; all that is imported by now is none."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real inputs beside the checkout; the tests that need it skip loudly without."""
    if not SHARED_DATA.is_dir():
        warnings.warn(f"{SHARED_DATA} is absent: tests on real inputs are skipped", stacklevel=1)
        pytest.skip(f"{SHARED_DATA} is absent")
    return SHARED_DATA


@pytest.fixture(scope="session", autouse=True)
def every_simulated_makespan_respects_the_lower_bounds() -> Iterator[None]:
    """Checks each noise-free makespan that any test simulates; bounds are computed once a problem.

    Worker processes that a test starts are not watched.
    """
    from doppler.simulator import Simulator

    known: WeakKeyDictionary[PlacementProblem, float] = WeakKeyDictionary()

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(self: Simulator, *args: Any, **options: Any) -> Any:
            result = method(self, *args, **options)
            if self.noise is None:
                if self.problem not in known:
                    known[self.problem] = lower_bounds(self.problem).best
                makespans = result.makespan if isinstance(result, Schedule) else result
                least = np.min(makespans, initial=np.inf)
                bound = known[self.problem]
                assert least >= bound * (1 - 1e-9), f"makespan {least} below the bound {bound}"
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("makespan", "makespans", "run"):
            patch.setattr(Simulator, name, watched(getattr(Simulator, name)))
        yield
