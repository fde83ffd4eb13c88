"""Kernels with symbolic shapes, compared bit for bit with kernels with static shapes.

All kernels are built at once: the symbolic ones by both C and LLVM, the static ones by LLVM.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.codegen.c import print_function
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.tir.ir import PrimFunc
from mlfc.tir.parameters import with_numbers
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.c_files import print_file
from tests.dynamic_cases import filled
from tests.native.llvm_functions import LlvmLibrary, library_of, machine_for, run_kernel
from tests.shared_library import compile_shared
from tests.verify_tir import verify

Array = npt.NDArray[Any]
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


@dataclass(eq=False)
class Turn:
    """One size: the values of the symbols, the function with these static shapes, and data."""

    numbers: tuple[int, ...]
    fixed: LoweredGroup
    data: list[Array]


@dataclass(eq=False)
class Job:
    """A symbolic kernel, and the sizes at which it runs."""

    label: str
    lowered: LoweredGroup
    turns: list[Turn] = field(default_factory=list)

    @property
    def prim(self) -> PrimFunc:
        """The symbolic kernel."""
        return self.lowered.prim

    def add(self, numbers: Sequence[int], fixed: ir.Function, features: Features) -> None:
        """Add a size with the same group of static shapes, and prove its accesses in bounds."""
        kinds = [ir.tensor_type(param) for param in fixed.params]
        data = [filled(kind, place + len(self.turns)) for place, kind in enumerate(kinds)]
        verify(with_numbers(self.prim, numbers) if numbers else self.prim)
        self.turns.append(Turn(tuple(numbers), lower_group(fixed, features), data))


def differences(jobs: Sequence[Job], folder: Path) -> list[str]:
    """Describe the differences in bits between symbolic and static kernels."""
    open_ones = {f"open_{place}": replace(job.prim, name=f"open_{place}") for place, job in enumerate(jobs)}
    source = print_file([print_function(prim) for prim in open_ones.values()])
    flags = ("-O0", "-ffp-contract=off", *WARNINGS)
    in_c = ctypes.CDLL(str(compile_shared({"kernels.c": source.encode()}, folder / "open.so", flags)))
    by_llvm = _library(open_ones)
    fixed = {
        f"fixed_{place}_{number}": turn.fixed.prim for place, job in enumerate(jobs)
        for number, turn in enumerate(job.turns)
    }  # fmt: skip
    known = _library(fixed)
    found = []
    for place, job in enumerate(jobs):
        for number, turn in enumerate(job.turns):
            wanted = _run(known, f"fixed_{place}_{number}", turn.fixed, turn, ())
            for how, library in (("C", in_c), ("LLVM", by_llvm)):
                given = _run(library, f"open_{place}", job.lowered, turn, turn.numbers)
                if _bits(given).tobytes() != _bits(wanted.reshape(given.shape)).tobytes():
                    found.append(f"{job.label} at {turn.numbers}, {how}: {_first(given, wanted.reshape(given.shape))}")
    return found


def _run(library: Any, name: str, lowered: LoweredGroup, turn: Turn, numbers: Sequence[int]) -> Array:
    shaped = with_numbers(lowered.prim, numbers) if numbers else lowered.prim
    given = [turn.data[position] for position in lowered.used]
    arrays = [array.reshape(buffer.shape) for array, buffer in zip(given, shaped.inputs, strict=True)]
    return run_kernel(getattr(library, name), lowered.prim, [*arrays, *lowered.constants], numbers)


def _library(prims: dict[str, PrimFunc]) -> LlvmLibrary:
    return library_of(prims, machine_for(()), contracts=False, optimizes=False)


def _bits(array: Array) -> Array:
    """Return an array with one bit pattern for all NaN: the compiler chooses which one an operation returns."""
    return np.where(np.isnan(array), np.asarray(np.nan, array.dtype), array) if array.dtype.kind == "f" else array


def _first(given: Array, wanted: Array) -> str:
    size = given.dtype.itemsize
    bits = [np.ascontiguousarray(array).view(np.uint8).reshape(-1, size) for array in map(_bits, (given, wanted))]
    unlike = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
    place = unlike[0]
    return f"{unlike.size} of {given.size}, element {place} is {given.ravel()[place]}, not {wanted.ravel()[place]}"
