"""Vectorizable exp, tanh and erf: their error bounds over floats of every magnitude, in C and in numpy."""

from __future__ import annotations

import math
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.c import print_function
from mlfc.library.toolchain import NATIVE
from mlfc.relay.ir import TensorType
from mlfc.relay.op import OPERATORS
from mlfc.target.features import Features
from mlfc.tir import builder as tb
from mlfc.tir import visitor
from mlfc.tir.context import Context, from_buffer
from mlfc.tir.interpreter import evaluate_expr
from mlfc.tir.intrinsics import INTRINSICS, float32
from mlfc.tir.ir import Buffer, Call, PrimFunc, Var
from tests.c_files import print_file
from tests.conftest import need
from tests.native.c_functions import EXACT, Functions

Array = npt.NDArray[Any]
BOUNDS = {"exp": float32.EXP_ULP, "tanh": float32.TANH_ULP, "erf": float32.ERF_ULP}
# every exponent and sign, NaN and infinities of both signs; the odd step varies the bits of the fraction
SWEEP = np.concatenate([
    np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32),
    np.linspace(-110, 110, 200_001, dtype=np.float32),
    np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.72284, -87.33655, -103.97], np.float32),
])  # fmt: skip
BELOW = SWEEP[~(SWEEP > 0)]


def exact(name: str, x: Array) -> Array:
    """Return the function in float64."""
    with np.errstate(all="ignore"):
        if name == "erf":
            return np.array([math.erf(value) for value in x.astype(np.float64)])
        return {"exp": np.exp, "tanh": np.tanh}[name](x.astype(np.float64))


def assert_within(values: Array, expected: Array, bound: float) -> None:
    """Fail if a value differs from the expected one by more than `bound` units in the last place."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
        finite = np.isfinite(rounded) & np.isfinite(values)
        np.testing.assert_array_equal(np.isnan(values), np.isnan(expected))
        # at the edge of overflow, both sides are within a unit
        edge = np.abs(expected[~finite & ~np.isnan(expected)]) > 3.4028233e38
        assert np.all(edge)
        unit = np.maximum(np.spacing(np.abs(rounded[finite])), np.float32(1e-45)).astype(np.float64)
        error = np.abs(values[finite] - expected[finite]) / unit
    assert error.max() <= bound
    assert np.array_equal(np.signbit(values[finite]), np.signbit(expected[finite]))


def interpreted(name: str, values: Array = SWEEP) -> Array:
    x = Var("x", "float32")
    return evaluate_expr(tb.intrinsic(f"{name}_f32", x), {x: values}, {})


def function(name: str, values: Array = SWEEP) -> PrimFunc:
    source, result = Buffer("x", values.shape, "float32"), Buffer("y", values.shape, "float32")
    stmts = tb.StmtBuilder()
    with stmts.loops(values.shape) as indices:
        stmts.store(result, indices, tb.intrinsic(f"{name}_f32", tb.load(source, indices)))
    return PrimFunc(f"sweep_{name}", (source,), (), result, (), stmts.finish())


@pytest.mark.parametrize("name", BOUNDS)
def test_numpy_stays_within_the_bound(name: str) -> None:
    assert_within(interpreted(name), exact(name, SWEEP), BOUNDS[name])
    assert INTRINSICS.get(f"{name}_f32").doc.endswith(f" within {BOUNDS[name]} ULP")


@pytest.mark.parametrize(
    "flags", [EXACT, (NATIVE, "-ffp-contract=fast"), ("-O0", "-ffp-contract=off")], ids=["rounded", "fused", "plain"]
)
def test_c_stays_within_the_bound(flags: tuple[str, ...], tmp_path: Path) -> None:
    prims = {name: function(name) for name in BOUNDS}
    functions = Functions(list(prims.values()), tmp_path, flags)
    for name, prim in prims.items():
        values = functions.call(prim, [SWEEP])
        assert_within(values, exact(name, SWEEP), BOUNDS[name])
        if flags == EXACT:
            np.testing.assert_array_equal(values, interpreted(name))


def assert_exp_below(values: Array) -> None:
    """Fail if the exponential of a number <= 0 exceeds the error bound, or is not 0 where the result is subnormal."""
    expected = exact("exp", BELOW)
    tiny = expected < 2.0**-126
    assert not np.any(values[tiny])
    assert_within(values[~tiny], expected[~tiny], float32.EXP_ULP)


@pytest.mark.parametrize("flags", [EXACT, (NATIVE, "-ffp-contract=fast")], ids=["rounded", "fused"])
def test_exponentials_of_what_is_not_above_zero_stay_within_the_bound(flags: tuple[str, ...], tmp_path: Path) -> None:
    prim = function("exp_below", BELOW)
    values = Functions([prim], tmp_path, flags).call(prim, [BELOW])
    assert_exp_below(values)
    if flags == EXACT:
        np.testing.assert_array_equal(values, interpreted("exp_below", BELOW))


@pytest.mark.parametrize(("vector_bytes", "suffix"), [(64, "_f32"), (0, "")])
def test_cores_without_vectors_keep_math_h(vector_bytes: int, suffix: str) -> None:
    source = from_buffer(Buffer("x", (4,), "float32"))
    for name in BOUNDS:
        compute = OPERATORS.get(name).compute
        assert compute is not None
        element = compute(Context(Features(vector_bytes=vector_bytes)), [source], {}, TensorType((4,), "float32"))
        called = [node.name for node in visitor.walk_expr(element([tb.const(0)])) if isinstance(node, Call)]
        assert called == [name + suffix]


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="requires a processor of x86-64: run it on such a machine"
)
def test_gcc_takes_the_widest_vectors_for_exponentials_alone(tmp_path: Path) -> None:
    source, result = Buffer("x", (1000,), "float32"), Buffer("y", (1000,), "float32")
    texts = {}
    for name in ("exp_f32", "exp_below_f32", "tanh_f32", "erf_f32", "sqrt"):
        stmts = tb.StmtBuilder()
        with stmts.loops((1000,)) as indices:
            stmts.store(result, indices, tb.intrinsic(name, tb.load(source, indices)))
        texts[name] = print_file([print_function(PrimFunc("kernel", (source,), (), result, (), stmts.finish()))])
        (tmp_path / f"{name}.c").write_text(texts[name])
    assert {name for name, text in texts.items() if "MLF_WIDE int32_t kernel(" in text} == {*texts} - {"sqrt"}
    flags = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O3", "-fno-math-errno", "-fno-trapping-math")
    command = [need("gcc", "gcc"), *flags, "-march=sapphirerapids", "-S", *(f"{name}.c" for name in texts)]
    subprocess.run(command, check=True, cwd=tmp_path)
    for name in texts:
        assembly = (tmp_path / f"{name}.s").read_text()
        assert ("%zmm" in assembly) is (name != "sqrt"), name
        assert "call\tmlf_" not in assembly
