"""The tensors of a graph in a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mlfc.errors import InternalError, RunError
from mlfc.micro.rpc.minrpc import Handle, RemoteTensor
from mlfc.runtime.devices.device import Device, cpu
from mlfc.runtime.executors.graph_memory import ALIGNMENT, GraphMemory
from mlfc.runtime.tensor import c_abi
from mlfc.support.arrays import Array

if TYPE_CHECKING:
    from mlfc.micro.rpc.remote import Remote
    from mlfc.runtime.executors.graph_json import Graph
    from mlfc.runtime.modules.module import Module

_LINKED_PARAM = "_lookup_linked_param"


class RemoteGraphMemory:
    """Blocks on a device; those of parameters that are linked into the firmware lie there already."""

    def __init__(self, graph: Graph, lib: Module, remote: Remote) -> None:
        self._graph = graph
        self._remote = remote
        self._roots = graph.roots()
        linked = lib.get_function(_LINKED_PARAM) if lib.implements_function(_LINKED_PARAM) else None
        self._linked: set[int] = set()
        self._blocks: dict[int, int] = {}
        for key, size in graph.storage_bytes.items():
            found = linked(key) if linked is not None else None
            if isinstance(found, Handle) and found.value != 0:
                self._linked.add(key)
                self._blocks[key] = found.value
            else:
                self._blocks[key] = remote.allocate(max(1, size), ALIGNMENT)

    def device(self, entry: int) -> Device:  # noqa: ARG002  (all are at one place)
        """Return the device."""
        return self._remote.device

    def is_here(self, entry: int) -> bool:  # noqa: ARG002  (all are at one place)
        """Return False."""
        return False

    def address(self, entry: int) -> int:
        """Return where a tensor lies."""
        return self._blocks[self._graph.entries[entry].storage_id]

    def write(self, entry: int, array: Array) -> None:
        """Copy an array in, unless it is that of the firmware."""
        key, data = self._graph.entries[entry].storage_id, np.ascontiguousarray(array).tobytes()
        if key in self._linked:
            if self._remote.holds(self._blocks[key], data):
                return
            self._blocks[key] = self._remote.allocate(max(1, len(data)), ALIGNMENT)
            self._linked.remove(key)
        self._remote.write(self._blocks[key], data)

    def read(self, entry: int, out: Array) -> None:
        """Copy a tensor out."""
        data = self._remote.read(self.address(entry), self._graph.entries[entry].nbytes)
        out[...] = np.frombuffer(data, out.dtype).reshape(out.shape)

    def copy(self, source: int, target: int) -> Callable[[], int]:
        """Return a call that copies one tensor to another and returns 0."""

        def call() -> int:
            self._remote.copy(self._tensor(source, target), self._tensor(target, target))
            return 0

        return call

    def use(self, argument: int, array: Array) -> None:
        """Copy the array in: it cannot lie elsewhere."""
        self.write(argument, array)

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Let an argument lie where a tensor of another graph's memory does."""
        if not isinstance(other, RemoteGraphMemory) or other._remote is not self._remote:
            raise InternalError("tensors of two devices cannot lie in one place")
        key, address = self._graph.entries[argument].storage_id, other.address(source)
        if key not in self._linked and self._blocks[key] != address:
            self._remote.free_memory(self._blocks[key])
        self._blocks[key] = address

    def view(self, entry: int) -> Array:  # noqa: ARG002  (the memory is of the other kind)
        """Raise RunError: the tensor is not in this process."""
        raise RunError("a function in Python cannot work on a device's memory")

    def synchronize(self) -> None:
        """Return: a call is over when its reply comes."""

    def _tensor(self, entry: int, shaped: int) -> RemoteTensor:
        item = self._graph.entries[shaped]
        dtype = c_abi.entry_type(item.dtype)
        return RemoteTensor(self.address(entry), item.shape, (dtype.code, dtype.bits, dtype.lanes), cpu())
