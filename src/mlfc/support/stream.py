"""The encoding of module blobs and parameter files: little-endian numbers, lengths before untrusted bytes."""

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
    """Return a number of 64 bits."""
    return _U64.pack(value)


def encode_string(text: str | bytes) -> bytes:
    """Return a string: its length and its bytes, text as UTF-8."""
    data = text.encode() if isinstance(text, str) else text
    return _U64.pack(len(data)) + data


def encode_strings(texts: Sequence[str]) -> bytes:
    """Return a list of strings: their number, then each."""
    return _U64.pack(len(texts)) + b"".join(map(encode_string, texts))


def encode_numbers(values: Iterable[int]) -> bytes:
    """Return a list of numbers of 64 bits: how many, then each."""
    numbers = np.fromiter(values, "<u8")
    return _U64.pack(numbers.size) + numbers.tobytes()


def sized(data: Data) -> Joined:
    """Return the encoding of a string without joining its bytes in memory."""
    return Joined((_U64.pack(nbytes_of(data)), data))


class Cursor:
    """Reads fields one after another and never past the end; `place` names `data` in messages."""

    def __init__(self, data: bytes | memoryview, offset: int, place: str) -> None:
        self._data = data
        self.offset = offset
        self._place = place

    @property
    def remaining(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self.offset

    def bytes(self, count: int, what: str) -> memoryview:
        """Take `count` bytes; `what` they are goes into the message when there are fewer."""
        if not 0 <= count <= self.remaining:
            raise self.fault(f"{what} needs {count} bytes, {max(0, self.remaining)} are left", self.offset)
        start = self.offset
        self.offset += count
        return memoryview(self._data)[start : self.offset]

    def peek(self) -> memoryview:
        """Return all that is left, and take none of it."""
        return memoryview(self._data)[self.offset :]

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        """Take the fields of `layout`."""
        return layout.unpack(self.bytes(layout.size, what))

    def u64(self, what: str) -> int:
        """Take a number of 64 bits."""
        (value,) = self.unpack(_U64, what)
        return int(value)

    def count(self, what: str, size: int, limit: int | None = None) -> int:
        """Take the number of things that follow, each of at least `size` bytes, and at most `limit` of them."""
        at = self.offset
        count = self.u64(f"the number of {what}")
        if count * size > self.remaining:
            raise self.fault(f"{count} {what} cannot be in the {self.remaining} bytes that are left", at)
        if limit is not None and count > limit:
            raise self.fault(f"{count} {what}; more than {limit:,} are not read", at)
        return count

    def string(self, what: str) -> memoryview:
        """Take a length and as many bytes."""
        return self.bytes(self.u64(f"the length of {what}"), what)

    def text(self, what: str, limit: int | None = None) -> str:
        """Take a string of UTF-8, of at most `limit` bytes."""
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
        """Take a list of strings of UTF-8; `what` is the plural."""
        return [self.text(f"one of the {what}") for _ in range(self.count(what, _U64.size, limit))]

    def numbers(self, what: str) -> npt.NDArray[np.uint64]:
        """Take a list of numbers of 64 bits as a view; `what` is the plural."""
        return np.frombuffer(self.bytes(self.count(what, _U64.size) * _U64.size, what), "<u8")

    def end(self, what: str) -> None:
        """Raise ArchiveError unless nothing follows `what`."""
        if self.remaining:
            raise self.fault(f"{self.remaining} bytes follow {what}", self.offset)

    def fault(self, cause: str, offset: int) -> ArchiveError:
        """Return an error at byte `offset`."""
        return ArchiveError(
            cause, place=f"{self._place}, byte {offset}", next_step="The file is damaged or of another format"
        )
