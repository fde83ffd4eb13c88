"""File content without a second copy: bytes, or an object that yields them in pieces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes

# bytes hashed or written at once: large compared with the cost of a call, small compared with memory
PIECE = 4 << 20
_STREAM_PIECE = 1 << 20


class Content(Protocol):
    """Bytes that are produced on demand, identical each time."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes in order: views of memory, or pieces of at most `PIECE` bytes."""


Data: TypeAlias = "bytes | memoryview | Content"


def nbytes_of(data: Data) -> int:
    """Return the number of bytes."""
    return len(data) if isinstance(data, bytes) else data.nbytes


def chunks_of(data: Data) -> Iterator[bytes | memoryview]:
    """Yield the bytes in pieces of at most `PIECE` bytes, without copying memory."""
    for chunk in (data,) if isinstance(data, (bytes, memoryview)) else data.chunks():
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]


def sha256_of(data: Data) -> str:
    """Return the SHA-256 in hexadecimal."""
    digest = sha256()
    for chunk in chunks_of(data):
        digest.update(chunk)
    return digest.hexdigest()


def sha256_stream(stream: BinaryIO) -> str:
    """Return the SHA-256 of the rest of `stream` in hexadecimal."""
    digest = sha256()
    while piece := stream.read(_STREAM_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def sha256_of_each(items: Sequence[Data]) -> list[str]:
    """Return the SHA-256 of each item; large items are hashed in parallel, since hashing dominates exports."""
    large = [index for index, data in enumerate(items) if nbytes_of(data) > PIECE]
    if len(large) < 2:
        return [sha256_of(data) for data in items]
    # imported here: the import takes a fifth of the time of loading a small archive
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(large), os.cpu_count() or 1)) as pool:
        found = dict(zip(large, pool.map(sha256_of, [items[index] for index in large]), strict=True))
    return [found.get(index) or sha256_of(data) for index, data in enumerate(items)]


def to_bytes(data: Data) -> bytes:
    """Return all bytes as one object; for small data."""
    return data if isinstance(data, bytes) else b"".join(chunks_of(data))


def write_data(path: Path, data: Data) -> None:
    """Write a file, without joining the pieces in memory."""
    with path.open("wb") as file:
        for chunk in chunks_of(data):
            file.write(chunk)


@dataclass(frozen=True)
class Joined:
    """Several pieces of data in sequence."""

    parts: tuple[Data, ...]

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return sum(map(nbytes_of, self.parts))

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes of each part."""
        for part in self.parts:
            yield from chunks_of(part)


@dataclass(frozen=True, eq=False)
class ArrayContent:
    """The elements of an array in file order: row-major and little-endian.

    The array has a dtype of `mlfc.support.dtypes`, any strides and byte order, and must not be modified.
    """

    array: npt.NDArray[Any]

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.array.nbytes

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield a view of the array, or copies of pieces if its memory has another layout or byte order."""
        array = self.array
        stored = dtypes.to_numpy(dtypes.from_numpy(array.dtype)).newbyteorder("<")
        if array.dtype == stored and array.flags.c_contiguous:
            yield array.reshape(-1).view(np.uint8).data
            return
        count = max(1, PIECE // array.itemsize)
        for start in range(0, array.size, count):
            yield np.asarray(array.flat[start : start + count], stored).view(np.uint8).data


@dataclass(frozen=True)
class FileContent:
    """The bytes of a file, read on demand; the file must not be modified."""

    path: Path

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.path.stat().st_size

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in pieces."""
        with self.path.open("rb") as file:
            while piece := file.read(PIECE):
                yield piece


def aligned_arrays(arrays: Iterable[npt.NDArray[Any]], alignment: int) -> Joined:
    """Return arrays in sequence, each at a multiple of `alignment` bytes, padded with zeros."""
    parts: list[Data] = []
    offset = 0
    for array in arrays:
        gap = -offset % alignment
        parts += [bytes(gap), ArrayContent(array)]
        offset += gap + array.nbytes
    return Joined(tuple(parts))
