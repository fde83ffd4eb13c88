"""Packages whose public names are imported on first use."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that imports its names on first use, from their modules in `_HOMES`; a submodule is its own home.

    These names have precedence over submodules of the same name.
    """

    _HOMES: dict[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        # importing a submodule sets it as an attribute of its package
        if isinstance(value, ModuleType) and self._HOMES.get(name, value.__name__) != value.__name__:
            return
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        home = self.__dict__["_HOMES"].get(name)
        if home is None:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        from mlfc.errors import required_for

        with required_for(f"{self.__name__}.{name}"):
            module = import_module(home)
        found = module if home == f"{self.__name__}.{name}" else getattr(module, name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        # hide the imports of the package's file
        return sorted({*self._HOMES, *(name for name in super().__dir__() if name.startswith("__"))})


def make_lazy(package: str) -> None:
    """Make a package that is being imported, and has ``_HOMES``, load its names on first use."""
    module = sys.modules[package]
    module.__dict__.setdefault("__all__", sorted(module.__dict__["_HOMES"]))
    module.__class__ = LazyPackage
