"""A module for the graph executor in LLVM: operators behind packed functions, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from llvmlite import ir

from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.emit import GeneratedCode, compute_names, graph_code, launched_kernels, packed_names
from mlfc.codegen.host.aot import kernel_declaration
from mlfc.codegen.llvm.argument_checks import ArgumentChecks
from mlfc.codegen.llvm.host import HostFunctions
from mlfc.codegen.llvm.kernels import emit_kernels, empty_module, kernel_names
from mlfc.codegen.llvm.launch import LaunchingFunctions
from mlfc.codegen.llvm.machine import Machine
from mlfc.codegen.llvm.objects import CompiledObject, is_elf
from mlfc.codegen.llvm.packed import PackedFunctions, define_registry
from mlfc.codegen.unit import Shared, Unit
from mlfc.support.content import Data
from mlfc.tir.ir import PrimFunc


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


def registry_module(name: str, functions: list[str], machine: Machine) -> ir.Module:
    """Return a module with the table of packed functions."""
    module = empty_module(name, machine)
    define_registry(module, functions)
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
    checks, host = ArgumentChecks(module), HostFunctions(module)
    packed, launching = PackedFunctions(module, checks), LaunchingFunctions(module, checks, is_elf(machine))
    for kernel in unit.kernels_in_code:
        name = names[kernel.name]
        if kernel in on_device:
            launching.define(kernel, name, on_device[kernel])
        else:
            count = len(kernel.params) + bool(kernel.scratch)
            packed.define(kernel, name, host.declared(kernel_declaration(computing[kernel.name], count)))
    return module
