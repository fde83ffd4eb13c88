"""Files are written completely or not at all, and errors name paths that cannot be written."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlfc.errors import OutputError
from mlfc.support import atomic


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


def test_a_folder_without_permission_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        with without_privileges(), pytest.raises(OutputError, match="Permission denied"):
            atomic.write_bytes(folder / "a", b"")


@contextmanager
def without_privileges() -> Iterator[None]:
    """Drop root privileges temporarily, because root may write everywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full here")
    # a link, so that a bug replaces the link and not the machine's device
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"full: cannot be written: No space left"):
        atomic.write_bytes(link, b"content")
    assert link.is_symlink()
    assert Path("/dev/full").is_char_device()
    (tmp_path / "null").symlink_to("/dev/null")
    atomic.write_bytes(tmp_path / "null", b"content")
    assert (tmp_path / "null").is_char_device()


def test_a_pipe_gets_the_content(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic.write_bytes(pipe, b"content")
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "a")
    for content in (b"one", b"two"):
        atomic.write_bytes(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "a").read_bytes() == content
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "folder", "link"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o777, 0o604])
@pytest.mark.parametrize("is_linked", [True, False])
def test_a_file_that_exists_keeps_its_mode(tmp_path: Path, mode: int, is_linked: bool) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    target.chmod(mode)
    (tmp_path / "link").symlink_to("a")
    before = target.stat().st_ino
    with atomic.atomic_file(tmp_path / "link" if is_linked else target, executable=True, durable=True) as file:
        file.write(b"new")
    assert (tmp_path / "link").readlink() == Path("a")
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (b"new", mode)
    assert target.stat().st_ino != before


@pytest.mark.parametrize(("mask", "mode", "program"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0, 0o666, 0o777)])
def test_a_new_file_gets_the_mode_that_the_mask_leaves(tmp_path: Path, mask: int, mode: int, program: int) -> None:
    (tmp_path / "link").symlink_to("a")
    before = os.umask(mask)
    try:
        atomic.write_bytes(tmp_path / "link", b"")
        with atomic.atomic_file(tmp_path / "b", executable=True):
            pass
    finally:
        assert os.umask(before) == mask
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == program


def test_root_leaves_files_to_their_owners(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may write files of other users and give files away")
    target = tmp_path / "a"
    target.write_bytes(b"old")
    os.chown(target, 65534, 65533)
    target.chmod(0o640)
    atomic.write_bytes(target, b"new")
    state = target.stat()
    assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (65534, 65533, 0o640)


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
    with pytest.raises(OutputError, match="expected a folder, got an existing file"):
        atomic.write_folder(tmp_path / "code", {"a": b""})
