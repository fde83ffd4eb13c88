"""Modules (code, or data that a runtime can execute), their imports, and global functions that code finds by name.

Stored modules have loaders by kind, and extents of their bodies; those of other kinds are kept as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypeVar, overload

from mlfc.errors import InputError, OptionError, unknown
from mlfc.registry import Registry
from mlfc.runtime.devices.device import driver_files, import_driver
from mlfc.support.content import Data, to_bytes
from mlfc.support.former_name import former
from mlfc.support.text import Displayed

if TYPE_CHECKING:
    from mlfc.runtime.modules.runnable import LoadedOrigin, Runnable
    from mlfc.support.module_info import ModuleInterface

Function: TypeAlias = Callable[..., Any]

BINARY_SERIALIZABLE, RUNNABLE, DSO_EXPORTABLE = 1, 2, 4
"""Bits of `Module.property_mask`, with TVM's values."""

MAIN = "__tvm_main__"
"""Name under which callers look up the entry of a module."""
F = TypeVar("F", bound=Function)
SET_DEVICE = "__tvm_set_device"
_functions: dict[str, Function] = {}

RELAX = "relax.VMExecutable"
"""The kind of modules with bytecode or compiled code for TVM's Relax virtual machine."""
SUFFIXES = ("c", "o")
"""Suffixes of the files with code of kinds without a loader."""
Loader: TypeAlias = "Callable[[bytes | memoryview], Module]"
Extent: TypeAlias = Callable[[memoryview], int]
loaders: Registry[Loader] = Registry("kind of module")
"""Loader of each kind of module from its stored bytes, by type key."""
extents: dict[str, Extent] = {}
"""Size in bytes of the stored body that starts at the first byte of a view, by type key.

TVM's classic stream stores bodies without their lengths, so its readers must know these kinds.
"""
_TVM_KINDS = "mlfc.runtime.modules.tvm_kinds"
# kinds that need more than TVM's data are imported when a file contains one
_BUILT_IN = {
    "onnxruntime": "mlfc.runtime.modules.onnxruntime_module",
    "mlfc.vm": "mlfc.runtime.executors.vm.vm_module",
    RELAX: "mlfc.runtime.executors.relax_module",
    **dict.fromkeys(("mlfc.ModuleSet", former("mlfc.ModuleSet")), "mlfc.runtime.libraries.factory"),
    **dict.fromkeys(
        ("GraphExecutorFactory", "GraphRuntimeFactory", "AotExecutorFactory"), "mlfc.runtime.libraries.factory"
    ),
}


class Module(Displayed):
    """A module of functions; query its abilities with the attributes ``is_*``, not by its class.

    A new kind overrides `type_key`, `find_function` and, if it can be stored, `save_to_bytes`, and registers a loader
    with `register_loader`.

    Attributes
    ----------
    type_key : str
        Its kind, named as in TVM if TVM has it: ``c``, ``library``, ``GraphExecutorFactory``, ...
    format : str
        The suffix of the file that holds it.
    is_runnable : bool
        True if its functions can be called in this process.
    is_binary_serializable : bool
        True if `save_to_bytes` is supported.
    is_dso_exportable : bool
        True if it is code that is compiled and linked into a library.
    entry_name : str
        Name of the function that calling the module calls.
    files : mapping of str to Data
        Sources, headers and objects, by relative path, of a module that is linked into a library.
    """

    type_key = "module"
    format = "bin"
    is_runnable = False
    is_binary_serializable = False
    is_dso_exportable = False
    entry_name = MAIN
    files: Mapping[str, Data] = MappingProxyType({})
    # of the root of a tree loaded by `load_module`
    origin: LoadedOrigin | None = None

    def __init__(self) -> None:
        self._imports: list[Module] = []

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # other kinds may be pickled differently
        return super().__reduce_ex__(protocol) if self.origin is None else self.origin.reduced()

    def _facts(self) -> Mapping[str, object]:
        return {"type_key": self.type_key, "imports": [module.type_key for module in self._imports]}

    @property
    def property_mask(self) -> int:
        """The module's abilities as a bit mask: 1 can be stored, 2 can be run, 4 can be linked into a library."""
        return (
            BINARY_SERIALIZABLE * self.is_binary_serializable
            | RUNNABLE * self.is_runnable
            | DSO_EXPORTABLE * self.is_dso_exportable
        )

    @property
    def imported_modules(self) -> tuple[Module, ...]:
        """Imported modules, whose functions this one may call, in order."""
        return tuple(self._imports)

    def import_module(self, module: Module) -> None:
        """Add a module to the imports.

        Raises
        ------
        OptionError
            If it imports this one, directly or through other modules: cycles are not allowed.
        InputError
            If it is not a module.
        """
        if not isinstance(module, Module):
            raise InputError(
                f"expected a module to import, got {module!r}", next_step="Load it first: mlfc.load_module(path)"
            )
        if any(member is self for member in module.walk()):
            raise OptionError(
                f"the module '{module.type_key}' imports this '{self.type_key}' module already",
                next_step="Import in one direction only",
            )
        self._imports.append(module)

    def walk(self) -> Iterator[Module]:
        """Yield this module and all its imports, depth first, each once."""
        seen: set[int] = set()
        stack: list[Module] = [self]
        while stack:
            module = stack.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield module
                stack.extend(reversed(module.imported_modules))

    def find_function(self, name: str) -> Function | None:  # noqa: ARG002  (kinds override it)
        """Return a function of this module itself, or None."""
        return None

    def implements_function(self, name: str, query_imports: bool = False) -> bool:
        """Return whether a function exists, here or, with `query_imports`, in the imports."""
        return self._lookup(name, query_imports) is not None

    def get_function(self, name: str, query_imports: bool = False) -> Function:
        """Return a function, with `query_imports` also of imports, depth first; raise OptionError if it is missing."""
        function = self._lookup(name, query_imports)
        if function is None:
            place = f"module '{self.type_key}'" + (" and its imports" if query_imports else "")
            raise OptionError(f"unknown function '{name}'", place=place)
        return function

    def _lookup(self, name: str, query_imports: bool) -> Function | None:
        for module in self.walk() if query_imports else (self,):
            function = module.find_function(name)
            if function is not None:
                return function
        return None

    def __getitem__(self, name: str) -> Function:
        return self.get_function(name)

    @property
    def entry(self) -> Function:
        """Function that calling the module calls, its own or of an import; raises OptionError if it is missing."""
        return self.get_function(self.entry_name, query_imports=True)

    def __call__(self, *args: Any) -> Any:
        """Call `entry`."""
        return self.entry(*args)

    def description(self) -> Mapping[str, ModuleInterface]:
        """Return the code's description of its models, by name."""
        return {}

    def find_model(self, name: str) -> Runnable | None:  # noqa: ARG002  (libraries override it)
        """Return the model of this name that was compiled ahead of time into this module itself, or None."""
        return None

    def get_source(self) -> str:
        """Return the source text of the module; empty if it has none."""
        return ""

    def save_to_bytes(self) -> bytes:
        """Return the stored form, which its loader reads; raise OptionError unless `is_binary_serializable`."""
        if type(self).stored is not Module.stored:
            return to_bytes(self.stored())
        known = {"be run": self.is_runnable, "be linked into libraries": self.is_dso_exportable}
        abilities = " and ".join(word for word, can in known.items() if can) or "only be imported"
        raise OptionError(
            f"modules of the kind '{self.type_key}' cannot be stored as bytes: this one can {abilities}",
            next_step="Export the code that they were built from",
        )

    def export_library(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write a loaded module as a library.

        A loaded library or tar of objects is copied. A model from an archive is compiled again, with the options of
        `mlfc.build(...).export_library`.

        Raises
        ------
        OptionError
            If the module was not returned by `mlfc.load_module`, has other imports since, or is a library that is
            requested in another form.
        ArchiveError
            If the archive lacks the model's source.
        """
        if self.origin is None or self.origin.exporter is None:
            raise OptionError(
                "expected a module that mlfc.load_module returned, got another one",
                place=self.type_key,
                next_step="Export what mlfc.load_module or mlfc.build returned, whole",
            )
        if len([*self.walk()]) != self.origin.members:
            raise OptionError(
                "modules were imported after this one was loaded, and a copy of its file would lack them",
                place=self.type_key,
                next_step="Import them into the library that mlfc.build returned, and export that",
            )
        return self.origin.exporter(self.origin, path, **options)

    def stored(self) -> Data:
        """Return the stored form of `save_to_bytes` in pieces; kinds with much data override this method."""
        return self.save_to_bytes()


class OpaqueModule(Module):
    """A module of a kind without a loader, kept so that exporting again is lossless.

    `data` is as stored, and a view stays a view; `suffix` is that of its file, without the dot.
    """

    is_binary_serializable = True

    def __init__(self, type_key: str, data: bytes | memoryview, suffix: str = "bin") -> None:
        super().__init__()
        self.type_key = type_key
        self._data = data
        self.format = suffix

    def stored(self) -> Data:
        """Return the bytes without a copy."""
        return self._data

    def get_function(self, name: str, query_imports: bool = False) -> Function:
        """Return a function of an import; otherwise raise OptionError with the missing loader."""
        function = self._lookup(name, query_imports)
        if function is None:
            raise OptionError(
                f"'{name}' cannot be looked up: no loader for modules of kind '{self.type_key}'",
                next_step=f"Register one with mlfc.runtime.register_loader('{self.type_key}')",
            )
        return function


def link_tree(modules: Sequence[Module], children: Sequence[Iterable[int]]) -> None:
    """Set the imports of modules, by index; imports must come after their importers, which rules out cycles."""
    for module, indices in zip(modules, children, strict=True):
        module._imports.extend(modules[index] for index in indices)


def pick_module(modules: Iterable[str], name: str | None, place: str) -> str:
    """Return the requested module, or the only one; raise OptionError otherwise."""
    known = sorted(modules)
    names = ", ".join(known)
    if name is None and len(known) != 1:
        raise OptionError(f"expected one module, got {len(known)}", place=place, next_step=f"Name one of: {names}")
    chosen = known[0] if name is None else name
    if chosen not in known:
        raise OptionError(unknown("module", chosen, known), place=place)
    return chosen


@overload
def register_global_func(name: str, *, override: bool = False) -> Callable[[F], F]: ...
@overload
def register_global_func(name: str, function: F, *, override: bool = False) -> F: ...
def register_global_func(name: str, function: F | None = None, *, override: bool = False) -> F | Callable[[F], F]:
    """Register a Python function that compiled code calls by name.

    Parameters
    ----------
    name : str
    function : callable, optional
        Takes numbers, strings, bytes, None and arrays, which are views of memory that lives as long as the call;
        returns a number, a string or None. If omitted, the result is a decorator.
    override : bool
        Replace an existing function of this name.

    Raises
    ------
    OptionError
        If the name is taken.
    """
    if function is None:
        return lambda decorated: register_global_func(name, decorated, override=override)
    if not override and find_global_func(name) is not None:
        raise OptionError(f"global function '{name}' is already registered", next_step="Pass override=True")
    _functions[name] = function
    return function


def get_global_func(name: str) -> Function:
    """Return a global function; raise OptionError if it does not exist."""
    function = find_global_func(name)
    if function is None:
        raise OptionError(unknown("global function", name, _functions))
    return function


def find_global_func(name: str) -> Function | None:
    """Return a global function, or None."""
    if name == SET_DEVICE and name not in _functions:
        from mlfc.runtime.devices.device import set_device

        _functions[SET_DEVICE] = set_device
    return _functions.get(name)


class ExternalCode(Module):
    """A code file as a module of the kind `generator`, built by the module that imports it.

    `data` is C or a relocatable object, by `suffix`. The file's `name`, without the suffix, is unique among all code
    built together; `files` contains it by path.
    """

    is_binary_serializable = True
    is_dso_exportable = True

    def __init__(self, generator: str, data: Data, suffix: str, name: str) -> None:
        super().__init__()
        self.type_key = generator
        self._data = data
        self.format = suffix
        self.files: Mapping[str, Data] = {f"external/{name}.{suffix}": data}

    def get_source(self) -> str:
        """Return the source text; empty for an object."""
        return to_bytes(self._data).decode() if self.format == "c" else ""

    def stored(self) -> Data:
        """Return the file's bytes."""
        return self._data

    def get_function(self, name: str, query_imports: bool = False) -> Function:
        """Raise OptionError: only the module that imports the code can be called."""
        raise OptionError(
            f"'{name}' cannot be looked up in code that is not built by itself",
            place=f"module '{self.type_key}'",
            next_step="Look it up in the module that imports this one" if not query_imports else None,
        )


def register_loader(type_key: str, extent: Extent | None = None) -> Callable[[Loader], Loader]:
    """Return a decorator that registers a function as the loader of a kind of module.

    The function takes the stored bytes, which are unchecked, as `bytes` or as a `memoryview` of a file, and returns the
    module without its imports.

    Parameters
    ----------
    type_key : str
    extent : callable, optional
        Takes a view and returns the size of the body that starts there; required for kinds that TVM writes into its
        classic stream, which has no lengths. Without it, mlfc writes a length before the body there.

    Raises
    ------
    OptionError
        If the kind already has a loader.
    """
    _import_kind(type_key)
    if type_key in loaders:
        raise OptionError(f"a loader for modules of kind '{type_key}' is already registered")
    if extent is not None:
        extents[type_key] = extent
    return loaders.register(type_key)


def is_known(type_key: str) -> bool:
    """Return whether the bytes of a kind can be read here."""
    _import_kind(type_key)
    return type_key in loaders or type_key in extents


def extent_of(type_key: str) -> Extent | None:
    """Return the function that measures a kind's stored bodies; None for a kind stored with its length."""
    _import_kind(type_key)
    return extents.get(type_key)


def known_kinds() -> tuple[str, ...]:
    """Return the kinds with a loader, including those not yet imported."""
    return tuple(sorted({*loaders, *_BUILT_IN, *(driver_files() - {"cpu"})}))


def load_from_bytes(type_key: str, data: bytes | memoryview, suffix: str = "bin") -> Module:
    """Return the module that was stored as `data`; an `OpaqueModule` if its kind has no loader."""
    _import_kind(type_key)
    if type_key not in loaders:
        return OpaqueModule(type_key, data, suffix)
    return loaders.get(type_key)(data)


def load_part(type_key: str, data: bytes | memoryview, suffix: str, name: str) -> Module:
    """Return the module in a file of an archive or of a compiled model, with this `suffix` and `name`.

    C and objects of kinds without a loader are code that is built with the importing module.
    """
    _import_kind(type_key)
    if type_key not in loaders and suffix in SUFFIXES:
        return ExternalCode(type_key, data, suffix, name)
    return load_from_bytes(type_key, data, suffix)


def _import_kind(type_key: str) -> None:
    if type_key in driver_files():
        import_driver(type_key)
    elif type_key not in loaders:
        import_module(_BUILT_IN.get(type_key, _TVM_KINDS))
