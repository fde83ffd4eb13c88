"""A module of the virtual machine by LLVM; `codegen.vm.code` does the same in C."""

from __future__ import annotations

from functools import partial

from llvmlite import ir

from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.emit import GeneratedCode, function_names, launched_kernels
from mlfc.codegen.llvm.code import constant_objects
from mlfc.codegen.llvm.host import HostFunctions, constant_global
from mlfc.codegen.llvm.kernels import emit_kernels, empty_module, kernel_names
from mlfc.codegen.llvm.levels import level_files, with_levels
from mlfc.codegen.llvm.llvm_types import INT32, INT64, POINTER
from mlfc.codegen.llvm.machine import Machine, machine_of
from mlfc.codegen.llvm.objects import CompiledObject, ConstantGlobals, is_elf
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.vm.code import constants_of, interface_of, kernel_devices, launch_names, vm_code
from mlfc.codegen.vm.device_launchers import device_launcher
from mlfc.codegen.vm.interface import bytecode_symbol, code_symbol, devices_symbol
from mlfc.codegen.vm.launchers import launcher
from mlfc.support.content import Data


def generate_vm_llvm(unit: Unit, shared: Shared) -> GeneratedCode:
    """Return the code of a module of the virtual machine as objects: ``lib1.o``, and ``lib2.o`` for large constants."""
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
    host, launching = HostFunctions(module), launch_names(own)
    entries = []
    on_device = launched_kernels(unit, own)
    for kernel in unit.kernels_in_code:
        if kernel in on_device:
            function = host.define(device_launcher(kernel, launching[kernel.name], on_device[kernel]))
        else:
            function = host.define(launcher(kernel, launching[kernel.name], names[kernel.name]))
        counts = (
            len(kernel.params) + len(kernel.workspaces),
            len(kernel.inputs) + len(kernel.constants),
            len(kernel.symbols),
        )
        entries.append(ir.Constant.literal_struct([function, *(ir.Constant(INT32, count) for count in counts)]))
    made = ConstantGlobals(module, constants, is_elf(machine))
    buffers = [
        ir.Constant.literal_struct([made.get(value), ir.Constant(INT64, value.nbytes)])
        for value in unit.program.constants
    ]
    table = ir.Constant.literal_struct(
        [part for name, rows in (("kernels", entries), ("constants", buffers)) for part in _counted(module, name, rows)]
    )
    exported = ir.GlobalVariable(module, table.type, code_symbol(unit.module))
    exported.initializer, exported.global_constant = table, True
    devices = kernel_devices(unit)
    if devices:
        kinds = ir.Constant(ir.ArrayType(INT32, len(devices)), devices)
        exported = ir.GlobalVariable(module, kinds.type, devices_symbol(unit.module))
        exported.initializer, exported.global_constant = kinds, True
    data = bytearray(interface_of(unit).bytecode)
    bytecode = ir.Constant(ir.ArrayType(ir.IntType(8), len(data)), data)
    exported = ir.GlobalVariable(module, bytecode.type, bytecode_symbol(unit.module))
    exported.initializer, exported.global_constant = bytecode, True
    return module


def _counted(module: ir.Module, name: str, rows: list[ir.Constant]) -> tuple[ir.Constant, ir.Constant]:
    """Return the number of rows, and the address of their table."""
    if not rows:
        return ir.Constant(INT32, 0), ir.Constant(POINTER, None)
    table = constant_global(module, name, ir.Constant(ir.ArrayType(rows[0].type, len(rows)), rows))
    return ir.Constant(INT32, len(rows)), table
