"""A module for the graph executor in LLVM: operators behind packed functions, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from llvmlite import ir

from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.emit import GeneratedCode, compute_names, graph_code, launched_kernels, packed_names
from mlfc.codegen.host import tvm
from mlfc.codegen.host.launch import launching_function
from mlfc.codegen.host.packed import packed_declaration, packed_function
from mlfc.codegen.llvm.host import HostFunctions, constant_global
from mlfc.codegen.llvm.kernels import emit_kernels, empty_module, kernel_names
from mlfc.codegen.llvm.llvm_types import INT8, POINTER
from mlfc.codegen.llvm.machine import Machine
from mlfc.codegen.llvm.objects import CompiledObject, is_elf
from mlfc.codegen.unit import Shared, Unit
from mlfc.support.content import Data
from mlfc.tir.host import declaration
from mlfc.tir.ir import PrimFunc

_COUNT_BYTES = 2


def generate_graph(unit: Unit, shared: Shared, machine: Machine) -> GeneratedCode:
    """Return the code of a module for the graph executor."""
    names = packed_names(unit)
    on_device = launched_kernels(unit, names)
    optimize, module = unit.target.features.optimize, unit.module
    files: dict[str, Data] = {
        f"lib/{module}_lib1.o": CompiledObject(
            partial(_operators, unit, shared, names, on_device, machine), machine, optimize
        )
    }
    if not shared.registry:
        ordered = sorted(names[kernel.name] for kernel in unit.kernels_in_code)
        files[f"lib/{module}_lib0.o"] = CompiledObject(
            partial(registry_module, f"{module}_lib0", ordered, machine), machine, optimize
        )
    return graph_code(unit, names, files, on_device)


def registry_module(name: str, functions: Sequence[str], machine: Machine) -> ir.Module:
    """Return a module with the table by which the C runtime finds packed functions: ``TVMSystemLibEntryPoint``."""
    module = empty_module(name, machine)
    host = HostFunctions(module)
    # their number in two bytes, the low one first, then their names, each with its zero
    text = len(functions).to_bytes(_COUNT_BYTES, "little") + b"".join(b"%s\0" % item.encode() for item in functions)
    names = ir.Constant(ir.ArrayType(INT8, len(text) + 1), bytearray(text + b"\0"))
    symbols = [host.declared(packed_declaration(item)) for item in functions] or [ir.Constant(POINTER, None)]
    table = ir.Constant(ir.ArrayType(POINTER, len(symbols)), symbols)
    parts = [constant_global(module, "function_names", names), constant_global(module, "functions", table)]
    registry = constant_global(module, "registry", ir.Constant.literal_struct(parts))
    library = constant_global(module, "system_library", ir.Constant.literal_struct([registry]))
    entry = host.declared(declaration("TVMSystemLibEntryPoint", tvm.ADDRESS))
    ir.IRBuilder(entry.append_basic_block("entry")).ret(library)
    return module


def _operators(
    unit: Unit,
    shared: Shared,
    names: dict[str, str],
    on_device: Mapping[PrimFunc, Sequence[DeviceKernel]],
    machine: Machine,
) -> ir.Module:
    module = empty_module(f"{unit.module}_lib1", machine)
    computing = kernel_names(unit, shared, compute_names(names))
    emit_kernels(unit, shared, module, computing, machine, internal=True)
    functions = HostFunctions(module, has_weak=is_elf(machine))
    for kernel in unit.kernels_in_code:
        name = names[kernel.name]
        if kernel in on_device:
            functions.define(launching_function(kernel, name, on_device[kernel]))
        else:
            functions.define(packed_function(kernel, name, computing[kernel.name]))
    return module
