"""What makes modules of their stored bytes, by kind, and how far these bytes go."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from mlfc.errors import OptionError
from mlfc.registry import Registry
from mlfc.runtime.modules.external_code import SUFFIXES, ExternalCode
from mlfc.runtime.modules.module import Module, OpaqueModule
from mlfc.support.content import ViewContent
from mlfc.support.former_name import former

Loader: TypeAlias = Callable[["bytes | memoryview"], Module]
Extent: TypeAlias = Callable[[memoryview], int]

loaders: Registry[Loader] = Registry("kind of module")
"""What makes modules of their stored bytes, by type key."""

extents: dict[str, Extent] = {}
"""How many bytes the body of a module has that starts at the first byte of a view, by type key.

TVM's classic stream stores bodies without their lengths, so whoever reads it must know these kinds.
"""

_TVM_KINDS = "mlfc.runtime.modules.tvm_kinds"
# kinds that come with mlfc are imported when a file holds one
_BUILT_IN = {
    "onnxruntime": "mlfc.runtime.modules.onnxruntime_module",
    "opencl": "mlfc.runtime.modules.opencl_module",
    "cuda": "mlfc.runtime.modules.cuda_module",
    **dict.fromkeys(("mlfc.ModuleSet", former("mlfc.ModuleSet")), "mlfc.runtime.libraries.module_set"),
    **dict.fromkeys(
        ("GraphExecutorFactory", "GraphRuntimeFactory", "AotExecutorFactory"), "mlfc.runtime.libraries.factory"
    ),
}


def register_loader(type_key: str, extent: Extent | None = None) -> Callable[[Loader], Loader]:
    """Return a decorator that makes a function the loader of a kind of module.

    The function takes the stored bytes, which nobody has checked, as `bytes` or as a `memoryview` of a file, and
    returns the module without its imports.

    Parameters
    ----------
    type_key : str
    extent : callable, optional
        Takes a view and returns how many bytes the body has that starts there, for a kind whose bytes others write
        into TVM's classic stream, which has no lengths. Without it mlfc writes a length before the bytes there.

    Raises
    ------
    OptionError
        If the kind has a loader already.
    """
    _import_kind(type_key)
    if type_key in loaders:
        raise OptionError(f"a loader for modules of kind '{type_key}' is already registered")
    if extent is not None:
        extents[type_key] = extent
    return loaders.register(type_key)


def is_known(type_key: str) -> bool:
    """Tell whether something here reads the bytes of a kind."""
    _import_kind(type_key)
    return type_key in loaders or type_key in extents


def extent_of(type_key: str) -> Extent | None:
    """Return how far the bodies of a kind go; None for a kind that stands in streams with its length before it."""
    _import_kind(type_key)
    return extents.get(type_key)


def known_kinds() -> tuple[str, ...]:
    """Return the kinds that have a loader, those that are not imported yet included."""
    return tuple(sorted({*loaders, *_BUILT_IN}))


def load_from_bytes(type_key: str, data: bytes | memoryview, suffix: str = "bin") -> Module:
    """Return the module that was stored as `data`; an `OpaqueModule` where no loader knows its kind."""
    _import_kind(type_key)
    if type_key not in loaders:
        return OpaqueModule(type_key, data, suffix)
    return loaders.get(type_key)(data)


def load_part(type_key: str, data: bytes | memoryview, suffix: str, name: str) -> Module:
    """Return the module that lies in a file of an archive or of a compiled model.

    Parameters
    ----------
    type_key : str
    data : bytes-like
    suffix, name : str
        Of the file. C and objects of kinds that have no loader are code, to be built with what imports it.
    """
    _import_kind(type_key)
    if type_key not in loaders and suffix in SUFFIXES:
        return ExternalCode(type_key, ViewContent(memoryview(data)), suffix, name)
    return load_from_bytes(type_key, data, suffix)


def _import_kind(type_key: str) -> None:
    if type_key not in loaders:
        import_module(_BUILT_IN.get(type_key, _TVM_KINDS))
