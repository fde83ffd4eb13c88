"""mlfc compiles trained models to code that runs anywhere. The public face: names only.

Names load on first use, so that a program that only runs models imports no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlfc import errors, runtime
    from mlfc.archive.compare.diff import diff as diff
    from mlfc.archive.describe.inspect import inspect as inspect
    from mlfc.archive.read.load import load as load
    from mlfc.archive.read.load import load_module
    from mlfc.archive.write.export import export_model_library_format
    from mlfc.archive.write.migrate import migrate as migrate
    from mlfc.archive.write.rebuild import rebuild as rebuild
    from mlfc.compiler import build
    from mlfc.frontend import import_model
    from mlfc.memory import ConstantPool, Pool
    from mlfc.problems import check
    from mlfc.runtime.devices.device import cpu, cuda, device, opencl

__version__ = "0.1.0"

_HOMES = {
    "import_model": "mlfc.frontend",
    "check": "mlfc.problems",
    # of the module: the package mlfc.runtime has a module of the same name as one of them
    "cpu": "mlfc.runtime.devices.device",
    "cuda": "mlfc.runtime.devices.device",
    "device": "mlfc.runtime.devices.device",
    "opencl": "mlfc.runtime.devices.device",
    "build": "mlfc.compiler",
    "export_model_library_format": "mlfc.archive",
    "load": "mlfc.archive",
    "load_module": "mlfc.archive",
    "inspect": "mlfc.archive",
    "diff": "mlfc.archive",
    "migrate": "mlfc.archive",
    "rebuild": "mlfc.archive",
    "Pool": "mlfc.memory",
    "ConstantPool": "mlfc.memory",
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
        return import_module(f"mlfc.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mlfc' has no attribute '{name}'")
