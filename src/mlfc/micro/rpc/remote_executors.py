"""Executors on a device: that of a module compiled ahead of time, and the memory of a graph that the host drives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import InternalError, RunError, SessionError
from mlfc.micro.rpc.minrpc import Handle, RemoteTensor
from mlfc.runtime.devices.device import Device, cpu
from mlfc.runtime.executors.graph_memory import ALIGNMENT, GraphMemory
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.tensor.arrays import by_name
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo

if TYPE_CHECKING:
    from mlfc.micro.rpc.remote import Remote, RemoteModule
    from mlfc.runtime.executors.graph_json import Graph
    from mlfc.runtime.modules.module import Module

CREATE = "tvm.aot_executor.create"
_LINKED_PARAM = "_lookup_linked_param"


class RemoteAotExecutor:
    """Inputs are copied to the device, the model runs there, outputs are copied back."""

    def __init__(self, remote: Remote, module: RemoteModule) -> None:
        self.module = module
        self._remote = remote

    def _call(self, name: str, *arguments: Any) -> Any:
        function = self.module.find_function(name)
        if function is None:
            raise RunError(f"the device's executor has no function '{name}'")
        return function(*arguments)

    def _tensor(self, name: str, key: str | int) -> RemoteTensor:
        found = self._call(name, key)
        if not isinstance(found, RemoteTensor):
            raise SessionError(f"the device's {name} returned no tensor", place=str(key))
        return found

    def set_input(self, key: str | int | None = None, value: Any = None, /, **inputs: Any) -> None:
        """Copy values into inputs: one by its name or number, and others by their names.

        Raises InputError for an array that does not fit the input; RemoteError if there is no such input.
        """
        given: list[tuple[str | int, Any]] = [*inputs.items()]
        if key is not None:
            given.append((key, value))
        for name, values in given:
            tensor = self._tensor("get_input", name)
            (array,) = by_name([values], [_info(tensor, str(name))], "input").values()
            self._remote.write(tensor.address + tensor.byte_offset, np.ascontiguousarray(array).tobytes())

    def get_input(self, key: str | int) -> Array:
        """Return a copy of an input."""
        return self._read(self._tensor("get_input", key))

    def run(self, **inputs: Any) -> None:
        """Set `inputs`, if there are any, and run; raise RemoteError if the device reports failure."""
        self.set_input(**inputs)
        self._call("run")

    def get_output(self, index: int) -> Array:
        """Return a copy of output `index`."""
        return self._read(self._tensor("get_output", index))

    def get_num_inputs(self) -> int:
        """Return how many inputs there are."""
        return int(self._call("get_num_inputs"))

    def get_num_outputs(self) -> int:
        """Return how many outputs there are."""
        return int(self._call("get_num_outputs"))

    def get_input_index(self, name: str) -> int:
        """Return the number of an input, -1 if there is none of this name."""
        return int(self._call("get_input_index", name))

    def get_input_name(self, index: int) -> str:
        """Return the name of an input."""
        return str(self._call("get_input_name", index))

    def free(self) -> None:
        """Give the executor's memory on the device back."""
        self.module.free()

    def _read(self, tensor: RemoteTensor) -> Array:
        data = self._remote.read(tensor.address + tensor.byte_offset, tensor.nbytes)
        return np.frombuffer(data, _info(tensor, "").numpy_dtype).reshape(tensor.shape).copy()


def _info(tensor: RemoteTensor, name: str) -> TensorInfo:
    return TensorInfo(name, tensor.shape, c_abi.dtype_name(c_abi.DLDataType(*tensor.dtype)))


class RemoteGraphMemory:
    """Blocks on a device; those of parameters that are linked into the firmware lie there already."""

    def __init__(self, graph: Graph, lib: Module, remote: Remote) -> None:
        self._graph = graph
        self._remote = remote
        self._roots = graph.roots()
        linked = lib.get_function(_LINKED_PARAM) if lib.implements_function(_LINKED_PARAM) else None
        self._linked: set[int] = set()
        self._blocks: dict[int, int] = {}
        written = {graph.entries[entry].storage_id for entry in graph.kept}
        for key, size in graph.storage_bytes.items():
            found = linked(key) if linked is not None and key not in written else None
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
