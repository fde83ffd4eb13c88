"""Memory of devices for the main functions of dynamic models."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlfc.errors import MlfcError
from mlfc.runtime.devices.device import Device, DeviceBlock
from mlfc.runtime.executors.vm.native import (
    DEVICE_ALLOCATE,
    DEVICE_CONSTANT,
    DEVICE_COPY,
    DEVICE_RELEASE,
    DevicesStruct,
    TensorStruct,
    pointer_to,
)
from mlfc.support.arrays import Array
from mlfc.support.platforms import TYPE_CODES

CPU = TYPE_CODES["cpu"]


class DeviceCallbacks:
    """The functions of ``mlfc_vm_devices``.

    Parameters
    ----------
    devices : mapping of int to Device
        By DLPack's device type.

    Attributes
    ----------
    struct : DevicesStruct
    """

    def __init__(self, devices: Mapping[int, Device]) -> None:
        self._devices = devices
        self._blocks: dict[int, list[DeviceBlock]] = {}
        self._constants: dict[tuple[int, int], DeviceBlock] = {}
        self._functions = (
            DEVICE_ALLOCATE(self._allocate), DEVICE_RELEASE(self._release), DEVICE_COPY(self._copy),
            DEVICE_CONSTANT(self._constant),
        )  # fmt: skip
        self.struct = DevicesStruct(*map(pointer_to, self._functions))

    def _allocate(self, _context: Any, device: int, nbytes: int) -> int | None:
        block = self._block(device, nbytes)
        if block is None:
            return None
        self._blocks.setdefault(block.handle, []).append(block)
        return block.handle

    def _block(self, device: int, nbytes: int) -> DeviceBlock | None:
        try:
            return DeviceBlock(self._devices[device], nbytes)
        except (MlfcError, MemoryError, OverflowError, KeyError):
            return None

    def _release(self, _context: Any, _device: int, memory: int) -> None:
        blocks = self._blocks.get(memory, [])
        if blocks:
            blocks.pop()
        if not blocks:
            self._blocks.pop(memory, None)

    def _constant(self, _context: Any, device: int, data: int, nbytes: int) -> int | None:
        key = (device, data)
        if key not in self._constants:
            block = self._block(device, nbytes)
            if block is None:
                return None
            if nbytes:
                self._devices[device].api.copy_in(block.handle, 0, _bytes_at(data, nbytes))
            self._constants[key] = block
        return self._constants[key].handle

    def _copy(self, _context: Any, to: Any, source: Any, nbytes: int) -> int:
        try:
            self._copied(to[0], source[0], nbytes)
        except (MlfcError, KeyError):
            return -1
        return 0

    def _copied(self, to: TensorStruct, source: TensorStruct, nbytes: int) -> None:
        if not nbytes:
            return
        here = _bytes_at(source.data, nbytes) if source.device == CPU else np.empty(nbytes, np.uint8)
        if source.device != CPU:
            self._devices[source.device].api.copy_out(source.data, 0, here)
        if to.device == CPU:
            ctypes.memmove(to.data, here.ctypes.data, nbytes)
        else:
            self._devices[to.device].api.copy_in(to.data, 0, here)


def _bytes_at(address: int, nbytes: int) -> Array:
    """Return memory of the host as an array on it."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
