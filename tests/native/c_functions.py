"""Build printed functions and call them on numpy arrays, as C and as LLVM objects side by side."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mlfc.codegen.c import print_function
from mlfc.library.toolchain import NATIVE
from mlfc.tir.ir import PrimFunc
from tests.c_files import print_file
from tests.native.llvm_functions import LlvmLibrary, contracts_with, library_of, machine_for, run_kernel
from tests.shared_library import compile_shared

Array = npt.NDArray[Any]
EXACT = (NATIVE, "-ffp-contract=off")
"""Flags with which C rounds after each operation, as numpy does."""


class Functions:
    """Printed functions in one shared library, and the same functions as an LLVM object.

    Every call runs both; their outputs must be bit-identical.
    """

    def __init__(self, prims: Sequence[PrimFunc], folder: Path, flags: Sequence[str] = EXACT) -> None:
        self.source = print_file([print_function(prim) for prim in prims])
        self._library = ctypes.CDLL(str(compile_shared({"functions.c": self.source.encode()}, folder / "f.so", flags)))
        self._llvm = _by_llvm(tuple(prims), NATIVE in flags, contracts_with(flags))

    def call(self, prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = ()) -> Array:
        """Run a function and return its output."""
        arrays = [*inputs, *constants]
        ours, other = run_kernel(getattr(self._library, prim.name), prim, arrays), self._llvm.call(prim, arrays)
        assert ours.tobytes() == other.tobytes(), f"{prim.name}: LLVM's object computes something else than the C"
        return ours


@lru_cache(maxsize=4)
def _by_llvm(prims: tuple[PrimFunc, ...], is_native: bool, contracts: bool) -> LlvmLibrary:
    """Return LLVM code of the functions, cached because two builds serve several C compilers and processors."""
    machine = machine_for((NATIVE,) if is_native else ())
    return library_of({prim.name: prim for prim in prims}, machine, contracts=contracts)
