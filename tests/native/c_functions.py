"""Building printed functions and calling them on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlforge.codegen.c import print_file, print_function
from mlforge.library.toolchain import NATIVE, compile_shared
from mlforge.support import dtypes
from mlforge.tir.ir import PrimFunc

Array = npt.NDArray[Any]
EXACT = (NATIVE, "-ffp-contract=off")
"""Flags with which C rounds after each operation, as numpy does."""


class Functions:
    """Printed functions in one shared library."""

    def __init__(self, prims: Sequence[PrimFunc], folder: Path, flags: Sequence[str] = EXACT) -> None:
        self.source = print_file([print_function(prim) for prim in prims])
        self._library = ctypes.CDLL(str(compile_shared({"functions.c": self.source.encode()}, folder / "f.so", flags)))

    def call(self, prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = ()) -> Array:
        """Run a function and return its output."""
        output = np.zeros(prim.output.shape, dtypes.to_numpy(prim.output.dtype))
        arrays = [np.ascontiguousarray(array) for array in (*inputs, *constants)]
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, output)]
        if prim.scratch:
            workspace = np.empty(prim.scratch_bytes + 64, np.uint8)
            pointers.append(ctypes.c_void_p(workspace.ctypes.data + -workspace.ctypes.data % 64))
        assert getattr(self._library, prim.name)(*pointers) == 0
        return output
