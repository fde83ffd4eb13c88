"""mlforge compiles trained models to code that runs anywhere. The public face: names only.

Names load on first use, so that a program that only runs models imports no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlforge import errors, runtime
    from mlforge.archive.diff import diff as diff
    from mlforge.archive.export import export_model_library_format
    from mlforge.archive.inspect import inspect as inspect
    from mlforge.archive.load import load as load
    from mlforge.archive.load import load_module
    from mlforge.archive.migrate import migrate as migrate
    from mlforge.archive.rebuild import rebuild as rebuild
    from mlforge.compiler import build, check
    from mlforge.frontend import import_model
    from mlforge.memory import ConstantPool, Pool
    from mlforge.runtime.device import cpu, cuda, device, opencl

__version__ = "0.1.0"

_HOMES = {
    "import_model": "mlforge.frontend",
    "check": "mlforge.compiler",
    # of the module: the package mlforge.runtime has a module of the same name as one of them
    "cpu": "mlforge.runtime.device",
    "cuda": "mlforge.runtime.device",
    "device": "mlforge.runtime.device",
    "opencl": "mlforge.runtime.device",
    "build": "mlforge.compiler",
    "export_model_library_format": "mlforge.archive",
    "load": "mlforge.archive",
    "load_module": "mlforge.archive",
    "inspect": "mlforge.archive",
    "diff": "mlforge.archive",
    "migrate": "mlforge.archive",
    "rebuild": "mlforge.archive",
    "Pool": "mlforge.memory",
    "ConstantPool": "mlforge.memory",
}
_MODULES = ("errors", "runtime")

__all__ = [
    "ConstantPool",
    "Pool",
    "__version__",
    "build",
    "check",
    "cpu",
    "cuda",
    "device",
    "diff",
    "errors",
    "export_model_library_format",
    "import_model",
    "inspect",
    "load",
    "load_module",
    "migrate",
    "opencl",
    "rebuild",
    "runtime",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"mlforge.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mlforge' has no attribute '{name}'")
