"""TVM's binary form of one tensor, as parameter files, module blobs and Relay metadata hold it.

Everything is little-endian and unpadded: magic, reserved word, device, number of dimensions, dtype, shape, data
size, data. The reader takes bytes that nobody has checked: each length is compared with what is left before use.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes
from mlfc.support.content import ArrayContent, Content, Joined, to_bytes
from mlfc.support.stream import Cursor

NDARRAY_MAGIC = 0xDD5E40F096B4A13F
MAX_DIMENSIONS = 32

_HEADER = struct.Struct("<QQiiiBBH")
_CPU = 1
_CODE_OF_KIND = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_KIND_OF_CODE = {code: kind for kind, code in _CODE_OF_KIND.items()}
# TVM stores Relay's bool as a one-bit unsigned integer, one byte an element; newer DLPack has a code for it
_BOOL = (1, 1)
_DLPACK_BOOL = (6, 8)


def encode_ndarray(array: npt.NDArray[Any]) -> bytes:
    """Return the bytes of a tensor.

    Parameters
    ----------
    array : ndarray
        Of a dtype of `mlfc.support.dtypes`, any strides and byte order.
    """
    return to_bytes(ndarray_content(array))


def ndarray_content(array: npt.NDArray[Any]) -> Content:
    """Return the bytes of a tensor, to be taken from the array piece by piece."""
    code, bits = _dtype_code(dtypes.from_numpy(array.dtype))
    header = _HEADER.pack(NDARRAY_MAGIC, 0, _CPU, 0, array.ndim, code, bits, 1)
    return Joined((header + struct.pack(f"<{array.ndim}qq", *array.shape, array.nbytes), ArrayContent(array)))


def decode_ndarray(
    data: bytes | memoryview, offset: int = 0, *, place: str = "NDArray"
) -> tuple[npt.NDArray[Any], int]:
    """Read one tensor.

    Parameters
    ----------
    data : bytes or memoryview
    offset : int
        Where it starts.
    place : str
        What `data` is, for messages.

    Returns
    -------
    array : ndarray
        Read-only, and a view of `data` wherever elements of its dtype may lie at that address. The format aligns
        nothing, so other arrays are copies: code compiled for aligned arrays must not be given them as they lie.
    end : int
        Offset of the first byte after it.

    Raises
    ------
    ArchiveError
        Naming the byte at which the format is broken.
    """
    take = Cursor(data, offset, place)
    raw, dtype, shape = _take(take)
    return _viewed(raw, dtype).reshape(shape), take.offset


def ndarray_end(data: bytes | memoryview, offset: int = 0, *, place: str = "NDArray") -> int:
    """Return the offset of the first byte behind a tensor, checked as `decode_ndarray` does, without reading it."""
    take = Cursor(data, offset, place)
    _take(take)
    return take.offset


def _take(take: Cursor) -> tuple[memoryview, str, tuple[int, ...]]:
    """Take a tensor: its data, dtype and shape."""
    offset = take.offset
    magic, _, device, _, ndim, code, bits, lanes = take.unpack(_HEADER, "the header of a tensor")
    if magic != NDARRAY_MAGIC:
        raise take.fault(f"a tensor must start with the number {NDARRAY_MAGIC:#x}, not {magic:#x}", offset)
    if device != _CPU:
        raise take.fault(f"device type {device} is not 1 (CPU)", offset + 16)
    if not 0 <= ndim <= MAX_DIMENSIONS:
        raise take.fault(f"a tensor of {ndim} dimensions; 0 to {MAX_DIMENSIONS} are allowed", offset + 24)
    dtype = _dtype_name(code, bits, lanes)
    if dtype is None:
        raise take.fault(f"dtype code {code}, {bits} bits, {lanes} lanes is not known", offset + 28)
    shape = take.unpack(struct.Struct(f"<{ndim}q"), "the shape of a tensor")
    # an extent of zero must not hide others that no array could have
    if any(extent < 0 for extent in shape) or prod(max(extent, 1) for extent in shape) > 1 << 48:
        raise take.fault(f"the shape {shape} is not possible", offset + _HEADER.size)
    (nbytes,) = take.unpack(struct.Struct("<q"), "the data size of a tensor")
    expected = prod(shape) * dtypes.nbytes(dtype)
    if nbytes != expected:
        raise take.fault(f"{nbytes} bytes of data, but {shape} of {dtype} is {expected} bytes", take.offset - 8)
    raw = take.bytes(nbytes, "the data of a tensor")
    return raw, dtype, shape


def _viewed(raw: memoryview, dtype: str) -> npt.NDArray[Any]:
    if dtype == "bool":
        stored = np.frombuffer(raw, np.uint8)
        array = stored.view(np.bool_) if stored.size == 0 or stored.max() <= 1 else stored != 0
    else:
        stored = np.frombuffer(raw, dtypes.to_numpy(dtype).newbyteorder("<"))
        native = dtypes.to_numpy(dtype)
        in_place = stored.dtype == native and stored.flags.aligned
        array = stored if in_place else stored.astype(native)
        if not in_place:
            _forget(raw)
    array.flags.writeable = False
    return array


def _forget(copied: memoryview) -> None:
    """Give back the memory of a part of a mapped file that was copied, lest both be held; its file has it still."""
    mapped = copied.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED") or not copied.nbytes:
        return
    offset = np.frombuffer(copied, np.uint8).ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (offset + copied.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def _dtype_code(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return _BOOL
    return _CODE_OF_KIND[dtype.rstrip("0123456789")], dtypes.bits(dtype)


def _dtype_name(code: int, bits: int, lanes: int) -> str | None:
    if lanes != 1:
        return None
    if (code, bits) in (_BOOL, _DLPACK_BOOL):
        return "bool"
    name = f"{_KIND_OF_CODE.get(code)}{bits}"
    return name if name in dtypes.SCALARS else None
