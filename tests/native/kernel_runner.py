"""Lower one group of operators, build its C, run it on arrays: what tests and benchmarks of kernels do.

Every call of a built kernel runs LLVM's object of it, too, which must compute the same bits.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlfc.ops  # noqa: F401  (registers the operators)
from mlfc.codegen.c import print_file, print_function
from mlfc.library.toolchain import NATIVE
from mlfc.relay import ir
from mlfc.support import dtypes
from mlfc.target.features import Features
from mlfc.tir.verify import verify
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.native.llvm_functions import beside_c
from tests.shared_library import compile_shared

Array = npt.NDArray[Any]
ALIGNMENT = 64
FUSING = (NATIVE, "-O1", "-fexpensive-optimizations")
"""Flags of a quick build in which gcc fuses products and sums as it does with -O3, and clang does anyway."""


def aligned(shape: Sequence[int], dtype: Any) -> Array:
    """Return an uninitialized array at an address that the generated code may rely on."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


@dataclass(eq=False)
class BuiltKernel:
    """A compiled group with its constants, scratch and output in place."""

    group: LoweredGroup
    library: Any
    source: str
    llvm: Any

    @cached_property
    def constants(self) -> list[Array]:
        copies = []
        for array in self.group.constants:
            copy = aligned(array.shape, array.dtype)
            copy[...] = array
            copies.append(copy)
        return copies

    @cached_property
    def output(self) -> Array:
        buffer = self.group.prim.output
        return aligned(buffer.shape, dtypes.to_numpy(buffer.dtype))

    @cached_property
    def workspace(self) -> Array:
        return aligned((self.group.prim.scratch_bytes,), np.uint8)

    def bound(self, inputs: Sequence[Array], library: Any = None) -> Any:
        """Return a function of no arguments that runs the kernel on `inputs`: of the C, or of another library."""
        pointers = [array.ctypes.data for array in (*inputs, *self.constants, self.output)]
        if self.group.prim.scratch:
            pointers.append(self.workspace.ctypes.data)
        arguments = [ctypes.c_void_p(pointer) for pointer in pointers]
        kernel = (library or self.library).kernel

        def run(_kept: Sequence[Array] = tuple(inputs)) -> int:  # pointers do not keep their arrays alive
            return int(kernel(*arguments))

        return run

    def __call__(self, *inputs: Array) -> Array:
        copies = []
        for array in inputs:
            copy = aligned(array.shape, array.dtype)
            copy[...] = array
            copies.append(copy)
        outputs = []
        for library in (self.llvm, self.library):
            self.workspace[...] = 0xA5  # what a kernel does not write itself must not be read
            self.output.reshape(-1).view(np.uint8)[...] = 0x5A
            assert self.bound(copies, library)() == 0
            outputs.append(self.output.copy())
        assert outputs[0].tobytes() == outputs[1].tobytes(), "LLVM's object computes something else than the C"
        return outputs[1]


def group_of(body: ir.Expr, params: Sequence[ir.Var]) -> ir.Function:
    """Return a fused group."""
    return ir.Function(tuple(params), body, {"Primitive": 1})


def build(
    group: ir.Function,
    features: Features,
    flags: Sequence[str] = FUSING,
    aliased: frozenset[int] = frozenset(),
) -> BuiltKernel:
    """Lower one group, prove its accesses in bounds, print, compile and load it.

    The output may overlap the inputs at the positions `aliased`.
    """
    lowered = lower_group(group, features)
    verify(lowered.prim)
    source = print_file([print_function(lowered.prim, "kernel", aliased)])
    with tempfile.TemporaryDirectory() as folder:
        path = compile_shared({"kernel.c": source.encode()}, Path(folder) / "kernel.so", flags)
        library = ctypes.CDLL(str(path))
    return BuiltKernel(lowered, library, source, beside_c({"kernel": lowered.prim}, flags, aliased))
