"""Where the tensors of a graph lie."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Protocol

import numpy as np

from mlfc.errors import InternalError, RunError
from mlfc.runtime.devices.device import Device, cpu
from mlfc.runtime.executors.graph_json import Entry, Graph, numpy_dtype
from mlfc.support.arrays import Array

ALIGNMENT = 64


class GraphMemory(Protocol):
    """Memory for the tensors of one graph; a tensor is named by the number of its entry."""

    def device(self, entry: int) -> Device:
        """Return where a tensor lies, and the operator runs that makes it."""

    def is_here(self, entry: int) -> bool:
        """Tell whether a tensor lies in memory of this process."""

    def address(self, entry: int) -> int:
        """Return the address of a tensor, or the handle of its memory where a device has no addresses."""

    def write(self, entry: int, array: Array) -> None:
        """Copy an array in, into the graph's own memory."""

    def read(self, entry: int, out: Array) -> None:
        """Copy a tensor out."""

    def copy(self, source: int, target: int) -> Callable[[], int]:
        """Return a call that copies one tensor to another and returns 0."""

    def use(self, argument: int, array: Array) -> None:
        """Let an argument lie in `array`, where that can be; else copy it in."""

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Let an argument lie where a tensor of another graph's memory does."""

    def view(self, entry: int) -> Array:
        """Return a tensor's memory as an array of this process; raise RunError where it is elsewhere."""

    def synchronize(self) -> None:
        """Wait until all operators are done; raise DeviceError if any of them failed."""


class HostMemory:
    """Memory of this process.

    Parameters
    ----------
    graph : Graph
    device : Device, optional
        What runs here; default the CPU.
    storages : collection of int, optional
        The blocks that lie here; default all.
    """

    def __init__(self, graph: Graph, device: Device | None = None, storages: Collection[int] | None = None) -> None:
        self._graph = graph
        self._device = cpu() if device is None else device
        self._roots = graph.roots()
        self._dtypes = [numpy_dtype(entry.dtype) for entry in graph.entries]
        sizes = graph.storage_bytes
        self._blocks = {key: _block(size) for key, size in sizes.items() if storages is None or key in storages}
        # what takes the place of a block's memory for one argument: the caller's own arrays
        self._external: dict[int, Array] = {}

    def device(self, entry: int) -> Device:  # noqa: ARG002  (all are at one place)
        """Return the CPU."""
        return self._device

    def is_here(self, entry: int) -> bool:  # noqa: ARG002  (all are at one place)
        """Return True."""
        return True

    def address(self, entry: int) -> int:
        """Return where a tensor lies."""
        external = self._external.get(self._roots[entry])
        memory = self._blocks[self._graph.entries[entry].storage_id] if external is None else external
        return memory.ctypes.data

    def write(self, entry: int, array: Array) -> None:
        """Copy an array in, into the graph's own memory."""
        self._external.pop(entry, None)
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
        """Let an argument lie in `array`."""
        self._external[argument] = array

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Let an argument lie where a tensor of another graph's memory does."""
        if not isinstance(other, HostMemory):
            raise InternalError("tensors of two devices cannot lie in one place")
        self._external[argument] = other.view(source)

    def view(self, entry: int) -> Array:
        """Return a tensor's memory as an array."""
        item, root = self._graph.entries[entry], self._roots[entry]
        if root in self._external:
            return self._external[root].reshape(array_shape(item))
        raw = self._blocks[item.storage_id][: item.nbytes]
        return raw.view(self._dtypes[entry]).reshape(array_shape(item))

    def synchronize(self) -> None:
        """Return: functions of this process are done when they return."""


def array_shape(entry: Entry) -> tuple[int, ...]:
    """Return the shape in numpy, where a vector's lanes are one dimension more."""
    _, _, lanes = entry.dtype.partition("x")
    return (*entry.shape, int(lanes)) if lanes else entry.shape


def _block(size: int) -> Array:
    """Return zeros that start at a multiple of `ALIGNMENT`."""
    try:
        memory = np.zeros(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):
        raise RunError(f"out of memory for a block of {size:,} bytes") from None
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]
