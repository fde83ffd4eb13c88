"""Atomic file writes by way of a temporary file in the same folder; devices are written directly."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mlfc.errors import OutputError
from mlfc.support.content import Data, write_data
from mlfc.support.plain_file import open_plain

_HEAD = 1024

_NEXT_STEPS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some space or choose another place"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Choose a place that you may write to"),
    errno.ENOENT: "Create the folder first",
    errno.ENOTDIR: "A part of the path is a file; choose another place",
    errno.EISDIR: "Use the name of a file",
    errno.ENAMETOOLONG: "Choose a shorter name",
}


def output_error(path: str | os.PathLike[str], error: OSError) -> OutputError:
    """Return the error for a `path` that cannot be written."""
    reason = error.strerror or str(error)
    return OutputError(f"cannot be written: {reason}", place=str(path), next_step=_NEXT_STEPS.get(error.errno or 0))


def temporary_error(error: OSError) -> OutputError:
    """Return the error for a temporary file that cannot be written."""
    try:
        place = tempfile.gettempdir()
    except OSError:  # no temporary folder is usable; keep the first reason
        place = "temporary files"
    reason = error.strerror or str(error)
    next_step = "Free some space there, or set TMPDIR to a folder with room that you may write to"
    return OutputError(f"cannot be written: {reason}", place=place, next_step=next_step)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError if a file at `path` cannot be written; for a check before long work."""
    target = Path(path)
    try:
        is_folder = stat.S_ISDIR(target.stat().st_mode)
    except (OSError, ValueError) as error:
        # a name that is too long, a cycle of links, a NUL character: the file can never exist
        if isinstance(error, ValueError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise output_error(target, error if isinstance(error, OSError) else OSError(str(error))) from error
        is_folder = False
    if is_folder:
        raise output_error(target, OSError(errno.EISDIR, os.strerror(errno.EISDIR)))
    if not target.parent.exists():
        raise OutputError(
            f"the folder {target.parent} does not exist", place=str(target), next_step="Create the folder first"
        )
    if not os.access(target if _is_special(target) else _resolved(target).parent, os.W_OK):
        raise output_error(target, OSError(errno.EACCES, os.strerror(errno.EACCES)))


def replaces_earlier(
    path: Path, is_own: Callable[[Path], bool] | bytes, next_step: str = "Name another file with -o"
) -> bool:
    """Return True if a default output exists, False if not; raise OutputError unless mlfc can write and replace it.

    Outputs that users name are replaced in any case. `is_own` is true for files that mlfc wrote, or is text near their
    start.
    """
    check_writable(path)
    if not path.is_file():
        return False
    if isinstance(is_own, bytes):
        with open_plain(path) as file:
            accepted = is_own in file.read(_HEAD)
    else:
        accepted = is_own(path)
    if not accepted:
        raise OutputError("exists, not created by mlfc", place=str(path), next_step=next_step)
    return True


@contextmanager
def atomic_file(
    path: str | os.PathLike[str], *, executable: bool = False, permissions: int | None = None, durable: bool = False
) -> Iterator[BinaryIO]:
    """Open a binary file for writing; it is renamed to `path` if the block succeeds and deleted otherwise.

    As with ``open``, an existing file keeps its permissions and owner, and a symbolic link its target. `executable`
    applies to new files, `permissions` to all, regardless of the umask. `durable` flushes the content to disk before
    the rename, so that even a power failure leaves no partial file. Raises OutputError if `path` cannot be written.
    """
    target = Path(path)
    check_writable(target)
    if _is_special(target):
        with _special_file(target) as file:
            yield file
        return
    final = _resolved(target)
    try:
        handle, name = tempfile.mkstemp(prefix=".mlfc-", suffix=".part", dir=final.parent)
    except OSError as error:
        raise output_error(target, error) from error
    try:
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            if permissions is None:
                _take_permissions(name, final, 0o777 if executable else 0o666)
            else:
                os.chmod(name, permissions)  # noqa: PTH101
            os.replace(name, final)  # noqa: PTH105
        except OSError as error:
            raise output_error(target, error) from error
    except BaseException:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise


def _take_permissions(name: str, final: Path, new: int) -> None:
    """Set the permissions of a file from mkstemp to those of the file that it replaces, or of a new file."""
    try:
        old = final.stat()
    except FileNotFoundError:
        os.chmod(name, new & ~_umask())  # noqa: PTH101
        return
    own = Path(name).stat()
    if hasattr(os, "chown") and (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        for owner in (old.st_uid, -1):  # only root can change the owner; users can set groups they belong to
            with suppress(OSError):
                os.chown(name, owner, old.st_gid)
                break
    os.chmod(name, stat.S_IMODE(old.st_mode) & 0o777)  # noqa: PTH101


@contextmanager
def _special_file(target: Path) -> Iterator[BinaryIO]:
    """Open a file whose content is copied to the device or pipe `target` if the block succeeds."""
    try:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            with target.open("wb") as device:
                shutil.copyfileobj(file, device, 1 << 20)
    except OSError as error:
        raise output_error(target, error) from error


def _is_special(path: Path) -> bool:
    """Return whether `path` exists and is neither a file nor a folder: renaming onto it would destroy it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _resolved(path: Path) -> Path:
    """Return the target of `path`: a link is kept, and its target replaced."""
    return Path(os.path.realpath(path))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file atomically; raise OutputError if that fails."""
    with atomic_file(path) as file:
        file.write(data)


def write_folder(path: str | os.PathLike[str], files: Mapping[str, Data]) -> None:
    """Write files into a folder by relative path (forward slashes), all staged before the first one appears.

    A new folder is created atomically; in an existing one other files are not changed.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise OutputError("expected a folder, got an existing file", place=str(target), next_step="Name a folder")
    if not target.exists():
        check_writable(target)
    try:
        stage = Path(tempfile.mkdtemp(prefix=".mlfc-", suffix=".part", dir=target.parent))
    except OSError as error:
        raise output_error(target, error) from error
    try:
        for name, data in files.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            write_data(stage / name, data)
        if not target.exists():
            # mkdtemp creates private folders; set the mode that mkdir() would have set
            stage.chmod(0o777 & ~_umask())
            stage.replace(target)
            return
        for name in files:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).replace(target / name)
    except OSError as error:
        raise output_error(target, error) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _umask() -> int:
    # the umask can only be read by setting it
    mask = os.umask(0)
    os.umask(mask)
    return mask
