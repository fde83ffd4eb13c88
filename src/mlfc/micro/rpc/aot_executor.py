"""An AOT executor on a device: what microTVM's hosts call a module by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import RunError, SessionError
from mlfc.micro.rpc.minrpc import RemoteTensor
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.tensor.arrays import by_name
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo

if TYPE_CHECKING:
    from mlfc.micro.rpc.remote import Remote, RemoteModule

CREATE = "tvm.aot_executor.create"


class RemoteAotExecutor:
    """Inputs are copied to the device, the model runs there, outputs are copied back.

    `module`: what the device's `CREATE` returned.
    """

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
