"""Requantization loops in vectors of sixteen and eight int32, against the interpreted loops."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.codegen.c import print_function
from mlfc.library.toolchain import NATIVE
from mlfc.support import dtypes
from mlfc.target.features import CPUS, Features, native_cpu
from mlfc.tir import builder as tb
from mlfc.tir import interpreter
from mlfc.tir.context import Context
from mlfc.tir.fixed_point_lanes import WIDE, vectorize
from mlfc.tir.ir import Buffer, Expr, PrimFunc
from tests.c_files import print_file
from tests.conftest import need
from tests.native.llvm_functions import run_kernel
from tests.shared_library import compile_shared
from tests.verify_tir import verify

WARNINGS = ("-std=c99", "-O3", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off")
FLAGS = {
    NATIVE: ("x86-64-v4",),
    "-march=x86-64-v3": ("x86-64-v3", "x86-64-v4"),
    "-march=x86-64": ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"),
}
"""Compiler flags, and the processor levels that run their code: registers of 64, 32 and 16 bytes."""
LIMITS = ((-128, 127), (-13, 63))
"""Limits of the type, for which an instruction exists, and of an activation."""


def level_here() -> str:
    """Return this machine's x86-64 level, or else its processor."""
    return CPUS.get(native_cpu()).base or native_cpu()


def choose(compiler: str, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Select the compiler, or skip the test if it is missing or this machine cannot run its code for the flag."""
    need(compiler, compiler)
    if level_here() not in FLAGS[flag]:
        pytest.skip(f"code of {flag} requires a processor of {FLAGS[flag][0]}, got {level_here()}")
    monkeypatch.setenv("CC", compiler)


def operands() -> list[np.ndarray[Any, Any]]:
    """Return sums at ties, both ends and random values for all exponents, with the smallest and largest multipliers."""
    rng, rows = np.random.default_rng(11), []
    for exponent in range(31):
        for multiplier in (0, 1 << 30, (1 << 30) + 1, (1 << 31) - 1, int(rng.integers(1 << 30, 1 << 31))):
            ties = [(k << exponent) + d for k in range(-5, 6) for d in (-1, 0, 1)]
            ends = [-(2**31), -(2**31) + 1, -(2**30), 2**30 - 1, 2**31 - 1, -1, 0, 1]
            anywhere = rng.integers(-(2**31), 2**31, 12) >> rng.integers(0, 24, 12)
            for x in (*ties, *ends, *anywhere):
                if -(2**31) <= x < 2**31:
                    rows.append((int(x), multiplier, exponent))
    rows += [(7, 1 << 30, 3)] * (8 + -len(rows) % 16)
    return [np.array(column, np.int32) for column in zip(*rows, strict=True)]


def functions(size: int) -> list[PrimFunc]:
    """Return loops of each form: results of all types, sums of bytes, floats that contain integers."""
    inputs = tuple(Buffer(name, (size,), "int32") for name in ("sums", "multipliers", "exponents"))
    floats = Buffer("floats", (size,), "float32")
    made = []
    for dtype in ("int32", "int8", "uint8", "int16", "uint16"):
        for low, high in LIMITS if dtype == "int8" else (dtypes.limits(dtype),):
            other = Buffer("other", (size,), dtype)
            stmts, output = tb.StmtBuilder(), Buffer("output", (size,), dtype)
            with stmts.loop(size, "i", "vectorized") as i:
                scaled: Expr = tb.intrinsic("requantize_down", *(tb.load(buffer, [i]) for buffer in inputs))
                if dtype == "int32":
                    whole = tb.cast(tb.intrinsic("within", tb.load(floats, [i]), tb.const(1 << 24)), "int32")
                    stmts.store(output, [i], tb.maximum(scaled, whole))
                else:
                    given = tb.intrinsic("requantize_down", (tb.cast(tb.load(other, [i]), "int32") + 3) * 1024,
                                         tb.const(1623821475), tb.const(9))  # fmt: skip
                    both = tb.clamp(scaled, -(1 << 20), 1 << 20) + given - 5
                    stmts.store(output, [i], tb.cast(tb.clamp(both, low, high), dtype))
            last = floats if dtype == "int32" else other
            made.append(PrimFunc(f"{dtype}_{abs(low)}", (*inputs, last), (), output, (), stmts.finish()))
    return made


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("flag", FLAGS)
def test_sixteen_at_once_have_the_bits_of_one(
    flag: str, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(compiler, flag, monkeypatch)
    columns, rng = operands(), np.random.default_rng(5)
    loops = functions(columns[0].size)
    vectors = [replace(loop, body=vectorize(loop.body, WIDE[16])) for loop in loops]
    for prim in vectors:
        verify(prim)
        assert "requantize_down_i32x16" in print_function(prim).text
        assert "requantize_down_i32x8" in print_function(prim).text
    source = print_file([print_function(prim) for prim in vectors])
    files = {"wide.c": source.encode()}
    library = ctypes.CDLL(str(compile_shared(files, tmp_path / "wide.so", (*WARNINGS, flag))))
    for prim, loop in zip(vectors, loops, strict=True):
        dtype = dtypes.to_numpy(prim.inputs[-1].dtype)
        low, high = (-(1 << 24), 1 << 24) if dtype == np.float32 else dtypes.limits(prim.inputs[-1].dtype)
        arrays = [*columns, rng.integers(low, high, columns[0].size).astype(dtype)]
        expected = interpreter.run(loop, arrays)
        np.testing.assert_array_equal(run_kernel(getattr(library, prim.name), prim, arrays), expected, prim.name)
        np.testing.assert_array_equal(interpreter.run(prim, arrays), expected, prim.name)


def lines(rows: int, columns: int) -> tuple[list[PrimFunc], list[PrimFunc], list[np.ndarray[Any, Any]]]:
    """Return loops over pixels and channels before and after vectorization, and constants; two have a lower bound."""
    rng = np.random.default_rng(17)
    ends = [1 << 30, (1 << 30) + 1, (1 << 31) - 1]
    multipliers = np.array([*ends, *rng.integers(1 << 30, 1 << 31, columns - len(ends))], np.int32)
    exponents = np.arange(columns, dtype=np.int32) % 13
    whole, vectors, constants = [], [], []
    for zero_point, low, high in ((3, -128, 127), (-128, -128, 127), (4, 4, 127), (-20, -30, 63)):
        ctx = Context(Features())
        scale = [ctx.constant("multiplier", multipliers), ctx.constant("exponent", exponents)]
        sums, output = Buffer("sums", (rows, columns), "int32"), Buffer("output", (rows, columns), "int8")
        with ctx.stmts.loop(rows, "pixel") as pixel, ctx.stmts.loop(columns, "c", "vectorized") as c:
            scaled = tb.intrinsic("requantize_down", tb.load(sums, [pixel, c]), *(tb.load(part, [c]) for part in scale))
            byte = ctx.stmts.let("value", tb.cast(tb.clamp(scaled + zero_point, -128, 127), "int8"))
            ctx.stmts.store(output, [pixel, c], tb.maximum(tb.minimum(byte, high), low))
        body = ctx.stmts.finish()
        name = f"line_{abs(low)}_{abs(zero_point)}"
        whole.append(PrimFunc(name, (sums,), tuple(scale), output, (), body))
        body = vectorize(body, WIDE[16], ctx)
        vectors.append(PrimFunc(name, (sums,), tuple(buffer for buffer, _ in ctx.constants), output, (), body))
        constants.append([array for _, array in ctx.constants])
    return whole, vectors, constants


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("flag", FLAGS)
def test_lines_have_the_bits_of_two_roundings(
    flag: str, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check both sides of all steps between results, and the ends of int32."""
    choose(compiler, flag, monkeypatch)
    whole, vectors, constants = lines(1100, 88)
    for prim in vectors:
        verify(prim)
        above = prim.name in ("line_128_128", "line_4_4")
        form = "requantize_line_above_i32x" if above else "requantize_line_i32x"
        assert all(f"{form}{lanes}" in print_function(prim).text for lanes in (16, 8))
    files = {"lines.c": print_file([print_function(prim) for prim in vectors]).encode()}
    library = ctypes.CDLL(str(compile_shared(files, tmp_path / "lines.so", (*WARNINGS, flag))))
    multipliers, exponents = (array.astype(np.float64) for array in constants[0][:2])
    steps = (np.arange(-260, 261)[:, None] + 0.5) * np.exp2(32 + exponents) / multipliers
    near = np.concatenate([np.floor(steps), np.ceil(steps)]).clip(-(2**31), 2**31 - 1)
    ends = np.repeat([[-(2**31)], [2**31 - 1], [-1], [0], [1]], near.shape[1], axis=1)
    sums = np.concatenate([near, ends, np.zeros((1100 - len(near) - len(ends), near.shape[1]))]).astype(np.int32)
    for loop, prim, arrays in zip(whole, vectors, constants, strict=True):
        expected = interpreter.run(loop, [sums, *arrays[:2]])
        result = run_kernel(getattr(library, prim.name), prim, [sums, *arrays])
        np.testing.assert_array_equal(result, expected, prim.name)


def test_loops_without_requantization_stay() -> None:
    data, output = Buffer("data", (64,), "int8"), Buffer("output", (64,), "int8")
    stmts = tb.StmtBuilder()
    with stmts.loop(64, "i", "vectorized") as i:
        stmts.store(output, [i], tb.load(data, [i]))
    body = stmts.finish()
    assert vectorize(body, WIDE[16]) is body
