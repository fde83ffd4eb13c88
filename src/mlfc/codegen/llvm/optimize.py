"""From LLVM modules to objects: the order of passes, and the machine code."""

from __future__ import annotations

import llvmlite.binding as llvm

from mlfc.codegen.llvm.llvm_types import Value
from mlfc.codegen.llvm.machine import Machine
from mlfc.errors import InternalError

_SPEED, _SIZE = 3, 2


def parse(module: Value | str, machine: Machine) -> llvm.ModuleRef:
    """Return a module, or its text, as LLVM holds it: checked, and laid out for the machine.

    Parameters
    ----------
    module : llvmlite.ir.Module or str
    machine : Machine
    """
    if not isinstance(module, str):
        module.triple = machine.triple
        module.data_layout = machine.data_layout()
    try:
        parsed = llvm.parse_assembly(str(module), llvm.create_context())
        parsed.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM refuses the code of a module: {error}") from error
    return parsed


def optimize_module(parsed: llvm.ModuleRef, machine: Machine, optimize: str = "speed") -> None:
    """Run the passes of optimization over a module.

    Parameters
    ----------
    parsed : llvmlite.binding.ModuleRef
        Changed in place.
    machine : Machine
    optimize : str
        ``speed`` or ``size``.
    """
    level = _SPEED if optimize == "speed" else _SIZE
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = optimize == "speed"
    options.slp_vectorization = optimize == "speed"
    options.loop_interleaving = optimize == "speed"
    options.loop_unrolling = optimize == "speed"
    builder = llvm.create_pass_builder(machine.target_machine(level), options)
    builder.getModulePassManager().run(parsed, builder)


def compile_object(module: Value | str, machine: Machine, optimize: str = "speed") -> bytes:
    """Return the object file of a module.

    Parameters
    ----------
    module : llvmlite.ir.Module or str
    machine : Machine
    optimize : str
        ``speed`` or ``size``.
    """
    parsed = parse(module, machine)
    optimize_module(parsed, machine, optimize)
    level = _SPEED if optimize == "speed" else _SIZE
    return bytes(machine.target_machine(level).emit_object(parsed))
