"""Printed expressions against the interpreter: random ones, and every helper at its boundary values."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.c import print_function
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import interpreter, ir
from mlfc.tir.ir import Buffer, Expr, PrimFunc
from tests.conftest import need
from tests.native.c_functions import Functions
from tests.verify_tir import verify

Array = npt.NDArray[Any]
SIZE = 96
INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint32")
FLOATS = ("float32", "float64", "float16", "bfloat16")


def edge_values(dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    kind = dtypes.to_numpy(dtype)
    if dtypes.is_float(dtype):
        edges = [0.0, -0.0, 0.5, -0.5, 1.5, -2.5, 1.0, -1.0, 3.0, 1e-6, -1e-6]
        return np.concatenate([edges, rng.standard_normal(SIZE - len(edges)) * 20]).astype(kind)
    low, high = dtypes.limits(dtype)
    edges = sorted({low, low + 1, high, high - 1, 0, 1, max(low, -1), 7})
    rest = rng.integers(low, high, SIZE - len(edges), dtype=kind, endpoint=True)
    small = rng.integers(max(low, -20), 20, SIZE, dtype=np.int64).astype(kind)
    values = np.concatenate([np.array(edges, kind), rest])
    return np.where(rng.random(SIZE) < 0.5, values, small)


class Expressions:
    """Random expressions over one element of each input."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.buffers = {dtype: Buffer(f"in_{dtype}", (SIZE,), dtype) for dtype in (*INTEGERS, *FLOATS)}

    def make(self, dtype: str, depth: int, index: Expr) -> Expr:
        if depth == 0:
            if self.random.random() < 0.3:
                return tb.const(self.literal(dtype), dtype)
            return tb.load(self.buffers[dtype], [index])
        if self.random.random() < 0.15:
            other = self.random.choice(INTEGERS if dtypes.is_integer(dtype) else FLOATS)
            return tb.cast(self.make(other, depth - 1, index), dtype)
        if self.random.random() < 0.15:
            arms = (self.make(dtype, depth - 1, index), self.make(dtype, depth - 1, index))
            return tb.select(self.condition(depth - 1, index), *arms)
        return self.operation(dtype, depth, index)

    def literal(self, dtype: str) -> float:
        if dtypes.is_float(dtype):
            wide = () if dtype == "float16" else (3e38, 1e-30)
            return self.random.choice([0.0, -0.0, 1.0, -1.5, 0.1, 2.0, *wide])
        low, high = dtypes.limits(dtype)
        return self.random.choice([low, high, 0, 1, max(low, -1), 5])

    def condition(self, depth: int, index: Expr) -> Expr:
        dtype = self.random.choice(INTEGERS + FLOATS)
        op = self.random.choice(["eq", "ne", "lt", "le", "gt", "ge"])
        first = ir.Binary(op, self.make(dtype, depth, index), self.make(dtype, depth, index), "bool")
        if depth == 0 or self.random.random() < 0.6:
            return first
        return ir.Binary(self.random.choice(["land", "lor"]), first, self.condition(depth - 1, index), "bool")

    def operation(self, dtype: str, depth: int, index: Expr) -> Expr:
        a, b = self.make(dtype, depth - 1, index), self.make(dtype, depth - 1, index)
        if dtypes.is_float(dtype):
            if self.random.random() < 0.2 and dtype in ("float32", "float64"):
                return tb.intrinsic(self.random.choice(["floor", "ceil", "trunc", "fabs", "round_even"]), a)
            return ir.Binary(self.random.choice(["add", "sub", "mul", "div", "min", "max"]), a, b, dtype)
        op = self.random.choice(
            ["add", "sub", "mul", "min", "max", "floordiv", "floormod", "truncdiv", "truncmod", "and", "or", "xor",
             "shl", "shr"]
        )  # fmt: skip
        if op in ("shl", "shr"):
            return ir.Binary(op, a, tb.const(self.random.randrange(dtypes.bits(dtype))), dtype)
        return ir.Binary(op, a, b, dtype)

    def function(self, name: str, dtype: str) -> PrimFunc:
        stmts = tb.StmtBuilder()
        output = Buffer("output", (SIZE,), dtype)
        with stmts.loop(SIZE, "i", "vectorized") as i:
            value = stmts.let("value", self.make(dtype, 3, i), dtype)
            stmts.store(output, [i], ir.Binary("max", value, value, dtype))
        return PrimFunc(name, tuple(self.buffers.values()), (), output, (), stmts.finish())


def assert_same(ours: Array, expected: Array, prim: PrimFunc) -> None:
    if prim.output.dtype == "bfloat16":  # numpy does not compare NaN of bfloat16 as equal
        ours, expected = ours.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(ours, expected, err_msg=print_function(prim).text)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_random_expressions(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(compiler, compiler)
    monkeypatch.setenv("CC", compiler)
    kinds = INTEGERS + FLOATS
    seeds = range(0, 120, 1 if compiler == "gcc" else 2)
    prims = [Expressions(seed).function(f"f{seed}", kinds[seed % len(kinds)]) for seed in seeds]
    for prim in prims:
        verify(prim)
    functions = Functions(prims, tmp_path)
    for prim in prims:
        inputs = [edge_values(buffer.dtype, seed) for seed, buffer in enumerate(prim.inputs)]
        with np.errstate(all="ignore"):
            expected = interpreter.run(prim, inputs)
        assert_same(functions.call(prim, inputs), expected, prim)


class SmallIndices:
    """Random index arithmetic on small numbers that cannot overflow, so C uses its plain operators."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def make(self, depth: int, loops: list[Expr]) -> Expr:
        if depth == 0:
            return self.random.choice([*loops, tb.const(self.random.randrange(1, 9))])
        op = self.random.choice(["add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod"])
        divides = op in ("floordiv", "floormod", "truncdiv", "truncmod")
        first = self.make(depth - 1, loops)
        second = ir.Binary("add", loops[0], tb.const(1), "int32") if divides else self.make(depth - 1, loops)
        if divides and self.random.random() < 0.7:
            second = tb.const(self.random.randrange(2, 6))
        return ir.Binary(op, first, second, "int32")

    def function(self, name: str) -> PrimFunc:
        stmts = tb.StmtBuilder()
        output = Buffer("output", (5, 7), "int32")
        with stmts.loop(5, "i") as i, stmts.loop(7, "j") as j:
            stmts.store(output, [i, j], self.make(3, [i, j]))
        return PrimFunc(name, (), (), output, (), stmts.finish())


def test_index_arithmetic_keeps_its_order(tmp_path: Path) -> None:
    prims = [SmallIndices(seed).function(f"f{seed}") for seed in range(150)]
    functions = Functions(prims, tmp_path)
    for prim in prims:
        assert_same(functions.call(prim, []), interpreter.run(prim, []), prim)
    text = "".join(print_function(prim).text for prim in prims)
    assert re.search(r"\* \([^()]* / ", text), "no product of a quotient: the test tests nothing"


def pointwise(name: str, dtypes_in: list[str], out: str, size: int, make: Any) -> PrimFunc:
    stmts = tb.StmtBuilder()
    inputs = tuple(Buffer(f"p{n}", (size,), dtype) for n, dtype in enumerate(dtypes_in))
    output = Buffer("output", (size,), out)
    with stmts.loop(size, "i", "vectorized") as i:
        stmts.store(output, [i], make(*(tb.load(buffer, [i]) for buffer in inputs)))
    return PrimFunc(name, inputs, (), output, (), stmts.finish())


def requantize_inputs() -> list[Array]:
    """Return values near rounding ties and both ends for each shift, with the smallest and largest multipliers."""
    rng = np.random.default_rng(3)
    rows = []
    for shift in range(-31, 8):
        for multiplier in (1 << 30, (1 << 30) + 1, (1 << 31) - 1, int(rng.integers(1 << 30, 1 << 31))):
            unit = 1 << max(0, -shift)
            ties = [unit * k // 2 + d for k in range(-9, 10) for d in (-1, 0, 1)]
            ends = [-(2**31) >> max(shift, 0), (2**31 - 1) >> max(shift, 0)]
            for x in [*ties, *ends]:
                if -(2**31) <= x << max(shift, 0) < 2**31:
                    rows.append((x, multiplier, shift))
    return [np.array(column, np.int32) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("name", ["requantize_double", "requantize_single", "requantize_down"])
def test_requantize_at_ties_and_ends(name: str, tmp_path: Path) -> None:
    inputs = requantize_inputs()
    if name == "requantize_down":
        values, multipliers, shifts = (column[inputs[2] < 0] for column in inputs)
        inputs = [values, multipliers, -1 - shifts]
    size = inputs[0].size
    prim = pointwise(name, ["int32"] * 3, "int32", size, lambda *args: tb.intrinsic(name, *args))
    np.testing.assert_array_equal(Functions([prim], tmp_path).call(prim, inputs), interpreter.run(prim, inputs))


def test_fixed_point_intrinsics_on_extremes(tmp_path: Path) -> None:
    edges = np.array([-(2**31), -(2**31) + 1, -(2**30), -3, -2, -1, 0, 1, 2, 3, 2**30, 2**31 - 1], np.int32)
    a, b = (grid.ravel() for grid in np.meshgrid(edges, edges))
    high = pointwise("high", ["int32"] * 2, "int32", a.size,
                     lambda x, y: tb.intrinsic("rounding_doubling_high_mul", x, y))  # fmt: skip
    x, exponent = (grid.ravel() for grid in np.meshgrid(edges, np.arange(32, dtype=np.int32)))
    pot = pointwise("pot", ["int32"] * 2, "int32", x.size, lambda v, e: tb.intrinsic("rounding_divide_by_pot", v, e))
    clz = pointwise("clz", ["uint32"], "int32", 33, lambda v: tb.intrinsic("clz32", v, dtype="int32"))
    powers = np.array([0, *(1 << n for n in range(32))], np.uint32)
    functions = Functions([high, pot, clz], tmp_path)
    for prim, inputs in ((high, [a, b]), (pot, [x, exponent]), (clz, [powers])):
        np.testing.assert_array_equal(functions.call(prim, inputs), interpreter.run(prim, inputs), err_msg=prim.name)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_every_half_float_converts_as_numpy_does(half: str, tmp_path: Path) -> None:
    kind = dtypes.to_numpy(half)
    every = np.arange(1 << 16, dtype=np.uint16).view(kind)
    widen = pointwise("widen", [half], "float32", every.size, lambda v: tb.cast(v, "float32"))
    wide = every.astype(np.float32)
    with np.errstate(all="ignore"):
        near = np.concatenate([np.nextafter(wide, np.float32(np.inf)), np.nextafter(wide, np.float32(-np.inf))])
        between = wide[:-1] / 2 + wide[1:] / 2  # ties between neighbours
    values = np.concatenate([wide, near, between[np.isfinite(between)]]).astype(np.float32)
    narrow = pointwise("narrow", ["float32"], half, values.size, lambda v: tb.cast(v, half))
    functions = Functions([widen, narrow], tmp_path)
    np.testing.assert_array_equal(functions.call(widen, [every]), wide)
    with np.errstate(all="ignore"):
        assert_same(functions.call(narrow, [values]), values.astype(kind), narrow)


UNARY = ["exp", "log", "log2", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
         "asinh", "acosh", "atanh", "erf", "round_away", "round_even"]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_math_h(dtype: str, tmp_path: Path) -> None:
    inside = {"acosh": (1, 9), "log": (0.1, 9), "log2": (0.1, 9), "log10": (0.1, 9), "sqrt": (0, 9)}
    prims = [pointwise(f"f_{name}", [dtype], dtype, 200, lambda v, n=name: tb.intrinsic(n, v)) for name in UNARY]
    functions = Functions(prims, tmp_path)
    for name, prim in zip(UNARY, prims, strict=True):
        values = np.linspace(*inside.get(name, (-0.99, 0.99)), 200).astype(dtype)
        expected = interpreter.run(prim, [values])
        tolerance = 4 * np.finfo(dtype).eps
        np.testing.assert_allclose(functions.call(prim, [values]), expected, rtol=tolerance, err_msg=name)


def test_infinities_and_nan_as_literals(tmp_path: Path) -> None:
    prims = [
        pointwise(f"f{n}", [dtype], dtype, 1, lambda v, x=value, d=dtype: tb.maximum(v, tb.const(x, d)))
        for n, (value, dtype) in enumerate(
            [(float("inf"), "float32"), (float("-inf"), "float64"), (float("nan"), "float32"), (-0.0, "float64")]
        )
    ]
    functions = Functions(prims, tmp_path)
    for prim in prims:
        zero = np.zeros(1, prim.output.dtype)
        np.testing.assert_array_equal(functions.call(prim, [zero]), interpreter.run(prim, [zero]))


def test_the_search_for_bounds_of_selects_ends() -> None:
    verify(Expressions(114).function("f", "float64"))  # a fact of one select leads to a fact of another, and back
