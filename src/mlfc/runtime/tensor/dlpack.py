"""Tensors handed over between libraries by DLPack, both ways, where they lie.

What is handed out is one of numpy's own capsules, made to describe other memory. Its code for giving memory back is C,
so it stands what Python code would not: threads without Python's lock, exceptions on their way, an interpreter's end.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlfc.errors import ExchangeError
from mlfc.runtime.tensor.c_abi import DLDataType, DLDevice, DLTensor

_NAME, _USED = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _VERSIONED_USED = b"dltensor_versioned", b"used_dltensor_versioned"
_READ_ONLY = 1
_VERSION = (1, 1)
_MAX_DIMENSIONS = 32


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# capsules keep a pointer to their name, and may outlive this module when the interpreter ends
for _name in (_USED, _VERSIONED_USED):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_name))


@dataclass(frozen=True, eq=False)
class Described:
    """Memory with what lies in it.

    Attributes
    ----------
    data : int
        Its address, or the handle that a device has for it.
    device : DLDevice
    shape : tuple of int
    dtype : DLDataType
    strides : tuple of int or None
        In elements; None for a compact tensor.
    byte_offset : int
    read_only : bool
    owner : object
        What keeps the memory.
    """

    data: int
    device: DLDevice
    shape: tuple[int, ...]
    dtype: DLDataType
    strides: tuple[int, ...] | None
    byte_offset: int
    read_only: bool
    owner: object

    @property
    def compact_strides(self) -> tuple[int, ...]:
        """The steps between elements of a compact tensor of this shape."""
        steps, step = [], 1
        for extent in reversed(self.shape):
            steps.append(step)
            step *= extent
        return tuple(reversed(steps))


class _Owner:
    """Gives a foreign tensor back when nothing refers to it any more."""

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address = address
        self._deleter = _Deleter(deleter) if deleter else None

    def __del__(self) -> None:
        if self._deleter is not None:
            self._deleter(self._address)


def to_capsule(described: Described, *, versioned: bool) -> Any:
    """Return a capsule of memory for `from_dlpack` of any library.

    Parameters
    ----------
    described : Described
    versioned : bool
        Whether the taker knows DLPack 1, which can say that memory must not be written to.

    Raises
    ------
    ExchangeError
        If the memory must not be written to, and nothing could say so.
    """
    shape = described.shape
    # numpy's capsule owns an array, the array this object, and this object the memory that is meant
    carrier = (ctypes.c_char * 16)()
    carrier.owner = described.owner  # type: ignore[attr-defined]  # ctypes arrays take attributes
    array: np.ndarray[Any, Any] = np.ndarray(shape, np.uint8, memoryview(carrier), 0, [0] * len(shape))
    capsule = None
    if versioned:
        try:
            capsule = array.__dlpack__(max_version=_VERSION)  # type: ignore[call-arg,unused-ignore]  # numpy 2.1
        except TypeError:
            # an older numpy; takers of the newer form take the older one too
            versioned = False
    if described.read_only and not versioned:
        raise ExchangeError(
            "this memory is only to be read, which the older form of DLPack cannot say",
            next_step="Hand over a copy, or let numpy (2.1 or newer) and the taker use DLPack 1",
        )
    if capsule is None:
        capsule = array.__dlpack__()
    address = _pointer_of(capsule, _VERSIONED_NAME if versioned else _NAME)
    managed: Any = _Versioned.from_address(address) if versioned else _Managed.from_address(address)
    if versioned:
        managed.flags = _READ_ONLY if described.read_only else 0
    tensor = managed.tensor
    tensor.data, tensor.device, tensor.dtype = described.data, described.device, described.dtype
    tensor.byte_offset = described.byte_offset
    if tensor.strides:
        steps = described.strides if described.strides is not None else described.compact_strides
        for axis, step in enumerate(steps):
            tensor.strides[axis] = step
    return capsule


def from_capsule(value: Any) -> Described:
    """Return what lies behind an object with ``__dlpack__``, as long as the result's `owner` lives.

    Raises
    ------
    ExchangeError
        If its library does not hand it over, or not in a form that is known.
    """
    try:
        capsule = _asked(value)
    except Exception as error:  # other libraries raise whatever they like
        raise ExchangeError(
            f"the array cannot be taken through DLPack: {error}",
            next_step="Detach it from any gradient, or pass a copy of it",
        ) from error
    if _is_valid(capsule, _VERSIONED_NAME):
        address = _pointer_of(capsule, _VERSIONED_NAME)
        managed: Any = _Versioned.from_address(address)
        if managed.major != _VERSION[0]:
            raise ExchangeError(f"the array comes by DLPack {managed.major}.{managed.minor}, which is not known here")
        read_only = bool(managed.flags & _READ_ONLY)
        _set_name(capsule, _VERSIONED_USED)
    elif _is_valid(capsule, _NAME):
        address = _pointer_of(capsule, _NAME)
        managed, read_only = _Managed.from_address(address), False
        _set_name(capsule, _USED)
    else:
        raise ExchangeError(f"expected an unused tensor from __dlpack__ of {type(value).__name__}")
    owner = _Owner(address, managed.deleter)
    tensor = managed.tensor
    ndim = tensor.ndim
    if not 0 <= ndim <= _MAX_DIMENSIONS:
        raise ExchangeError(f"an array of {ndim} dimensions cannot be taken")
    strides = tuple(tensor.strides[:ndim]) if tensor.strides else None
    return Described(
        tensor.data or 0,
        DLDevice(tensor.device.type, tensor.device.id),
        tuple(tensor.shape[:ndim]),
        DLDataType(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        strides,
        tensor.byte_offset,
        read_only,
        owner,
    )


def _asked(value: Any) -> Any:
    try:
        return value.__dlpack__(max_version=_VERSION)
    except TypeError:
        # a library of before DLPack 1
        return value.__dlpack__()
