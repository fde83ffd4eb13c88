"""Embedded digest of mlfc's shared libraries: SHA-256 of everything that the system's loader trusts.

It covers the header and the segments placed in memory: tables, code, descriptions. Large constant arrays are left
out, so they do not slow down loading: numbers in a model cannot make its code access other memory. Section tables,
which loaders do not read, are left out too, so stripped libraries stay valid.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from mlfc.objfile.elf import ElfImage
from mlfc.objfile.head import HEAD, LIBRARY, read_head
from mlfc.support.content import ArrayContent, Data, Joined
from mlfc.support.former_name import former

SYMBOL = "mlfc_digest"
"""Name of the library's variable, `mlfc_digest` of the C runtime's ``mlfc_abi.h``."""
MAX_RANGES = 64
"""Maximum number of constant ranges that can be left out."""

_MARKS = ("mlfc digest", former("mlfc digest"))
_HEAD = struct.Struct("<16sII32s")
_RANGE = struct.Struct("<QQ")
_NBYTES = _HEAD.size + MAX_RANGES * _RANGE.size
_DIGEST_AT = 24
_NONE, _SHA256 = 0, 1
Range = tuple[int, int]
# hashing smaller arrays is fast
_LEAST_BYTES = 1 << 16
_START = 1 << 12


def check_digest(image: ElfImage) -> bool:
    """Return True if a library contains a digest; raise ValueError if the digest does not match the library."""
    record = _read_record(image)
    if record is None or record[1] == _NONE:
        return False
    offset, kind, expected, left_out = record
    if kind != _SHA256:
        raise ValueError(f"unknown kind of digest: {kind}")
    if _digest_of(image, offset, left_out) != expected:
        raise ValueError("its content does not match its own digest")
    return True


def write_digest(data: memoryview, left_out: Sequence[Range]) -> bool:
    """Write the digest of a library into it; return False if it has no space for one.

    All other bytes of `data`, the whole file, are final. `left_out` has at most `MAX_RANGES` ranges of constants.
    """
    image = ElfImage(data)
    record = _read_record(image)
    if record is None:
        return False
    ranges = b"".join(_RANGE.pack(start, end - start) for start, end in left_out)
    at = record[0]
    head = _HEAD.pack(_MARKS[0].encode(), _SHA256, len(left_out), bytes(32))
    data[at : at + _NBYTES] = (head + ranges).ljust(_NBYTES, b"\0")
    data[at + _DIGEST_AT : at + _HEAD.size] = _digest_of(image, at, left_out)
    return True


def _read_record(image: ElfImage) -> tuple[int, int, bytes, tuple[Range, ...]] | None:
    """Return the record's offset in the file, the kind of digest, the digest, and ranges of constants in the file."""
    found = image.find(SYMBOL) or image.find(former(SYMBOL))
    if found is None:
        if re.search(b"|".join(mark.encode() + b"\\0{3}" for mark in _MARKS), image.data):
            raise ValueError(f"its {SYMBOL} is not among its symbols")
        return None
    content = bytes(image.content(found[0], _NBYTES, f"its {SYMBOL}"))
    mark, kind, count, digest = _HEAD.unpack_from(content)
    if mark.rstrip(b"\0").decode(errors="replace") not in _MARKS or count > MAX_RANGES:
        raise ValueError(f"its {SYMBOL} is invalid")
    ranges = (_RANGE.unpack_from(content, _HEAD.size + index * _RANGE.size) for index in range(count))
    left_out = tuple((start, start + nbytes) for start, nbytes in ranges)
    return image.offset(found[0], f"its {SYMBOL}"), kind, digest, left_out


def _digest_of(image: ElfImage, offset: int, left_out: Iterable[Range]) -> bytes:
    """Return the digest of a library whose record is at `offset` in the file."""
    placed = [(load.offset, load.offset + load.nbytes) for load in image.loads]
    # header fields: offset of the section table; size and number of its entries, and index of names
    sections = ((40, 48), (58, 64)) if image.word == 8 else ((32, 36), (46, 52))
    holes = [(offset + _DIGEST_AT, offset + _HEAD.size), *sections, *left_out]
    digest = hashlib.sha256()
    for start, end in _without(_merged([*image.headers, *placed]), _merged(holes)):
        digest.update(image.data[start:end])
    return digest.digest()


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of ranges, in order."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _without(ranges: Iterable[Range], holes: Sequence[Range]) -> Iterator[Range]:
    """Yield the parts of ranges outside the holes; both are sorted and disjoint."""
    for start, end in ranges:
        at = start
        for first, last in holes:
            if first < end and last > at:
                yield at, max(at, first)
                at = max(at, min(last, end))
        yield at, end


def constants_in(data: Data) -> Iterator[ArrayContent]:
    """Yield the arrays in data that a digest may leave out, as their values cannot make code access other memory.

    Other integer arrays are hashed: they may be indices or shift amounts.
    """
    if isinstance(data, ArrayContent):
        dtype = data.array.dtype
        if data.nbytes >= _LEAST_BYTES and (dtype.kind not in "iub" or dtype.itemsize == 1):
            yield data
    elif isinstance(data, Joined):
        for part in data.parts:
            yield from constants_in(part)
    else:  # constant objects beside LLVM's code
        for piece in getattr(data, "pieces", ()):
            yield from constants_in(piece.data)


def add_digest(path: Path, constants: Sequence[ArrayContent]) -> None:
    """Write the digest of an ELF library into its file, without the largest of `constants`; ignore other formats."""
    with path.open("r+b") as file:
        head = read_head(file.read(HEAD))
        if head is None or (head.kind, head.system) != (LIBRARY, "linux"):  # any system with ELF
            return
        mapped = mmap.mmap(file.fileno(), 0)
        largest = sorted(range(len(constants)), key=lambda index: -constants[index].nbytes)[:MAX_RANGES]
        # linkers preserve their order, so each search starts after the previous match
        write_digest(memoryview(mapped), list(_places(mapped, [constants[index] for index in sorted(largest)])))
        mapped.flush()


def _places(mapped: mmap.mmap, constants: Iterable[ArrayContent]) -> Iterator[Range]:
    """Yield the positions in a file of those constants that are found."""
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
