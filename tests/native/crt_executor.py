"""The C graph executor behind ctypes, for tests that create graphs and parameter files in Python."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.native.crt_build import PROGRAMS, STRICT, compile_c, sources, write_tree

Array = npt.NDArray[Any]
Node = dict[str, Any]


class DLTensor(ctypes.Structure):
    """The tensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def view(tensor: DLTensor) -> Array:
    """Return a view of a float32 tensor of the runtime that shares its memory."""
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
    buffer = (ctypes.c_float * int(np.prod(shape))).from_address(tensor.data)
    return np.frombuffer(buffer, np.float32).reshape(shape)


class CrtError(Exception):
    """An error of the runtime: its code and its message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Crt:
    """The runtime in a shared library, with the operators of ``crt/operators.c``."""

    def __init__(self, folder: Path) -> None:
        tree = write_tree(folder)
        files = [PROGRAMS / "operators.c", *sources(tree), tree / "runtime/host/platform.c"]
        self.library = ctypes.CDLL(str(compile_c(tree, "crt.so", files, [*STRICT, "-g", "-fPIC", "-shared"])))
        self.library.TVMGetLastError.restype = ctypes.c_char_p
        self.library.TVMSystemLibEntryPoint.restype = ctypes.c_void_p
        self.module = ctypes.c_void_p()
        entry = ctypes.c_void_p(self.library.TVMSystemLibEntryPoint())
        self.check(self.library.TVMModCreateFromCModule(entry, ctypes.byref(self.module)))

    def check(self, status: int) -> None:
        """Raise the runtime's error for a nonzero status."""
        if status:
            raise CrtError(status, self.library.TVMGetLastError().decode())

    def create(self, graph: str | bytes | Node) -> Executor:
        """Create an executor of a graph: its text, or an object that is written as JSON."""
        text = json.dumps(graph) if isinstance(graph, dict) else graph
        return Executor(self, text.encode() if isinstance(text, str) else text)


class Executor:
    """A graph executor of the C runtime."""

    def __init__(self, crt: Crt, text: bytes) -> None:
        self._crt = crt
        self._library = crt.library
        self._kept: dict[str, Array] = {}
        self.handle = ctypes.c_void_p()
        device = (ctypes.c_int32 * 2)(1, 0)
        crt.check(self._library.TVMGraphExecutor_Create(text, crt.module, device, ctypes.byref(self.handle)))

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._library.TVMGraphExecutor_Release(ctypes.byref(self.handle)) == 0

    def counts(self) -> tuple[int, int]:
        """Return the numbers of inputs and outputs."""
        return (
            self._library.TVMGraphExecutor_GetNumInputs(self.handle),
            self._library.TVMGraphExecutor_GetNumOutputs(self.handle),
        )

    def index(self, name: str) -> int:
        """Return the position of an input."""
        position: int = self._library.TVMGraphExecutor_GetInputIndex(self.handle, name.encode())
        return position

    def set(self, name: str, array: Array, strides: Sequence[int] | None = None) -> None:
        """Set an input to an array without a copy, and keep the array alive."""
        self._kept[name] = array
        kind = {"f": 2, "i": 0, "u": 1}[array.dtype.kind]
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        steps = (ctypes.c_int64 * array.ndim)(*strides) if strides is not None else None
        tensor = DLTensor(array.ctypes.data, 1, 0, array.ndim, kind, 8 * array.itemsize, 1, shape, steps, 0)
        self._crt.check(self._library.TVMGraphExecutor_SetInput(self.handle, name.encode(), ctypes.byref(tensor)))

    def input(self, index: int) -> DLTensor:
        """Return the executor's own tensor of an input."""
        pointer = ctypes.POINTER(DLTensor)()
        self._crt.check(self._library.TVMGraphExecutor_GetInput(self.handle, index, ctypes.byref(pointer)))
        return pointer.contents

    def load(self, params: bytes) -> None:
        """Copy the parameters of a file into the executor."""
        self._crt.check(self._library.TVMGraphExecutor_LoadParams(self.handle, params, len(params)))

    def link(self, address: int, size: int, alignment: int) -> int:
        """Use a parameter file in place; return the number of arrays that could be linked."""
        linked = ctypes.c_uint32()
        arguments = (self.handle, ctypes.c_void_p(address), size, alignment, ctypes.byref(linked))
        self._crt.check(self._library.TVMGraphExecutor_LinkParams(*arguments))
        return linked.value

    def run(self) -> None:
        """Run the graph."""
        self._crt.check(self._library.TVMGraphExecutor_Run(self.handle))

    def output(self, index: int = 0) -> Array:
        """Return a copy of an output."""
        tensor = DLTensor()
        self._crt.check(self._library.TVMGraphExecutor_GetOutput(self.handle, index, ctypes.byref(tensor)))
        return view(tensor).copy()


def null(name: str) -> Node:
    """Return an input node."""
    return {"op": "null", "name": name, "inputs": []}


def op(func_name: str, inputs: Sequence[Sequence[int]], outputs: int = 1, flatten: int = 0) -> Node:
    """Return an operator node."""
    attrs = {"num_inputs": str(len(inputs)), "num_outputs": str(outputs), "flatten_data": str(flatten)}
    return {"op": "tvm_op", "name": func_name, "inputs": [*inputs], "attrs": {**attrs, "func_name": func_name}}


def graph_of(
    nodes: Sequence[Node],
    shapes: Sequence[Sequence[int]],
    heads: Sequence[Sequence[int]],
    storage: Sequence[int] | None = None,
) -> Node:
    """Return a graph of float32 tensors, each in its own storage by default."""
    rows = [0]
    for node in nodes:
        rows.append(rows[-1] + int(node.get("attrs", {}).get("num_outputs", 1)))
    return {
        "nodes": [*nodes],
        "arg_nodes": [i for i, node in enumerate(nodes) if node["op"] == "null"],
        "heads": [*heads],
        "attrs": {
            "dltype": ["list_str", ["float32"] * len(shapes)],
            "shape": ["list_shape", [*shapes]],
            "storage_id": ["list_int", [*storage] if storage is not None else [*range(len(shapes))]],
            "device_index": ["list_int", [1] * len(shapes)],
        },
        "node_row_ptr": rows,
    }
