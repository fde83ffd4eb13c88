"""Shared libraries, code linked into this process, and the module trees in them."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

from mlfc.errors import ArchiveError, OptionError, ToolchainError
from mlfc.runtime.ffi.library_names import is_in_memory
from mlfc.runtime.ffi.native_code import FFI_PREFIX
from mlfc.runtime.libraries.factory import DEFAULT_KEY, FactoryModule, ModuleSet
from mlfc.runtime.libraries.library_file import (
    DESCRIPTION_SYMBOL,
    VERSION_SYMBOL,
    LibraryFile,
    check_version,
    open_library_file,
)
from mlfc.runtime.libraries.library_module import LibraryModule, names_of_models
from mlfc.runtime.modules.blob import SYMBOLS, read_tree
from mlfc.runtime.modules.module import Function, Module, pick_module
from mlfc.runtime.modules.runnable import HasModel, Runnable

_NEEDED = "Load the libraries that it needs before it: ctypes.CDLL(path, ctypes.RTLD_GLOBAL)"
_symbols: dict[str, int] = {}
# name of the program in the system's loader
_PROGRAM = ""
_PLACE = "system library"


class SharedLibrary(LibraryModule, HasModel):
    """A shared library as a module; if mlfc made it, also the model in it.

    `module` selects one of several models; `place` names the library in messages, by default `path`. Loading a library
    runs its code: load only what you trust. Raises ArchiveError if it is for another machine, truncated, of another
    version, or does not load.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        module: str | None = None,
        *,
        place: str | None = None,
        _checked: LibraryFile | None = None,
    ) -> None:
        file = _checked or open_library_file(path, place or str(path))
        self.place = file.place
        self._module = module
        try:
            # a bare file name would be searched for on the system's library path
            text = os.fspath(path)
            absolute = text if is_in_memory(text) else str(Path(text).resolve())
            super().__init__(absolute, description=file.description)
        except ToolchainError as error:
            cause = str(error.__cause__)
            raise ArchiveError(f"this library does not load: {cause}", place=self.place, next_step=_NEEDED) from error
        if file.image is not None:  # its version was already checked in the file, before any of its code ran
            return
        address = self.address(VERSION_SYMBOL)
        check_version(None if address is None else ctypes.c_int32.from_address(address).value, self.place)

    def find_function(self, name: str) -> Function | None:
        """Return a function; ``default`` creates executors of the model in a library of mlfc."""
        found = super().find_function(name)
        if found is None and name == DEFAULT_KEY and _models_in(self):
            name = self._module or DEFAULT_KEY
            return lambda *devices: FactoryModule(name, None, lambda _: self.model).create(*devices)
        return found

    @property
    def model(self) -> Runnable:
        """The model in the library.

        Raises ArchiveError if neither a description by mlfc nor TVM's tables describe the library; OptionError if the
        module is unknown, or no name is given for several.
        """
        return model_of(self, self._module, self.place)


def model_of(library: LibraryModule, module: str | None, place: str) -> Runnable:
    """Return a model compiled ahead of time by a library's description; raises the errors of `SharedLibrary.model`."""
    known = _models_in(library)
    if not known:
        raise ArchiveError(
            f"this library does not describe its models: it has neither {DESCRIPTION_SYMBOL}, as libraries by mlfc, "
            "nor get_c_metadata, as those by TVM",
            place=place,
            next_step="Call its functions one by one: mlfc.load_module(path)[name]",
        )
    name = pick_module(known, module, place)
    found = library.find_model(name)
    if found is None:
        raise ArchiveError(
            f"the graph and the parameters of '{name}' are not in the library, which contains only its operators",
            place=place,
            next_step="Export the factory, not its lib: factory.export_library(path)",
        )
    return found


def _models_in(library: LibraryModule) -> Collection[str]:
    return library.description() or [*names_of_models(library)]


def _root_of(library: LibraryModule, place: str) -> Module:
    """Return the root of the module tree in the memory of a library; the library itself without a tree."""
    for abi, symbol in SYMBOLS.items():
        address = library.address(symbol)
        if address is not None:
            return read_tree(_memory(address, library.path), library, abi, place=place)
    return library


def open_library(path: str | os.PathLike[str], module: str | None = None, *, place: str | None = None) -> Module:
    """Return the root of the module tree in a shared library: the library itself if it has no tree.

    Parameters are those of `SharedLibrary`. Raises ArchiveError like `SharedLibrary`, and if the tree is malformed or
    has
    modules that cannot be read here.
    """
    file = open_library_file(path, place or str(path))
    tree = file.tree()
    library = SharedLibrary(path, module, _checked=file)
    if tree is not None:
        return _asked(tree(library), module, library.place)
    if file.image is not None:
        return library
    root = _root_of(library, library.place)
    return library if root is library else _asked(root, module, library.place)


def _asked(root: Module, module: str | None, place: str) -> Module:
    """Return the requested model if a tree has models; raise OptionError for an unknown name."""
    if module is None or not isinstance(root, (ModuleSet, FactoryModule)):
        return root
    if isinstance(root, ModuleSet):
        return root.pick(module, place)
    pick_module([root.name], module, place)
    return root


def _memory(address: int, path: str) -> memoryview:
    """Return the readable memory from an address of a loaded library on, without a copy."""
    if sys.platform == "linux":
        end = address
        with Path("/proc/self/maps").open(encoding="ascii", errors="replace") as table:
            for line in table:
                span, rights = line.split(" ", 2)[:2]
                first, last = (int(text, 16) for text in span.split("-"))
                if first <= end < last and rights.startswith("r"):
                    end = last
        nbytes = end - address
    elif path:
        nbytes = Path(path).stat().st_size
    else:  # the program itself is trusted
        nbytes = ctypes.sizeof(ctypes.c_uint64) + ctypes.c_uint64.from_address(address).value
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B").toreadonly()


def register_system_symbol(name: str, address: int) -> None:
    """Register a function or variable of this process for `system_library` that the system's loader does not find.

    An extension module with private symbols registers them when it is imported. The name is the one in the code, prefix
    included, and the address must stay valid as long as the process runs. Raises OptionError if the address is not
    positive, or the name is taken.
    """
    if not name or address <= 0 or _symbols.get(name, address) != address:
        raise OptionError(
            f"the symbol '{name}' cannot be registered at {address:#x}",
            next_step="Use unique symbol names in the process; a prefix separates the symbols of two models",
        )
    _symbols[name] = address
    system_library.cache_clear()


class SystemLibrary(LibraryModule, HasModel):
    """The code linked into this process as a module; symbols may start with `prefix`."""

    type_key = "system_lib"

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.place = f"{_PLACE} '{prefix}'" if prefix else _PLACE
        try:
            super().__init__(_PROGRAM)
        except ToolchainError as error:
            raise ArchiveError(
                f"this system cannot look up symbols in the running program: {error.__cause__}", place=self.place
            ) from error

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol, or None."""
        # tvm-ffi's function prefix comes first
        is_marked = symbol.startswith(FFI_PREFIX) and not symbol.startswith(f"{FFI_PREFIX}_")
        mark = FFI_PREFIX if is_marked else ""
        for name in dict.fromkeys((f"{mark}{self._prefix}{symbol.removeprefix(mark)}", symbol)):
            found = _symbols.get(name) or super().address(name)
            if found is not None:
                return found
        return None

    def _defines(self, address: int) -> bool:
        return bool(address)

    @property
    def model(self) -> Runnable:
        """The model that is linked in; see `SharedLibrary.model`."""
        return model_of(self, None, self.place)


@cache
def system_library(prefix: str = "") -> Module:
    """Return the root of the module tree linked into this process: the `SystemLibrary` itself without a tree.

    It finds global symbols, of a program linked with ``-rdynamic`` or a library loaded with ``RTLD_GLOBAL``, and those
    of `register_system_symbol`; all start with `prefix`. Raises ArchiveError if the tree is malformed or has modules
    that cannot be read here.
    """
    library = SystemLibrary(prefix)
    return _root_of(library, library.place)
