"""A dynamic model by LLVM; `codegen.vm.code` does the same in C."""

from __future__ import annotations

from functools import partial

from llvmlite import ir

from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.emit import GeneratedCode, function_names
from mlfc.codegen.llvm.code import constant_objects
from mlfc.codegen.llvm.host import HostFunctions
from mlfc.codegen.llvm.kernels import emit_kernels, empty_module, kernel_names
from mlfc.codegen.llvm.levels import level_files, with_levels
from mlfc.codegen.llvm.machine import Machine, machine_of
from mlfc.codegen.llvm.objects import CompiledObject, ConstantGlobals, is_elf
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.vm.code import constants_of, host_functions, vm_code
from mlfc.support.content import Data


def generate_vm_llvm(unit: Unit, shared: Shared) -> GeneratedCode:
    """Return the code of a dynamic model as objects: ``lib1.o``, and ``lib2.o`` for large constants."""
    machine, constants = machine_of(unit.target, unit.only_level), constants_of(unit)
    names, optimize = kernel_names(unit, shared, function_names(unit)), unit.target.features.optimize
    files: dict[str, Data] = {
        f"lib/{unit.module}_lib1.o": CompiledObject(
            partial(_module, unit, shared, constants, machine), machine, optimize
        ),
        **constant_objects(constants, f"lib/{unit.module}_lib2.o", machine),
        **level_files(unit, shared, names, internal=True),
    }
    return with_levels(unit, vm_code(unit, constants, names, files))


def _module(unit: Unit, shared: Shared, constants: ConstantTable, machine: Machine) -> ir.Module:
    module = empty_module(f"{unit.module}_lib1", machine)
    own = function_names(unit)
    names = kernel_names(unit, shared, own)
    emit_kernels(unit, shared, module, names, machine, internal=True)
    globals_of = ConstantGlobals(module, constants, is_elf(machine))
    for value in unit.program.constants:
        globals_of.get(value)
    traced = not unit.target.features.is_microcontroller
    host = HostFunctions(module, traced, has_weak=is_elf(machine))
    for function in host_functions(unit, constants, {**own, **names}, {}):
        host.define(function)
    return module
