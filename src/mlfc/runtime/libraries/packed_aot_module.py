"""Models compiled ahead of time whose entry is a packed function, described by TVM's tables in their own code.

The tables list inputs, outputs, workspaces and constants. The functions that return them have two names:
``tvmgen_<M>_get_c_metadata`` for TVM's C runtime, and ``get_c_metadata`` for the one in C++, where a library has one
module.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import ArchiveError
from mlfc.runtime.executors.aot_module import AotModule, BoundCall, filled, new_pool
from mlfc.runtime.ffi.native_code import PackedFunc
from mlfc.runtime.libraries.factory_body import DEFAULT_KEY
from mlfc.runtime.tensor import c_abi
from mlfc.support.arrays import Array
from mlfc.support.locks import ForkSafeLock
from mlfc.support.params import decode_ndarray
from mlfc.support.tensor_info import TensorInfo

if TYPE_CHECKING:
    from mlfc.runtime.libraries.library_module import LibraryModule

_PREFIX, _SUFFIX = "tvmgen_", "_get_c_metadata"
_OF_ALL = "get_c_metadata"
_REGISTERED = re.compile(rf"{_PREFIX}(.+){_SUFFIX}")
_VERSION = 1
_MOST_TENSORS, _MOST_BYTES = 1 << 16, (1 << 31) - 1


class _CTensorInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("num_shape", ctypes.c_int64),
        ("dtype", c_abi.DLDataType),
    )


class _CConstantInfo(ctypes.Structure):
    _fields_ = (
        ("name_hint", ctypes.c_char_p),
        ("byte_offset", ctypes.c_int64),
        ("data_len", ctypes.c_int64),
        ("data_bytes", ctypes.c_void_p),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int64),
        ("inputs", ctypes.POINTER(_CTensorInfo)),
        ("num_inputs", ctypes.c_int64),
        ("outputs", ctypes.POINTER(_CTensorInfo)),
        ("num_outputs", ctypes.c_int64),
        ("workspace_pools", ctypes.POINTER(_CTensorInfo)),
        ("num_workspace_pools", ctypes.c_int64),
        ("constant_pools", ctypes.POINTER(_CConstantInfo)),
        ("num_constant_pools", ctypes.c_int64),
        ("mod_name", ctypes.c_char_p),
    )


@dataclass(frozen=True)
class AotTables:
    """The tables of a module."""

    prefix: str  # of its symbols
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    pools: tuple[int, ...]  # sizes of its workspaces in bytes
    constants: Array  # its constants' bytes, each at its offset


def names_of_models(library: LibraryModule) -> Iterator[str]:
    """Yield the modules that a library has tables for, as far as its names show."""
    for name in library.registered_names:
        found = _REGISTERED.fullmatch(name)
        if found:
            yield found[1]
    tables = library.find_function(_OF_ALL)
    if tables is not None:
        yield _read(tables(), library.path).prefix.removeprefix(_PREFIX)


def tables_of(library: LibraryModule, name: str) -> AotTables | None:
    """Return the tables of a module; None if the library has none; raise ArchiveError if they break TVM's rules."""
    own = library.find_function(f"{_PREFIX}{name}{_SUFFIX}")
    if own is not None:
        return _read(own(), library.path)
    common = library.find_function(_OF_ALL)
    found = None if common is None else _read(common(), library.path)
    # TVM's runtime asks for no name here
    return found if found is not None and name in (DEFAULT_KEY, found.prefix.removeprefix(_PREFIX)) else None


def _read(address: Any, place: str) -> AotTables:
    if not isinstance(address, int) or address == 0:
        raise _fault("there are none at the address that the code returns", place)
    metadata = _Metadata.from_address(address)
    if metadata.version != _VERSION:
        raise _fault(f"expected version {_VERSION}, got {metadata.version}", place)
    pools = tuple(info.shape[0] for info in _entries(metadata, "workspace_pools", place))
    if not all(0 <= nbytes <= _MOST_BYTES for nbytes in pools):
        raise _fault("a workspace has an impossible size", place)
    return AotTables(
        (metadata.mod_name or b"").decode(errors="replace"),
        tuple(_info(entry) for entry in _entries(metadata, "inputs", place)),
        tuple(_info(entry) for entry in _entries(metadata, "outputs", place)),
        pools,
        _constants(metadata, place),
    )


def _entries(metadata: _Metadata, field: str, place: str) -> list[Any]:
    count, entries = getattr(metadata, f"num_{field}"), getattr(metadata, field)
    if not 0 <= count <= _MOST_TENSORS:
        raise _fault(f"expected at most {_MOST_TENSORS:,} {field}, got {count:,}", place)
    return [entries[index] for index in range(count)]


def _info(entry: Any) -> TensorInfo:
    shape = tuple(entry.shape[index] for index in range(entry.num_shape))
    return TensorInfo(entry.name.decode(errors="replace"), shape, c_abi.dtype_name(entry.dtype))


def _constants(metadata: _Metadata, place: str) -> Array:
    """Return the block of bytes in which a module looks for its constants."""
    parts: list[tuple[int, bytes]] = []
    for entry in _entries(metadata, "constant_pools", place):
        if not 0 <= entry.byte_offset <= _MOST_BYTES or not 0 <= entry.data_len <= _MOST_BYTES:
            raise _fault("a constant has an impossible size", place)
        stored = ctypes.string_at(entry.data_bytes, entry.data_len)
        array, _ = decode_ndarray(stored, place=f"{place}: a constant of its tables")
        parts.append((entry.byte_offset, array.tobytes()))
    block = np.zeros(max((offset + len(data) for offset, data in parts), default=0), np.uint8)
    for offset, data in parts:
        block[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
    return block


def _fault(cause: str, place: str) -> ArchiveError:
    return ArchiveError(f"its tables of inputs and outputs cannot be read: {cause}", place=place)


class PackedAotModule(AotModule):
    """A model behind one of TVM's packed AOT interfaces.

    TVM's C runtime calls ``tvmgen_<name>_run`` on tensors, inputs first. The one in C++ calls
    ``tvmgen_<name>___tvm_main__``, and after the outputs passes the constants and the workspaces of its tables. Raises
    ArchiveError if the library has no such entry, or no tables.
    """

    _reuses_calls = False

    def __init__(self, library: LibraryModule, name: str) -> None:
        tables = tables_of(library, name)
        prefix = f"tvmgen_{name}" if tables is None else tables.prefix
        run, main = (library.find_function(f"{prefix}_{entry}") for entry in ("run", "__tvm_main__"))
        entry = run if isinstance(run, PackedFunc) else main
        if not isinstance(entry, PackedFunc) or tables is None:
            lacking = "get_c_metadata" if isinstance(entry, PackedFunc) else "run"
            raise ArchiveError(
                f"the code has no function {prefix}_{lacking}, so the model cannot run by itself",
                place=library.path,
                next_step="Call its functions one by one: mlfc.load_module(path).lib",
            )
        self._describe(tables.inputs, tables.outputs)
        self._lock = ForkSafeLock()
        self._entry = entry
        # the function for C brings its pools along
        self._tables: AotTables | None = tables if entry is main and tables.pools else None
        self._shared = () if self._tables is None else (filled(self._tables.constants.tobytes()),)

    def _call(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> BoundCall:
        pools = () if self._tables is None else tuple(map(new_pool, self._tables.pools))
        arrays = [*inputs.values(), *outputs.values(), *self._shared, *pools]
        prepared = self._entry.prepare([c_abi.array_tensor(array, self.device) for array in arrays])
        call = BoundCall(prepared)
        call.keep = (prepared, arrays)  # type: ignore[attr-defined]  # partials take attributes
        call.inputs, call.outputs = inputs, outputs
        return call
