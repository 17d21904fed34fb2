"""Files are written whole or not at all, and what stops them is told in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from doppler.errors import DopplerError
from doppler.files import check_replaceable, write_atomically, write_text_atomically


def disk_is_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def assert_untouched(path: Path) -> None:
    assert path.read_text() == "before"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "kept.json"
    path.write_text("before")
    with monkeypatch.context() as patch:
        if step != "write":
            patch.setattr(os, step, disk_is_full)
        with pytest.raises(DopplerError, match=r"kept.json: cannot be written: No space left"):
            write_atomically(path, disk_is_full if step == "write" else lambda _: None)
    assert_untouched(path)


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(DopplerError, match=r"folder.json: cannot be written: Is a directory"):
        write_text_atomically(tmp_path / "folder.json", "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.json"]


def test_text_and_names_that_are_not_unicode_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("before")
    with pytest.raises(DopplerError, match=r"kept.json.*: cannot be written: .*surrogates"):
        write_text_atomically(path, "a\ud800")
    for name, reason in (("a\ud800", "surrogates"), ("a\0b", "null")):
        with pytest.raises(DopplerError, match=f"cannot be written: .*{reason}"):
            write_text_atomically(tmp_path / name, "text")
    assert_untouched(path)


def test_a_defect_of_the_writer_is_no_file_error(tmp_path: Path) -> None:
    def broken(_: Path) -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match=r"^a defect$"):
        write_atomically(tmp_path / "file", broken)
    assert not list(tmp_path.iterdir())


def test_a_pipe_in_the_way_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(DopplerError, match=r"pipe.json: .* is a device, a pipe or a socket"):
        write_text_atomically(path, "after")
    assert path.is_fifo()


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("before")
    link.symlink_to(target)
    write_text_atomically(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"


def test_a_device_is_never_replaced() -> None:
    # Nothing is tried on the real one: the check alone must refuse it.
    with pytest.raises(DopplerError, match="device"):
        check_replaceable(Path(os.devnull))
