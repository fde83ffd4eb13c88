"""Kernels as LLVM objects in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ll
import numpy as np
import numpy.typing as npt

from mlfc.codegen.llvm.code import emit_kernel
from mlfc.codegen.llvm.machine import Machine, machine_of
from mlfc.codegen.llvm.objects import compile_object, parse
from mlfc.library.toolchain import NATIVE
from mlfc.support import dtypes
from mlfc.target.target import parse_target
from mlfc.tir.ir import PrimFunc
from mlfc.tir.parameters import with_numbers

Array = npt.NDArray[Any]


@cache
def machine_for(flags: Sequence[str]) -> Machine:
    """Return the LLVM machine that corresponds to a C compiler's flags: the native processor, or the plain one."""
    return machine_of(parse_target("llvm -mcpu=native" if NATIVE in flags else "llvm"))


def contracts_with(flags: Sequence[str]) -> bool:
    """Return whether a C compiler with these flags and `Compiler.flags` contracts products and sums."""
    return "-ffp-contract=off" not in flags


class LlvmLibrary:
    """Kernels in memory; has the interface of a loaded library."""

    def __init__(self, data: bytes, names: Sequence[str]) -> None:
        llvm.initialize_native_asmprinter()
        self._jit = llvm.create_lljit_compiler(use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
        for name in names:
            builder.export_symbol(name)
        self._code = builder.link(self._jit, "kernels")

    def __getattr__(self, name: str) -> Any:
        return ctypes.CFUNCTYPE(ctypes.c_int32)(self._code[name])

    def call(self, prim: PrimFunc, arrays: Sequence[Array]) -> Array:
        """Run a kernel by its name on its inputs and constants; return its output."""
        return run_kernel(getattr(self, prim.name), prim, arrays)


def run_kernel(function: Any, prim: PrimFunc, arrays: Sequence[Array], numbers: Sequence[int] = ()) -> Array:
    """Call a kernel's function on its inputs and constants, and return its output.

    `numbers` are the values of its symbols.
    """
    prim = with_numbers(prim, numbers) if numbers else prim
    output = np.zeros(prim.output.shape, dtypes.to_numpy(prim.output.dtype))
    whole = [np.ascontiguousarray(array) for array in arrays]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*whole, output)]
    if prim.scratch:
        workspace = np.empty(prim.scratch_bytes + 64, np.uint8)
        pointers.append(ctypes.c_void_p(workspace.ctypes.data + -workspace.ctypes.data % 64))
    assert function(*pointers, *map(ctypes.c_int32, numbers)) == 0
    return output


def library_of(
    prims: Mapping[str, PrimFunc],
    machine: Machine,
    *,
    contracts: bool,
    aliased: frozenset[int] = frozenset(),
    optimizes: bool = True,
    vectorizes: bool = True,
) -> LlvmLibrary:
    """Return a library of kernels, keyed by symbol; building without the optimizer takes a tenth of the time."""
    module = ll.Module("kernels")
    for name, prim in prims.items():
        emit_kernel(module, prim, name, machine=machine, contracts=contracts, aliased=aliased)
    if optimizes:
        return LlvmLibrary(compile_object(module, machine, "speed" if vectorizes else "size"), list(prims))
    return LlvmLibrary(bytes(machine.target_machine(0).emit_object(parse(module, machine))), list(prims))


def beside_c(
    prims: Mapping[str, PrimFunc],
    flags: Sequence[str],
    aliased: frozenset[int] = frozenset(),
    *,
    optimizes: bool = True,
) -> LlvmLibrary:
    """Return LLVM kernels that must compute exactly the bits of the C kernels compiled with these flags."""
    machine, contracts = machine_for(tuple(flags)), contracts_with(flags)
    return library_of(prims, machine, contracts=contracts, aliased=aliased, optimizes=optimizes)
