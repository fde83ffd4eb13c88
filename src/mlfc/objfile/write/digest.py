"""Libraries that are linked get their digest, which leaves out large arrays of constants."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from mlfc.objfile.digest import MAX_RANGES, Range, write_digest
from mlfc.objfile.head import HEAD, LIBRARY, read_head
from mlfc.support.content import ArrayContent, Data, Joined

# hashing less takes no time
_LEAST_BYTES = 1 << 16
_START = 1 << 12


def constants_in(data: Data) -> Iterator[ArrayContent]:
    """Yield the arrays in data that a digest may leave out: whatever their numbers are, code stays in its memory.

    Others of integers are hashed: they may be indices, or amounts of shifts.
    """
    if isinstance(data, ArrayContent):
        dtype = data.array.dtype
        if data.nbytes >= _LEAST_BYTES and (dtype.kind not in "iub" or dtype.itemsize == 1):
            yield data
    elif isinstance(data, Joined):
        for part in data.parts:
            yield from constants_in(part)
    else:  # an object that LLVM's code comes with has its constants so
        for piece in getattr(data, "pieces", ()):
            yield from constants_in(piece.data)


def add_digest(path: Path, constants: Sequence[ArrayContent]) -> None:
    """Write the digest of a library into its file; of formats other than ELF, nothing.

    Parameters
    ----------
    path : Path
    constants : sequence of ArrayContent
        What is in the library and can be left out; the largest are.
    """
    with path.open("r+b") as file:
        head = read_head(file.read(HEAD))
        if head is None or (head.kind, head.system) != (LIBRARY, "linux"):  # which stands for all that use ELF
            return
        mapped = mmap.mmap(file.fileno(), 0)
        largest = sorted(range(len(constants)), key=lambda index: -constants[index].nbytes)[:MAX_RANGES]
        # linkers keep their order, so each is looked for behind the one before
        write_digest(memoryview(mapped), list(_places(mapped, [constants[index] for index in sorted(largest)])))
        mapped.flush()


def _places(mapped: mmap.mmap, constants: Iterable[ArrayContent]) -> Iterator[Range]:
    """Yield where in a file constants are, of those that are found."""
    end = 0
    for item in constants:
        start = bytes(next(iter(item.chunks()))[:_START])
        at = mapped.find(start, end)
        if at < 0:
            at = mapped.find(start)
        if at >= 0 and _is_at(mapped, at, item):
            end = at + item.nbytes
            yield at, end


def _is_at(mapped: mmap.mmap, at: int, item: ArrayContent) -> bool:
    if at + item.nbytes > len(mapped):
        return False
    for chunk in item.chunks():
        expected = np.frombuffer(chunk, np.uint8)
        if not np.array_equal(np.frombuffer(mapped, np.uint8, expected.size, at), expected):
            return False
        at += expected.size
    return True
