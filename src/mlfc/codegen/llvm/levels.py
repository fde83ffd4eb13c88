"""Kernels for several levels of processors as objects, one a level, and the C that chooses among them.

The C is that of `codegen.levels`, which whoever links the library compiles: there is one choice for both printers.
Code for one level alone, as in this process, has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from llvmlite import ir

from mlfc.codegen.c import preamble, signature
from mlfc.codegen.c_expr import Requirements
from mlfc.codegen.emit import GeneratedCode, banner, level_choice
from mlfc.codegen.levels import dispatcher, served
from mlfc.codegen.llvm.kernels import defined_kernels, emit_kernel, empty_module
from mlfc.codegen.llvm.machine import Machine, machine_of
from mlfc.codegen.llvm.objects import CompiledObject, is_elf
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.writer import PIECES
from mlfc.support.content import Data
from mlfc.support.levels import LEVEL_SECTION
from mlfc.target.features import Level, Levels
from mlfc.tir.ir import PrimFunc


def level_files(unit: Unit, shared: Shared, names: Mapping[str, str], *, internal: bool = False) -> dict[str, Data]:
    """Return the objects and the C of a unit's kernels, where it has several levels.

    ``lib/<module>_lib1_<level>.o`` has the functions that a level makes faster, and ``src/<module>_levels.c`` under the
    kernels' own names those that call them. `names` are by kernel; no other library sees `internal` ones.
    """
    if unit.levels is None:
        return {}
    files: dict[str, Data] = {f"src/{unit.module}_levels.c": _choice(unit, unit.levels, shared, names, internal)}
    for level in unit.levels.levels:
        kernels = [kernel for kernel in defined_kernels(unit, shared) if level in _served(unit.levels, kernel)]
        if kernels:
            machine = machine_of(unit.target, level.name)
            make = partial(_module, unit, kernels, names, level, machine)
            files[_path(unit, level)] = CompiledObject(make, machine, unit.target.features.optimize)
    return files


def with_levels(unit: Unit, code: GeneratedCode) -> GeneratedCode:
    """Return code with the level of each object that is not for all processors."""
    higher = unit.levels.higher if unit.levels else ()
    return replace(code, levels={_path(unit, level): level for level in higher})


def _path(unit: Unit, level: Level) -> str:
    return f"lib/{unit.module}_lib1_{level.symbol}.o"


def _served(levels: Levels, kernel: PrimFunc) -> list[Level]:
    """Return the levels at which a kernel has a function of its own."""
    return [level for level in served(levels, kernel) if level.llvm is not None]


def _own(name: str, level: Level) -> str:
    return f"{name}_{level.symbol}"


def _module(unit: Unit, kernels: list[PrimFunc], names: Mapping[str, str], level: Level, machine: Machine) -> ir.Module:
    module = empty_module(f"{unit.module}_lib1_{level.symbol}", machine)
    for kernel in kernels:
        function = emit_kernel(
            module,
            kernel.at(level.name),
            _own(names[kernel.name], level),
            machine=machine,
            contracts=unit.contracts,
            aliased=unit.aliased_inputs(kernel),
            parallel=unit.parallel,
            # where vectors requantize, LLVM's copies are short, and loops cost a tenth of the time
            compact=level.features.compact and not level.features.fixed_point_lanes,
        )
        function.linkage = "hidden"  # a visibility, which LLVM reads in the same place
    for function in module.functions:
        if not function.is_declaration and is_elf(machine):
            function.section = LEVEL_SECTION + level.name  # by which they are counted
    return module


def _choice(unit: Unit, levels: Levels, shared: Shared, names: Mapping[str, str], internal: bool) -> bytes:
    """Return the C that chooses a level, and functions that call that level's."""
    texts = ["\n".join(preamble(Requirements())), PIECES["hidden"], *level_choice(unit)]
    for kernel in defined_kernels(unit, shared):
        name, aliased = names[kernel.name], unit.aliased_inputs(kernel)
        own = {level.name: _own(name, level) for level in _served(levels, kernel)}
        heads = [f"{signature(kernel, function, aliased)} MLF_HIDDEN;" for function in own.values()]
        head = signature(kernel, name, aliased)
        heads.append(f"{head} MLF_HIDDEN;" if internal else f"{head};")
        texts += ["\n".join(heads), dispatcher(kernel, name, aliased, levels, own, static=False)]
    return (banner(unit.target_text) + "\n\n".join(text.strip("\n") for text in texts) + "\n").encode()
