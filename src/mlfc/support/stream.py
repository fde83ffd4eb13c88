"""Encoding of module blobs and parameter files: little-endian numbers and length-prefixed bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import ArchiveError
from mlfc.support.content import Data, Joined, nbytes_of

_U64 = struct.Struct("<Q")


def encode_u64(value: int) -> bytes:
    """Encode a 64-bit number."""
    return _U64.pack(value)


def encode_string(text: str | bytes) -> bytes:
    """Encode a string: its length and its bytes, text as UTF-8."""
    data = text.encode() if isinstance(text, str) else text
    return _U64.pack(len(data)) + data


def encode_strings(texts: Sequence[str]) -> bytes:
    """Encode a list of strings: their number, then each."""
    return _U64.pack(len(texts)) + b"".join(map(encode_string, texts))


def encode_numbers(values: Iterable[int]) -> bytes:
    """Encode a list of 64-bit numbers: their number, then each."""
    numbers = np.fromiter(values, "<u8")
    return _U64.pack(numbers.size) + numbers.tobytes()


def sized(data: Data) -> Joined:
    """Return the encoding of a string without joining its bytes in memory."""
    return Joined((_U64.pack(nbytes_of(data)), data))


class Cursor:
    """Sequential reader of fields that never reads past the end; `place` names `data` in messages."""

    def __init__(self, data: bytes | memoryview, offset: int, place: str) -> None:
        self._data = data
        self.offset = offset
        self._place = place

    @property
    def remaining(self) -> int:
        """The number of remaining bytes."""
        return len(self._data) - self.offset

    def bytes(self, count: int, what: str) -> memoryview:
        """Read `count` bytes; `what` names them in the error message if fewer remain."""
        if not 0 <= count <= self.remaining:
            raise self.fault(f"{what} needs {count} bytes, {max(0, self.remaining)} are left", self.offset)
        start = self.offset
        self.offset += count
        return memoryview(self._data)[start : self.offset]

    def peek(self) -> memoryview:
        """Return all remaining bytes without consuming them."""
        return memoryview(self._data)[self.offset :]

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        """Read the fields of `layout`."""
        return layout.unpack(self.bytes(layout.size, what))

    def u64(self, what: str) -> int:
        """Read a 64-bit number."""
        (value,) = self.unpack(_U64, what)
        return int(value)

    def count(self, what: str, size: int, limit: int | None = None) -> int:
        """Read the number of following items, each of at least `size` bytes; at most `limit` are allowed."""
        at = self.offset
        count = self.u64(f"the number of {what}")
        if count * size > self.remaining:
            raise self.fault(f"{count} {what} do not fit in the remaining {self.remaining} bytes", at)
        if limit is not None and count > limit:
            raise self.fault(f"{count} {what}; more than {limit:,} are not read", at)
        return count

    def string(self, what: str) -> memoryview:
        """Read a length and that many bytes."""
        return self.bytes(self.u64(f"the length of {what}"), what)

    def text(self, what: str, limit: int | None = None) -> str:
        """Read a UTF-8 string of at most `limit` bytes."""
        length = self.u64(f"the length of {what}")
        at = self.offset
        if limit is not None and limit < length <= self.remaining:
            raise self.fault(f"{what} of {length} bytes; more than {limit:,} are not read", at)
        data = self.bytes(length, what)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"{what} is not UTF-8 ({error.reason})", at) from None

    def texts(self, what: str, limit: int | None = None) -> list[str]:
        """Read a list of UTF-8 strings; `what` is the plural."""
        return [self.text(f"one of the {what}") for _ in range(self.count(what, _U64.size, limit))]

    def numbers(self, what: str) -> npt.NDArray[np.uint64]:
        """Read a list of 64-bit numbers as a view; `what` is the plural."""
        return np.frombuffer(self.bytes(self.count(what, _U64.size) * _U64.size, what), "<u8")

    def end(self, what: str) -> None:
        """Raise ArchiveError if any bytes follow `what`."""
        if self.remaining:
            raise self.fault(f"{self.remaining} bytes follow {what}", self.offset)

    def fault(self, cause: str, offset: int) -> ArchiveError:
        """Return an error that names the byte `offset`."""
        return ArchiveError(
            cause, place=f"{self._place}, byte {offset}", next_step="The file is damaged or of another format"
        )
