"""The kernels of a module as functions of LLVM modules."""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from mlfc.codegen.kernel_functions import printed_form
from mlfc.codegen.llvm.kernel import emit_kernel
from mlfc.codegen.llvm.machine import Machine
from mlfc.codegen.unit import Shared, Unit


def empty_module(name: str, machine: Machine) -> ir.Module:
    """Return a module for a machine."""
    module = ir.Module(name)
    module.triple = machine.triple
    module.data_layout = machine.data_layout()
    return module


def kernel_names(unit: Unit, shared: Shared, own: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the function of each kernel: its own, or the one that another file defines."""
    return {
        kernel.name: shared.functions.get(unit.kernel_key(kernel), own[kernel.name]) for kernel in unit.program.kernels
    }


def emit_kernels(
    unit: Unit, shared: Shared, module: ir.Module, names: Mapping[str, str], machine: Machine, *, internal: bool = False
) -> None:
    """Define the functions of a unit's kernels, but for those of another file, a device or an external generator.

    Parameters
    ----------
    unit : Unit
    shared : Shared
    module : ir.Module
    names : mapping of str to str
        Of the functions, by kernel.
    machine : Machine
    internal : bool
        No other file sees them.
    """
    for kernel in unit.program.kernels:
        if unit.kernel_key(kernel) in shared.functions or kernel.external is not None or kernel.device is not None:
            continue
        function = emit_kernel(
            module,
            printed_form(unit, kernel),
            names[kernel.name],
            machine=machine,
            contracts=unit.contracts,
            aliased=unit.aliased_inputs(kernel),
        )
        if internal:
            function.linkage = "internal"
        else:
            # others may call it, so a copy of it in its caller would be code twice
            function.attributes.add("noinline")
