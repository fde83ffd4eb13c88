"""From a planned program to the objects of a module: what `codegen.emit` does in C, by LLVM."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llvmlite import ir

from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.emit import (
    GeneratedCode,
    aot_code,
    constant_table,
    function_names,
    interface_of,
)
from mlfc.codegen.host.aot import AotFunctions
from mlfc.codegen.llvm.constants import ConstantGlobals, data_pieces
from mlfc.codegen.llvm.graph import generate_graph
from mlfc.codegen.llvm.host import HostFunctions, workspace_array
from mlfc.codegen.llvm.kernels import emit_kernels, empty_module, kernel_names
from mlfc.codegen.llvm.machine import Machine, machine_of
from mlfc.codegen.llvm.objects import CompiledObject, ConstantsObject, is_elf
from mlfc.codegen.unit import Shared, Unit
from mlfc.memory.pools import pool_array
from mlfc.support.content import Data
from mlfc.target.llvm import GENERIC, TRIPLE, host_triple
from mlfc.target.target import parse_target


def generate_llvm(unit: Unit, shared: Shared, *, traced: bool = False) -> GeneratedCode:
    """Return the code of a module as objects, which are compiled when their bytes are asked for.

    Parameters
    ----------
    unit : Unit
    shared : Shared
        What lies in files that belong to several modules.
    traced : bool
        The main function of AOT calls ``mlfc_trace_begin`` and ``mlfc_trace_end`` around each operator, for profiles.

    Returns
    -------
    GeneratedCode
        For AOT ``<module>_lib0.o`` (entry and workspace), ``<module>_lib1.o`` (operators and main function), where the
        constants are large ``<module>_lib2.o`` with them alone, and the header that the C has, too. For the graph
        executor ``<module>_lib0.o`` (table of functions) and ``<module>_lib1.o`` (operators).
    """
    machine = machine_of(unit.target)
    if unit.executor == "graph":
        return generate_graph(unit, shared, machine)
    constants = constant_table(unit, shared)
    interface = interface_of(unit, shared, constants)
    names = kernel_names(unit, shared, function_names(unit))
    workspace = shared.workspace if interface.workspace_peers else None
    host = AotFunctions(unit.program, unit.plan, interface, constants, names, workspace)
    optimize = unit.target.features.optimize
    files: dict[str, Data] = {
        f"lib/{unit.module}_lib0.o": CompiledObject(partial(_entry_module, host, machine), machine, optimize),
        f"lib/{unit.module}_lib1.o": CompiledObject(
            partial(_operators_module, unit, shared, host, machine, traced), machine, optimize
        ),
        **constant_objects(constants, f"lib/{unit.module}_lib2.o", machine),
    }
    return aot_code(unit, interface, constants, names, files)


def native_unit(unit: Unit) -> Unit | None:
    """Return a unit with the target of this very machine, where its own is all machines of this kind; else None."""
    target = unit.target
    if target.mcpu != GENERIC or target.options != {TRIPLE: host_triple()}:
        return None
    native = parse_target(f"{target.kind} -mcpu=native", target.features.optimize)
    return replace(unit, target=replace(native, features=target.features))


def constant_objects(constants: ConstantTable, path: str, machine: Machine) -> dict[str, Data]:
    """Return the object that holds large constants; none for small ones."""
    if not constants.in_blob:
        return {}
    return {path: ConstantsObject(tuple(data_pieces(constants)), machine)}


def _entry_module(host: AotFunctions, machine: Machine) -> ir.Module:
    module = empty_module(f"{host.interface.module}_lib0", machine)
    if not (host.interface.external_workspace or host.shared_workspace):
        for pool in host.plan.pools:
            workspace_array(module, pool_array(pool.name), pool, is_elf=is_elf(machine))
    functions = HostFunctions(module)
    for function in (host.entry(), *host.mappers()):
        functions.define(function)
    return module


def _operators_module(unit: Unit, shared: Shared, host: AotFunctions, machine: Machine, traced: bool) -> ir.Module:
    module = empty_module(f"{unit.module}_lib1", machine)
    emit_kernels(unit, shared, module, host.function_names, machine)
    constants = ConstantGlobals(module, host.constants, is_elf(machine), unit.packed_constants)
    for value in unit.used_constants():
        if host.constants.loaded_place(value) is None:
            constants.get(value)
    HostFunctions(module, traced).define(host.main())
    return module
