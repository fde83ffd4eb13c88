"""What several modules of one LLVM target share, as objects of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from llvmlite import ir

from mlfc.codegen.llvm.code import constant_objects
from mlfc.codegen.llvm.constants import ConstantGlobals
from mlfc.codegen.llvm.graph import registry_module
from mlfc.codegen.llvm.host import workspace_array
from mlfc.codegen.llvm.kernel import emit_kernel
from mlfc.codegen.llvm.kernels import empty_module
from mlfc.codegen.llvm.machine import machine_of
from mlfc.codegen.llvm.objects import CompiledObject, is_elf
from mlfc.codegen.unit import SHARED_MODULE
from mlfc.memory import PoolSpan
from mlfc.memory.pools import DEFAULT_POOL
from mlfc.support.content import Data
from mlfc.target.target import Target

if TYPE_CHECKING:
    from mlfc.codegen.link import SharedParts


def shared_objects(parts: SharedParts, target: Target) -> dict[str, Data]:
    """Return the objects of what modules share, under the names that it has in C."""
    machine, optimize = machine_of(target), target.features.optimize
    files: dict[str, Data] = {}

    def kernels() -> ir.Module:
        module = empty_module(f"{SHARED_MODULE}_lib0", machine)
        for name, kernel in parts.kernels.items():
            emit_kernel(
                module,
                kernel.prim,
                name,
                machine=machine,
                contracts=kernel.contracts,
                aliased=kernel.aliased,
            )
        return module

    def data() -> ir.Module:
        module = empty_module(f"{SHARED_MODULE}_lib1", machine)
        if parts.workspace:
            pool = PoolSpan(DEFAULT_POOL, 0, parts.workspace_bytes)
            array = workspace_array(module, parts.workspace, pool, is_elf=is_elf(machine))
            array.linkage = ""
        found = ConstantGlobals(module, parts.constants, is_elf(machine))
        for item in () if parts.constants.in_blob else parts.constants.constants:
            found.get(item.value).linkage = ""
        return module

    if parts.kernels:
        files[f"lib/{SHARED_MODULE}_lib0.o"] = CompiledObject(kernels, machine, optimize)
    if parts.workspace or parts.constants.constants:
        files[f"lib/{SHARED_MODULE}_lib1.o"] = CompiledObject(data, machine, optimize)
    files |= constant_objects(parts.constants, f"lib/{SHARED_MODULE}_lib2.o", machine)
    if parts.packed_functions is not None:
        table = partial(registry_module, f"{SHARED_MODULE}_registry", list(parts.packed_functions), machine)
        files[f"lib/{SHARED_MODULE}_registry.o"] = CompiledObject(table, machine, optimize)
    return files
