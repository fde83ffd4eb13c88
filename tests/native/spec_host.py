"""A host like microTVM's, written from the protocol specification: requests are assembled byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
INT, HANDLE, NULL, DTYPE, DEVICE, TENSOR, MODULE, FUNCTION, STR, BYTES, NDARRAY = 0, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13
CALL, RETURN, EXCEPTION, COPY_FROM, COPY_TO, COPY_ACK, GET_GLOBAL, FREE, ALLOCATE = 3, 4, 5, 6, 7, 8, 9, 10, 13
CPU = struct.pack("<ii", 1, 0)
# size of a copy request without its data: length, code, tensor (up to six dimensions) and byte count
COPY_OVERHEAD = 8 + 4 + 24 + 8 * 6 + 8 + 8


class DeviceError(Exception):
    """An exception from the device."""


@dataclass(frozen=True)
class Tensor:
    """The device's description of a tensor: address, dtype (code, bits, lanes) and shape."""

    address: int
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ((self.dtype[1] * self.dtype[2] + 7) // 8)

    def packed(self) -> bytes:
        head = struct.pack("<Qiii", self.address, 1, 0, len(self.shape)) + struct.pack("<BBH", *self.dtype)
        return head + struct.pack(f"<{len(self.shape)}q", *self.shape) + struct.pack("<Q", self.offset)


class SpecHost:
    """The host side of the packet protocol: each request returns its reply."""

    def __init__(self, exchange: Callable[[bytes], bytes]) -> None:
        self._exchange = exchange
        get = self.call(self.get_global("tvm.rpc.server.GetCRTMaxPacketSize"))
        self._piece = get - COPY_OVERHEAD

    def request(self, code: int, body: bytes, expected: int = RETURN) -> bytes:
        reply = self._exchange(struct.pack("<Qi", 4 + len(body), code) + body)
        length, answer = struct.unpack_from("<Qi", reply)
        assert length == len(reply) - 8
        if answer == EXCEPTION:
            raise DeviceError(_values(reply[12:])[0])
        assert answer == expected
        return reply[12:]

    def get_global(self, name: str) -> int:
        (handle,) = _values(self.request(GET_GLOBAL, _args((STR, name))))
        return int(handle)

    def call(self, function: int, *args: tuple[int, Any]) -> Any:
        code, value, *_ = _values(self.request(CALL, struct.pack("<Q", function) + _args(*args)))
        assert code in (INT, NULL, HANDLE, MODULE, FUNCTION, STR, BYTES, NDARRAY)
        return value

    def module_function(self, module: int, name: str) -> int:
        find = self.get_global("tvm.rpc.server.ModuleGetFunction")
        found = self.call(find, (MODULE, module), (STR, name), (INT, 1))
        assert found is not None, name
        return int(found)

    def method(self, module: int, name: str, *args: tuple[int, Any]) -> Any:
        return self.call(self.module_function(module, name), *args)

    def system_lib(self) -> int:
        return int(self.call(self.get_global("runtime.SystemLib")))

    def allocate(self, nbytes: int) -> int:
        hint = (DTYPE, struct.pack("<BBHi", 2, 32, 1, 0))
        (handle,) = _values(self.request(ALLOCATE, _args((DEVICE, CPU), (INT, nbytes), (INT, 64), hint)))
        return int(handle)

    def free(self, handle: int, kind: int) -> None:
        self.request(FREE, _args((HANDLE, handle), (INT, kind)))

    def copy_to(self, tensor: Tensor, data: bytes) -> None:
        """Copy a whole tensor in pieces of the size that the device accepts, each with its own offset."""
        assert len(data) == tensor.nbytes
        for start in range(0, len(data), self._piece):
            piece = data[start : start + self._piece]
            at = Tensor(tensor.address, tensor.dtype, tensor.shape, tensor.offset + start)
            self.request(COPY_TO, at.packed() + struct.pack("<Q", len(piece)) + piece)

    def copy_from(self, tensor: Tensor) -> bytes:
        pieces = []
        for start in range(0, tensor.nbytes, self._piece):
            at = Tensor(tensor.address, tensor.dtype, tensor.shape, tensor.offset + start)
            size = min(self._piece, tensor.nbytes - start)
            pieces.append(self.request(COPY_FROM, at.packed() + struct.pack("<Q", size), COPY_ACK))
        return b"".join(pieces)


class SpecGraph:
    """A graph executor on the host whose storages are on the device. It can set inputs by name.

    The storage of a parameter in the firmware is that parameter's memory; microTVM hosts set it like any other.
    """

    def __init__(self, host: SpecHost, text: str) -> None:
        graph = json.loads(text)
        attrs = {name: value for name, (_, value) in graph["attrs"].items()}
        self._host, self._graph, lib = host, graph, host.system_lib()
        shapes, dtypes, ids = attrs["shape"], attrs["dltype"], attrs["storage_id"]
        sizes: dict[int, int] = {}
        for shape, dtype, storage in zip(shapes, dtypes, ids, strict=True):
            sizes[storage] = max(sizes.get(storage, 0), prod(shape) * np.dtype(dtype).itemsize)
        lookup = host.module_function(lib, "_lookup_linked_param")
        places = {key: host.call(lookup, (INT, key)) or host.allocate(max(1, size)) for key, size in sizes.items()}
        kinds = {"int": 0, "uint": 1, "float": 2}
        self.tensors = [
            Tensor(
                int(places[storage]),
                (kinds[dtype.rstrip("0123456789")], np.dtype(dtype).itemsize * 8, 1),
                tuple(shape),
            )
            for shape, dtype, storage in zip(shapes, dtypes, ids, strict=True)
        ]
        self._functions = {
            node["attrs"]["func_name"]: host.module_function(lib, node["attrs"]["func_name"])
            for node in graph["nodes"]
            if node["op"] == "tvm_op" and node["attrs"]["func_name"] != "__nop"
        }
        self._entries = {graph["nodes"][index]["name"]: graph["node_row_ptr"][index] for index in graph["arg_nodes"]}

    def set_input(self, **arrays: Array) -> None:
        """Copy arrays to inputs and parameters, the largest first."""
        for name in sorted(arrays, key=lambda name: -arrays[name].size):
            self._host.copy_to(self.tensors[self._entries[name]], np.ascontiguousarray(arrays[name]).tobytes())

    def load_params(self, arrays: Mapping[str, Array]) -> None:
        """Copy the parameters of a parameter file in the order of the file."""
        for name, array in arrays.items():
            self.set_input(**{name: array})

    def run(self) -> None:
        row = self._graph["node_row_ptr"]
        for index, node in enumerate(self._graph["nodes"]):
            if node["op"] != "tvm_op" or node["attrs"]["func_name"] == "__nop":
                continue
            entries = [row[source] + output for source, output, _ in node["inputs"]]
            entries += range(row[index], row[index + 1])
            arguments = [(TENSOR, self.tensors[entry]) for entry in entries]
            self._host.call(self._functions[node["attrs"]["func_name"]], *arguments)

    def output(self, index: int) -> bytes:
        node, output, _ = self._graph["heads"][index]
        return self._host.copy_from(self.tensors[self._graph["node_row_ptr"][node] + output])


def _args(*args: tuple[int, Any]) -> bytes:
    codes = struct.pack(f"<{len(args)}i", *(code for code, _ in args))
    return struct.pack("<i", len(args)) + codes + b"".join(_value(code, value) for code, value in args)


def _value(code: int, value: Any) -> bytes:
    if code == NULL:
        return b""
    if code in (STR, BYTES):
        data = value.encode() if isinstance(value, str) else value
        return struct.pack("<Q", len(data)) + data
    if code == TENSOR:
        return bytes(value.packed())
    if code in (DEVICE, DTYPE):
        return bytes(value)
    return struct.pack("<q" if code == INT else "<Q", value)


def _values(data: bytes) -> list[Any]:
    (count,) = struct.unpack_from("<i", data)
    codes = struct.unpack_from(f"<{count}i", data, 4)
    at, values = 4 + 4 * count, []
    for code in codes:
        if code == NULL:
            values.append(None)
        elif code in (STR, BYTES):
            (size,) = struct.unpack_from("<Q", data, at)
            text = data[at + 8 : at + 8 + size]
            values.append(text.decode() if code == STR else text)
            at += 8 + size
        elif code == TENSOR:
            address, _, _, ndim, *dtype = struct.unpack_from("<QiiiBBH", data, at)
            shape = struct.unpack_from(f"<{ndim}q", data, at + 24)
            (offset,) = struct.unpack_from("<Q", data, at + 24 + 8 * ndim)
            values.append(Tensor(address, (dtype[0], dtype[1], dtype[2]), shape, offset))
            at += 24 + 8 * ndim + 8
        else:
            values.append(struct.unpack_from("<q" if code == INT else "<Q", data, at)[0])
            at += 8
    assert at == len(data)
    return values
