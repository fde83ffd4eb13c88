"""Shared libraries of packed functions as modules."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from mlfc.errors import OptionError, ToolchainError, unknown
from mlfc.runtime.executors.aot_module import AotModule
from mlfc.runtime.ffi.ffi_values import needs_host, require_host
from mlfc.runtime.ffi.library_names import defining_file, loadable, may_be_function
from mlfc.runtime.ffi.native_code import FFI_PREFIX, FfiFunc, PackedFunc
from mlfc.runtime.libraries.library_context import (
    CONTEXT,
    bind_functions,
    fill_context,
    is_taken,
    lacks_functions,
    take_error,
)
from mlfc.runtime.libraries.library_file import DESCRIPTION_SYMBOL, read_description
from mlfc.runtime.libraries.packed_aot_module import PackedAotModule, tables_of
from mlfc.runtime.modules.module import MAIN, Function, Module
from mlfc.runtime.threads import share_pool
from mlfc.support.former_name import former
from mlfc.support.levels import LEVEL_VARIABLE, level_function

if TYPE_CHECKING:
    from mlfc.runtime.modules.runnable import Runnable
    from mlfc.support.module_info import ModuleInterface

_SYSTEM_LIB = "TVMSystemLibEntryPoint"


class _FuncRegistry(ctypes.Structure):
    _fields_ = (("names", ctypes.c_void_p), ("functions", ctypes.POINTER(ctypes.c_void_p)))


class _SystemLib(ctypes.Structure):
    _fields_ = (("registry", ctypes.POINTER(_FuncRegistry)),)


class LibraryModule(Module):
    """A loaded shared library; loading runs its code, and raises ToolchainError if it fails.

    Functions are found by symbol and, if the library has a function registry as in TVM's C runtime, by their names
    there: these may be static functions. The code looks for functions in the imports of `environment`, default this
    module. `description` is that of the models in its file; default the one in its memory.
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
                # the same code with other imports is in use: its variables hold one context
                self.path = names.enter_context(loadable(os.fspath(path), again=True))
                self.library = _opened(self.path)
        self._environment = environment
        fill_context(self.address, environment or self, self)
        share_pool(self.address)
        if asked := os.environ.get(LEVEL_VARIABLE):
            self._check_level(asked)

    def _check_level(self, asked: str) -> None:
        """Raise OptionError if the library has no kernels of the level that the user wants, or the processor lacks it.

        The library has chosen when it was mapped, which may have been before the variable was set.
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
        """The functions of the library's registry, in its order; empty without a registry."""
        return tuple(self._registered)

    def find_function(self, name: str) -> Function | None:
        """Return a function: a packed one by its symbol or its name in the registry, else one of tvm-ffi.

        The name of a module compiled ahead of time is an alias of the function that runs it.
        """
        if name == MAIN:
            name = self._main_name() or name
        address = self._code(name) or self._registered.get(name) or self._code(f"mlfc_packed_{name}")
        reads = self._inputs_of(name)
        if address:
            return PackedFunc(address, name, last_error=self._last_error, owner=self, reads=reads)
        address = self._code(FFI_PREFIX + ("main" if name == MAIN else name))
        return None if address is None else FfiFunc(address, name, last_error=self._last_error, owner=self, reads=reads)

    def _inputs_of(self, name: str) -> int:
        """Return how many first arguments a function only reads, as far as known: the inputs of a model."""
        models = {key: details for key, details in self.description().items() if details.executor == "aot"}
        if name == MAIN and len(models) == 1:
            (details,) = models.values()
            return len(details.inputs)
        for model, details in models.items():
            if name in (model, f"mlfc_packed_{model}", f"tvmgen_{model}___tvm_main__"):
                return len(details.inputs)
        return 0

    def _main_name(self) -> str | None:
        """Return the function to call as the library itself, if a text in it names one."""
        address = self.address(MAIN)
        if address is None or may_be_function(address):
            return None
        return ctypes.string_at(address).decode(errors="replace")

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
        found = (self._own_address(name) for name in dict.fromkeys((symbol, former(symbol))))
        return next((address for address in found if address is not None), None)

    def _own_address(self, symbol: str) -> int | None:
        try:
            address = ctypes.addressof(ctypes.c_char.in_dll(self.library, symbol))
        except ValueError:
            return None
        return address if self._defines(address) else None

    def _defines(self, address: int) -> bool:
        """Tell whether an address is in this library: symbols of its dependencies are found too."""
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
        if self.address(_SYSTEM_LIB) is None:
            return {}
        entry = self.library[_SYSTEM_LIB]
        entry.restype = ctypes.POINTER(_SystemLib)
        registry = entry().contents.registry.contents
        at = registry.names
        low, high = ctypes.string_at(at, 2)
        # TVM 0.8 wrote one byte: what would be the high byte of the count is a letter of the first name
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
            if needs_host(error):
                require_host(path)
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
    except UnicodeDecodeError as error:  # what does not load has names of any bytes, which the system's message repeats
        raise OSError(error.object.decode(errors="replace")) from None
