"""Tar archives with TVM's member names (``./folder/file``): reproducible writing, and reading of untrusted files."""

from __future__ import annotations

import gzip
import lzma
import mmap
import os
import re
import tarfile
import tempfile
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath
from typing import IO, Any, BinaryIO, Final

from mlfc.errors import ArchiveError, OptionError
from mlfc.support.content import Data, chunks_of, nbytes_of
from mlfc.support.plain_file import open_plain
from mlfc.support.text import shortened

# An xz of zeros expands by a factor of 10,000; real archives of C and weights are far below these limits.
MAX_EXPANSION: Final = 100
MIN_EXPANDED: Final = 64 << 20
MAX_EXPANDED: Final = 4 << 30
_CHUNK: Final = 1 << 20
_COMPRESSED = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\x00", lzma.open))
# A member takes about 0.1 ms to read and to write. An archive of a hundred models has 730.
MAX_MEMBERS: Final = 8_000
MAX_NAME: Final = 1_024
_PLAIN_NAME = re.compile(r"\w[\w.+-]*(?:/\w[\w.+-]*)*")
# a sparse file needs no disk space and takes days to read
MAX_BYTES: Final = 64 << 30
MAX_HEADER: Final = 1 << 20
MIN_MAPPED: Final = 1 << 20
_MACHINE_CODE = (b"\x7fELF", b"!<arch>\n", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\0asm")
_END_OF_9999: Final = 253_402_300_799
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError)
_BROKEN = (*_DAMAGED, OverflowError, RecursionError, MemoryError, OSError)
_KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


def source_date(timestamp: int | None = None) -> int:
    """Return the timestamp for output, in seconds since 1970: `timestamp`, else SOURCE_DATE_EPOCH, else 0."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "0") if timestamp is None else str(timestamp)
    if not (text.isascii() and text.isdecimal()) or len(text) > 12 or int(text) > _END_OF_9999:
        raise OptionError(
            f"'{shortened(text)}' is not a time in seconds since 1970",
            place="SOURCE_DATE_EPOCH" if timestamp is None else "timestamp",
            next_step="Set it to a whole number up to the year 9999, or unset it" if timestamp is None else None,
        )
    return int(text)


def write_tar(file: BinaryIO, members: Mapping[str, Data], mtime: int) -> None:
    """Write an uncompressed archive in pieces, with the same time for all members.

    Paths are relative with forward slashes. Folders are added as members; the children of a folder
    are sorted, regardless of the mapping's order.
    """
    tree: dict[str, set[str]] = {"": set()}
    for name in members:
        parts = name.split("/")
        for depth, part in enumerate(parts):
            tree.setdefault("/".join(parts[:depth]), set()).add(part)
    written = 2 * tarfile.BLOCKSIZE  # two empty blocks end an archive
    waiting = [""]
    while waiting:
        path = waiting.pop()
        written += _write_member(file, path, members.get(path), mtime)
        waiting += [f"{path}/{child}" if path else child for child in sorted(tree.get(path, ()), reverse=True)]
    file.write(bytes(2 * tarfile.BLOCKSIZE + -written % tarfile.RECORDSIZE))


def _write_member(file: BinaryIO, path: str, data: Data | None, mtime: int) -> int:
    """Write a file, or a folder if `data` is None; return the number of bytes written."""
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
    """A plain or compressed file whose reads are bounded, regardless of the sizes in headers.

    `source` decompresses `compressed` into the temporary `file` only as far as it is read, so rejecting the start of a
    file does not require decompressing all of it.
    """

    def __init__(
        self, file: BinaryIO, place: str, source: IO[bytes] | None = None, compressed: BinaryIO | None = None
    ) -> None:
        self._file, self._place, self._source, self._compressed = file, place, source, compressed or file
        self._size = file.seek(0, os.SEEK_END)
        self._position, self._ended = 0, False
        self.limit = MAX_HEADER

    def fileno(self) -> int:
        """Return the descriptor of the plain or the temporary file."""
        return self._file.fileno()

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read; seeking from the end decompresses all."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = max(0, (self.size_up_to(None) if start is None else start) + offset)
        return self._position

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; raise ReadError if `size` exceeds `limit`."""
        if not 0 <= size <= self.limit:
            raise tarfile.ReadError(f"a header requests {size:,} bytes")
        left = max(0, self.size_up_to(self._position + size) - self._position)
        self._file.seek(self._position)
        data = self._file.read(min(size, left))
        self._position += len(data)
        return data

    def size_up_to(self, end: int | None) -> int:
        """Return the number of bytes available: all, or at least those before `end`.

        Raises ArchiveError if they are too many for the compressed bytes read.
        """
        if self._source is None:
            return self._size
        self._file.seek(0, os.SEEK_END)
        while not self._ended and (end is None or self._size < end):
            piece = self._source.read(_CHUNK)
            self._ended = not piece
            self._size += len(piece)
            if self._size > min(MAX_EXPANDED, max(MIN_EXPANDED, MAX_EXPANSION * self._compressed.tell())):
                raise ArchiveError(
                    f"{self._compressed.tell():,} compressed bytes expand to at least {self._size:,}",
                    place=self._place,
                    next_step="If you trust the archive, decompress it first",
                )
            self._file.write(piece)
        self._file.flush()
        return self._size


@contextmanager
def _bounded(file: BinaryIO, place: str) -> Iterator[BoundedFile]:
    """Open a file, which may be compressed with gzip or xz, as a plain one."""
    start = file.read(6)
    file.seek(0)
    opener: Any = next((opener for magic, opener in _COMPRESSED if start.startswith(magic)), None)
    if opener is None:
        yield BoundedFile(file, place)
        return
    with opener(file) as source, tempfile.TemporaryFile() as temporary:
        yield BoundedFile(temporary, place, source, file)


class TarReader:
    """The files of an archive, by name without the leading ``./``.

    All files in `sizes` (bytes by name) are checked to lie within the archive. `path` is for messages.
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
                raise self.error(f"the header declares {info.size:,} bytes, but the archive is shorter", name)
            self._members[name] = info
        for name in self._members:
            if name in folders or any(parent in self._members for parent in _parents(name)):
                raise self.error("the member is both a file and a folder", name)
        spelled: dict[str, str] = {}
        for name in {*self._members, *folders}.union(*map(_parents, self._members)):
            # some file systems do not distinguish such names
            other = spelled.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
            if other != name:
                raise self.error(f"the member is {min(other, name)!r} but for case or Unicode form", max(other, name))
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
            raise self.error("the member's name is too long or has invalid characters", name)
        plain = name.removeprefix("./")
        if _PLAIN_NAME.fullmatch(plain):  # the common case: parsing paths takes as long as reading headers
            return plain
        path = PurePosixPath(name)
        # a colon would name a drive or a stream on Windows
        if path.is_absolute() or ".." in path.parts or ":" in name:
            raise self.error("the member's name leads out of the archive", name)
        return "" if path == PurePosixPath(".") else str(path)

    def _member(self, name: str) -> tarfile.TarInfo:
        if name not in self._members:
            raise ArchiveError(f"the archive has no {name}", place=self.path, next_step="Export the archive again")
        return self._members[name]

    def open(self, name: str) -> BinaryIO:
        """Open a file of the archive for reading."""
        file = self._tar.extractfile(self._member(name))
        if file is None:
            raise self.error("the member cannot be read", name)
        return file  # type: ignore[return-value]  # a buffered reader is a binary file

    def read(self, name: str, limit: int) -> bytes:
        """Return a file's bytes; raise ArchiveError if it is missing or larger than `limit`."""
        with self.open(name) as file:
            if self.sizes[name] > limit:
                raise self.error(f"{self.sizes[name]:,} bytes exceed the limit of {limit:,}", name)
            return file.read()

    def view(self, name: str) -> memoryview:
        """Return a file's bytes; for large files, a read-only map of the archive, whose pages are loaded on access.

        The view outlives the reader, even if the archive is replaced. As with any map, reading crashes if the file is
        truncated while its map is in use.
        """
        start = self._member(name).offset_data
        if self.sizes[name] <= MIN_MAPPED:
            return memoryview(self.read(name, MIN_MAPPED))
        if self._map is None:
            self._map = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        return self._map[start : start + self.sizes[name]]


def _parents(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:depth]) for depth in range(1, len(parts))}


@contextmanager
def open_tar(path: str | os.PathLike[str]) -> Iterator[TarReader]:
    """Open an archive, plain or compressed with gzip or xz, and check every member's header.

    Raises ArchiveError if the file does not exist, is not a tar, is truncated, expands too much, or contains links,
    devices, names that lead outside, or duplicate names.
    """
    place = str(path)
    with ExitStack() as stack:
        try:
            tar, bounded = _headers(stack, path)
            reader = TarReader(tar, place, bounded)
        except _BROKEN as error:
            cause = f"this is not an archive that can be read: {str(error) or type(error).__name__}"
            with open_plain(path) as file:
                if file.read(8).startswith(_MACHINE_CODE):
                    cause = "this is machine code, not an archive"
            raise ArchiveError(cause, place=place, next_step="Use a .tar that mlfc compile wrote") from error
        bounded.limit = bounded.size_up_to(None)
        yield reader


def _headers(stack: ExitStack, path: str | os.PathLike[str]) -> tuple[tarfile.TarFile, BoundedFile]:
    """Open an archive until `stack` closes, without reading its headers."""
    place = str(path)
    try:
        file = stack.enter_context(open_plain(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(f"cannot be read: {reason}", place=place) from error
    bounded = stack.enter_context(_bounded(file, place))
    return stack.enter_context(tarfile.open(fileobj=bounded, mode="r:")), bounded  # type: ignore[call-overload]


def first_file(path: str | os.PathLike[str]) -> str | None:
    """Return the name of an archive's first file, without reading further; None if it cannot be read."""
    with ExitStack() as stack:
        try:
            tar, _ = _headers(stack, path)
            return next((info.name.removeprefix("./") for info in tar if info.isreg()), None)
        except (ArchiveError, *_BROKEN):
            return None
