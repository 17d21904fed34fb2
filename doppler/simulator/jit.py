"""How the kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

U = np.uint64
"""Marks an index as unsigned, which spares the check for a negative one that counts from the end.

Only for indexing: arithmetic on an unsigned and a signed number gives a float.
"""


def _sources_digest() -> str:
    digest = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_STAMP = _sources_digest()


def _compiler(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher: Any = njit(cache=True, nogil=True, **options)(function)
        # Numba's cache notices changes of a function's own file only, not of functions in other
        # files that were compiled into it; stale machine code would give wrong makespans.
        dispatcher._cache._cache_file._source_stamp = _STAMP
        return dispatcher

    return decorate


allocating = _compiler()
"""For the few functions that create arrays."""

compiled = _compiler(_nrt=False)
"""For the rest: without numba's reference counts, as its own `numba.core.extending` shows.

Every access to an array inside a tuple counts a reference up and down, atomically, which takes ten
times as long as the simulation itself. Functions so compiled cannot create arrays; whoever calls
them keeps the arrays alive.
"""

inlined = _compiler(_nrt=False, forceinline=True)
"""As `compiled`, for small functions inside loops."""
