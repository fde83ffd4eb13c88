"""TVM's tables of a module compiled ahead of time, as its code returns them: what it takes beside inputs and outputs.

The functions that return them are named in two ways: ``tvmgen_<M>_get_c_metadata`` for TVM's C runtime, and
``get_c_metadata`` for the one in C++, where a library has one module.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mlfc.errors import ArchiveError
from mlfc.runtime.libraries.factory_body import DEFAULT_KEY
from mlfc.runtime.modules.module import Function
from mlfc.runtime.tensor import c_abi
from mlfc.support.arrays import Array
from mlfc.support.ndarray_bytes import decode_ndarray
from mlfc.support.tensor_info import TensorInfo

_PREFIX, _SUFFIX = "tvmgen_", "_get_c_metadata"
_OF_ALL = "get_c_metadata"
_REGISTERED = re.compile(rf"{_PREFIX}(.+){_SUFFIX}")
_VERSION = 1
_MOST_TENSORS, _MOST_BYTES = 1 << 16, (1 << 31) - 1


class _TensorInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("num_shape", ctypes.c_int64),
        ("dtype", c_abi.DLDataType),
    )


class _ConstantInfo(ctypes.Structure):
    _fields_ = (
        ("name_hint", ctypes.c_char_p),
        ("byte_offset", ctypes.c_int64),
        ("data_len", ctypes.c_int64),
        ("data_bytes", ctypes.c_void_p),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int64),
        ("inputs", ctypes.POINTER(_TensorInfo)),
        ("num_inputs", ctypes.c_int64),
        ("outputs", ctypes.POINTER(_TensorInfo)),
        ("num_outputs", ctypes.c_int64),
        ("workspace_pools", ctypes.POINTER(_TensorInfo)),
        ("num_workspace_pools", ctypes.c_int64),
        ("constant_pools", ctypes.POINTER(_ConstantInfo)),
        ("num_constant_pools", ctypes.c_int64),
        ("mod_name", ctypes.c_char_p),
    )


@dataclass(frozen=True)
class AotTables:
    """What a module takes.

    Attributes
    ----------
    prefix : str
        What its symbols start with.
    inputs, outputs : tuple of TensorInfo
    pools : tuple of int
        The sizes of its workspaces in bytes.
    constants : ndarray
        The bytes of its constants, each at its place.
    """

    prefix: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    pools: tuple[int, ...]
    constants: Array


class Functions(Protocol):
    """A library whose functions have names."""

    @property
    def path(self) -> str:
        """Its file."""

    @property
    def registered_names(self) -> Iterable[str]:
        """The functions that its code registers."""

    def find_function(self, name: str) -> Function | None:
        """Return a function of this name, or None."""


def names_of_models(library: Functions) -> Iterator[str]:
    """Yield the modules of which a library has tables, as far as its names tell."""
    for name in library.registered_names:
        found = _REGISTERED.fullmatch(name)
        if found:
            yield found[1]
    tables = library.find_function(_OF_ALL)
    if tables is not None:
        yield _read(tables(), library.path).prefix.removeprefix(_PREFIX)


def tables_of(library: Functions, name: str) -> AotTables | None:
    """Return the tables of a module; None if the library has none of it.

    Raises
    ------
    ArchiveError
        If they break TVM's rules.
    """
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
    """Return the one block of bytes in which a module looks for its constants."""
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
