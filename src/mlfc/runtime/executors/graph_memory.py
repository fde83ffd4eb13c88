"""The memory of a graph's tensors, in this process and on devices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlfc.errors import InternalError, RunError
from mlfc.runtime.devices.device import Device, DeviceBlock, OnDevice, cpu, device_of_code, move, require_device
from mlfc.runtime.executors.graph_json import Graph, TensorEntry, numpy_dtype
from mlfc.runtime.tensor.arrays import aligned
from mlfc.support.tensor_info import Array

ALIGNMENT = 64
_CPU = cpu().type_code


class GraphMemory:
    """Memory for the tensors of a graph, by entry index: host memory and device memory.

    `devices` contains one device for each device type of the graph, including the CPU. A remote session has a class
    with the same methods. Raises RunError if the graph has tensors on another device, or host memory is exhausted;
    DeviceError if a device is missing or out of memory.
    """

    def __init__(self, graph: Graph, devices: Sequence[Device]) -> None:
        self._graph = graph
        self._devices = {device.type_code: device for device in devices}
        self._roots = graph.places()
        self._dtypes = [numpy_dtype(entry.dtype) for entry in graph.entries]
        self._blocks: dict[int, Array | OnDevice] = {}
        # replaces the block of one argument: memory of the caller, or of another graph
        self._external: dict[int, Array | OnDevice] = {}
        self._views: dict[int, tuple[Array, int]] = {}  # by entry, until memory changes
        sizes = graph.storage_bytes
        for item in graph.entries:
            device = self._devices.get(item.device_type)
            if device is None:
                given = ", ".join(map(str, devices))
                raise RunError(
                    f"the graph has tensors on a device of type {item.device_type}, got only {given}",
                    next_step=f"Pass a device of this type too ({item.device_type} is its DLPack type)",
                )
            if item.storage_id not in self._blocks:
                size = sizes[item.storage_id]
                self._blocks[item.storage_id] = _block(size) if device.kind == "cpu" else DeviceBlock(device, size)

    def device(self, entry: int) -> Device:
        """Return the device of a tensor, which also runs the operator that computes it."""
        return self._devices[self._graph.entries[entry].device_type]

    def is_here(self, entry: int) -> bool:
        """Return whether a tensor is in memory of this process."""
        return self._graph.entries[entry].device_type == _CPU

    def address(self, entry: int) -> int:
        """Return the address of a tensor, or the handle of its memory where a device has no addresses."""
        if self.is_here(entry):
            return self._seen(entry)[1]
        place: Any = self._place(entry)
        # only devices with addresses accept memory at an offset
        return int(place.handle + place.byte_offset)

    def write(self, entry: int, array: Array | OnDevice) -> None:
        """Copy an array into the graph's own memory."""
        if entry not in self._graph.kept and self._external.pop(entry, None) is not None:  # others may share it
            self._views.clear()
        move(array, self._tensor(entry), self._graph.entries[entry].nbytes)

    def read(self, entry: int, out: Array | OnDevice) -> None:
        """Copy a tensor out, after all earlier work."""
        move(self._tensor(entry), out, self._graph.entries[entry].nbytes)

    def copy(self, source: int, target: int) -> Callable[[], int]:
        """Return a call that copies one tensor to another and returns 0; copies to this process wait for the tensor."""
        nbytes = self._graph.entries[target].nbytes
        are_here = self.is_here(source) and self.is_here(target)

        def call() -> int:
            if are_here:  # the shapes may differ
                ctypes.memmove(self.address(target), self.address(source), nbytes)
            else:
                move(self._tensor(source), self._tensor(target), nbytes)
            return 0

        return call

    def use(self, argument: int, array: Any) -> None:
        """Use `array` as the memory of an entry if it is on the right device and not of a state; otherwise copy it."""
        is_array = isinstance(array, np.ndarray)
        fits = is_array == self.is_here(argument) and (is_array or array.device == self.device(argument))
        # some devices accept only a whole ``cl_mem``
        is_whole = is_array or array.byte_offset == 0 or array.device.api.has_addresses
        if argument in self._graph.kept or not fits or not is_whole:
            self.write(argument, array)
        else:
            self._external[argument] = array
            self._views.clear()

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Share the memory of another graph's tensor as an argument."""
        if not isinstance(other, GraphMemory) or other.device(source) != self.device(argument):
            raise InternalError("tensors of two devices cannot share memory")
        self._external[argument] = other._tensor(source)
        self._views.clear()

    def view(self, entry: int) -> Array:
        """Return a tensor's memory as an array of this process; raise RunError if it is elsewhere."""
        if not self.is_here(entry):
            raise RunError(f"a Python function cannot access memory of {self.device(entry)}")
        return self._seen(entry)[0]

    def synchronize(self) -> None:
        """Wait until all devices have finished; raise DeviceError if any of their work failed."""
        for device in self._devices.values():
            if device.type_code != _CPU:
                device.synchronize()

    def _place(self, entry: int) -> Array | OnDevice:
        external = self._external.get(self._roots[entry])
        return self._blocks[self._graph.entries[entry].storage_id] if external is None else external

    def _tensor(self, entry: int) -> Array | OnDevice:
        return self.view(entry) if self.is_here(entry) else self._place(entry)

    def _seen(self, entry: int) -> tuple[Array, int]:
        found = self._views.get(entry)
        if found is None:
            item, place = self._graph.entries[entry], self._place(entry)
            assert isinstance(place, np.ndarray)
            if self._roots[entry] not in self._external:
                place = place[: item.nbytes].view(self._dtypes[entry])
            array = place.reshape(array_shape(item))
            found = self._views[entry] = array, array.ctypes.data
        return found


def array_shape(entry: TensorEntry) -> tuple[int, ...]:
    """Return the shape in numpy, with the lanes of vector types as last dimension."""
    _, _, lanes = entry.dtype.partition("x")
    return (*entry.shape, int(lanes)) if lanes else entry.shape


def _block(size: int) -> Array:
    """Return a zeroed array with the alignment of tensors."""
    try:
        return aligned(size, np.zeros)
    except MemoryError:
        raise RunError(f"out of memory for a block of {size:,} bytes") from None


def graph_devices(graph: Graph, given: Device | Sequence[Device] | None) -> tuple[Device, ...]:
    """Return the devices of a graph, one per kind, including the CPU.

    `given` are in any order, with or without the CPU; by default the first device of each kind in the graph. Raises
    InputError for anything but devices, RunError if a kind is missing, duplicated, or not in the graph.
    """
    listed: Any = given if isinstance(given, (list, tuple)) else () if given is None else (given,)
    asked = [require_device(device) for device in listed]
    needed = [device_of_code(code) for code in sorted({entry.device_type for entry in graph.entries} | {_CPU})]
    if not asked:
        return tuple(needed)
    shown = ", ".join(map(str, asked))
    if len({device.kind for device in asked}) != len(asked):
        raise RunError(f"expected one device per kind, got {shown}", next_step="Pass one of each kind")
    for device in asked:
        if all(device.kind != item.kind for item in needed):
            kinds = " and ".join("the CPU" if item.kind == "cpu" else item.kind for item in needed)
            raise RunError(
                f"the graph runs on {kinds}, not on {device}",
                next_step=f"Compile the model for {device.kind}, or pass mlfc.device('{needed[-1].kind}')",
            )
    missing = [item for item in needed if all(item.kind != device.kind for device in asked)]
    for item in missing:
        if item.kind != "cpu":
            raise RunError(
                f"the graph has tensors on {item.kind}, got only {shown}",
                next_step=f"Pass mlfc.device('{item.kind}') too",
            )
    return (*asked, *missing)
