"""Shared libraries, and the trees of modules that they carry."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mlfc.errors import ArchiveError, ToolchainError
from mlfc.runtime.devices.device import Device
from mlfc.runtime.ffi.library_names import is_in_memory
from mlfc.runtime.libraries.aot_tables import names_of_models
from mlfc.runtime.libraries.factory import FactoryModule
from mlfc.runtime.libraries.factory_body import DEFAULT_KEY
from mlfc.runtime.libraries.library_file import VERSION_SYMBOL, LibraryFile, check_version, open_library_file
from mlfc.runtime.libraries.library_module import LibraryModule
from mlfc.runtime.libraries.module_set import ModuleSet
from mlfc.runtime.modules.blob import SYMBOLS, read_tree
from mlfc.runtime.modules.choice import pick_module
from mlfc.runtime.modules.description import DESCRIPTION_SYMBOL
from mlfc.runtime.modules.module import Function, Module
from mlfc.runtime.modules.runnable import HasModel, Runnable

_NEEDED = "Load the libraries that it needs before it: ctypes.CDLL(path, ctypes.RTLD_GLOBAL)"


class SharedLibrary(LibraryModule, HasModel):
    """A shared library as a module; where mlfc made it, also the model in it.

    Parameters
    ----------
    path : path
    module : str, optional
        Which model, where the library holds several.
    place : str, optional
        What messages call it; default `path`.

    Raises
    ------
    ArchiveError
        If it is for another machine, cut off, of another version, or does not load. Loading a library runs its code:
        load only what you trust.
    """

    def __init__(self, path: str | os.PathLike[str], module: str | None = None, *, place: str | None = None) -> None:
        self._load(open_library_file(path, place or str(path)), path, module)

    @classmethod
    def of_file(cls, file: LibraryFile, path: str | os.PathLike[str], module: str | None) -> SharedLibrary:
        """Load a file that was looked at."""
        library = cls.__new__(cls)
        library._load(file, path, module)
        return library

    def _load(self, file: LibraryFile, path: str | os.PathLike[str], module: str | None) -> None:
        self.place = file.place
        self._module = module
        try:
            # a bare file name would be searched for on the system's library path
            super().__init__(_absolute(path), description=file.description)
        except ToolchainError as error:
            raise ArchiveError(
                f"this library does not load: {error.__cause__}", place=self.place, next_step=_NEEDED
            ) from error
        if file.image is not None:  # it was looked at in the file, before any of its code ran
            return
        address = self.address(VERSION_SYMBOL)
        check_version(None if address is None else ctypes.c_int32.from_address(address).value, self.place)

    def find_function(self, name: str) -> Function | None:
        """Return a function; ``default``, where mlfc made the library, makes executors of the model in it."""
        found = super().find_function(name)
        if found is None and name == DEFAULT_KEY and _models_in(self):
            return self._create
        return found

    def _create(self, *devices: Device) -> Any:
        model = self.model
        return FactoryModule(self._module or DEFAULT_KEY, None, lambda _: model).create(*devices)

    @property
    def model(self) -> Runnable:
        """The model in the library.

        Raises
        ------
        ArchiveError
            If neither a description of mlfc's nor TVM's tables say what is in the library.
        OptionError
            If it has no such module, or several and none is named.
        """
        return model_of(self, self._module, self.place)


def model_of(library: LibraryModule, module: str | None, place: str) -> Runnable:
    """Return a model compiled ahead of time by what a library says of it; raise as `SharedLibrary.model`."""
    known = _models_in(library)
    if not known:
        raise ArchiveError(
            f"this library does not describe its models: no {DESCRIPTION_SYMBOL}, as libraries of mlfc have, "
            "and no get_c_metadata, as those of TVM have",
            place=place,
            next_step="Call its functions one by one: mlfc.load_module(path)[name]",
        )
    name = pick_module(known, module, place)
    found = library.find_model(name)
    if found is None:
        raise ArchiveError(
            f"the graph and the parameters of '{name}' are not in the library, which has its operators alone",
            place=place,
            next_step="Export the factory, not its lib: factory.export_library(path)",
        )
    return found


def _models_in(library: LibraryModule) -> Collection[str]:
    return library.description() or [*names_of_models(library)]


def blob_of(library: LibraryModule) -> tuple[str, memoryview] | None:
    """Return the generation of the tree in a library, and its bytes where they lie; None without one."""
    for abi, symbol in SYMBOLS.items():
        address = library.address(symbol)
        if address is not None:
            return abi, _memory(address, library.path)
    return None


def open_library(path: str | os.PathLike[str], module: str | None = None, *, place: str | None = None) -> Module:
    """Return the root of the tree in a shared library: the library itself where it carries none.

    Parameters
    ----------
    path : path
    module : str, optional
        Which model, where the library holds several.
    place : str, optional
        What messages call it; default `path`.

    Raises
    ------
    ArchiveError
        As `SharedLibrary`, and if its tree breaks the format or has modules that nothing here can read.
    """
    file = open_library_file(path, place or str(path))
    tree = file.tree()
    library = SharedLibrary.of_file(file, path, module)
    if tree is not None:
        return _asked(tree.linked(library), module, library.place)
    found = blob_of(library) if file.image is None else None
    if found is None:
        return library
    abi, view = found
    return _asked(read_tree(view, library, abi, place=library.place), module, library.place)


def _asked(root: Module, module: str | None, place: str) -> Module:
    """Return the model that is asked for, where a tree has models; raise OptionError if there is none of the name."""
    if module is None or not isinstance(root, (ModuleSet, FactoryModule)):
        return root
    if isinstance(root, ModuleSet):
        return root.pick(module, place)
    pick_module([root.name], module, place)
    return root


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if is_in_memory(text) else str(Path(text).resolve())


def _memory(address: int, path: str) -> memoryview:
    """Return what can be read from an address of a loaded library on, nothing copied."""
    if sys.platform == "linux":
        nbytes = _readable(address)
    elif path:
        nbytes = Path(path).stat().st_size
    else:  # the program itself, which needs no protection from itself
        nbytes = ctypes.sizeof(ctypes.c_uint64) + ctypes.c_uint64.from_address(address).value
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B").toreadonly()


def _readable(address: int) -> int:
    """Return how many bytes from an address on may be read, as the system's table of memory says."""
    end = address
    with Path("/proc/self/maps").open(encoding="ascii", errors="replace") as table:
        for line in table:
            span, rights = line.split(" ", 2)[:2]
            first, last = (int(text, 16) for text in span.split("-"))
            if first <= end < last and rights.startswith("r"):
                end = last
    return end - address
