"""Requests to a device and their replies: microTVM's "minrpc", little-endian.

A packet is the length of the rest in 8 bytes, a code in 4 bytes, and the payload of the code. *Packed arguments* are a
count, as many type codes of 4 bytes, then the values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any, TypeAlias

from mlfc.errors import InputError, SessionError
from mlfc.runtime.devices.device import Device
from mlfc.runtime.tensor import c_abi

MODULE, FUNCTION = 9, 10
_DATA_TYPE = 5
_HANDLES = (c_abi.OPAQUE, MODULE, FUNCTION)
_MAX_VALUES = 64
_MAX_NDIM = 64
_HEAD = struct.Struct("<Qi")
_U64, _I64, _I32, _F64 = struct.Struct("<Q"), struct.Struct("<q"), struct.Struct("<i"), struct.Struct("<d")
_TENSOR_HEAD = struct.Struct("<QiiiBBH")


class PacketCode(IntEnum):
    """Request or reply code of a packet."""

    SHUTDOWN = 1
    CALL = 3
    RETURN = 4
    EXCEPTION = 5
    COPY_FROM = 6
    COPY_TO = 7
    COPY_ACK = 8
    GET_GLOBAL = 9
    FREE_HANDLE = 10
    ALLOCATE = 13
    FREE = 14
    SYNC = 15
    COPY_AMONG = 16


@dataclass(frozen=True)
class Handle:
    """Handle of a module, a function or memory on a device."""

    kind: int  # type code: opaque, module or function
    value: int


@dataclass(frozen=True)
class RemoteTensor:
    """A compact tensor in a device's memory."""

    address: int
    shape: tuple[int, ...]
    dtype: tuple[int, int, int]  # code, bits and lanes as in DLPack
    device: Device  # as numbered by the device itself
    byte_offset: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        _, bits, lanes = self.dtype
        return prod(self.shape) * ((bits * lanes + 7) // 8)


Value: TypeAlias = "int | float | str | bytes | Handle | RemoteTensor | Device | None"


def packet(code: PacketCode, body: bytes = b"") -> bytes:
    """Encode a packet."""
    return _HEAD.pack(_I32.size + len(body), code) + body


def packed_args(values: Sequence[Any]) -> bytes:
    """Encode packed arguments: integers, floats, strings, bytes, None, handles, devices, tensors and dtypes.

    Raises InputError for a value of another kind, or an integer beyond 64 bits.
    """
    coded: list[tuple[int, bytes]] = []
    for index, value in enumerate(values):
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise InputError(f"argument {index} does not fit 64 bits")
        found = next(((code, pack) for kinds, code, pack in _CODERS if isinstance(value, kinds)), None)
        if isinstance(value, Handle):
            coded.append((value.kind, _U64.pack(value.value)))
        elif found is not None:
            coded.append((found[0], found[1](value)))
        else:
            raise InputError(
                f"argument {index} is a {type(value).__name__}, which cannot be sent to a device",
                next_step="Give numbers, strings, bytes, None, or tensors that are on the device",
            )
    codes = b"".join(_I32.pack(code) for code, _ in coded)
    return _I32.pack(len(coded)) + codes + b"".join(data for _, data in coded)


def _counted(data: bytes) -> bytes:
    return _U64.pack(len(data)) + data


def tensor(value: RemoteTensor) -> bytes:
    """Encode a tensor's address and type, without its elements."""
    device, shape = value.device, value.shape
    head = _TENSOR_HEAD.pack(value.address, device.type_code, device.index, len(shape), *value.dtype)
    return head + b"".join(_I64.pack(extent) for extent in shape) + _U64.pack(value.byte_offset)


_CODERS: tuple[tuple[Any, int, Callable[[Any], bytes]], ...] = (
    (type(None), c_abi.NULL, lambda _: b""),
    (int, c_abi.INT, _I64.pack),
    (float, c_abi.FLOAT, _F64.pack),
    (str, c_abi.STRING, lambda text: _counted(text.encode())),
    ((bytes, bytearray), c_abi.BYTES, lambda data: _counted(bytes(data))),
    (RemoteTensor, c_abi.TENSOR, tensor),
    (Device, c_abi.DEVICE, lambda device: struct.pack("<ii", device.type_code, device.index)),
    (c_abi.DLDataType, _DATA_TYPE, lambda dtype: bytes(dtype) + bytes(4)),
)
"""Classes of values, their type codes, and their encoders."""


def copy_to(target: RemoteTensor, data: bytes) -> bytes:
    """Return the request that copies `data` to a tensor."""
    return packet(PacketCode.COPY_TO, tensor(target) + _counted(data))


def copy_from(source: RemoteTensor, nbytes: int) -> bytes:
    """Return the request that reads a number of bytes of a tensor."""
    return packet(PacketCode.COPY_FROM, tensor(source) + _U64.pack(nbytes))


COPY_OVERHEAD = len(copy_to(RemoteTensor(0, (0,), (1, 8, 1), Device("cpu", 1)), b""))
"""Overhead in bytes of a copy request for a tensor of one dimension."""


def split(data: bytes) -> tuple[int, bytes]:
    """Return the code and payload of a packet; raise SessionError for an unknown code."""
    if len(data) < _HEAD.size:
        raise SessionError(f"the device sent a packet of {len(data)} bytes, which is too short")
    length, code = _HEAD.unpack_from(data)
    if length != len(data) - _U64.size:
        raise SessionError(f"expected a packet of {length} bytes from the device, got {len(data) - _U64.size}")
    return code, data[_HEAD.size :]


def unpacked_args(data: bytes) -> list[Value]:
    """Decode untrusted packed arguments; raise SessionError if they are malformed."""
    reader = _ReplyReader(data)
    count = reader.number(_I32)
    if not 0 <= count <= _MAX_VALUES:
        raise SessionError(f"the device sent {count} values")
    codes = [reader.number(_I32) for _ in range(count)]
    values = [reader.value(code) for code in codes]
    reader.finish()
    return values


class _ReplyReader:
    """Cursor over a reply; raises SessionError if it is truncated."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def value(self, code: int) -> Value:
        if code in _HANDLES:
            return Handle(code, self.number(_U64))
        if code == c_abi.STRING:
            return self._take(self.number(_U64)).decode(errors="replace")
        if code == c_abi.BYTES:
            return self._take(self.number(_U64))
        if code == c_abi.TENSOR:
            address, kind, index, ndim, *dtype = _TENSOR_HEAD.unpack(self._take(_TENSOR_HEAD.size))
            if not 0 <= ndim <= _MAX_NDIM:
                raise SessionError(f"the device sent a tensor of {ndim} dimensions")
            shape = tuple(self.number(_I64) for _ in range(ndim))
            device = Device("cpu" if kind == 1 else f"device{kind}", kind, index)
            return RemoteTensor(address, shape, (dtype[0], dtype[1], dtype[2]), device, self.number(_U64))
        if code == c_abi.NULL:
            return None
        if code not in (c_abi.INT, c_abi.FLOAT):
            raise SessionError(f"the device sent a value of the invalid type code {code}")
        found: int | float = self.number(_I64 if code == c_abi.INT else _F64)
        return found

    def finish(self) -> None:
        if self._at != len(self._data):
            raise SessionError("the device sent a reply with extra bytes")

    def _take(self, nbytes: int) -> bytes:
        if nbytes > len(self._data) - self._at:
            raise SessionError("the device sent a reply that is cut off")
        self._at += nbytes
        return self._data[self._at - nbytes : self._at]
