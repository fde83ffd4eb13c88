"""Shared libraries of packed functions as modules, and models described by TVM's metadata tables.

The tables list inputs, outputs, workspaces and constants. The function that returns them is
``tvmgen_<M>_get_c_metadata`` for TVM's C runtime, and ``get_c_metadata`` for the C++ runtime, where a library has one
module.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mlfc.errors import ArchiveError, OptionError, ToolchainError, unknown
from mlfc.runtime.executors.aot_module import AotModule, BoundCall, filled, new_pool
from mlfc.runtime.ffi.library_names import defining_file, loadable, may_be_function
from mlfc.runtime.ffi.native_code import FFI_LIBRARY, FFI_PREFIX, FfiFunc, PackedFunc, require_host, require_tvm
from mlfc.runtime.libraries.factory import DEFAULT_KEY
from mlfc.runtime.libraries.library_context import (
    CONTEXT,
    bind_functions,
    fill_context,
    is_taken,
    lacks_functions,
    take_error,
)
from mlfc.runtime.libraries.library_file import DESCRIPTION_SYMBOL, read_description
from mlfc.runtime.modules.module import MAIN, Function, Module
from mlfc.runtime.modules.runnable import Runnable
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.threads import share_pool
from mlfc.support.c_names import LEVEL_VARIABLE, level_function
from mlfc.support.former_name import former
from mlfc.support.locks import ForkSafeLock
from mlfc.support.module_info import ModuleInterface
from mlfc.support.params import decode_ndarray
from mlfc.support.tensor_info import Array, TensorInfo

SYSTEM_LIB = "TVMSystemLibEntryPoint"
"""Function that returns the table of functions in code for TVM's C runtime."""
_RELAX_FUNCTION = "TVMBackendAnyList"
"""Prefix of the functions of TVM's runtime that compiled Relax executables call."""


class _FuncRegistry(ctypes.Structure):
    _fields_ = (("names", ctypes.c_void_p), ("functions", ctypes.POINTER(ctypes.c_void_p)))


class _SystemLib(ctypes.Structure):
    _fields_ = (("registry", ctypes.POINTER(_FuncRegistry)),)


class LibraryModule(Module):
    """A loaded shared library; loading runs its code and raises ToolchainError on failure.

    Functions are found by their names in the function registry, if the library has one as in TVM's C runtime, which
    also covers static functions, and by symbol. The code looks up functions in the imports of `environment`, by default
    this module. `description` describes the models in its file; default: read from memory.
    """

    type_key = "library"
    format = "so"
    is_runnable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        environment: Module | None = None,
        *,
        description: Mapping[str, ModuleInterface] | None = None,
    ) -> None:
        super().__init__()
        self._read = description
        with ExitStack() as names:
            self.path = names.enter_context(loadable(os.fspath(path)))
            self.library = _opened(self.path)
            if environment is not None and environment.imported_modules and is_taken(self.address(CONTEXT)):
                # the same code is in use with other imports, and its variables hold a single context
                self.path = names.enter_context(loadable(os.fspath(path), again=True))
                self.library = _opened(self.path)
        self._environment = environment
        fill_context(self.address, environment or self, self)
        share_pool(self.address)
        if asked := os.environ.get(LEVEL_VARIABLE):
            self._check_level(asked)

    def _check_level(self, asked: str) -> None:
        """Raise OptionError if the library has no kernels of the requested CPU level, or the processor lacks it.

        The library chose its kernels when it was loaded, possibly before the variable was set.
        """
        for name, details in self.description().items():
            address = self.address(level_function(name))
            if address is None or not details.levels:
                continue
            chosen = ctypes.CFUNCTYPE(ctypes.c_char_p)(address)()
            if chosen is None:
                cause = f"this processor lacks '{asked}'"
                if asked not in details.levels:
                    cause = unknown("level of processors", asked, details.levels)
                raise OptionError(cause, place=LEVEL_VARIABLE, next_step="Name a level that it has, or unset it")

    @property
    def registered_names(self) -> tuple[str, ...]:
        """Functions in the library's registry, in its order; empty without a registry."""
        return tuple(self._registered)

    def find_function(self, name: str) -> Function | None:
        """Return a function: packed, by its symbol or registry name, otherwise of tvm-ffi.

        The name of a module compiled ahead of time is an alias for the function that runs it.
        """
        if name == MAIN and (main := self.address(MAIN)) is not None and not may_be_function(main):
            # a string names the library's entry function
            name = ctypes.string_at(main).decode(errors="replace") or name
        # the C function that a program calls may have the name of a registered packed function
        address = self._registered.get(name) or self._code(name) or self._code(f"mlfc_packed_{name}")
        reads = self._inputs_of(name)
        if address:
            return PackedFunc(address, name, last_error=self._last_error, owner=self, reads=reads)
        address = self._code(FFI_PREFIX + ("main" if name == MAIN else name))
        return None if address is None else FfiFunc(address, name, last_error=self._last_error, owner=self, reads=reads)

    def _inputs_of(self, name: str) -> int:
        """Return the number of leading arguments that a function only reads, if known: the inputs of a model."""
        models = {key: details for key, details in self.description().items() if details.executor == "aot"}
        for model, details in models.items():
            names = (model, f"mlfc_packed_{model}", f"tvmgen_{model}___tvm_main__")
            if name in names or (name == MAIN and len(models) == 1):
                return len(details.inputs)
        return 0

    def _code(self, symbol: str) -> int | None:
        address = self.address(symbol)
        return address if address is not None and may_be_function(address) else None

    def description(self) -> Mapping[str, ModuleInterface]:
        """Return mlfc's description of the models in the library; raise ArchiveError if it cannot be read."""
        return self._description

    @cached_property
    def _description(self) -> Mapping[str, ModuleInterface]:
        if self._read is not None:
            return self._read
        address = self.address(DESCRIPTION_SYMBOL)
        return {} if address is None else read_description(ctypes.string_at(address), self.path)

    def find_model(self, name: str) -> Runnable | None:
        """Return a model compiled ahead of time with a description by mlfc or TVM's tables."""
        details = self.description().get(name)
        if details is not None and details.executor == "aot":
            return AotModule(self.path, details)
        if tables_of(self, name) is not None:
            return PackedAotModule(self, name)
        return None

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol, or None."""
        if not symbol or "\0" in symbol:
            return None
        for name in dict.fromkeys((symbol, former(symbol))):
            with suppress(ValueError):
                address = ctypes.addressof(ctypes.c_char.in_dll(self.library, name))
                if self._defines(address):
                    return address
        return None

    def _defines(self, address: int) -> bool:
        """Return whether an address is in this library; lookup also finds symbols of its dependencies."""
        file, own = defining_file(address), os.fsencode(self.path)
        return file is None or file == own or os.path.realpath(file) == os.path.realpath(own)

    def _last_error(self) -> tuple[str, BaseException | None]:
        text, cause = take_error()
        if text or self.address("TVMGetLastError") is None:
            return text, cause
        function = self.library.TVMGetLastError
        function.restype = ctypes.c_char_p
        own: bytes | None = function()
        return (own or b"").decode(errors="replace"), None

    @cached_property
    def _registered(self) -> dict[str, int]:
        if self.address(SYSTEM_LIB) is None:
            return {}
        entry = self.library[SYSTEM_LIB]
        entry.restype = ctypes.POINTER(_SystemLib)
        registry = entry().contents.registry.contents
        at = registry.names
        low, high = ctypes.string_at(at, 2)
        # TVM 0.8 wrote one byte: the high byte of the count would be a letter of the first name
        has_one_byte = high >= ord("A")
        count = low if has_one_byte else low | high << 8
        at += 1 if has_one_byte else 2
        found = {}
        for index in range(count):
            name = ctypes.string_at(at)
            at += len(name) + 1
            found[name.decode(errors="replace")] = registry.functions[index] or 0
        return found


def _opened(path: str) -> ctypes.CDLL:
    """Load a library, after tvm-ffi's library or with functions of this process if it needs them."""
    try:
        try:
            return _mapped(path)
        except OSError as error:
            if FFI_LIBRARY in str(error):
                require_host(path)
            elif _RELAX_FUNCTION in str(error):
                require_tvm(path)
            elif lacks_functions(error):
                bind_functions(path)
            else:
                raise
            return _mapped(path)
    except OSError as error:
        undefined = "undefined symbol" in str(error)
        raise ToolchainError(
            f"the compiled code does not load: {error}",
            place=path,
            next_step="Supply what the code calls: objects of its generator, or a library in LIBS"
            if undefined
            else "Remove this file and load the archive again",
        ) from error


def _mapped(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except UnicodeDecodeError as error:  # the system's message repeats names in the file, which may contain any bytes
        raise OSError(error.object.decode(errors="replace")) from None


_PREFIX, _SUFFIX = "tvmgen_", "_get_c_metadata"
_OF_ALL = "get_c_metadata"
_REGISTERED = re.compile(rf"{_PREFIX}(.+){_SUFFIX}")
_VERSION = 1
_MOST_TENSORS, _MOST_BYTES = 1 << 16, (1 << 31) - 1


def _counted(name: str, kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a list: a pointer and a length."""
    return (name, ctypes.POINTER(kind)), (f"num_{name}", ctypes.c_int64)


class _CTensorInfo(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), *_counted("shape", ctypes.c_int64), ("dtype", c_abi.DLDataType))


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
        *_counted("inputs", _CTensorInfo),
        *_counted("outputs", _CTensorInfo),
        *_counted("workspace_pools", _CTensorInfo),
        *_counted("constant_pools", _CConstantInfo),
        ("mod_name", ctypes.c_char_p),
    )


@dataclass(frozen=True)
class AotTables:
    """Metadata tables of a module."""

    prefix: str  # in symbol names
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    pools: tuple[int, ...]  # sizes of its workspaces in bytes
    constants: Array  # its constants' bytes, each at its offset


def names_of_models(library: LibraryModule) -> Iterator[str]:
    """Yield the names of modules for which a library has tables, as far as its symbols show."""
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
    # TVM's runtime ignores the name here
    return found if found is not None and name in (DEFAULT_KEY, found.prefix.removeprefix(_PREFIX)) else None


def _read(address: Any, place: str) -> AotTables:
    if not isinstance(address, int) or address == 0:
        raise _fault("the code returned an invalid address", place)
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
    """Return the block of bytes with a module's constants."""
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
    """A model with one of TVM's packed AOT interfaces.

    TVM's C runtime calls ``tvmgen_<name>_run`` on tensors, inputs first. The C++ runtime calls
    ``tvmgen_<name>___tvm_main__`` and appends the constants and workspaces of its tables. Raises ArchiveError if the
    library has no such entry, or no tables.
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
        # the function for C contains its pools
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
