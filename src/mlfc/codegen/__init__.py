"""C and LLVM code generation from loop-level IR, and the files of compiled modules."""

from __future__ import annotations

from mlfc.codegen.emit import CodeSizes, DeviceCode, GeneratedCode, constant_pools, level_paths
from mlfc.codegen.link import LinkedCode, generate, generate_together
from mlfc.codegen.unit import SHARED_MODULE, Shared, Unit, check_executor
from mlfc.codegen.vm.code import executable_of

__all__ = [
    "SHARED_MODULE",
    "CodeSizes",
    "DeviceCode",
    "GeneratedCode",
    "LinkedCode",
    "Shared",
    "Unit",
    "check_executor",
    "constant_pools",
    "executable_of",
    "generate",
    "generate_together",
    "level_paths",
]
