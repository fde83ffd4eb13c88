"""Tar archives: written the same to the byte every time, read without trusting them.

Members are named as TVM's archives name them: ``.`` for the root, ``./folder``, ``./folder/file``.
"""

from __future__ import annotations

import lzma
import mmap
import os
import re
import tarfile
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath
from typing import BinaryIO, Final

from mlfc.errors import ArchiveError, OptionError
from mlfc.support.content import Data, chunks_of, nbytes_of
from mlfc.support.expansion import ExpandedFile, expanded
from mlfc.support.plain_file import open_plain
from mlfc.support.text import shortened

# A member takes about 0.1 ms to read and to write. A hundred models in one archive have 730.
MAX_MEMBERS: Final = 8_000
MAX_NAME: Final = 1_024
_PLAIN_NAME = re.compile(r"\w[\w.+-]*(?:/\w[\w.+-]*)*")
# a file of holes takes no place on a disk and days to read
MAX_BYTES: Final = 64 << 30
MAX_HEADER: Final = 1 << 20
MIN_MAPPED: Final = 1 << 20
_MACHINE_CODE = (b"\x7fELF", b"!<arch>\n", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\0asm")
_END_OF_9999: Final = 253_402_300_799
_BROKEN = (
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    ValueError,
    OverflowError,
    RecursionError,
    MemoryError,
    OSError,
)


def source_date(timestamp: int | None = None) -> int:
    """Return the seconds since 1970 to stamp on output: as given, else SOURCE_DATE_EPOCH, else 0."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "0") if timestamp is None else str(timestamp)
    if not (text.isascii() and text.isdecimal()) or len(text) > 12 or int(text) > _END_OF_9999:
        raise OptionError(
            f"'{shortened(text)}' is not a time in seconds since 1970",
            place="SOURCE_DATE_EPOCH" if timestamp is None else "timestamp",
            next_step="Set it to a whole number up to the year 9999, or unset it" if timestamp is None else None,
        )
    return int(text)


def write_tar(file: BinaryIO, members: Mapping[str, Data], mtime: int) -> None:
    """Write an uncompressed archive, piece by piece.

    Parameters
    ----------
    file : binary file
        Open for writing.
    members : mapping of str to Data
        Contents by relative path with forward slashes. Folders are added as members; children come in
        sorted order per folder, whatever the mapping's order.
    mtime : int
        Time of every member.
    """
    tree: dict[str, set[str]] = {"": set()}
    for name in members:
        parts = PurePosixPath(name).parts
        for depth, part in enumerate(parts):
            tree.setdefault("/".join(parts[:depth]), set()).add(part)
    written = 2 * tarfile.BLOCKSIZE  # two empty blocks end an archive
    for path in _in_order(tree, ""):
        written += _write_member(file, path, members.get(path), mtime)
    file.write(bytes(2 * tarfile.BLOCKSIZE + -written % tarfile.RECORDSIZE))


def _in_order(tree: Mapping[str, set[str]], path: str) -> Iterator[str]:
    yield path
    for child in sorted(tree.get(path, ())):
        yield from _in_order(tree, f"{path}/{child}" if path else child)


def _write_member(file: BinaryIO, path: str, data: Data | None, mtime: int) -> int:
    """Write a file, or a folder where there are no data; return the number of bytes written."""
    info = tarfile.TarInfo(f"./{path}" if path else ".")
    info.mtime, info.uname, info.gname = mtime, "root", "root"
    if data is None:
        info.mode, info.type = 0o755, tarfile.DIRTYPE
    else:
        info.mode, info.size = 0o644, nbytes_of(data)
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    file.write(header)
    for chunk in () if data is None else chunks_of(data):
        file.write(chunk)
    padding = bytes(-info.size % tarfile.BLOCKSIZE)
    file.write(padding)
    return len(header) + info.size + len(padding)


class BoundedFile:
    """A file that reads no more at once than there is, whatever a header asks for."""

    def __init__(self, file: BinaryIO | ExpandedFile) -> None:
        self._file = file
        self._total = None if isinstance(file, ExpandedFile) else file.seek(0, os.SEEK_END)
        self.limit = MAX_HEADER
        self.seek, self.tell, self.fileno = file.seek, file.tell, file.fileno
        file.seek(0)

    def read(self, size: int) -> bytes:
        """Return so many bytes, or what there is; ReadError for more than `limit`."""
        if not 0 <= size <= self.limit:
            raise tarfile.ReadError(f"a header asks for {size:,} bytes")
        start = self.tell()
        return self._file.read(min(size, max(0, self.size_up_to(start + size) - start)))

    def size_up_to(self, end: int | None) -> int:
        """Return how many bytes there are, all of them or at least those before `end`."""
        return self._file.expand(end) if isinstance(self._file, ExpandedFile) else self._total or 0


class TarReader:
    """The files of an archive, by name without the leading ``./``.

    Attributes
    ----------
    path : str
        Where the archive lies, for messages.
    sizes : dict of str to int
        Bytes of each file. Every file lies wholly within the archive: that was checked.
    """

    def __init__(self, tar: tarfile.TarFile, path: str, file: BoundedFile) -> None:
        self.path = path
        self._tar = tar
        self._file = file
        self._map: memoryview | None = None
        self._members: dict[str, tarfile.TarInfo] = {}
        folders: set[str] = set()
        for count, info in enumerate(tar, 1):
            if count > MAX_MEMBERS:
                raise ArchiveError(f"the archive has more than {MAX_MEMBERS:,} members", place=path)
            name = self._checked_name(info)
            if not (info.isreg() or info.isdir()) or info.issparse():
                raise self.error(f"the member is {_KINDS.get(info.type, 'not a plain file')}", name)
            if info.isdir():
                folders.add(name)
                continue
            if name in self._members:
                raise self.error("the member appears twice", name)
            end = info.offset_data + info.size
            if info.size < 0 or end > file.size_up_to(end):
                raise self.error(f"the member says it has {info.size:,} bytes, but the archive ends before", name)
            self._members[name] = info
        self._check_tree(folders)
        if file.size_up_to(None) > MAX_BYTES:
            raise ArchiveError(f"the archive has more than {MAX_BYTES:,} bytes", place=path)
        self.sizes = {name: info.size for name, info in self._members.items()}

    def error(self, cause: str, member: str) -> ArchiveError:
        """Return an error about one member."""
        shown = member if len(member) <= 200 else f"{member[:200]}..."
        return ArchiveError(cause, place=f"{self.path}: {shown!r}", next_step="Export the archive again")

    def _checked_name(self, info: tarfile.TarInfo) -> str:
        name = info.name
        if len(name) > MAX_NAME or not name.isprintable() or "\\" in name:
            raise self.error("the member's name is too long or has characters that names may not have", name)
        plain = name.removeprefix("./")
        if _PLAIN_NAME.fullmatch(plain):  # most names: taking paths apart costs as much as reading headers
            return plain
        path = PurePosixPath(name)
        # a colon would name a drive or a stream on Windows
        if path.is_absolute() or ".." in path.parts or ":" in name:
            raise self.error("the member's name leads out of the archive", name)
        return "" if path == PurePosixPath(".") else str(path)

    def _check_tree(self, folders: set[str]) -> None:
        for name in self._members:
            if name in folders or any(parent in self._members for parent in _parents(name)):
                raise self.error("the member is both a file and a folder", name)
        spelled: dict[str, str] = {}
        for name in {*self._members, *folders}.union(*map(_parents, self._members)):
            # file systems that do not tell such names apart would take one for the other
            other = spelled.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
            if other != name:
                raise self.error(f"the member is {min(other, name)!r} but for case or spelling", max(other, name))

    def missing(self, name: str) -> ArchiveError:
        """Return the error about a file that the archive lacks."""
        return ArchiveError(f"the archive has no {name}", place=self.path, next_step="Export the archive again")

    def open(self, name: str) -> BinaryIO:
        """Open a file of the archive for reading."""
        if name not in self._members:
            raise self.missing(name)
        file = self._tar.extractfile(self._members[name])
        if file is None:
            raise self.error("the member cannot be read", name)
        return file  # type: ignore[return-value]  # a buffered reader is a binary file

    def read(self, name: str, limit: int) -> bytes:
        """Return a file's bytes; raise ArchiveError if it is missing or larger than `limit`."""
        with self.open(name) as file:
            if self.sizes[name] > limit:
                raise self.error(f"{self.sizes[name]:,} bytes are more than the {limit:,} allowed here", name)
            return file.read()

    def view(self, name: str) -> memoryview:
        """Return a file's bytes; of a large one a read-only map of the archive: what is not looked at takes no memory.

        The view outlives the reader, and the archive's name may come to stand for another file meanwhile. Only
        whoever cuts the very file off while a map of it is in use makes looking at it fatal, as with any map.
        """
        if name not in self._members:
            raise self.missing(name)
        if self.sizes[name] <= MIN_MAPPED:
            return memoryview(self.read(name, MIN_MAPPED))
        if self._map is None:
            self._map = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        start = self._members[name].offset_data
        return self._map[start : start + self.sizes[name]]


def _parents(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:depth]) for depth in range(1, len(parts))}


_KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


@contextmanager
def open_tar(path: str | os.PathLike[str]) -> Iterator[TarReader]:
    """Open an archive, plain or compressed with gzip or xz, and check every member's header.

    Raises
    ------
    ArchiveError
        If there is no such file, it is not a tar, it is cut off, expands absurdly, or holds links, devices,
        names that lead outside, or one name twice.
    """
    place = str(path)
    with ExitStack() as stack:
        try:
            tar, bounded = _headers(stack, path)
            reader = TarReader(tar, place, bounded)
        except _BROKEN as error:
            raise ArchiveError(
                "this is machine code, not an archive"
                if _is_machine_code(path)
                else f"this is not an archive that can be read: {str(error) or type(error).__name__}",
                place=place,
                next_step="Give a .tar that mlfc compile wrote",
            ) from error
        bounded.limit = bounded.size_up_to(None)
        yield reader


def _is_machine_code(path: str | os.PathLike[str]) -> bool:
    with open_plain(path) as file:
        return file.read(8).startswith(_MACHINE_CODE)


def _headers(stack: ExitStack, path: str | os.PathLike[str]) -> tuple[tarfile.TarFile, BoundedFile]:
    """Open an archive whose headers are read next, until `stack` ends."""
    place = str(path)
    try:
        file = stack.enter_context(open_plain(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(f"cannot be read: {reason}", place=place) from error
    plain = stack.enter_context(expanded(file, place))
    bounded = BoundedFile(file if plain is None else plain)
    return stack.enter_context(tarfile.open(fileobj=bounded, mode="r:")), bounded  # type: ignore[call-overload]


def first_file(path: str | os.PathLike[str]) -> str | None:
    """Return the name of an archive's first file, without reading further; None if there is none that can be read."""
    with ExitStack() as stack:
        try:
            tar, _ = _headers(stack, path)
            return next((info.name.removeprefix("./") for info in tar if info.isreg()), None)
        except (ArchiveError, *_BROKEN):
            return None
