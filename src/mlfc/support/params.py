"""TVM's binary formats of a tensor and of a parameter file. Readers check every length."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes
from mlfc.support.content import ArrayContent, Content, Joined, to_bytes
from mlfc.support.stream import Cursor

NDARRAY_MAGIC = 0xDD5E40F096B4A13F
MAX_DIMENSIONS = 32

_HEADER = struct.Struct("<QQiiiBBH")
_CPU = 1
PARAMS_MAGIC = 0xF7E58D4F05049CB7
# each tensor costs a Python object, even an empty one
MAX_TENSORS = 100_000
_FILE_HEADER = struct.Struct("<QQQ")
_COUNT = struct.Struct("<Q")
ParameterOffsets: TypeAlias = Mapping[str, Mapping[str, tuple[str, int]]]
"""By module and parameter of its graph, the symbol and offset of the elements in a library."""


def encode_ndarray(array: npt.NDArray[Any]) -> bytes:
    """Return the bytes of a tensor, of any dtype of `mlfc.support.dtypes`, strides and byte order."""
    return to_bytes(ndarray_content(array))


def ndarray_content(array: npt.NDArray[Any], abi: str = "classic") -> Content:
    """Return the bytes of a tensor, which reads the array in pieces; `abi` is as for `mlfc.save_param_dict`."""
    dtype = dtypes.to_dlpack(dtypes.from_numpy(array.dtype), abi)
    header = _HEADER.pack(NDARRAY_MAGIC, 0, _CPU, 0, array.ndim, *dtype)
    return Joined((header + struct.pack(f"<{array.ndim}qq", *array.shape, array.nbytes), ArrayContent(array)))


def decode_ndarray(
    data: bytes | memoryview, offset: int = 0, *, place: str = "NDArray"
) -> tuple[npt.NDArray[Any], int]:
    """Read the tensor that starts at `offset`; return it and the offset of the first byte after it.

    The array is read-only, and a view of `data` if that is aligned for its dtype. The format does not align data, so
    other arrays are copied: code compiled for aligned arrays must not read them in place. `place` names `data` in
    messages. Raises ArchiveError with the offset of the first invalid byte.
    """
    take = Cursor(data, offset, place)
    raw, dtype, shape = _take(take)
    return _viewed(raw, dtype).reshape(shape), take.offset


def ndarray_end(data: bytes | memoryview, offset: int = 0, *, place: str = "NDArray") -> int:
    """Return the offset of the first byte after a tensor, checked as `decode_ndarray` does, without reading it."""
    take = Cursor(data, offset, place)
    _take(take)
    return take.offset


def _take(take: Cursor) -> tuple[memoryview, str, tuple[int, ...]]:
    """Read a tensor; return its data, dtype and shape."""
    offset = take.offset
    magic, _, device, _, ndim, code, bits, lanes = take.unpack(_HEADER, "the header of a tensor")
    if magic != NDARRAY_MAGIC:
        raise take.fault(f"a tensor must start with the number {NDARRAY_MAGIC:#x}, not {magic:#x}", offset)
    if device != _CPU:
        raise take.fault(f"device type {device} is not 1 (CPU)", offset + 16)
    if not 0 <= ndim <= MAX_DIMENSIONS:
        raise take.fault(f"a tensor of {ndim} dimensions; 0 to {MAX_DIMENSIONS} are allowed", offset + 24)
    dtype = dtypes.from_dlpack(code, bits, lanes)
    if dtype not in dtypes.SCALARS:
        raise take.fault(f"dtype code {code}, {bits} bits, {lanes} lanes is not supported", offset + 28)
    shape = take.unpack(struct.Struct(f"<{ndim}q"), "the shape of a tensor")
    # a dimension of 0 must not hide impossible dimensions
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


def _forget(view: memoryview) -> None:
    """Release the pages of a view of a mapped file, after its content was copied; other memory is unaffected."""
    mapped = view.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED") or not view.nbytes:
        return
    offset = np.frombuffer(view, np.uint8).ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (offset + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def save_params(params: Mapping[str, npt.NDArray[Any]], abi: str = "classic") -> bytes:
    """Return the bytes of a parameter file; names are sorted, so equal dictionaries give equal bytes."""
    return to_bytes(params_content(params, abi))


def params_content(params: Mapping[str, npt.NDArray[Any]], abi: str = "classic") -> Content:
    """Return the bytes of a parameter file as content, which reads the arrays in pieces."""
    names = sorted(params)
    head = [_FILE_HEADER.pack(PARAMS_MAGIC, 0, len(names))]
    for name in names:
        text = name.encode()
        head += [_COUNT.pack(len(text)), text]
    head.append(_COUNT.pack(len(names)))
    return Joined((b"".join(head), *(ndarray_content(np.asarray(params[name]), abi) for name in names)))


def load_params(data: bytes | memoryview, *, place: str = "parameters") -> dict[str, npt.NDArray[Any]]:
    """Read a parameter file; bytes after the last tensor are ignored, as by TVM's own readers.

    Returns read-only arrays in file order, views of `data` where alignment allows. For duplicate names the last tensor
    is used, as in TVM. Raises ArchiveError with the offset of the first invalid byte.
    """
    take = Cursor(data, 0, place)
    magic, _, count = take.unpack(_FILE_HEADER, "the header of a parameter file")
    if magic != PARAMS_MAGIC:
        raise take.fault(f"a parameter file must start with the number {PARAMS_MAGIC:#x}, not {magic:#x}", 0)
    if count > MAX_TENSORS:
        raise take.fault(f"{count} names exceed the limit of {MAX_TENSORS:,} tensors", 16)
    if count * _COUNT.size > take.remaining:
        raise take.fault(f"{count} names do not fit in the remaining {take.remaining} bytes", 16)
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
