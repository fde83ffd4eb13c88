"""Model Library Format archives: written, read, described, checked, loaded.

Names load on first use: loading an archive needs nothing of what writes one, and starts in a third of the time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlfc.archive.compare.diff import diff as diff
    from mlfc.archive.describe.inspect import inspect as inspect
    from mlfc.archive.describe.profile import load_profiled
    from mlfc.archive.read.load import load as load
    from mlfc.archive.read.load import load_module
    from mlfc.archive.validate.validate import validate as validate
    from mlfc.archive.write.export import (
        code_files,
        export_model_library_format,
        object_files,
        source_folder,
    )
    from mlfc.archive.write.migrate import migrate as migrate
    from mlfc.archive.write.rebuild import rebuild as rebuild
    from mlfc.archive.write.rebuild import recorded_options

_HOMES = {
    "code_files": "write.export",
    "diff": "compare.diff",
    "export_model_library_format": "write.export",
    "inspect": "describe.inspect",
    "load": "read.load",
    "load_module": "read.load",
    "load_profiled": "describe.profile",
    "migrate": "write.migrate",
    "object_files": "write.export",
    "rebuild": "write.rebuild",
    "recorded_options": "write.rebuild",
    "source_folder": "write.export",
    "validate": "validate.validate",
}

__all__ = [
    "code_files",
    "diff",
    "export_model_library_format",
    "inspect",
    "load",
    "load_module",
    "load_profiled",
    "migrate",
    "object_files",
    "rebuild",
    "recorded_options",
    "source_folder",
    "validate",
]


class _Package(ModuleType):
    """Gives functions precedence over the submodules that have their names."""

    def __setattr__(self, name: str, value: Any) -> None:
        # importing a submodule sets it as an attribute of its package
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'mlfc.archive' has no attribute '{name}'")
        function = getattr(import_module(f"mlfc.archive.{_HOMES[name]}"), name)
        setattr(self, name, function)
        return function


sys.modules[__name__].__class__ = _Package
