"""Files appear whole or not at all, and a place that cannot be written is said so."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from mlforge.errors import OutputError
from mlforge.support import atomic


def test_replaces_a_file_with_the_mode_of_a_plain_one(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    atomic.write_bytes(target, b"new")
    (tmp_path / "plain").write_bytes(b"")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "plain"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError, SystemExit])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, failure: type[BaseException]) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    with pytest.raises(failure), atomic.atomic_file(target) as file:  # noqa: PT012  (the block is what is tested)
        file.write(b"half")
        raise failure
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"No space left.*Free some space"), atomic.atomic_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "message"),
    [("missing/a", "does not exist. Create the folder"), ("folder", "Is a directory"), ("file/a", "a|A")],
)
def test_a_wrong_place_is_named(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=message) as caught:
        atomic.write_bytes(tmp_path / place, b"")
    assert str(tmp_path / place) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        atomic.write_bytes(tmp_path / "a", b"")


def test_a_folder_of_files_keeps_what_else_is_there(tmp_path: Path) -> None:
    target = tmp_path / "code"
    atomic.write_folder(target, {"src/a.c": b"1", "include/a.h": b"2"})
    (target / "notes.txt").write_bytes(b"mine")
    atomic.write_folder(target, {"src/a.c": b"3"})
    assert {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()} == {
        "src/a.c": b"3",
        "include/a.h": b"2",
        "notes.txt": b"mine",
    }
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(b"")
    with pytest.raises(OutputError, match="there is a file of this name"):
        atomic.write_folder(tmp_path / "code", {"a": b""})
