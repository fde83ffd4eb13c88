"""mlforge compiles trained models to code that runs anywhere. The public face: names only.

Names load on first use, so that a program that only runs models imports no compiler.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "import_model": "mlforge.frontend",
    "check": "mlforge.frontend",
    "build": "mlforge.build",
    "export_model_library_format": "mlforge.archive",
    "load": "mlforge.archive",
    "load_module": "mlforge.archive",
    "inspect": "mlforge.archive",
}
_MODULES = ("errors", "runtime")

__all__ = ["__version__", *_HOMES, *_MODULES]  # noqa: PLE0604  (all are strings)


class _Package(ModuleType):
    """A package whose functions stay what they are when a file of the same name is imported, as ``build`` is."""

    def __setattr__(self, name: str, value: object) -> None:
        # importing mlforge.build makes Python set this attribute to that module
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"mlforge.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mlforge' has no attribute '{name}'")
