"""Kernels compile where nothing can be cached."""

from __future__ import annotations

from typing import Any

import pytest
from numba.core import caching

from doppler.simulator import jit


def twice(x: float) -> float:
    return 2 * x


def test_a_read_only_install_compiles_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    compiled: Any = jit._compiler()(twice)
    assert compiled(1.5) == 3.0
    assert isinstance(compiled._cache, caching.NullCache)


def test_another_error_of_numba_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: Any) -> Any:
        raise RuntimeError("something else")

    monkeypatch.setattr(jit, "njit", broken)
    with pytest.raises(RuntimeError, match="something else"):
        jit._compiler()(twice)
