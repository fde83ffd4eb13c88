"""What registers of a run hold: tensors, storages, lists; and the memory that they take."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from mlfc.errors import DeviceError
from mlfc.runtime.devices.device import Device, DeviceBlock
from mlfc.runtime.executors.vm.failures import Code, Fault
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.tensor.arrays import address_of
from mlfc.runtime.tensor.ndarray import NDArray
from mlfc.support.arrays import Array
from mlfc.support.bytecode.instructions import ALIGNMENT, CPU, DTYPES, NUMBERED_DTYPES
from mlfc.support.dtypes import is_numpys_own, to_numpy

ENTRY_BYTES = 128
"""What a register, and an entry of a list, cost of the memory limit."""


class _NumpyDtypes(dict[int, "np.dtype[Any]"]):
    """Dtypes by their numbers. What numpy lacks needs another package, which is imported for a model that has it."""

    def __missing__(self, number: int) -> np.dtype[Any]:
        found = self[number] = to_numpy(DTYPES[number])
        _NUMBERS[found] = number
        return found


NUMPY_DTYPES = _NumpyDtypes({number: to_numpy(name) for number, name in enumerate(DTYPES) if is_numpys_own(name)})
_NUMBERS = {dtype: number for number, dtype in NUMPY_DTYPES.items()}


def number_of(dtype: np.dtype[Any]) -> int | None:
    """Return the number of a dtype of numpy in bytecode, or None."""
    number = _NUMBERS.get(dtype)
    if number is None:
        number = NUMBERED_DTYPES.get(dtype.name)
        return number if number is not None and NUMPY_DTYPES[number] == dtype else None
    return number


class Account:
    """The memory of one run, against its limit."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit  # 0: none
        self.used = 0

    def take(self, nbytes: int, text: str | None = None) -> None:
        """Count memory; raise Fault if the limit is reached, about the function `text` if that takes it."""
        if self.limit and self.used + nbytes > self.limit:
            raise Fault(Code.MEMORY, nbytes, self.limit, text=text)
        self.used += nbytes


class VmBlock:
    """Memory that storages and tensors share, counted as long as one of them has it."""

    __slots__ = ("account", "address", "keep", "nbytes")

    def __init__(self, account: Account, nbytes: int, device: Device | None = None) -> None:
        # a block that is not made has taken nothing, and gives nothing back
        self.account: Account | None = None
        account.take(nbytes)
        try:
            if device is None:
                buffer = bytearray(nbytes + ALIGNMENT)  # zeros that the system makes, where there are many
                self.keep: object = buffer
                start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
                self.address = start + -start % ALIGNMENT
            else:
                block = DeviceBlock(device, nbytes)
                self.keep = block
                self.address = block.handle
        except (MemoryError, OverflowError, DeviceError):
            account.used -= nbytes
            raise Fault(Code.ALLOCATE, nbytes) from None
        self.account = account
        self.nbytes = nbytes

    def __del__(self) -> None:
        if self.account is not None:
            self.account.used -= self.nbytes


def aligned_zeros(nbytes: int) -> Array:
    """Return bytes of zeros at a multiple of the alignment of tensors."""
    return _aligned(np.zeros(nbytes + ALIGNMENT, np.uint8), nbytes)


def _aligned(whole: Array, nbytes: int) -> Array:
    skipped = -whole.ctypes.data % ALIGNMENT
    return whole[skipped : skipped + nbytes]


def aligned(array: Array) -> Array:
    """Return a contiguous array that begins at a multiple of the alignment, a copy if it must be."""
    if address_of(array) % ALIGNMENT == 0 or not array.nbytes:
        return array
    copied = aligned_like(array)
    copied[...] = array
    return copied


def aligned_like(array: Array) -> Array:
    """Return an uninitialized array at a multiple of the alignment, of an array's shape and dtype."""
    return _aligned(np.empty(array.nbytes + ALIGNMENT, np.uint8), array.nbytes).view(array.dtype).reshape(array.shape)


class Storage:
    """A register's storage: a whole block, or a place in the arena."""

    __slots__ = ("address", "device", "nbytes", "owner")
    writable = True
    start = 0

    def __init__(self, address: int, nbytes: int, owner: object, device: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.owner = owner
        self.device = device


class VmTensor:
    """A register's tensor; `address` of a device is that of its block, in which the tensor begins at byte `start`."""

    __slots__ = ("address", "device", "dtype", "extents", "nbytes", "owner", "start", "writable")

    def __init__(
        self,
        address: int,
        nbytes: int,
        dtype: int,
        extents: tuple[int, ...],
        owner: object,
        writable: bool = True,
        device: int = CPU,
        start: int = 0,
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.dtype = dtype
        self.extents = extents
        self.owner = owner
        self.writable = writable
        self.device = device
        self.start = start


class Items:
    """A register's list, whose entries are counted as long as it has them."""

    __slots__ = ("account", "tensors")

    def __init__(self, account: Account, tensors: Iterable[VmTensor] = ()) -> None:
        self.account: Account | None = None
        self.tensors = list(tensors)
        account.take(ENTRY_BYTES * len(self.tensors))
        self.account = account

    def __del__(self) -> None:
        if self.account is not None:
            self.account.used -= ENTRY_BYTES * len(self.tensors)


class _Memory:
    """Memory at an address for numpy, which keeps its owner."""

    def __init__(self, tensor: VmTensor) -> None:
        self._owner = tensor.owner
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (tensor.nbytes,), "data": (tensor.address, False),
        }  # fmt: skip


def as_array(tensor: VmTensor) -> Array:
    """Return a tensor of the host as an array on the same memory."""
    if tensor.nbytes == 0:
        return new_array(tensor.extents, tensor.dtype)
    return np.asarray(_Memory(tensor)).view(NUMPY_DTYPES[tensor.dtype]).reshape(tensor.extents)


def new_array(extents: tuple[int, ...], dtype: int) -> Array:
    """Return an uninitialized array; raise Fault for extents that numpy refuses even without elements."""
    try:
        return np.empty(extents, NUMPY_DTYPES[dtype])
    except ValueError:
        raise Fault(Code.SIZE, max(extents)) from None
    except MemoryError:
        raise Fault(Code.ALLOCATE, math.prod(extents) * NUMPY_DTYPES[dtype].itemsize) from None


def as_ndarray(tensor: VmTensor, device: Device) -> NDArray:
    """Return a tensor of a device."""
    name = DTYPES[tensor.dtype]
    code = c_abi.DLDevice(device.type_code, device.index)
    described = c_abi.Described(
        tensor.address, code, tensor.extents, c_abi.entry_type(name), None, tensor.start, False, tensor.owner
    )
    return NDArray(described, device, name)


def of_array(array: Array, number: int) -> VmTensor:
    """Return an array that is contiguous and aligned as a tensor that is only read."""
    return VmTensor(address_of(array), array.nbytes, number, array.shape, array, writable=False)


def of_ndarray(array: NDArray, number: int) -> VmTensor:
    """Return a tensor of a device as one that is only read."""
    return VmTensor(
        array.handle, array.nbytes, number, array.shape, array, False, array.device.type_code, array.byte_offset
    )


def copy_bytes(target: VmTensor, source: VmTensor, devices: dict[int, Device]) -> None:
    """Copy a tensor into another of the same size, wherever both are."""
    if not source.nbytes:
        return
    if target.device == CPU and source.device == CPU:
        ctypes.memmove(target.address, source.address, source.nbytes)
        return
    if source.device == CPU:
        devices[target.device].api.copy_in(target.address, target.start, as_array(source))
        return
    here = np.empty(source.nbytes, np.uint8)
    devices[source.device].api.copy_out(source.address, source.start, here)
    if target.device == CPU:
        ctypes.memmove(target.address, here.ctypes.data, source.nbytes)
    else:
        devices[target.device].api.copy_in(target.address, target.start, here)
