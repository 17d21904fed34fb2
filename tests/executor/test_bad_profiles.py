"""Profiles that cannot be true are refused with file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doppler.errors import FileFormatError
from doppler.executor import CopyTiming, KernelTiming, Profile, describe_environment


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    profile = Profile(
        ("fake",),
        describe_environment("cpu", 2),
        {"add": KernelTiming(1e-3, 1e-3, 0.1, 5)},
        1e-6,
        1e-6,
        CopyTiming(1e-6, 1e-6, 1e9, ((4096, 1e-5),)),
    )
    profile.save(tmp_path / "good.json")
    assert Profile.load(tmp_path / "good.json").copies == profile.copies
    return json.loads((tmp_path / "good.json").read_text())


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("copies",), None, "copies"),
        *((("copies", "bandwidth"), v, r"copies\.bandwidth") for v in (1e-320, 0, 10**400, True)),
        *(
            (("copies", "sweep"), [[4096, 1e-5], point], r"copies\.sweep\[1\]")
            for point in (
                [1, float("nan")],
                [1, float("inf")],
                [1],
                [1, 2, 3],
                5,
                [True, 1],
                [1, -1],
            )
        ),
        (("dispatch_gap",), 10**400, "dispatch_gap"),
        (("kernels", "add", "busy"), 10**400, r"kernels\['add'\]\.busy"),
        (("kernels", "add", "samples"), -1, r"kernels\['add'\]\.samples"),
        (("kernels", "add", "factors"), [10**400], r"kernels\['add'\]\.factors"),
        (("kernels", "add", "buzy"), 1.0, r"kernels\['add'\]\.buzy: is unknown"),
        (("copies", "speed"), 1.0, r"copies\.speed: is unknown"),
        (("note",), "x", "note: is unknown"),
        (("environment", "backend"), "abacus", r"environment\.backend: 'abacus' is unknown"),
    ],
)
def test_values_that_cannot_be(
    document: dict, tmp_path: Path, keys: tuple[str, ...], value: Any, field: str
) -> None:
    *path, last = keys
    table = document
    for key in path:
        table = table[key]
    table[last] = value
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=rf"bad\.json, {field}"):
        Profile.load(bad)


def test_deep_nesting_and_endless_digits_are_no_profile(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    for text in ("[" * 100_000, '{"format": ' + "9" * 5000 + "}"):
        bad.write_text(text)
        with pytest.raises(FileFormatError, match=r"bad\.json: cannot be read"):
            Profile.load(bad)
