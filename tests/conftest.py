"""Fixtures for all tests."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real inputs beside the checkout; the tests that need it skip loudly without."""
    if not SHARED_DATA.is_dir():
        warnings.warn(f"{SHARED_DATA} is absent: tests on real inputs are skipped", stacklevel=1)
        pytest.skip(f"{SHARED_DATA} is absent")
    return SHARED_DATA
