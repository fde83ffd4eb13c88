"""Compressed files that nobody has checked, read as plain ones."""

from __future__ import annotations

import gzip
import lzma
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from mlfc.errors import ArchiveError

# An xz of zeros expands ten-thousandfold; real archives of C and weights stay far below these.
MAX_EXPANSION: Final = 100
MIN_EXPANDED: Final = 64 << 20
MAX_EXPANDED: Final = 4 << 30
_CHUNK: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_XZ_MAGIC: Final = b"\xfd7zXZ\x00"


class ExpandedFile:
    """A compressed file, expanded into a temporary one no further than somebody has looked.

    So whoever refuses the start of a file never pays for its end.
    """

    def __init__(self, source: BinaryIO, compressed: BinaryIO, expanded: BinaryIO, place: str) -> None:
        self._source = source
        self._compressed = compressed
        self._expanded = expanded
        self._place = place
        self._size = 0
        self._ended = False
        self._position = 0

    def fileno(self) -> int:
        """Return the descriptor of the temporary file."""
        return self._expanded.fileno()

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set where the next read begins; from the end, all is expanded."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = max(0, (self.expand() if start is None else start) + offset)
        return self._position

    def read(self, size: int) -> bytes:
        """Return so many bytes, or what there is."""
        self.expand(self._position + size)
        self._expanded.seek(self._position)
        data = self._expanded.read(size)
        self._position += len(data)
        return data

    def expand(self, end: int | None = None) -> int:
        """Expand as far as byte `end`, or to the end; return how many bytes there are by now.

        Raises
        ------
        ArchiveError
            If they are absurdly many for what was read of the compressed file.
        """
        self._expanded.seek(0, os.SEEK_END)
        while not self._ended and (end is None or self._size < end):
            piece = self._source.read(_CHUNK)
            self._ended = not piece
            self._size += len(piece)
            if self._size > min(MAX_EXPANDED, max(MIN_EXPANDED, MAX_EXPANSION * self._compressed.tell())):
                raise ArchiveError(
                    f"{self._compressed.tell():,} compressed bytes expand to {self._size:,} and more",
                    place=self._place,
                    next_step="If the archive is good, decompress it first",
                )
            self._expanded.write(piece)
        self._expanded.flush()
        return self._size


@contextmanager
def expanded(file: BinaryIO, place: str) -> Iterator[ExpandedFile | None]:
    """Open a file that is compressed with gzip or xz as a plain one; None for a file that is neither."""
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        opened: gzip.GzipFile | lzma.LZMAFile = gzip.GzipFile(fileobj=file)
    elif magic == _XZ_MAGIC:
        opened = lzma.LZMAFile(file)  # noqa: SIM115  (closed by the with below)
    else:
        yield None
        return
    with opened as source, tempfile.TemporaryFile() as temporary:
        yield ExpandedFile(source, file, temporary, place)  # type: ignore[arg-type]  # both are binary files
