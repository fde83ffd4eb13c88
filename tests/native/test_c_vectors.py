"""Printed vector code against the interpreter, with every compiler that is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest

from mlforge.tir import builder as tb
from mlforge.tir import interpreter, ir
from mlforge.tir.ir import Buffer, PrimFunc
from mlforge.tir.verify import verify
from tests.native.c_functions import Functions

PORTABLE = ("-ffp-contract=off",)
NATIVE = ("-march=native", "-ffp-contract=off")


@pytest.fixture(params=["gcc", "clang", "zig"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set CC to each compiler in turn."""
    if request.param == "zig":
        pytest.importorskip("ziglang")
        monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
    elif which(request.param) is None:
        pytest.skip(f"no {request.param}")
    else:
        monkeypatch.setenv("CC", request.param)
    return str(request.param)


def tiled_product(rows: int, depth: int, lanes: int) -> PrimFunc:
    """Return a matrix product with a register tile of rows x two vectors, and a clamp behind it."""
    b = tb.StmtBuilder()
    width = 2 * lanes
    data, output = Buffer("data", (rows, depth), "float32"), Buffer("output", (rows, width), "float32")
    weights = Buffer("weights", (depth, width), "float32")
    sums = b.local("sums", (rows, 2), f"float32x{lanes}")
    with b.loop(rows, "row", "unrolled") as row, b.loop(2, "half", "unrolled") as half:
        b.store(sums, [row, half], tb.const(0.0, f"float32x{lanes}"))
    with b.loop(depth, "k") as k, b.loop(2, "half", "unrolled") as half:
        w = b.let("w", tb.load(weights, [k, half * lanes], lanes))
        with b.loop(rows, "row", "unrolled") as row:
            b.store(sums, [row, half], tb.load(sums, [row, half]) + tb.broadcast(tb.load(data, [row, k]), lanes) * w)
    with b.loop(rows, "row", "unrolled") as row, b.loop(2, "half", "unrolled") as half:
        b.store(output, [row, half * lanes], tb.clamp(tb.load(sums, [row, half]), -1.0, 6.0))
    return PrimFunc(f"product_{lanes}", (data,), (weights,), output, (), b.finish(), macs=rows * depth * width)


def dot_product(lanes: int, *, broadcast: bool) -> PrimFunc:
    b = tb.StmtBuilder()
    kind = "broadcast" if broadcast else "full"
    a = Buffer("a", (3, 4 if broadcast else 4 * lanes), "uint8")
    w, output = Buffer("w", (3, 4 * lanes), "int8"), Buffer("output", (lanes,), "int32")
    total = b.local("total", (1,), f"int32x{lanes}")
    b.store(total, [0], tb.const(-5, f"int32x{lanes}"))
    with b.loop(3, "k") as k:
        left = tb.load(a, [k, 0], 4 if broadcast else 4 * lanes)
        value = tb.intrinsic("dot4_u8s8", tb.load(total, [0]), left, tb.load(w, [k, 0], 4 * lanes))
        b.store(total, [0], value)
    b.store(output, [0], tb.load(total, [0]))
    return PrimFunc(f"dot_{kind}_{lanes}", (a,), (w,), output, (), b.finish())


def vector_operations(dtype: str, lanes: int) -> PrimFunc:
    b = tb.StmtBuilder()
    inputs = tuple(Buffer(name, (lanes,), dtype) for name in ("x", "y"))
    output = Buffer("output", (6, lanes), dtype)
    x, y = (b.let(buffer.name, tb.load(buffer, [0], lanes)) for buffer in inputs)
    greater = tb.binary("gt", x, tb.const(0, x.dtype))
    results = [x + y, x - 1, tb.minimum(x, y), tb.maximum(x, 3), ir.Select(greater, x, y, x.dtype), x * y]
    for row, value in enumerate(results):
        b.store(output, [row, 0], value)
    return PrimFunc(f"operations_{dtype}_{lanes}", inputs, (), output, (), b.finish())


def widening(lanes: int) -> PrimFunc:
    b = tb.StmtBuilder()
    source, output = Buffer("source", (lanes,), "int8"), Buffer("output", (lanes,), "float32")
    wide = tb.cast(tb.load(source, [0], lanes), "int32")
    b.store(output, [0], tb.cast(wide, "float32") * 0.5)
    return PrimFunc(f"widening_{lanes}", (source,), (), output, (), b.finish())


def random_arrays(buffers: tuple[Buffer, ...], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    arrays = []
    for buffer in buffers:
        if buffer.dtype.startswith("float"):
            arrays.append(rng.standard_normal(buffer.shape).astype(buffer.dtype))
        else:
            limits = np.iinfo(buffer.dtype)
            arrays.append(rng.integers(limits.min, limits.max + 1, buffer.shape).astype(buffer.dtype))
    return arrays


def all_functions() -> list[PrimFunc]:
    prims: list[PrimFunc] = []
    makers: list[Callable[[int], PrimFunc]] = [lambda lanes: tiled_product(5, 7, lanes), widening]
    for lanes in (4, 8, 16):
        prims += [make(lanes) for make in makers]
        prims += [dot_product(lanes, broadcast=flag) for flag in (False, True)]
        prims += [vector_operations(dtype, lanes) for dtype in ("float32", "int8", "int32", "uint8")]
    return prims


@pytest.mark.parametrize("flags", [PORTABLE, NATIVE], ids=["portable", "native"])
def test_vector_functions(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    prims = all_functions()
    for prim in prims:
        verify(prim)
    functions = Functions(prims, tmp_path, flags)
    for seed, prim in enumerate(prims):
        arrays = random_arrays(prim.params[:-1], seed)
        inputs, constants = arrays[: len(prim.inputs)], arrays[len(prim.inputs) :]
        with np.errstate(all="ignore"):
            expected = interpreter.run(prim, inputs, constants)
        np.testing.assert_array_equal(functions.call(prim, inputs, constants), expected, err_msg=prim.name)
