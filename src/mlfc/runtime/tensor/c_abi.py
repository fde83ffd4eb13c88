"""The classic packed-function ABI as ctypes sees it: tagged 8-byte values and DLPack's tensors."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from mlfc.errors import InputError, UnsupportedError
from mlfc.runtime.devices.device import Device, cpu
from mlfc.support import dtypes
from mlfc.support.arrays import Array

INT, UINT, FLOAT, OPAQUE, NULL = 0, 1, 2, 3, 4
DATA_TYPE, DEVICE, TENSOR, STRING, BYTES, NDARRAY = 5, 6, 7, 11, 12, 13


class DLDevice(ctypes.Structure):
    """Where a tensor lives."""

    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    """The type of a tensor's elements."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """A tensor that somebody else owns."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class TVMValue(ctypes.Union):
    """An argument or a result; its type code stands beside it."""

    _fields_ = (
        ("v_int64", ctypes.c_int64),
        ("v_float64", ctypes.c_double),
        ("v_handle", ctypes.c_void_p),
        ("v_str", ctypes.c_char_p),
    )


class TVMByteArray(ctypes.Structure):
    """Bytes with their length."""

    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


# Relay's bool is a one-bit unsigned integer that takes a byte
_CODE_OF_KIND = {"i": 0, "u": 1, "f": 2, "c": 5}
_CODE_OF_NAME = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_NAME_OF_CODE = {code: name for name, code in _CODE_OF_NAME.items()}
_BOOLS = ((1, 1, 1), (6, 8, 1))
_NAMED = {"bool": DLDataType(1, 1, 1), "bfloat16": DLDataType(4, 16, 1)}


def data_type(dtype: np.dtype[Any]) -> DLDataType:
    """Return DLPack's form of a dtype; raise InputError if it has none."""
    if dtype.name in _NAMED:
        return _NAMED[dtype.name]
    if dtype.kind not in _CODE_OF_KIND or not dtype.isnative:
        raise InputError(f"arrays of {dtype} cannot be passed to compiled functions", next_step="Convert the array")
    return DLDataType(_CODE_OF_KIND[dtype.kind], 8 * dtype.itemsize, 1)


def dtype_name(dtype: DLDataType) -> str:
    """Return the name of a dtype of DLPack; raise InputError for one that numpy has nothing for."""
    if (dtype.code, dtype.bits, dtype.lanes) in _BOOLS:
        return "bool"
    if dtype.code not in _NAME_OF_CODE or dtype.lanes != 1:
        raise InputError(f"elements of code {dtype.code}, {dtype.bits} bits and {dtype.lanes} lanes are not known here")
    return f"{_NAME_OF_CODE[dtype.code]}{dtype.bits}"


def tensor_view(tensor: DLTensor) -> Array:
    """Return a tensor in memory of this process as an array, which nothing keeps alive.

    Raises
    ------
    InputError
        For a tensor on a device, or of elements that numpy has no dtype for.
    """
    if tensor.device.type != cpu().type_code:
        raise InputError(f"the tensor is on device {tensor.device.type}({tensor.device.id}), not in the host's memory")
    name = dtype_name(tensor.dtype)
    try:
        dtype = dtypes.to_numpy(name)
    except (UnsupportedError, TypeError):
        raise InputError(f"numpy has no dtype {name}") from None
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = [stride * dtype.itemsize for stride in tensor.strides[: tensor.ndim]] if tensor.strides else None
    if strides is not None and min(strides, default=0) < 0:
        raise InputError("the tensor runs backwards through its memory", next_step="Pass a copy")
    if tensor.data is None or 0 in shape:
        return np.empty(shape, dtype)
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) if strides else None
    nbytes = dtype.itemsize + reach if reach is not None else dtype.itemsize * prod(shape)
    memory = (ctypes.c_char * nbytes).from_address(tensor.data + tensor.byte_offset)
    return np.ndarray(shape, dtype, memory, 0, strides)


def dl_tensor(data: int, shape: tuple[int, ...], dtype: DLDataType, device: Device) -> DLTensor:
    """Return a compact tensor at address `data`; it owns its list of extents, but not the data."""
    extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    pointer = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    return DLTensor(data, DLDevice(device.type_code, device.index), len(shape), dtype, pointer, None, 0)


def array_tensor(array: Array, device: Device) -> DLTensor:
    """Return a tensor over an array's own memory, which the caller keeps alive."""
    tensor = dl_tensor(array.ctypes.data, array.shape, data_type(array.dtype), device)
    if not array.flags.c_contiguous:
        steps = [stride // array.itemsize for stride in array.strides]
        if any(stride % array.itemsize for stride in array.strides):
            raise InputError("the array's strides are not multiples of its element size", next_step="Pass a copy")
        tensor.strides = ctypes.cast((ctypes.c_int64 * len(steps))(*steps), ctypes.POINTER(ctypes.c_int64))
    return tensor


def entry_type(dtype: str) -> DLDataType:
    """Return DLPack's form of a checked dtype as graphs write it: ``int8``, ``bool``, ``float32x4``."""
    if dtype in _NAMED:
        return _NAMED[dtype]
    element, _, lanes = dtype.partition("x")
    kind = element.rstrip("0123456789")
    return DLDataType(_CODE_OF_NAME[kind], int(element[len(kind) :]), int(lanes or 1))
