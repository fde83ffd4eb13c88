"""Kernels whose output overlaps their input return the same results as with separate memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.tir import builder as tb
from mlfc.tir import ir as tir
from mlfc.tir.inplace_overlap import IndexSpan, IndexSpans, OverlapDistance, overlap_distance
from tests.native.kernel_runner import ALIGNMENT, Array, BuiltKernel, Kernels, aligned, build, group_of
from tests.native.test_dsp_kernels import ALL, summed, weights_of
from tests.native.test_kernels import random_integers

PLAIN = Features(vector_bytes=0, vector_registers=0, dot4=False)
FAMILIES = {
    "plain": PLAIN,
    "dsp": Features(vector_bytes=0, vector_registers=0, dot4=False, instruction_sets=("dsp",)),
    "mve": Features(vector_bytes=0, vector_registers=0, dot4=False, instruction_sets=("mve",)),
}


def convolution(name: str) -> ir.Function:
    case = ALL[name]
    x = ir.Var("x", ir.TensorType(case.data, "int8"))
    sums = summed(x, case, weights_of(case), -7, np.arange(case.filters, dtype=np.int32) - 5)
    scales = ir.const(np.linspace(0.001, 0.01, case.filters, dtype=np.float32))
    zero, one, output_zero = (
        ir.const(np.asarray(value, kind)) for value, kind in ((0, "int32"), (1, "float32"), (3, "int32"))
    )
    call = ir.call(
        "qnn.requantize", [sums, scales, zero, one, output_zero], axis=-1, rounding="DOUBLE", out_dtype="int8"
    )
    return group_of(call, [x])


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernels[str]]:
    """Return the layers by family and name."""
    groups = {name: convolution(name) for name in ALL}
    levels = {"plain": "-O2", "dsp": "-O0", "mve": "-O0"}  # plain loops would expose invalid `restrict`
    return {
        family: Kernels({name: (groups[name], features) for name in ALL}, (levels[family],), frozenset({0}))
        for family, features in FAMILIES.items()
    }


def run_apart_and_together(kernel: BuiltKernel, data: Array, distance: int) -> tuple[Array, Array]:
    """Return the result with separate memory, and the one whose output starts `distance` bytes before the input."""
    apart = kernel.run_in(kernel.library, data)
    memory = aligned((distance + max(data.nbytes, apart.nbytes) + 2 * ALIGNMENT,), np.uint8)
    place = memory[distance : distance + data.nbytes]
    place[...] = data.reshape(-1).view(np.uint8)
    pointers = [place.ctypes.data, *(array.ctypes.data for array in kernel.constants), memory.ctypes.data]
    if kernel.group.prim.scratch:
        pointers.append(kernel.workspace.ctypes.data)
    assert getattr(kernel.library, kernel.symbol)(*map(ctypes.c_void_p, pointers)) == 0
    return apart, memory[: apart.nbytes].view(apart.dtype).reshape(apart.shape)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ALL)
def test_convolutions_may_overlap_their_input_as_far_as_is_proven(
    kernels: dict[str, Kernels[str]], name: str, family: str
) -> None:
    kernel = kernels[family][name]
    found = overlap_distance(kernel.group.prim, 0)
    if found is None:
        return
    data = random_integers(np.random.default_rng(5), "int8", ALL[name].data)
    for steps in (0, 1, 2, 5):
        distance = -(-found.nbytes // found.step) * found.step + steps * found.step
        assert found.allows(distance)
        apart, together = run_apart_and_together(kernel, data, distance)
        np.testing.assert_array_equal(together, apart, err_msg=f"{distance} bytes before the input")


@pytest.mark.parametrize(("name", "slack"), [("1x1", 0), ("3x3_same", 2)])
def test_hardly_less_would_do(kernels: dict[str, Kernels[str]], name: str, slack: int) -> None:
    kernel = kernels["plain"][name]
    found = overlap_distance(kernel.group.prim, 0)
    assert found is not None
    assert found.nbytes > slack
    data = random_integers(np.random.default_rng(5), "int8", ALL[name].data)
    for distance in {*range(0, found.nbytes - slack, 97), found.nbytes - slack - 1}:
        apart, together = run_apart_and_together(kernel, data, distance)
        assert not np.array_equal(together, apart), distance


def test_channels_that_are_worked_on_one_after_another_keep_whole_pixels_apart(
    kernels: dict[str, Kernels[str]],
) -> None:
    kernel = kernels["dsp"]["depthwise"]
    assert overlap_distance(kernel.group.prim, 0) == OverlapDistance(0, ALL["depthwise"].data[3])
    data = random_integers(np.random.default_rng(5), "int8", ALL["depthwise"].data)
    apart, together = run_apart_and_together(kernel, data, 1)
    assert not np.array_equal(together, apart)


def test_types_that_compilers_take_for_apart_never_meet() -> None:
    x = ir.Var("x", ir.TensorType((64,), "int32"))
    for dtype, expected in (("float32", None), ("int8", OverlapDistance(0))):
        kernel = build(group_of(ir.call("cast", [x], dtype=dtype), [x]), PLAIN, ("-O1",))
        assert overlap_distance(kernel.group.prim, 0) == expected


@given(low=st.integers(-40, 40), high=st.integers(0, 30), other=st.integers(1, 9), start=st.integers(-9, 9))
def test_spans_hold_every_value(low: int, high: int, other: int, start: int) -> None:
    a, b = tir.Var("a"), tir.Var("b")
    spans = IndexSpans().with_var(a, IndexSpan(np.array([low]), np.array([low + high])))
    inside = spans.with_loop(b, 3, 2)
    for expr, meaning in (
        (a * other + b, lambda p, q: p * other + q),
        (a // other - b, lambda p, q: p // other - q),
        (a % other, lambda p, q: p % other),
        (tb.minimum(a, b + start), lambda p, q: min(p, q + start)),
        (tb.maximum(a - b, start), lambda p, q: max(p - q, start)),
    ):
        span = inside.of(expr)
        for iteration, q in enumerate((0, 2, 4)):
            values = [meaning(p, q) for p in range(low, low + high + 1)]
            assert span.low[iteration] <= min(values)
            assert max(values) <= span.high[iteration]
