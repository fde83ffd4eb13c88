"""Parameter files: TVM's binary form of a dictionary of tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.support.content import Content, Joined, to_bytes
from mlfc.support.ndarray_bytes import decode_ndarray, ndarray_content
from mlfc.support.stream import Cursor

PARAMS_MAGIC = 0xF7E58D4F05049CB7
# each costs its object, however small it is
MAX_TENSORS = 100_000
_HEADER = struct.Struct("<QQQ")
_COUNT = struct.Struct("<Q")


def save_params(params: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the bytes of a parameter file; names are sorted, so equal dictionaries give equal bytes."""
    return to_bytes(params_content(params))


def params_content(params: Mapping[str, npt.NDArray[Any]]) -> Content:
    """Return the bytes of a parameter file, to be taken from the arrays piece by piece."""
    names = sorted(params)
    head = [_HEADER.pack(PARAMS_MAGIC, 0, len(names))]
    for name in names:
        text = name.encode()
        head += [_COUNT.pack(len(text)), text]
    head.append(_COUNT.pack(len(names)))
    return Joined((b"".join(head), *(ndarray_content(np.asarray(params[name])) for name in names)))


def load_params(data: bytes | memoryview, *, place: str = "parameters") -> dict[str, npt.NDArray[Any]]:
    """Read a parameter file.

    Parameters
    ----------
    data : bytes or memoryview
        May go on after the last tensor: TVM's own readers stop there too.
    place : str
        The file, for messages.

    Returns
    -------
    dict of str to ndarray
        In the order of the file; read-only, and views of `data` where alignment allows it. Of a name given twice
        the last tensor counts, as in TVM.

    Raises
    ------
    ArchiveError
        Naming the byte at which the format is broken.
    """
    take = Cursor(data, 0, place)
    magic, _, count = take.unpack(_HEADER, "the header of a parameter file")
    if magic != PARAMS_MAGIC:
        raise take.fault(f"a parameter file must start with the number {PARAMS_MAGIC:#x}, not {magic:#x}", 0)
    if count > MAX_TENSORS:
        raise take.fault(f"{count} names cannot be: more than {MAX_TENSORS:,} tensors are not read", 16)
    if count * _COUNT.size > take.remaining:
        raise take.fault(f"{count} names cannot be in the {take.remaining} bytes that are left", 16)
    names = [take.text("a name") for _ in range(count)]
    at = take.offset
    (arrays,) = take.unpack(_COUNT, "the number of tensors")
    if arrays != count:
        raise take.fault(f"{count} names but {arrays} tensors", at)
    params: dict[str, npt.NDArray[Any]] = {}
    offset = take.offset
    for name in names:
        params[name], offset = decode_ndarray(data, offset, place=f"{place}, tensor '{name}'")
    return params
