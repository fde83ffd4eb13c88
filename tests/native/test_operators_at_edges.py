"""Every operator alone, in many dtypes, on edge values: its C has no undefined behaviour and implements TIR.

The numpy interpreter of TIR shares no code with the printers. The C runs under the sanitizers on memory of exactly its
size; LLVM code of the same kernels must compute the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.llvm.machine import machine_of
from mlfc.relay import ir
from mlfc.relay.op import OPERATORS, Kind
from mlfc.support import dtypes
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from mlfc.tir import interpreter
from mlfc.tir.ir import Buffer, Var
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.conftest import need
from tests.edge_cases import DTYPES, NO_KERNEL, EdgeCall, edge_calls
from tests.native.llvm_functions import LlvmLibrary, library_of, run_kernel
from tests.native.sanitized import Job, run_sanitized
from tests.verify_tir import verify

Array = npt.NDArray[np.generic]

# tolerances for math functions, and for sums in the same order whose terms use another library's exp in LLVM code
NEAR = {"float16": 2**-9, "bfloat16": 2**-6, "float32": 2e-6, "float64": 1e-12}
TARGETS = {
    "plain": Features(vector_bytes=0, dot4=False),
    "vectors": Features(),
    "dsp": Features(vector_bytes=0, dot4=False, instruction_sets=("dsp",)),
    "mve": Features(vector_bytes=0, dot4=False, instruction_sets=("mve",)),
}


@cache
def all_calls() -> tuple[EdgeCall, ...]:
    return tuple(edge_calls())


@cache
def lowered_plain(edge: EdgeCall) -> LoweredGroup:
    """Return a call lowered for a processor without any features."""
    return lower_group(group_of(edge), TARGETS["plain"])


def group_of(edge: EdgeCall) -> ir.Function:
    return ir.Function(edge.params, edge.call, {"Primitive": 1})


@cache
def jobs(target: str) -> tuple[Job, ...]:
    """Return the kernels of a target except those that equal the plain target's."""
    return tuple(_jobs(target))


def _jobs(target: str) -> Iterator[Job]:
    for edge in chosen(target):
        lowered = lowered_plain(edge)
        if target != "plain":
            plain, lowered = lowered, lower_group(group_of(edge), TARGETS[target])
            if alike(plain.prim, lowered.prim, {}):
                continue
        verify(lowered.prim)
        runs = []
        for arrays in edge.data():
            given = [arrays[position] for position in lowered.used]
            shaped = [array.reshape(buffer.shape) for array, buffer in zip(given, lowered.prim.inputs, strict=True)]
            runs.append([*shaped, *lowered.constants])
        yield Job(edge.label, lowered.prim, runs, is_small=edge.call.op.kind in (Kind.ELEMENTWISE, Kind.BROADCAST))


# Operators that compute have a kernel in every dtype. Operators that move elements or apply windows treat all dtypes
# alike, so each is tested in its own dtype and every third one; neighbouring operators cover the others. The same holds
# for the loops of targets with vectors or block intrinsics.
MOVING = (Kind.INJECTIVE, Kind.ANCHOR)


def chosen(target: str) -> Iterator[EdgeCall]:
    """Yield the calls for which a target has kernels."""
    turns: dict[str, int] = {}
    seen = set()
    for edge in all_calls():
        name, kind = edge.call.op.name, edge.call.op.kind
        every = 3 if kind in MOVING or (target != "plain" and name != "cast") else 1
        turn = turns.setdefault(name, len(turns))
        if edge.is_own or (kind, edge.dtype) not in seen or (DTYPES.index(edge.dtype) + turn) % every == 0:
            seen.add((kind, edge.dtype))
            yield edge


def test_every_operator_and_every_dtype_of_each_kind_is_among_them() -> None:
    for target in TARGETS:
        found, wanted = ({(edge.call.op.kind, edge.dtype) for edge in edges} for edges in (chosen(target), all_calls()))
        assert found == wanted
        assert {edge.call.op.name for edge in chosen(target)} == {edge.call.op.name for edge in all_calls()}


def alike(one: object, other: object, partners: dict[int, object]) -> bool:
    """Return whether parts of two kernels differ only in object identity."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(alike(a, b, partners) for a, b in zip(one, other, strict=True))
    if not is_dataclass(one):
        return one == other
    if partners.get(id(one)) is other and partners.get(-id(other)) is one:
        return True
    if isinstance(one, (Var, Buffer)) and (id(one) in partners or -id(other) in partners):
        return False
    partners |= {id(one): other, -id(other): one}
    return all(alike(getattr(one, name), getattr(other, name), partners) for name in one.__dataclass_fields__)


def agree(found: Array, expected: Array) -> bool:
    """Return whether integers are equal and floats nearly equal; NaN equals NaN, and infinity equals infinity."""
    dtype = dtypes.from_numpy(expected.dtype)
    if dtypes.is_narrow(dtype):
        return bool(np.array_equal(found.view(np.uint8), expected.view(np.uint8)))
    if not dtypes.is_float(dtype):
        return bool(np.array_equal(found, expected))
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), expected.astype(np.float64)
        return bool(np.allclose(a, b, rtol=NEAR[dtype], atol=0, equal_nan=True))


def first_difference(found: Array, expected: Array) -> str:
    """Return the first elements that differ."""
    a, b = found.ravel(), expected.ravel()
    place = next(index for index in range(a.size) if not agree(a[index : index + 1], b[index : index + 1]))
    return f"element {place} is {a[place]}, not {b[place]}"


def test_every_operator_with_a_kernel_is_among_them() -> None:
    covered = {job.call.op.name for job in all_calls() if not isinstance(job.call.op, ir.Function)}
    # `require` ends a run
    assert covered == {name for name in OPERATORS if OPERATORS.get(name).kind not in NO_KERNEL} - {"require"}


def compiled_by_llvm(target: str) -> LlvmLibrary:
    """Return LLVM code of the small kernels.

    Loops take LLVM long to compile, so the C tests cover them. Except for the plain target, LLVM vectorizes loops.
    """
    chosen = {f"kernel_{number}": job.prim for number, job in enumerate(jobs(target)) if job.is_small}
    return library_of(chosen, machine_of(parse_target("llvm")), contracts=False, vectorizes=target != "plain")


@pytest.mark.parametrize("target", TARGETS)
def test_no_operator_leaves_anything_undefined(target: str, tmp_path: Path) -> None:
    need("clang", "clang")
    found, said = run_sanitized(jobs(target), tmp_path, ["clang"])
    assert not said, said
    by_llvm = compiled_by_llvm(target)
    failures = []
    for number, (job, outputs) in enumerate(zip(jobs(target), found, strict=True)):
        for arrays, output in zip(job.runs, outputs, strict=True):
            count = len(job.prim.inputs)
            expected = interpreter.run(job.prim, arrays[:count], arrays[count:])
            results = {"C": output}
            if job.is_small:
                results["LLVM"] = run_kernel(getattr(by_llvm, f"kernel_{number}"), job.prim, arrays)
            for printer, result in results.items():
                if not agree(result, expected):
                    failures.append(f"{job.label} in {printer}: {first_difference(result, expected)}")
    assert not failures, "\n".join(failures)
