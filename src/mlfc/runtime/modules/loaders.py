"""Loaders of stored modules by kind, the extents of stored bodies, and code without a loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeAlias

from mlfc.errors import OptionError
from mlfc.registry import Registry
from mlfc.runtime.devices.device import driver_files, import_driver
from mlfc.runtime.modules.module import RELAX, Function, Module, OpaqueModule
from mlfc.support.content import Data, to_bytes
from mlfc.support.former_name import former

SUFFIXES = ("c", "o")
"""Suffixes of the files with such code."""
Loader: TypeAlias = Callable[["bytes | memoryview"], Module]
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
