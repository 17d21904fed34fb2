"""Checks of numbers that come from outside, before anything is computed from them."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np

from doppler.errors import ConfigurationError, DopplerError, FileFormatError, InvalidPlacementError

_INT64 = np.iinfo(np.int64)
LARGEST_INT = int(_INT64.max)
"""The largest whole number that arrays hold; seeds may be larger."""
_DECIMAL = re.compile(r"[+-]?[0-9]+")
_MOST_DIGITS = 18
"""Numbers that are no longer fit into 64 bits, whatever their digits."""
_EXACT_FLOAT = 2.0**53
"""Up to here every whole number is a float of its own."""


def whole_number(
    value: Any,
    label: str,
    lowest: int,
    error: type[DopplerError] = ConfigurationError,
    most: int | None = None,
) -> int:
    """Returns an int from `lowest` to `most`, or refuses what is none; bools and floats are none.

    Raises:
        DopplerError: of type `error`, naming `label` and the value.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise error(f"{label}: {shown(value)} is not a whole number")
    if value < lowest:
        raise error(f"{label}: {shown(value)} is below {lowest}")
    if most is not None and value > most:
        raise error(f"{label}: {shown(value)} is above {most}")
    return int(value)


def whole_numbers(
    values: Any, where: str, error: type[DopplerError] = InvalidPlacementError
) -> np.ndarray:
    """Copies an array-like of whole numbers into an int64 array of the same shape.

    Floats count where they are whole; bools, text and what does not fit into 64 bits do not.

    Raises:
        DopplerError: of type `error`, naming `where` and the first entry that is wrong.
    """
    try:
        raw = np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise error(f"{where}: not a list of whole numbers: {problem}") from problem
    kind = raw.dtype.kind
    at = _first_bool(values)  # numpy reads a bool among ints as 0 or 1
    if at:
        raise error(f"{_place(where, at)}: a bool is not a whole number")
    if kind in "iu":
        wrong = raw > np.uint64(_INT64.max) if raw.dtype == np.uint64 else np.zeros(0, bool)
    elif kind == "f":
        wrong = ~(np.isfinite(raw) & (np.abs(raw) <= _EXACT_FLOAT) & (np.trunc(raw) == raw))
    elif kind == "O":
        wrong = np.array([not _is_int64(value) for value in raw.flat], bool).reshape(raw.shape)
    else:
        raise error(f"{where}: not a list of whole numbers but of {raw.dtype}")
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise error(f"{_place(where, at)}: {shown(raw[at])} is not a whole number")
    return np.array(raw, np.int64, order="C")


def number(
    value: Any, label: str, error: type[DopplerError], *, above: bool, infinite: bool = False
) -> float:
    """Returns a float above 0 (or of at least 0), or refuses what is none; bools are none.

    Raises:
        DopplerError: of type `error`, naming `label` and the value.
    """
    wanted = f"{'a' if infinite else 'a finite'} number {'above 0' if above else '>= 0'}"
    if not isinstance(value, (bool, np.bool_)) and isinstance(value, (int, float, np.number)):
        try:
            read = float(value)
        except (OverflowError, TypeError):
            read = np.nan
        if (read > 0 if above else read >= 0) and (infinite or read < np.inf):
            return read
    raise error(f"{label}: {shown(value)} is not {wanted}")


def amounts(values: Any, label: str, error: type[DopplerError]) -> np.ndarray:
    """Copies an array-like of real numbers, not text or bools, into a read-only float array.

    Raises:
        DopplerError: of type `error`, naming `label`.
    """
    try:
        raw = np.asarray(values)
        if raw.dtype.kind not in "iufO":
            raise TypeError(f"{raw.dtype} is not a type of numbers")
        if raw.dtype.kind == "O" and any(not isinstance(v, (int, float)) for v in raw.flat):
            raise TypeError("an entry is no number")
        array = np.array(raw, np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise error(f"{label}: not an array of numbers: {problem}") from problem
    array.setflags(write=False)
    return array


def restore_frozen(target: Any, state: dict[str, Any]) -> None:
    """Restores a pickled dataclass whose arrays are read-only, which pickling forgets."""
    for field in fields(target):
        if isinstance(state.get(field.name), np.ndarray):
            state[field.name].setflags(write=False)
    target.__dict__.update(state)


def text_int(text: str, label: str) -> int:
    """Reads a whole number of ASCII digits, with or without a sign, that fits into 64 bits.

    Raises:
        FileFormatError: naming `label` and the text.
    """
    if not _DECIMAL.fullmatch(text.strip()):
        raise FileFormatError(f"{label}: {shown(text.strip())} is not a whole number")
    if len(text.strip()) > _MOST_DIGITS:
        raise FileFormatError(f"{label}: {shown(text.strip())} has too many digits")
    return int(text)


def name(value: Any, label: str, error: type[DopplerError]) -> str:
    """Returns text that can be shown and written: not empty, no control characters.

    Raises:
        DopplerError: of type `error`, naming `label` and the value.
    """
    if not isinstance(value, str) or not value.strip():
        raise error(f"{label}: {shown(value)} is not a name")
    if not value.isprintable():  # also refuses lone surrogates
        raise error(f"{label}: {shown(value)!a} holds characters that cannot be shown")
    return value


def shown(value: Any, most: int = 60) -> str:
    """A value for a message, cut where it is long; digits beyond Python's limit do not matter."""
    try:
        text = str(value) if isinstance(value, (np.generic, np.ndarray)) else repr(value)
    except (ValueError, RecursionError):
        return f"a very long {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _is_int64(value: Any) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and bool(_INT64.min <= value <= _INT64.max)


def _first_bool(values: Any) -> tuple[int, ...]:
    """Where a list, or a list of lists or arrays, first holds a bool; empty if nowhere."""
    if not isinstance(values, (list, tuple)):
        return ()
    for index, value in enumerate(values):
        if isinstance(value, (bool, np.bool_)):
            return (index,)
        if isinstance(value, np.ndarray) and value.dtype == bool:
            return (index, 0)
        within = _first_bool(value)
        if within:
            return (index, *within)
    return ()


def _place(where: str, at: tuple[int, ...]) -> str:
    row = f", row {', '.join(map(str, at[:-1]))}" if len(at) > 1 else ""
    return f"{where}{row}, entry {at[-1] if at else 0}"
