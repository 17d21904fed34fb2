"""Kernels compile where nothing can be cached."""

from __future__ import annotations

from pathlib import Path
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


def test_caches_notice_changes_in_all_that_a_kernel_calls(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    kernel = tmp_path / "search" / "kernel.py"
    kernel.write_text("one")
    before = jit._sources_digest.__wrapped__(frozenset([tmp_path]))
    kernel.write_text("two")
    assert jit._sources_digest.__wrapped__(frozenset([tmp_path])) != before
    assert jit._built_on(jit._SIMULATOR) == {jit._SIMULATOR}
    searching = jit._SCHEDULERS / "search"
    assert jit._built_on(searching) == {searching, jit._SIMULATOR, jit._SCHEDULERS}
    assert all(folder.is_dir() for folder in jit._built_on(searching))
