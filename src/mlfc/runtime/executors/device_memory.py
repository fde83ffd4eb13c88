"""The tensors of a graph that runs on devices: each block lies where the graph has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mlfc.errors import InternalError, RunError
from mlfc.runtime.devices.device import Device, DeviceApi, DeviceBlock
from mlfc.runtime.executors.graph_json import Graph, numpy_dtype
from mlfc.runtime.executors.graph_memory import GraphMemory, HostMemory, array_shape
from mlfc.support.arrays import Array


class OnDevice(Protocol):
    """A tensor that lies on a device, compact and row by row, in memory as `DeviceApi` has it."""

    @property
    def device(self) -> Device:
        """Where it lies."""

    @property
    def handle(self) -> int:
        """The number of its memory."""

    @property
    def byte_offset(self) -> int:
        """Where in its memory it starts."""


class DeviceMemory:
    """Memory of this process and of devices beside it.

    Parameters
    ----------
    graph : Graph
    devices : sequence of Device
        One for each device type of the graph, the CPU among them.

    Raises
    ------
    RunError
        If the graph has tensors on a device that is not given, or there is no memory.
    DeviceError
        If a device is not there, or has no room.
    """

    def __init__(self, graph: Graph, devices: Sequence[Device]) -> None:
        self._graph = graph
        self._devices = {device.type_code: device for device in devices}
        self._roots = graph.roots()
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
        """Return where a tensor lies, and the operator runs that makes it."""
        return self._devices[self._graph.entries[entry].device_type]

    def is_here(self, entry: int) -> bool:
        """Tell whether a tensor lies in memory of this process."""
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
                self._external.pop(self._roots[entry], None)
                self._api(entry).copy_in(self._place(entry).handle, 0, array)
            return
        self._external.pop(self._roots[entry], None)
        if array.device == self.device(entry):
            place, nbytes = self._place(entry), self._graph.entries[entry].nbytes
            array.device.api.copy(array.handle, array.byte_offset, place.handle, place.byte_offset, nbytes)
            return
        self.write(entry, self._fetched(array, entry))

    def read(self, entry: int, out: Array) -> None:
        """Copy a tensor out, once all operators before are done."""
        if self.is_here(entry):
            self._host.read(entry, out)
        else:
            place = self._place(entry)
            self._api(entry).copy_out(place.handle, place.byte_offset, out)

    def copy(self, source: int, target: int) -> Callable[[], int]:
        """Return a call that copies one tensor to another and returns 0; to this process, it waits for the tensor."""
        from_here, to_here = self.is_here(source), self.is_here(target)
        if from_here and to_here:
            return self._host.copy(source, target)

        def call() -> int:
            if to_here:
                self.read(source, self._host.view(target))
            else:
                self.give(source, self._place(target))
            return 0

        return call

    def use(self, argument: int, array: Array | OnDevice) -> None:
        """Let an argument lie in `array` if that lies where the graph wants it; else copy it in."""
        if isinstance(array, np.ndarray) and self.is_here(argument):
            self._host.use(argument, array)
        elif not isinstance(array, np.ndarray) and array.device == self.device(argument) and self._can_lie(array):
            self._external[argument] = array
        else:
            self.write(argument, array)

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Let an argument lie where a tensor of another graph's memory does."""
        if not isinstance(other, DeviceMemory) or other.device(source) != self.device(argument):
            raise InternalError("tensors of two devices cannot lie in one place")
        if self.is_here(argument):
            self._host.share(argument, other._host, source)
        else:
            self._external[argument] = other._place(source)

    def view(self, entry: int) -> Array:
        """Return a tensor's memory as an array of this process; raise RunError where it is elsewhere."""
        if not self.is_here(entry):
            raise RunError(f"a function in Python cannot work on memory of {self.device(entry)}")
        return self._host.view(entry)

    def give(self, entry: int, out: OnDevice) -> None:
        """Copy a tensor to memory of a device, behind all work before."""
        if self.is_here(entry):
            out.device.api.copy_in(out.handle, out.byte_offset, self._host.view(entry))
        elif self.device(entry) == out.device:
            place, nbytes = self._place(entry), self._graph.entries[entry].nbytes
            out.device.api.copy(place.handle, place.byte_offset, out.handle, out.byte_offset, nbytes)
        else:
            out.device.api.copy_in(out.handle, out.byte_offset, self._fetched(self._place(entry), entry))

    def synchronize(self) -> None:
        """Wait until all devices have done what they were given; raise DeviceError if any of it failed."""
        for device in self._devices.values():
            device.synchronize()

    def _api(self, entry: int) -> DeviceApi:
        return self.device(entry).api

    def _place(self, entry: int) -> OnDevice:
        external = self._external.get(self._roots[entry])
        return self._blocks[self._graph.entries[entry].storage_id] if external is None else external

    def _can_lie(self, array: OnDevice) -> bool:
        """Tell whether operators can be given the memory of `array`: only the whole of a ``cl_mem`` can be passed."""
        return array.byte_offset == 0 or array.device.kind != "opencl"

    def _fetched(self, array: OnDevice, entry: int) -> Array:
        """Return a tensor of the form of an entry as an array of this process."""
        out = np.empty(array_shape(self._graph.entries[entry]), numpy_dtype(self._graph.entries[entry].dtype))
        array.device.api.copy_out(array.handle, array.byte_offset, out)
        return out
