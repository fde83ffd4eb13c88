"""Compare compiled kernels with the interpreter of loop-level code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.codegen.c import print_function
from mlfc.library.toolchain import compile_objects, link_shared
from mlfc.relay import ir as relay
from mlfc.support import dtypes
from mlfc.target.target import parse_target
from mlfc.tir import interpreter
from mlfc.tir.program import Program, Value
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.c_files import print_file
from tests.native.compiler_levels import Build
from tests.native.fused_chains import Chain
from tests.native.kernel_runner import aligned, group_of
from tests.native.llvm_functions import library_of, machine_for
from tests.verify_tir import verify

Array: TypeAlias = "npt.NDArray[Any]"

RELATIVE = 4e-6
"""Tolerance relative to the result, and to the largest one: math libraries and the order of sums differ."""


@dataclass(eq=False)
class Member:
    """A kernel of a batch and its argument arrays."""

    name: str
    group: LoweredGroup
    arrays: list[Array]

    @cached_property
    def expected(self) -> Array:
        """The interpreter's result."""
        count = len(self.group.prim.inputs)
        return interpreter.run(self.group.prim, self.arrays[:count], self.arrays[count:])

    def run(self, function: Any, shared: int | None) -> Array:
        """Run a compiled kernel; the output overwrites the input number `shared`, unless that is None."""
        prim = self.group.prim
        given = [_copy(array) for array in self.arrays]
        output = aligned(prim.output.shape, dtypes.to_numpy(prim.output.dtype))
        output.reshape(-1).view(np.uint8)[...] = 0x5A
        address = output.ctypes.data if shared is None else given[shared].ctypes.data
        pointers = [*(array.ctypes.data for array in given), address]
        if prim.scratch:
            workspace = aligned((prim.scratch_bytes,), np.uint8)
            workspace[...] = 0xA5  # so that a read of scratch that the kernel has not written is noticed
            pointers.append(workspace.ctypes.data)
        assert function(*map(ctypes.c_void_p, pointers)) == 0
        return output if shared is None else given[shared].view(output.dtype).reshape(output.shape)


def _copy(array: Array) -> Array:
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


class Batch:
    """Chains as kernels of one file, for a target.

    Parameters
    ----------
    chains : sequence of Chain
    target : str
        Provides the features that templates depend on.
    """

    def __init__(self, chains: Sequence[Chain], target: str) -> None:
        features = parse_target(target).features
        self.members = []
        for chain in chains:
            assert chain.body is not None
            group = lower_group(group_of(chain.body, chain.variables), features)
            verify(group.prim)
            inputs = chain.inputs()
            given = [inputs[index] for index in group.used]
            shaped = [array.reshape(buffer.shape) for array, buffer in zip(given, group.prim.inputs, strict=True)]
            self.members.append(Member(chain.name, group, [*shaped, *group.constants]))

    @cached_property
    def source(self) -> str:
        """The kernels in C, called k0, k1, ..."""
        printed = [print_function(member.group.prim, f"k{index}") for index, member in enumerate(self.members)]
        return print_file(printed)

    def faults(self, function_of: Callable[[int], Any]) -> list[str]:
        """Return the results of compiled kernels that differ from the interpreter's, each with its chain."""
        found = []
        for index, member in enumerate(self.members):
            for shared in (None, *member.group.prim.inplace):
                fault = difference(member.run(function_of(index), shared), member.expected)
                place = "" if shared is None else f" in the place of input {shared}"
                found += [f"{member.name}{place}: {fault}"] if fault else []
        return found

    def faults_in_c(self, build: Build, folder: Path) -> list[str]:
        """Return the faults of the C kernels, built as users build them."""
        objects = compile_objects({"kernels.c": self.source.encode()}, folder, build.flags, compiler=build.compiler)
        path = link_shared(objects, folder / f"{build}.so", compiler=build.linker)
        library = ctypes.CDLL(str(path))
        return self.faults(lambda index: getattr(library, f"k{index}"))

    def faults_by_llvm(self, flags: tuple[str, ...]) -> list[str]:
        """Return the faults of LLVM's code for the processor that `flags` select in a C compiler."""
        prims = {f"k{index}": member.group.prim for index, member in enumerate(self.members)}
        library = library_of(prims, machine_for(flags), contracts=True)
        return self.faults(lambda index: getattr(library, f"k{index}"))


def module_of(chains: Sequence[Chain]) -> relay.IRModule:
    """Return a module with one output per chain, named after it."""
    variables = [var for chain in chains for var in chain.variables]
    bodies = [chain.body for chain in chains if chain.body is not None]
    names = tuple(chain.name.replace(".", "_") for chain in chains)
    return relay.IRModule({"main": relay.Function(tuple(variables), relay.Tuple(tuple(bodies)))}, names)


def interpreted(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the interpreter's outputs of a program, kernel by kernel."""
    memory: dict[Value, Array] = {}
    for value in program.constants:
        assert value.data is not None
        memory[value.root] = np.frombuffer(np.ascontiguousarray(value.data).tobytes(), np.uint8).copy()
    for value in program.inputs:
        memory[value.root] = np.frombuffer(np.ascontiguousarray(inputs[value.name]).tobytes(), np.uint8).copy()

    def array(value: Value, shape: tuple[int, ...], dtype: str) -> Array:
        whole = memory.setdefault(value.root, np.zeros(value.root.nbytes, np.uint8))
        start = value.root_start
        return whole[start : start + value.nbytes].view(dtypes.to_numpy(dtype)).reshape(shape)

    for call in program.calls:
        prim = call.kernel
        given = [
            [array(value, buffer.shape, buffer.dtype) for value, buffer in zip(values, buffers, strict=True)]
            for values, buffers in ((call.inputs, prim.inputs), (call.constants, prim.constants))
        ]
        array(call.output, prim.output.shape, prim.output.dtype)[...] = interpreter.run(prim, *given)
    return {value.name: array(value, value.shape, value.dtype) for value in program.outputs}


def difference(result: Array, wanted: Array) -> str:
    """Return a description of the difference between a result and the expected one; empty if they agree."""
    if wanted.dtype.kind != "f":
        wrong = result != wanted
    else:
        exact, ours = wanted.astype(np.float64), result.astype(np.float64)
        finite = np.isfinite(exact)
        scale = float(np.max(np.abs(exact[finite]), initial=0.0))
        allowed = max(RELATIVE, 2 * float(np.finfo(wanted.dtype).eps)) * (np.abs(exact) + scale)
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(ours - exact) <= allowed) | (ours == exact) | (np.isnan(ours) & np.isnan(exact)))
    if not wrong.any():
        return ""
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} differ, first at {place}: {result[place]}, not {wanted[place]}"
