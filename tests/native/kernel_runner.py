"""Lower one group of operators, build its C and run it on arrays, for tests and benchmarks of kernels.

Every call of a built kernel also runs its LLVM object, which must compute the same bits.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mlfc.codegen.c import CFunction, print_function
from mlfc.library.toolchain import NATIVE
from mlfc.relay import ir
from mlfc.support import dtypes
from mlfc.target.features import Features
from mlfc.tir.ir import PrimFunc
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.c_files import print_file
from tests.native.llvm_functions import beside_c
from tests.shared_library import compile_shared
from tests.verify_tir import verify

Array = npt.NDArray[Any]
Key = TypeVar("Key", bound=Hashable)
ALIGNMENT = 64
FUSING = (NATIVE, "-O1", "-fexpensive-optimizations")
"""Flags of a quick build in which gcc fuses products and sums like at -O3; clang does so at any level."""
UNOPTIMIZED = (NATIVE, "-O0", "-ffp-contract=off")
"""Flags for integer kernels whose optimized builds are tested elsewhere, in builds for boards."""


def aligned(shape: Sequence[int], dtype: Any) -> Array:
    """Return an uninitialized array with the alignment that generated code requires."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


@dataclass(eq=False)
class BuiltKernel:
    """A compiled group with its constants, scratch and output."""

    group: LoweredGroup
    library: Any
    source: str
    llvm: Any
    symbol: str = "kernel"
    label: str = "kernel"

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
        """Return a function without arguments that runs the kernel on `inputs`; of the C library by default."""
        pointers = [array.ctypes.data for array in (*inputs, *self.constants, self.output)]
        if self.group.prim.scratch:
            pointers.append(self.workspace.ctypes.data)
        arguments = [ctypes.c_void_p(pointer) for pointer in pointers]
        kernel = getattr(library or self.library, self.symbol)

        # pointers do not keep their arrays alive
        def run(_kept: tuple[object, ...] = (*inputs, self.constants, self.output, self.workspace)) -> int:
            return int(kernel(*arguments))

        return run

    def __call__(self, *inputs: Array) -> Array:
        ours, other = self.run_in(self.library, *inputs), self.run_in(self.llvm, *inputs)
        assert ours.tobytes() == other.tobytes(), f"{self.label}: LLVM's object computes something else than the C"
        return ours

    def run_in(self, library: Any, *inputs: Array) -> Array:
        """Return the result of the kernel in one library."""
        copies = []
        for array in inputs:
            copy = aligned(array.shape, array.dtype)
            copy[...] = array
            copies.append(copy)
        self.workspace[...] = 0xA5  # so that a read of scratch that the kernel has not written is noticed
        self.output.reshape(-1).view(np.uint8)[...] = 0x5A
        assert self.bound(copies, library)() == 0
        return self.output.copy()


def group_of(body: ir.Expr, params: Sequence[ir.Var]) -> ir.Function:
    """Return a fused group."""
    return ir.Function(tuple(params), body, {"Primitive": 1})


def build(
    group: ir.Function,
    features: Features,
    flags: Sequence[str] = FUSING,
    aliased: frozenset[int] = frozenset(),
) -> BuiltKernel:
    """Lower one group, check that its accesses are in bounds, then print, compile and load it.

    The output may overlap the inputs at the positions `aliased`.
    """
    return Kernels({"kernel": (group, features)}, flags, aliased)["kernel"]


class Kernels(Generic[Key]):
    """Groups, each for its target, in one C and one LLVM library, which are built on first use.

    Parameters
    ----------
    groups : mapping of hashable to (Function, Features)
        Errors identify a group by its key.
    flags : sequence of str, optional
        Flags of the C compiler.
    aliased : frozenset of int, optional
        Positions of the inputs that outputs may overlap.
    """

    def __init__(
        self,
        groups: Mapping[Key, tuple[ir.Function, Features]],
        flags: Sequence[str] = FUSING,
        aliased: frozenset[int] = frozenset(),
    ) -> None:
        self._groups, self._flags, self._aliased = groups, flags, aliased

    def __getitem__(self, key: Key) -> BuiltKernel:
        return self._built[key]

    @cached_property
    def _built(self) -> dict[Key, BuiltKernel]:
        lowered = {key: self._lowered(key) for key in self._groups}
        names: dict[str, str] = {}  # by text without its name, so equal kernels are compiled once
        functions: dict[str, CFunction] = {}
        symbols: dict[Key, str] = {}
        for number, (key, group) in enumerate(lowered.items()):
            name = f"kernel{number or ''}"
            function = print_function(group.prim, name, self._aliased)
            symbols[key] = names.setdefault(function.text.replace(f" {name}(", " ("), name)
            functions.setdefault(symbols[key], function)
        with tempfile.TemporaryDirectory() as folder:
            files = {"kernels.c": print_file(list(functions.values())).encode()}
            library = ctypes.CDLL(str(compile_shared(files, Path(folder) / "kernels.so", self._flags)))
        prims = {symbols[key]: group.prim for key, group in lowered.items()}
        # Every eighth kernel for targets like this machine (with vectors) also runs through LLVM's optimizer.
        # Optimizing takes ten times as long as the rest, and tests that build modules optimize all operators.
        hosts = [key for key, (_, features) in self._groups.items() if features.vector_bytes]
        optimized = {symbols[key] for key in hosts[::8]}
        by_llvm = _ByLlvm(prims, optimized, self._flags, self._aliased)
        return {
            key: BuiltKernel(group, library, print_file([functions[symbols[key]]]), by_llvm, symbols[key], str(key))
            for key, group in lowered.items()
        }

    def _lowered(self, key: Key) -> LoweredGroup:
        try:
            found = lower_group(*self._groups[key])
            verify(found.prim)
        except Exception as error:
            error.add_note(f"of the kernel {key}")
            raise
        return found


class _ByLlvm:
    """LLVM code of kernels, compiled on first use; has the interface of a loaded library."""

    def __init__(
        self, prims: Mapping[str, PrimFunc], optimized: Collection[str], flags: Sequence[str], aliased: frozenset[int]
    ) -> None:
        self._prims, self._optimized, self._flags, self._aliased = prims, optimized, flags, aliased
        self._libraries: dict[bool, Any] = {}

    def __getattr__(self, name: str) -> Any:
        optimizes = name in self._optimized
        if optimizes not in self._libraries:
            chosen = {each: prim for each, prim in self._prims.items() if (each in self._optimized) == optimizes}
            self._libraries[optimizes] = beside_c(chosen, self._flags, self._aliased, optimizes=optimizes)
        return getattr(self._libraries[optimizes], name)
