"""The memory of a graph's tensors, in this process and on devices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np

from mlfc.errors import InternalError, RunError
from mlfc.runtime.devices.device import Device, DeviceApi, DeviceBlock, cpu, device_of_code, require_device
from mlfc.runtime.executors.graph_json import Graph, TensorEntry, numpy_dtype
from mlfc.runtime.tensor.arrays import aligned
from mlfc.support.arrays import Array

ALIGNMENT = 64
_CPU = cpu().type_code


class GraphMemory(Protocol):
    """Memory for the tensors of one graph, each named by the number of its entry.

    Arrays are of this process, or tensors of the devices that the memory is on.
    """

    def device(self, entry: int) -> Device:
        """Return the device of a tensor, which runs the operator that makes it."""

    def is_here(self, entry: int) -> bool:
        """Tell whether a tensor is in memory of this process."""

    def address(self, entry: int) -> int:
        """Return the address of a tensor, or the handle of its memory where a device has no addresses."""

    def write(self, entry: int, array: Any) -> None:
        """Copy an array in, into the graph's own memory."""

    def read(self, entry: int, out: Any) -> None:
        """Copy a tensor out."""

    def copy(self, source: int, target: int) -> Callable[[], int]:
        """Return a call that copies one tensor to another and returns 0."""

    def use(self, argument: int, array: Any) -> None:
        """Use `array` as an argument's memory if possible; else copy it in."""

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Share the memory of another graph's tensor as an argument."""

    def view(self, entry: int) -> Array:
        """Return a tensor's memory as an array of this process; raise RunError if it is elsewhere."""

    def synchronize(self) -> None:
        """Wait until all operators are done; raise DeviceError if any of them failed."""


class HostMemory:
    """Memory of this process for some blocks of a graph, by default all."""

    def __init__(self, graph: Graph, device: Device | None = None, storages: Collection[int] | None = None) -> None:
        self._graph = graph
        self._device = cpu() if device is None else device
        self._roots = graph.places()
        self._dtypes = [numpy_dtype(entry.dtype) for entry in graph.entries]
        sizes = graph.storage_bytes
        self._blocks = {key: _block(size) for key, size in sizes.items() if storages is None or key in storages}
        # what takes the place of a block's memory for one argument: the caller's own arrays
        self._external: dict[int, Array] = {}
        self._views: dict[int, tuple[Array, int]] = {}  # of entries, with their addresses, until memory changes

    def device(self, entry: int) -> Device:  # noqa: ARG002  (all are at one place)
        """Return the CPU."""
        return self._device

    def is_here(self, entry: int) -> bool:  # noqa: ARG002  (all are at one place)
        """Return True."""
        return True

    def address(self, entry: int) -> int:
        """Return the address of a tensor."""
        return self._seen(entry)[1]

    def write(self, entry: int, array: Array) -> None:
        """Copy an array in, into the graph's own memory."""
        if entry in self._external and entry not in self._graph.kept:  # which may be other executors', too
            del self._external[entry]
            self._views.clear()
        self.view(entry)[...] = array

    def read(self, entry: int, out: Array) -> None:
        """Copy a tensor out."""
        out[...] = self.view(entry)

    def copy(self, source: int, target: int) -> Callable[[], int]:
        """Return a call that copies one tensor to another and returns 0."""
        nbytes = self._graph.entries[target].nbytes

        def call() -> int:
            ctypes.memmove(self.address(target), self.address(source), nbytes)
            return 0

        return call

    def use(self, argument: int, array: Array) -> None:
        """Use `array` as an argument's memory, unless nodes write to it: then copy."""
        if argument in self._graph.kept:
            self.write(argument, array)
        else:
            self._external[argument] = array
            self._views.clear()

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Share the memory of another graph's tensor as an argument."""
        if not isinstance(other, HostMemory):
            raise InternalError("tensors of two devices cannot share memory")
        self._external[argument] = other.view(source)
        self._views.clear()

    def view(self, entry: int) -> Array:
        """Return a tensor's memory as an array."""
        return self._seen(entry)[0]

    def _seen(self, entry: int) -> tuple[Array, int]:
        found = self._views.get(entry)
        if found is None:
            array = self._viewed(entry)
            found = self._views[entry] = array, array.ctypes.data
        return found

    def _viewed(self, entry: int) -> Array:
        item, root = self._graph.entries[entry], self._roots[entry]
        if root in self._external:
            return self._external[root].reshape(array_shape(item))
        raw = self._blocks[item.storage_id][: item.nbytes]
        return raw.view(self._dtypes[entry]).reshape(array_shape(item))

    def synchronize(self) -> None:
        """Return: functions of this process are done when they return."""


def array_shape(entry: TensorEntry) -> tuple[int, ...]:
    """Return the shape in numpy, with a vector's lanes as a last dimension."""
    _, _, lanes = entry.dtype.partition("x")
    return (*entry.shape, int(lanes)) if lanes else entry.shape


def _block(size: int) -> Array:
    """Return zeros with the alignment of tensors."""
    try:
        return aligned(size, np.zeros)
    except MemoryError:
        raise RunError(f"out of memory for a block of {size:,} bytes") from None


class OnDevice(Protocol):
    """A compact, row-major tensor on a device, in memory as `DeviceApi` has it."""

    device: Device
    handle: int
    byte_offset: int


class DeviceMemory:
    """Memory of this process and of devices beside it: one for each device type of the graph, the CPU among them.

    Raises RunError if the graph has tensors on another device, or memory is short; DeviceError if a device is missing
    or full.
    """

    def __init__(self, graph: Graph, devices: Sequence[Device]) -> None:
        self._graph = graph
        self._devices = {device.type_code: device for device in devices}
        self._roots = graph.places()
        host = next(device for device in devices if device.kind == "cpu")
        here = {item.storage_id for item in graph.entries if item.device_type == host.type_code}
        self._host = HostMemory(graph, host, here)
        self._blocks: dict[int, OnDevice] = {}
        # what takes the place of a block for one argument: memory of the caller, or of another graph
        self._external: dict[int, OnDevice] = {}
        sizes = graph.storage_bytes
        for item in graph.entries:
            if item.device_type not in self._devices:
                given = ", ".join(map(str, devices))
                raise RunError(
                    f"the graph has tensors on a device of type {item.device_type}, and is given {given} alone",
                    next_step=f"Give a device of this type, too: {item.device_type} is DLPack's number",
                )
            device = self._devices[item.device_type]
            if device is not host and item.storage_id not in self._blocks:
                self._blocks[item.storage_id] = DeviceBlock(device, sizes[item.storage_id])

    def device(self, entry: int) -> Device:
        """Return the device of a tensor, which runs the operator that makes it."""
        return self._devices[self._graph.entries[entry].device_type]

    def is_here(self, entry: int) -> bool:
        """Tell whether a tensor is in memory of this process."""
        return self.device(entry).kind == "cpu"

    def address(self, entry: int) -> int:
        """Return the address of a tensor, or the handle of its memory where a device has no addresses."""
        if self.is_here(entry):
            return self._host.address(entry)
        place = self._place(entry)
        # only devices that have addresses lend memory that starts elsewhere
        return place.handle + place.byte_offset

    def write(self, entry: int, array: Array | OnDevice) -> None:
        """Copy an array in, into the graph's own memory."""
        if isinstance(array, np.ndarray):
            if self.is_here(entry):
                self._host.write(entry, array)
            else:
                self._forget_external(entry)
                place = self._place(entry)
                self._api(entry).copy_in(place.handle, place.byte_offset, array)
            return
        self._forget_external(entry)
        if array.device == self.device(entry):
            place, nbytes = self._place(entry), self._graph.entries[entry].nbytes
            array.device.api.copy(array.handle, array.byte_offset, place.handle, place.byte_offset, nbytes)
            return
        self.write(entry, self._fetched(array, entry))

    def _forget_external(self, entry: int) -> None:
        if entry not in self._graph.kept:  # which may be other executors', too
            self._external.pop(self._roots[entry], None)

    def read(self, entry: int, out: Array | OnDevice) -> None:
        """Copy a tensor out, after all earlier work."""
        if not isinstance(out, np.ndarray):
            self._give(entry, out)
        elif self.is_here(entry):
            self._host.read(entry, out)
        else:
            place = self._place(entry)
            self._api(entry).copy_out(place.handle, place.byte_offset, out)

    def copy(self, source: int, target: int) -> Callable[[], int]:
        """Return a call that copies one tensor to another and returns 0; copies to this process wait for the tensor."""
        from_here, to_here = self.is_here(source), self.is_here(target)
        if from_here and to_here:
            return self._host.copy(source, target)

        def call() -> int:
            if to_here:
                self.read(source, self._host.view(target))
            else:
                self.read(source, self._place(target))
            return 0

        return call

    def use(self, argument: int, array: Array | OnDevice) -> None:
        """Use `array` as an argument's memory if it is where the graph needs it; else copy it in."""
        if argument in self._graph.kept:
            self.write(argument, array)
        elif isinstance(array, np.ndarray) and self.is_here(argument):
            self._host.use(argument, array)
        elif not isinstance(array, np.ndarray) and array.device == self.device(argument) and self._can_lie(array):
            self._external[argument] = array
        else:
            self.write(argument, array)

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Share the memory of another graph's tensor as an argument."""
        if not isinstance(other, DeviceMemory) or other.device(source) != self.device(argument):
            raise InternalError("tensors of two devices cannot share memory")
        if self.is_here(argument):
            self._host.share(argument, other._host, source)
        else:
            self._external[argument] = other._place(source)

    def view(self, entry: int) -> Array:
        """Return a tensor's memory as an array of this process; raise RunError if it is elsewhere."""
        if not self.is_here(entry):
            raise RunError(f"a function in Python cannot work on memory of {self.device(entry)}")
        return self._host.view(entry)

    def _give(self, entry: int, out: OnDevice) -> None:
        """Copy a tensor to memory of a device."""
        if self.is_here(entry):
            out.device.api.copy_in(out.handle, out.byte_offset, self._host.view(entry))
        elif self.device(entry) == out.device:
            place, nbytes = self._place(entry), self._graph.entries[entry].nbytes
            out.device.api.copy(place.handle, place.byte_offset, out.handle, out.byte_offset, nbytes)
        else:
            out.device.api.copy_in(out.handle, out.byte_offset, self._fetched(self._place(entry), entry))

    def synchronize(self) -> None:
        """Wait until all devices have finished; raise DeviceError if any of their work failed."""
        for device in self._devices.values():
            device.synchronize()

    def _api(self, entry: int) -> DeviceApi:
        return self.device(entry).api

    def _place(self, entry: int) -> OnDevice:
        external = self._external.get(self._roots[entry])
        return self._blocks[self._graph.entries[entry].storage_id] if external is None else external

    def _can_lie(self, array: OnDevice) -> bool:
        """Tell whether operators can use the memory of `array`: only a whole ``cl_mem`` can be passed."""
        return array.byte_offset == 0 or array.device.api.has_addresses

    def _fetched(self, array: OnDevice, entry: int) -> Array:
        """Return a tensor with the form of an entry as an array of this process."""
        out = np.empty(array_shape(self._graph.entries[entry]), numpy_dtype(self._graph.entries[entry].dtype))
        array.device.api.copy_out(array.handle, array.byte_offset, out)
        return out


def graph_devices(graph: Graph, given: Device | Sequence[Device] | None) -> tuple[Device, ...]:
    """Return the devices of a graph, each of another kind, the CPU among them.

    `given` are in any order, with or without the CPU; by default the first device of each kind in the graph. Raises
    InputError for anything but devices, RunError if a kind is missing, duplicated, or not in the graph.
    """
    asked = [require_device(device) for device in _listed(given)]
    needed = [device_of_code(code) for code in sorted({entry.device_type for entry in graph.entries} | {_CPU})]
    if not asked:
        return tuple(needed)
    shown = ", ".join(map(str, asked))
    if len({device.kind for device in asked}) != len(asked):
        raise RunError(f"a graph runs on one device of a kind, not on {shown}", next_step="Give one of each kind")
    for device in asked:
        if all(device.kind != item.kind for item in needed):
            kinds = " and ".join("the CPU" if item.kind == "cpu" else item.kind for item in needed)
            raise RunError(
                f"the graph runs on {kinds}, not on {device}",
                next_step=f"Compile the model for {device.kind}, or give mlfc.device('{needed[-1].kind}')",
            )
    missing = [item for item in needed if all(item.kind != device.kind for device in asked)]
    for item in missing:
        if item.kind != "cpu":
            raise RunError(
                f"the graph has tensors on {item.kind}, and is given {shown} alone",
                next_step=f"Give mlfc.device('{item.kind}'), too",
            )
    return (*asked, *missing)


def _listed(given: Device | Sequence[Device] | None) -> Sequence[Device]:
    if isinstance(given, (list, tuple)):
        return given
    return () if given is None else (given,)  # type: ignore[return-value]  # other sequences are no devices
