"""Files that users name never block: a pipe without a writer and an endless device are rejected."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import mlfc
from mlfc.archive import diff, inspect, load, load_module, validate
from mlfc.errors import ArchiveError, InputError, ModelError
from mlfc.runtime.tensor.npz import read_npz
from mlfc.support.plain_file import open_plain

READERS: list[tuple[Callable[[Path], object], type[Exception]]] = [
    (inspect, ArchiveError),
    (validate, ArchiveError),
    (load, ArchiveError),
    (load_module, ArchiveError),
    (lambda path: diff(path, path), ArchiveError),
    (mlfc.import_model, ModelError),
    (lambda path: read_npz(path, ()), InputError),
]


def pipe(folder: Path) -> Path:
    path = folder / "pipe"
    os.mkfifo(path)
    return path


def outcome(read: Callable[[Path], object], path: Path) -> Exception | None:
    """Return the error of a reader, or None; fail if it does not end."""
    raised: list[Exception] = []

    def work() -> None:
        try:
            read(path)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), f"still reading {path}"
    return raised[0] if raised else None


@pytest.mark.parametrize(("read", "expected"), READERS)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_has_no_end_is_refused(
    read: Callable[[Path], object], expected: type[Exception], kind: str, tmp_path: Path
) -> None:
    path = pipe(tmp_path) if kind == "pipe" else Path("/dev/zero")
    error = outcome(read, path)
    assert isinstance(error, expected)
    assert str(path) in str(error)
    assert "a pipe or a device" in str(error)


def test_links_to_files_are_followed_and_folders_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_plain(tmp_path / "link") as file:
        assert file.read() == b"content"
    with pytest.raises(IsADirectoryError):
        open_plain(tmp_path)
