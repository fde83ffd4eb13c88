"""Conversion of ONNX tensors to numpy arrays. Every length is checked before anything is allocated or read."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlfc.errors import ModelError, UnsupportedError
from mlfc.support import dtypes
from mlfc.support.cost import give_file, spend

DTYPES = {
    TensorProto.FLOAT: "float32", TensorProto.UINT8: "uint8", TensorProto.INT8: "int8", TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16", TensorProto.INT32: "int32", TensorProto.INT64: "int64", TensorProto.BOOL: "bool",
    TensorProto.FLOAT16: "float16", TensorProto.DOUBLE: "float64", TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64", TensorProto.BFLOAT16: "bfloat16", TensorProto.FLOAT8E4M3FN: "float8_e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz", TensorProto.FLOAT8E5M2: "float8_e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz", TensorProto.FLOAT8E8M0: "float8_e8m0fnu",
    TensorProto.FLOAT4E2M1: "float4_e2m1fn", TensorProto.INT4: "int4", TensorProto.UINT4: "uint4",
    TensorProto.INT2: "int2", TensorProto.UINT2: "uint2",
}  # fmt: skip


def dtype_name(code: int, place: str) -> str:
    """Return the dtype of an ONNX element type; raise an error for unknown or unsupported types."""
    if code in DTYPES:
        return DTYPES[code]
    known = TensorProto.DataType.values()
    if code == TensorProto.UNDEFINED or code not in known:
        raise ModelError(f"unknown element type {code}", place=place)
    if code == TensorProto.STRING:
        step = "Generated code has no strings: replace them by integers before the model, and cut it after that step"
    else:
        step = f"Supported: {', '.join(DTYPES.values())}"
    raise UnsupportedError(
        f"element type {TensorProto.DataType.Name(code)} is not supported", place=place, next_step=step
    )


def tensor_value(tensor: onnx.TensorProto, place: str, folder: Path | None) -> npt.NDArray[Any]:
    """Return the value of a tensor; `place` names it in error messages.

    External data are read from the model's `folder`, and refused if that is None. Raises ModelError if the data do not
    match the shape, or an external file is missing or outside `folder`.
    """
    dtype = dtype_name(tensor.data_type, place)
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape) or len(shape) > 32:
        raise ModelError(f"{shape} is not the shape of a tensor", place=place)
    if tensor.HasField("segment"):
        raise UnsupportedError("tensors stored in segments are not supported", place=place)
    # 4-bit and 2-bit numbers are packed into bytes, lowest bits first
    is_packed, count = dtypes.bits(dtype) < 8, prod(shape)
    item = np.dtype(np.uint8) if is_packed else dtypes.to_numpy(dtype)
    count = -(-count * dtypes.bits(dtype) // 8) if is_packed else count
    if tensor.data_location == TensorProto.EXTERNAL:
        whole = _external(tensor, (count,) if is_packed else shape, item, place, folder)
    elif tensor.HasField("raw_data"):
        _check_length(len(tensor.raw_data), count * item.itemsize, "bytes", shape, place)
        little = np.frombuffer(tensor.raw_data, dtype=item.newbyteorder("<") if item.itemsize > 1 else item)
        whole = little.astype(item)
    else:
        values = getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))
        _check_length(len(values), count, "values", shape, place)
        if not is_packed:
            return np.asarray(numpy_helper.to_array(tensor))
        whole = (np.array(values, np.int64) & 0xFF).astype(np.uint8)
    return dtypes.unpacked(whole, shape, dtype) if is_packed else whole.reshape(shape)


def _check_length(found: int, wanted: int, unit: str, shape: tuple[int, ...], place: str) -> None:
    if found != wanted:
        raise ModelError(f"the tensor holds {found} {unit}, its shape {shape} needs {wanted}", place=place)


def _external(
    tensor: onnx.TensorProto, shape: tuple[int, ...], item: np.dtype[Any], place: str, folder: Path | None
) -> npt.NDArray[Any]:
    """Read the external data of a tensor from a file in the model's folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        cause = f"external data file '{location}' cannot be located without the model's folder"
        raise ModelError(cause, place=place, next_step="Import the model by its path, not from bytes")
    path = _inside(folder, location, place)
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else path.stat().st_size - offset
    except ValueError:
        raise ModelError("offset and length of external data must be integers", place=place) from None
    _check_length(length, prod(shape) * item.itemsize, "bytes", shape, place)
    give_file(str(path), path.stat().st_size)
    spend("external", length, place)
    if offset < 0 or offset + length > path.stat().st_size:
        raise ModelError(f"bytes {offset} to {offset + length} exceed the file '{location}'", place=place)
    stored = item.newbyteorder("<") if item.itemsize > 1 else item
    little = np.fromfile(path, dtype=stored, count=prod(shape), offset=offset)
    return little.astype(item, copy=False).reshape(shape)


def _inside(folder: Path, location: str, place: str) -> Path:
    """Return the path of `location` in `folder`; reject paths outside of it, also through symbolic links."""
    root = folder.resolve()
    try:
        path = (root / location).resolve()
        found = bool(location) and path.is_file()
    except (OSError, ValueError):
        raise ModelError(f"expected a file name, got '{location}'", place=place) from None
    if path != root and root not in path.parents:
        step = "Move the file beside the model and name it there"
        if (folder / location).is_symlink():
            step = "Replace the link by a copy of the file; copy the model, too, if it is a link: cp -L"
        raise ModelError(f"external data file '{location}' is outside the model's folder", place=place, next_step=step)
    if not found:
        raise ModelError(
            f"external data file '{location}' is missing",
            place=place,
            next_step=f"Copy it from the folder that the model was exported to, to {root}",
        )
    return path
