"""How the kernels are compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

U = np.uint64
"""Marks an index as unsigned, which spares the check for a negative one that counts from the end.

Only for indexing: arithmetic on an unsigned and a signed number gives a float.
"""


_SIMULATOR = Path(__file__).parent
_CONSTRUCTION = _SIMULATOR.parent / "construction"
_SCHEDULERS = _SIMULATOR.parent / "schedulers"
_LOG = logging.getLogger("doppler")


@cache
def _sources_digest(folders: frozenset[Path]) -> str:
    digest = sha256()
    for folder in sorted(folders):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _built_on(folder: Path) -> frozenset[Path]:
    """Folders whose kernels those of a folder may call."""
    if folder in (_SIMULATOR, _CONSTRUCTION):
        return frozenset((folder, _SIMULATOR))
    return frozenset((folder, _SIMULATOR, _SCHEDULERS))


@cache
def _announce() -> None:
    """Tells the user once per process that the next call takes long; shown on stderr by default."""
    _LOG.warning("compiling kernels for this machine; this takes up to a minute, once")


def _compiler(announced: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        try:
            dispatcher: Any = njit(cache=True, nogil=True, **options)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            # Neither the package's folder nor the user's cache folder can be written to: compile
            # in every process anew.
            return njit(nogil=True, **options)(function)
        cached = dispatcher._cache
        # Numba's cache notices changes of a function's own file only, not of functions in other
        # files that were compiled into it; stale machine code would give wrong makespans.
        folder = Path(function.__code__.co_filename).parent
        cached._cache_file._source_stamp = _sources_digest(_built_on(folder))
        if announced:
            load = cached.load_overload

            def load_or_announce(*arguments: Any) -> Any:
                found = load(*arguments)
                if found is None:
                    _announce()
                return found

            cached.load_overload = load_or_announce
        return dispatcher

    return decorate


_INNER: dict[str, Any] = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

entry = _compiler(announced=True)
"""For the functions that Python calls; says so when one of them has to be compiled first."""

allocates = _compiler(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that create arrays for compiled ones."""

compiled = _compiler(**_INNER)
"""For the rest: without numba's reference counts, as its own `numba.core.extending` shows.

Every access to an array inside a tuple counts a reference up and down, atomically, which takes ten
times as long as the simulation itself. Functions so compiled cannot create arrays, and only other
compiled functions can call them, which keep the arrays alive.
"""

inlined = _compiler(**_INNER, forceinline=True)
"""As `compiled`, for small functions inside loops."""

vectorised = _compiler(**_INNER, error_model="numpy", fastmath={"contract"})
"""As `compiled`, for loops of float arithmetic that fill arrays.

Divisions by zero give infinity rather than a check that keeps the loop scalar, and products and
sums may be fused. A loop is vectorised where it stores to one array and reads at most eight.
"""

reducing = _compiler(**_INNER, error_model="numpy", fastmath={"contract", "reassoc", "nnan", "nsz"})
"""As `vectorised`, for loops that add up or find the greatest: in any order, and without NaN."""


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Generates the processor's instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        header = make_array(signature.args[0])(context, builder, arguments[0])
        place = arguments[1]
        if signature.args[0].ndim == 2:
            place = builder.mul(place, builder.extract_value(header.shape, 1))
        data = header.data
        byte = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte] + [flag] * 3),
            "llvm.prefetch.p0i8",
        )
        address = builder.bitcast(builder.gep(data, [place]), byte)
        read, keep, data_cache = flag(0), flag(3), flag(1)
        builder.call(function, [address, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_prefetch)
"""`prefetch(array, index)` asks for the cache line in which an entry, or a row, begins."""
