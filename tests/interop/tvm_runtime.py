"""A library as TVM 0.14 programs use it: its loader, factories and AOT executor, written from the format descriptions.

Nothing of mlfc is used: the blob is read here, the system looks up symbols, and ctypes calls functions.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_DTYPES = {(0, 8): np.int8, (2, 32): np.float32}
_OPAQUE, _TENSOR = 3, 7


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("num_shape", ctypes.c_int64),
        ("dtype", _DataType),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int64),
        ("inputs", ctypes.POINTER(_Info)),
        ("num_inputs", ctypes.c_int64),
        ("outputs", ctypes.POINTER(_Info)),
        ("num_outputs", ctypes.c_int64),
        ("workspace_pools", ctypes.c_void_p),
        ("num_workspace_pools", ctypes.c_int64),
        ("constant_pools", ctypes.c_void_p),
        ("num_constant_pools", ctypes.c_int64),
        ("mod_name", ctypes.c_char_p),
    )


def sanitized(name: str) -> str:
    """Return a name as the executor looks it up."""
    return re.sub(rb"[^A-Za-z0-9]", b"_", name.encode()).decode()


class TvmLibrary:
    """A loaded library: the kinds of its modules, root first, and the key of a factory at the root."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.kinds: list[str] = []
        self.key: str | None = None
        try:
            start = ctypes.addressof(ctypes.c_uint64.in_dll(self.library, "__tvm_dev_mblob"))
        except ValueError:
            return
        self._data = ctypes.string_at(start + 8, ctypes.c_uint64.from_address(start).value)
        self._at = 0
        for _ in range(self._number()):
            kind = self._string().decode()
            if kind == "_import_tree":
                break
            self.kinds.append(kind)
            if kind not in ("_lib", "metadata_module", "AotExecutorFactory", "GraphExecutorFactory"):
                raise RuntimeError(f"Binary was created using {{{kind}}} but a loader of that name is not registered")
            if kind.endswith("Factory"):
                self.key = self._factory(has_graph=kind.startswith("Graph"))

    def _number(self) -> int:
        (value,) = struct.unpack_from("<Q", self._data, self._at)
        self._at += 8
        return int(value)

    def _string(self) -> bytes:
        size = self._number()
        self._at += size
        return self._data[self._at - size : self._at]

    def _factory(self, *, has_graph: bool) -> str:
        if has_graph:
            self._string()
        count = self._number()
        assert self._number() == count
        for _ in range(count):
            self._string()
        for _ in range(count):
            magic, _, _, _, ndim = struct.unpack_from("<QQiii", self._data, self._at)
            assert magic == 0xDD5E40F096B4A13F
            self._at += 32 + 8 * ndim
            self._string()
        return self._string().decode()

    def function(self, name: str) -> Callable[..., int] | None:
        """Return a packed function by its symbol."""
        try:
            found: Any = self.library[name]
        except AttributeError:
            return None
        found.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_void_p] * 3]
        return found  # type: ignore[no-any-return]

    def executor(self, key: str) -> AotExecutor:
        """Return ``lib[key](tvm.cpu(0))`` for a model compiled ahead of time."""
        if key != self.key:
            raise AttributeError(f"Module has no function '{key}'")
        return AotExecutor(self)


class AotExecutor:
    """The AOT executor for C++, which uses only the tables that the code returns."""

    def __init__(self, library: TvmLibrary) -> None:
        get = library.function("get_c_metadata")
        assert get is not None, "Expected a module with PackedFunc get_metadata"
        value, code = ctypes.c_void_p(), ctypes.c_int(4)
        assert get(None, None, 0, ctypes.byref(value), ctypes.byref(code), None) == 0
        assert code.value == _OPAQUE
        tables = _Metadata.from_address(value.value or 0)
        assert tables.version == 1
        assert tables.num_workspace_pools == 0
        self.inputs = [tables.inputs[index] for index in range(tables.num_inputs)]
        infos = [*self.inputs, *(tables.outputs[index] for index in range(tables.num_outputs))]
        self._arrays = [_array(info) for info in infos]
        self._tensors = [
            _Tensor(array.ctypes.data, 1, 0, array.ndim, info.dtype, info.shape, None, 0)
            for array, info in zip(self._arrays, infos, strict=True)
        ]
        self._main = library.function(f"{tables.mod_name.decode()}___tvm_main__")
        assert self._main is not None, "Module entrypoint is not defined"

    def set_input(self, name: str, value: Array) -> None:
        """Copy a value into the input with this name."""
        names = [info.name.decode() for info in self.inputs]
        assert sanitized(name) in names, "Invalid input name."
        array = self._arrays[names.index(sanitized(name))]
        assert (array.shape, array.dtype) == (value.shape, value.dtype)
        array[...] = value

    def run(self) -> None:
        """Run the model."""
        values = (ctypes.c_void_p * len(self._tensors))(*map(ctypes.addressof, self._tensors))
        codes = (ctypes.c_int * len(self._tensors))(*(_TENSOR for _ in self._tensors))
        value, code = ctypes.c_void_p(), ctypes.c_int(4)
        assert self._main is not None
        assert self._main(values, codes, len(values), ctypes.byref(value), ctypes.byref(code), None) == 0

    def get_output(self, index: int) -> Array:
        """Return an output."""
        return self._arrays[len(self.inputs) + index]


def _array(info: _Info) -> Array:
    shape = [info.shape[index] for index in range(info.num_shape)]
    return np.zeros(shape, _DTYPES[info.dtype.code, info.dtype.bits])
