"""Remote functions, modules, memory and clock of a device."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import InputError, InternalError, RemoteError, RunError, SessionError
from mlfc.micro.rpc import minrpc
from mlfc.micro.rpc.minrpc import Handle, PacketCode, RemoteTensor
from mlfc.runtime.devices.device import Device, cpu
from mlfc.runtime.executors.graph_memory import ALIGNMENT, GraphMemory
from mlfc.runtime.modules.module import Module
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.tensor.arrays import by_name
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.support.text import printable, shortened

if TYPE_CHECKING:
    from mlfc.micro.rpc.session import Session
    from mlfc.runtime.executors.graph_json import Graph

_SYSTEM_LIB = "runtime.SystemLib"
_MODULE_FUNCTION = "tvm.rpc.server.ModuleGetFunction"
_PACKET_SIZE = "tvm.rpc.server.GetCRTMaxPacketSize"
_TIME_EVALUATOR = "runtime.RPCTimeEvaluator"
_CHECKSUM = "mlfc.checksum"
_LARGEST_COPY = 1 << 16
# how often a device may measure a call as taking no time before it accepts that result
_ZERO_TIMES = 100
_TEXT_CHARACTERS = 600
_UINT8 = (1, 8, 1)
_DOUBLE = struct.Struct("<d")
CREATE = "tvm.aot_executor.create"
_LINKED_PARAM = "_lookup_linked_param"


@dataclass(frozen=True)
class RemoteDevice(Device):
    """CPU of a device, as used by executors to allocate memory and copy data."""

    remote: Remote = field(kw_only=True, compare=False, repr=False)

    def __str__(self) -> str:
        return f"remote {super().__str__()}"

    def graph_memory(self, graph: Graph, lib: Module) -> RemoteGraphMemory:
        """Return memory on the device for the tensors of a graph."""
        return RemoteGraphMemory(graph, lib, self.remote)


class Remote:
    """The remote side of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @cached_property
    def device(self) -> RemoteDevice:
        """The device's CPU."""
        here = cpu()
        return RemoteDevice(here.kind, here.type_code, here.index, remote=self)

    def request(self, packet: bytes, expected: PacketCode = PacketCode.RETURN) -> bytes:
        """Send a request and return the payload of the reply.

        Raises RemoteError with the text of the device's exception, and the errors of `Session.exchange`.
        """
        code, body = minrpc.split(self._session.exchange(packet))
        if code == PacketCode.EXCEPTION:
            values = minrpc.unpacked_args(body)
            text = values[0] if values and isinstance(values[0], str) else "no reason given"
            raise RemoteError(shortened(printable(text), _TEXT_CHARACTERS), place="device")
        if code != expected:
            raise SessionError(f"the device sent a packet of the code {code} where {expected.name} was expected")
        return body

    def _system_call(self, code: PacketCode, *values: Any) -> Any:
        """Send a request of packed arguments and return the one value of the reply."""
        values_back = minrpc.unpacked_args(self.request(minrpc.packet(code, minrpc.packed_args(values))))
        if len(values_back) != 1:
            raise SessionError(f"the device answered {code.name} with {len(values_back)} values instead of one")
        return values_back[0]

    def _handle(self, value: Any) -> int:
        if not isinstance(value, Handle):
            raise SessionError("expected a handle from the device")
        return value.value

    def find_global(self, name: str) -> RemoteFunction | None:
        """Return a global function of the device's runtime, or None."""
        handle = self._handle(self._system_call(PacketCode.GET_GLOBAL, name))
        return RemoteFunction(self, name, handle) if handle else None

    def get_global(self, name: str) -> RemoteFunction:
        """Return a global function; raise RemoteError if the device has none of this name."""
        function = self.find_global(name)
        if function is None:
            raise RemoteError(
                f"the device has no function '{name}'", next_step="Build its firmware with the RPC server"
            )
        return function

    def free(self, handle: Handle) -> None:
        """Release a module or a function."""
        self._system_call(PacketCode.FREE_HANDLE, Handle(c_abi.OPAQUE, handle.value), handle.kind)

    def system_lib(self) -> RemoteModule:
        """Return the functions that are linked into the firmware."""
        function = self.get_global(_SYSTEM_LIB)
        module = function()
        self.free(Handle(minrpc.FUNCTION, function.handle))
        if not isinstance(module, RemoteModule):
            raise SessionError(f"the device's {_SYSTEM_LIB} returned no module")
        return module

    @cached_property
    def module_function(self) -> RemoteFunction:
        """Remote function that looks up functions of modules."""
        return self.get_global(_MODULE_FUNCTION)

    @cached_property
    def copy_bytes(self) -> int:
        """Maximum bytes that one request copies."""
        function = self.find_global(_PACKET_SIZE)
        if function is None:
            return _LARGEST_COPY
        size = function()
        if not isinstance(size, int) or size <= minrpc.COPY_OVERHEAD:
            raise SessionError(f"the device reports a packet size of {size} bytes, which is too small")
        return min(size - minrpc.COPY_OVERHEAD, _LARGEST_COPY)

    def allocate(self, nbytes: int, alignment: int = 64) -> int:
        """Allocate memory on the device and return its address; it is freed when the session ends."""
        hint = c_abi.data_type(np.dtype(np.float32))
        address = self._handle(self._system_call(PacketCode.ALLOCATE, cpu(), nbytes, alignment, hint))
        if address == 0:
            raise RemoteError(f"the device has no memory for {nbytes:,} bytes", place="device")
        return address

    def free_memory(self, address: int) -> None:
        """Free memory of `allocate`."""
        self._system_call(PacketCode.FREE, cpu(), Handle(c_abi.OPAQUE, address))

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to the device's memory."""
        for start in range(0, len(data), self.copy_bytes):
            piece = data[start : start + self.copy_bytes]
            reply = self.request(minrpc.copy_to(RemoteTensor(address, (len(data),), _UINT8, cpu(), start), piece))
            if minrpc.unpacked_args(reply) != [None]:
                raise SessionError("the device answered a copy with a value")

    def read(self, address: int, nbytes: int) -> bytes:
        """Return bytes of the device's memory."""
        pieces = []
        for start in range(0, nbytes, self.copy_bytes):
            size = min(self.copy_bytes, nbytes - start)
            source = RemoteTensor(address, (nbytes,), _UINT8, cpu(), start)
            pieces.append(self.request(minrpc.copy_from(source, size), PacketCode.COPY_ACK))
            if len(pieces[-1]) != size:
                raise SessionError(f"the device sent {len(pieces[-1])} bytes of memory where {size} were asked for")
        return b"".join(pieces)

    def holds(self, address: int, data: bytes) -> bool:
        """Return whether the device's memory contains these bytes, by CRC-32 if the device supports it."""
        if self._checksum is None:
            return self.read(address, len(data)) == data
        tensor = RemoteTensor(address, (len(data),), _UINT8, cpu())
        return bool(self._checksum(tensor) == zlib.crc32(data))

    @cached_property
    def _checksum(self) -> RemoteFunction | None:
        return self.find_global(_CHECKSUM)

    def copy(self, source: RemoteTensor, target: RemoteTensor) -> None:
        """Copy a tensor to another one, both on the device."""
        self._system_call(PacketCode.COPY_AMONG, source, target, Handle(c_abi.OPAQUE, 0))

    def synchronize(self) -> None:
        """Wait until all work on the device is done."""
        self._system_call(PacketCode.SYNC, cpu(), Handle(c_abi.OPAQUE, 0))

    def array(self, values: Array) -> RemoteArray:
        """Copy an array to new memory of the device."""
        return RemoteArray(self, values)

    def time_evaluator(
        self, module: RemoteModule, name: str, number: int = 1, repeat: int = 1, min_repeat_ms: int = 0
    ) -> Callable[..., list[float]]:
        """Return a function that runs another one on the device and returns its time there.

        `number`: calls to average.
        `min_repeat_ms`: minimum time of a repetition; calls are added until it is reached.

        The function takes the arguments of the other one and returns `repeat` times in seconds, until another timing
        function is made.
        """
        make = self.get_global(_TIME_EVALUATOR)
        # after the repetitions: cooldown time, its interval in repetitions, and cache flushing
        options = (number, repeat, min_repeat_ms, _ZERO_TIMES, 0, 0, 0)
        evaluate = make(module, name, cpu().type_code, 0, *options, "")
        if not isinstance(evaluate, RemoteFunction):
            raise SessionError(f"the device's {_TIME_EVALUATOR} returned no function")

        def timed(*args: Any) -> list[float]:
            data = evaluate(*args)
            if not isinstance(data, bytes) or len(data) != repeat * _DOUBLE.size:
                raise SessionError(f"expected {repeat} times from the device's clock")
            return [seconds for (seconds,) in _DOUBLE.iter_unpack(data)]

        return timed


class RemoteArray:
    """A tensor in its own memory on a device."""

    def __init__(self, remote: Remote, values: Array) -> None:
        dtype = c_abi.data_type(values.dtype)
        self._remote = remote
        self.dtype, self.shape, self._nbytes = values.dtype, values.shape, values.nbytes
        address = remote.allocate(max(1, values.nbytes))
        self.tensor = RemoteTensor(address, values.shape, (dtype.code, dtype.bits, dtype.lanes), cpu())
        self.copy_from(values)

    def copy_from(self, values: Array) -> None:
        """Copy an array of the same shape and dtype to the device."""
        if values.dtype != self.dtype or values.shape != self.shape:
            raise InputError(f"an array {values.dtype}{list(values.shape)} does not fit {self.dtype}{list(self.shape)}")
        self._remote.write(self.tensor.address, np.ascontiguousarray(values).tobytes())

    def numpy(self) -> Array:
        """Return a copy of the elements."""
        data = self._remote.read(self.tensor.address, self._nbytes)
        return np.frombuffer(data, self.dtype).reshape(self.shape).copy()

    def free(self) -> None:
        """Free the memory."""
        self._remote.free_memory(self.tensor.address)


class RemoteFunction:
    """A function on a device."""

    def __init__(self, remote: Remote, name: str, handle: int, module: RemoteModule | None = None) -> None:
        self._remote = remote
        self.name = name
        self.handle = handle
        self.module = module

    def __call__(self, *args: Any) -> Any:
        """Call the function with numbers, strings, bytes, None, devices, and remote objects.

        Raises InputError for an argument of another kind; RemoteError with the device's text if the function fails.
        """
        packed = minrpc.packed_args([_sent(arg) for arg in args])
        try:
            body = self._remote.request(minrpc.packet(PacketCode.CALL, self.handle.to_bytes(8, "little") + packed))
        except RemoteError as error:
            raise RemoteError(error.cause, place=self.name) from None
        values = minrpc.unpacked_args(body)
        if len(values) < 2 or not isinstance(values[0], int):
            raise SessionError("the device answered a call with an invalid result", place=self.name)
        code, value = values[0], values[1]
        if code in (minrpc.MODULE, minrpc.FUNCTION) and isinstance(value, Handle):
            if code == minrpc.MODULE:
                return RemoteModule(self._remote, value.value)
            return RemoteFunction(self._remote, self.name, value.value)
        return value

    def timed(self, number: int = 1, repeat: int = 1) -> Callable[..., list[float]]:
        """Return a function that times calls of this one; see `Remote.time_evaluator`."""
        if self.module is None:
            raise RunError("only functions of modules can be timed", place=self.name)
        return self._remote.time_evaluator(self.module, self.name, number, repeat)

    def prepare(self, tensors: Sequence[c_abi.DLTensor]) -> PreparedRemoteCall:
        """Return a call on fixed tensors of the device, whose addresses may change between calls; it returns 0."""
        return PreparedRemoteCall(self, tensors)


class PreparedRemoteCall:
    """A call of a remote function on remote tensors."""

    def __init__(self, function: RemoteFunction, tensors: Sequence[c_abi.DLTensor]) -> None:
        self.function = function
        self._tensors = tensors

    def __call__(self) -> int:
        """Call the function; raise RemoteError if it fails."""
        self.function(*map(_remote_tensor, self._tensors))
        return 0

    def time(self, number: int = 1, repeat: int = 1) -> list[float]:
        """Call the function and return the seconds on the device's clock; see `Remote.time_evaluator`."""
        return self.function.timed(number, repeat)(*map(_remote_tensor, self._tensors))


class RemoteModule(Module):
    """A module on a device; its functions are looked up there.

    `params`: constants that its functions take as arguments: executors copy them to the device.
    """

    type_key = "rpc"
    is_runnable = True

    def __init__(self, remote: Remote, handle: int) -> None:
        super().__init__()
        self._remote = remote
        self.handle = handle
        self.params: Mapping[str, Array] = {}
        self._functions: dict[str, RemoteFunction | None] = {}

    def find_function(self, name: str) -> RemoteFunction | None:
        """Return a function of the module, or None; the result of the lookup is cached."""
        if name not in self._functions:
            found = self._remote.module_function(self, name, 1)
            known = isinstance(found, RemoteFunction)
            self._functions[name] = RemoteFunction(self._remote, name, found.handle, self) if known else None
        return self._functions[name]

    def linked_params(self) -> Mapping[str, Array]:
        """Return the constants that the code takes as arguments, by name."""
        return self.params

    def free(self) -> None:
        """Release the module."""
        self._remote.free(Handle(minrpc.MODULE, self.handle))


def _sent(value: Any) -> Any:
    """Return the encodable value of an argument."""
    if isinstance(value, RemoteModule):
        return Handle(minrpc.MODULE, value.handle)
    if isinstance(value, RemoteFunction):
        return Handle(minrpc.FUNCTION, value.handle)
    if isinstance(value, RemoteArray):
        return value.tensor
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    return value


def _remote_tensor(tensor: c_abi.DLTensor) -> RemoteTensor:
    dtype = tensor.dtype
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    device = Device("cpu", tensor.device.type, tensor.device.id)
    return RemoteTensor(tensor.data or 0, shape, (dtype.code, dtype.bits, dtype.lanes), device, tensor.byte_offset)


class RemoteAotExecutor:
    """Remote executor: copies inputs to the device, runs the model there, and copies outputs back."""

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
        """Copy values into inputs: one by name or index, others by name.

        Raises InputError for an array that does not match the input; RemoteError if the input does not exist.
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
        """Set `inputs`, if any are given, and run; raise RemoteError if the device reports failure."""
        self.set_input(**inputs)
        self._call("run")

    def get_output(self, index: int) -> Array:
        """Return a copy of output `index`."""
        return self._read(self._tensor("get_output", index))

    def get_num_inputs(self) -> int:
        """Return the number of inputs."""
        return int(self._call("get_num_inputs"))

    def get_num_outputs(self) -> int:
        """Return the number of outputs."""
        return int(self._call("get_num_outputs"))

    def get_input_index(self, name: str) -> int:
        """Return the index of an input, -1 if no input has this name."""
        return int(self._call("get_input_index", name))

    def get_input_name(self, index: int) -> str:
        """Return the name of an input."""
        return str(self._call("get_input_name", index))

    def free(self) -> None:
        """Free the executor's memory on the device."""
        self.module.free()

    def _read(self, tensor: RemoteTensor) -> Array:
        data = self._remote.read(tensor.address + tensor.byte_offset, tensor.nbytes)
        return np.frombuffer(data, _info(tensor, "").numpy_dtype).reshape(tensor.shape).copy()


def _info(tensor: RemoteTensor, name: str) -> TensorInfo:
    return TensorInfo(name, tensor.shape, c_abi.dtype_name(c_abi.DLDataType(*tensor.dtype)))


class RemoteGraphMemory:
    """Memory of a graph on a device, where parameters linked into the firmware are used in place."""

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

    def device(self, entry: int) -> Device:  # noqa: ARG002  (all tensors are on one device)
        """Return the device."""
        return self._remote.device

    def is_here(self, entry: int) -> bool:  # noqa: ARG002  (all tensors are on one device)
        """Return False: no tensor is in this process."""
        return False

    def address(self, entry: int) -> int:
        """Return the remote address of a tensor."""
        return self._blocks[self._graph.entries[entry].storage_id]

    def write(self, entry: int, array: Array) -> None:
        """Copy an array in, unless the firmware contains it."""
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
        """Copy the array in; remote graphs cannot use it in place."""
        self.write(argument, array)

    def share(self, argument: int, other: GraphMemory, source: int) -> None:
        """Share the memory of another graph's tensor as an argument."""
        if not isinstance(other, RemoteGraphMemory) or other._remote is not self._remote:
            raise InternalError("tensors of two devices cannot lie in one place")
        key, address = self._graph.entries[argument].storage_id, other.address(source)
        if key not in self._linked and self._blocks[key] != address:
            self._remote.free_memory(self._blocks[key])
        self._blocks[key] = address

    def view(self, entry: int) -> Array:  # noqa: ARG002  (required by the interface of graph memory)
        """Raise RunError: the tensor is not in this process."""
        raise RunError("a Python function cannot access a device's memory")

    def synchronize(self) -> None:
        """Return at once: a call is done when its reply arrives."""

    def _tensor(self, entry: int, shaped: int) -> RemoteTensor:
        item = self._graph.entries[shaped]
        dtype = c_abi.entry_type(item.dtype)
        return RemoteTensor(self.address(entry), item.shape, (dtype.code, dtype.bits, dtype.lanes), cpu())
