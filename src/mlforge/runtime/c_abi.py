"""The classic packed-function ABI as ctypes sees it: tagged 8-byte values and DLPack's tensors."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from mlforge.errors import InputError
from mlforge.runtime.arrays import Array
from mlforge.runtime.device import Device

INT, FLOAT, OPAQUE, NULL = 0, 2, 3, 4
DEVICE, TENSOR, STRING, BYTES, NDARRAY = 6, 7, 11, 12, 13


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
_NAMED = {"bool": DLDataType(1, 1, 1), "bfloat16": DLDataType(4, 16, 1)}


def data_type(dtype: np.dtype[Any]) -> DLDataType:
    """Return DLPack's form of a dtype; raise InputError if it has none."""
    if dtype.name in _NAMED:
        return _NAMED[dtype.name]
    if dtype.kind not in _CODE_OF_KIND or not dtype.isnative:
        raise InputError(f"arrays of {dtype} cannot be passed to compiled functions", next_step="Convert the array")
    return DLDataType(_CODE_OF_KIND[dtype.kind], 8 * dtype.itemsize, 1)


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
            raise InputError("the array's strides are no multiples of its elements' size", next_step="Pass a copy")
        tensor.strides = ctypes.cast((ctypes.c_int64 * len(steps))(*steps), ctypes.POINTER(ctypes.c_int64))
    return tensor


def entry_type(dtype: str) -> DLDataType:
    """Return DLPack's form of a checked dtype as graphs write it: ``int8``, ``bool``, ``float32x4``."""
    if dtype in _NAMED:
        return _NAMED[dtype]
    element, _, lanes = dtype.partition("x")
    kind = element.rstrip("0123456789")
    return DLDataType(_CODE_OF_NAME[kind], int(element[len(kind) :]), int(lanes or 1))
