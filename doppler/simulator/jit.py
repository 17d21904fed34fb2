"""How the kernels are compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

allocating: Any = njit(cache=True, nogil=True)
"""For the few functions that create arrays."""

compiled: Any = njit(cache=True, nogil=True, _nrt=False)
"""For the rest: without numba's reference counts, as its own `numba.core.extending` shows.

Every access to an array inside a tuple counts a reference up and down, atomically, which takes ten
times as long as the simulation itself. Functions so compiled cannot create arrays; whoever calls
them keeps the arrays alive.
"""

inlined: Any = njit(cache=True, nogil=True, _nrt=False, forceinline=True)
"""As `compiled`, for small functions inside loops."""

U = np.uint64
"""Marks an index as unsigned, which spares the check for a negative one that counts from the end.

Only for indexing: arithmetic on an unsigned and a signed number gives a float.
"""
