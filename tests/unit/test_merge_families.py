"""One function for kernels that differ only in numbers: substituting a kernel's numbers restores that kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlfc
from mlfc.support import dtypes
from mlfc.tir import block_intrinsics, interpreter
from mlfc.tir import builder as tb
from mlfc.tir.ir import Buffer, Expr, PrimFunc
from mlfc.tir.merge_kernels import merge_families, merge_kernels
from mlfc.tir.parameters import ParameterPool, SharedFunction, specialize, without_single_trips
from mlfc.tir.visitor import signature
from tests.verify_tir import verify

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Plan:
    """The common structure of a family's kernels."""

    staged: bool
    by_number: bool
    requantized: bool
    guarded_store: bool


@dataclass(frozen=True)
class Sizes:
    """The numbers in which they differ."""

    height: int
    width: int
    channels: int
    filters: int
    kernel: int
    stride: int
    pad: int
    zero: int
    multiplier: int
    exponent: int

    @property
    def output(self) -> tuple[int, int, int]:
        """The shape of the result."""
        rows, columns = ((n + 2 * self.pad - self.kernel) // self.stride + 1 for n in (self.height, self.width))
        return rows, columns, self.filters


def convolution(plan: Plan, sizes: Sizes) -> PrimFunc:
    """Return a convolution with the loop structure of `plan`, for any sizes."""
    b = tb.StmtBuilder(single_trips=True)
    s, (rows, columns, filters) = sizes, sizes.output
    data = Buffer("data", (s.height, s.width, s.channels), "int8")
    weights = Buffer("weights", (filters, s.kernel, s.kernel, s.channels), "int8")
    output = Buffer("output", (rows, columns, filters), "int32")
    window = Buffer("window", (s.kernel, s.kernel, s.channels), "int32", "scratch")
    spare = Buffer("spare", (filters,), "int32", "scratch")

    def element(y: Expr, x: Expr, c: Expr) -> Expr:
        inside = tb.land(*(tb.binary("ge", n, 0) for n in (y, x)))
        inside = tb.land(inside, tb.binary("lt", y, s.height), tb.binary("lt", x, s.width))
        return tb.select(inside, tb.cast(tb.load(data, [y, x, c]), "int32") - s.zero, 0)

    def pixel(y: Expr, x: Expr) -> None:
        top, left = b.let("top", y * s.stride - s.pad), b.let("left", x * s.stride - s.pad)
        if plan.staged:
            with b.loop(s.kernel, "ky") as ky, b.loop(s.kernel, "kx") as kx, b.loop(s.channels, "c") as c:
                b.store(window, [ky, kx, c], element(top + ky, left + kx, c))
        with b.loop(filters, "f") as f:
            total = b.local("total", (1,), "int32")
            b.store(total, [0], 0)
            with b.loop(s.kernel, "ky") as ky, b.loop(s.kernel, "kx") as kx, b.loop(s.channels, "c") as c:
                value = tb.load(window, [ky, kx, c]) if plan.staged else element(top + ky, left + kx, c)
                weight = tb.cast(tb.load(weights, [f, ky, kx, c]), "int32")
                b.store(total, [0], tb.load(total, [0]) + value * weight)
            result = b.let("result", tb.load(total, [0]))
            if plan.requantized:
                literals = tb.const(s.multiplier), tb.const(s.exponent)
                result = tb.clamp(tb.intrinsic("requantize_down", result, *literals) + 3, -128, 127)
            b.store(spare, [f], result)
            if plan.guarded_store:
                with b.when(tb.binary("lt", y, rows)):
                    b.store(output, [y, x, f], tb.load(spare, [f]))
            else:
                b.store(output, [y, x, f], tb.load(spare, [f]))

    if plan.by_number:
        with b.loop(rows * columns, "number") as number:
            pixel(b.let("y", number // columns), b.let("x", number % columns))
    else:
        with b.loop(rows, "y") as y, b.loop(columns, "x") as x:
            pixel(y, x)
    return PrimFunc("convolution", (data,), (weights,), output, (window, spare), b.finish())


@st.composite
def size_draws(draw: st.DrawFn) -> Sizes:
    """Draw the sizes of a small convolution, some of them one or zero."""
    kernel = draw(st.integers(1, 3))
    side = st.integers(max(kernel, 2), 5)
    return Sizes(
        draw(side), draw(side), draw(st.integers(1, 3)), draw(st.integers(1, 3)), kernel, draw(st.integers(1, 2)),
        draw(st.integers(0, 1)), draw(st.integers(1, 127)), draw(st.integers(2**30, 2**31 - 1)),
        draw(st.integers(0, 9)),
    )  # fmt: skip


def arguments(prim: PrimFunc, seed: int) -> tuple[list[Array], list[Array]]:
    """Return random inputs and constants."""
    rng = np.random.default_rng(seed)

    def random(buffer: Buffer) -> Array:
        return rng.integers(*dtypes.limits(buffer.dtype), buffer.shape, dtypes.to_numpy(buffer.dtype))

    return [random(buffer) for buffer in prim.inputs], [random(buffer) for buffer in prim.constants]


def flattened(arrays: Sequence[Array]) -> list[Array]:
    return [array.reshape(-1) for array in arrays]


@settings(max_examples=25)
@given(st.builds(Plan, *[st.booleans()] * 4), st.lists(size_draws(), min_size=2, max_size=4))
def test_a_family_of_random_kernels_is_one_function(plan: Plan, sizes: list[Sizes]) -> None:
    # a width of one would fold the division by it, which changes the structure; zero points are nonzero for the same
    # reason
    members = [convolution(plan, item) for item in sizes if item.output[1] > 1 or not plan.by_number]
    if len(members) < 2:
        return
    shared = merge_kernels(members)
    assert shared is not None
    for position, prim in enumerate(members):
        inputs, constants = arguments(prim, position)
        one = specialize(shared, position)
        got = interpreter.run(one, flattened(inputs), flattened(constants))
        np.testing.assert_array_equal(got, interpreter.run(prim, inputs, constants).reshape(-1))
        assert one.scratch_bytes == prim.scratch_bytes
        offsets = [int(interpreter.evaluate_expr(e, shared.values(position), {})) for e in shared.scratch_offsets]
        assert tuple(offsets) == prim.scratch_offsets


@settings(max_examples=20)
@given(st.builds(Plan, *[st.booleans()] * 4), size_draws())
def test_loops_of_one_trip_change_nothing(plan: Plan, sizes: Sizes) -> None:
    prim = convolution(plan, sizes)
    inputs, constants = arguments(prim, 0)
    plain = replace(prim, body=without_single_trips(prim.body))
    verify(plain)
    got = interpreter.run(plain, inputs, constants)
    np.testing.assert_array_equal(got, interpreter.run(prim, inputs, constants))


SIZES = Sizes(4, 4, 2, 2, 3, 1, 1, 5, 2**30, 3)
PLAIN = Plan(staged=False, by_number=False, requantized=True, guarded_store=False)


def doubled(prim: PrimFunc) -> PrimFunc:
    b = tb.StmtBuilder()
    with b.loops(prim.output.shape) as place:
        b.store(prim.output, place, tb.load(prim.output, place) * 2)
    return replace(prim, body=tb.seq([prim.body, b.finish()]))


OTHERS: dict[str, Callable[[], PrimFunc]] = {
    "one loop more": lambda: convolution(replace(PLAIN, staged=True), SIZES),
    "another order": lambda: convolution(replace(PLAIN, by_number=True), SIZES),
    "an operator less": lambda: convolution(replace(PLAIN, requantized=False), SIZES),
    "a condition more": lambda: convolution(replace(PLAIN, guarded_store=True), SIZES),
    "a statement more": lambda: doubled(convolution(PLAIN, SIZES)),
    "other data": lambda: _with_output(convolution(PLAIN, SIZES), "float32"),
    "an input more": lambda: _with_input(convolution(PLAIN, SIZES)),
}


def _with_output(prim: PrimFunc, dtype: str) -> PrimFunc:
    return replace(prim, output=replace(prim.output, dtype=dtype))


def _with_input(prim: PrimFunc) -> PrimFunc:
    return replace(prim, inputs=(*prim.inputs, Buffer("more", (3,), "int8")))


@pytest.mark.parametrize("name", OTHERS)
def test_other_structures_are_not_shared(name: str) -> None:
    prim = convolution(PLAIN, SIZES)
    assert merge_kernels([prim, convolution(PLAIN, replace(SIZES, channels=3))]) is not None
    assert merge_kernels([prim, OTHERS[name]()]) is None


def test_numbers_that_go_along_are_one_parameter() -> None:
    pool = ParameterPool()
    first = pool.number([3, 5, 9], "int32", "n")
    assert pool.number([3, 5, 9], "int32", "again") is first
    assert pool.number([4, 4, 4], "int32", "same").value == 4
    assert [pool.number(values, "int32", "m").op for values in ([2, 4, 8], [12, 20, 36])] == ["add", "mul"]
    assert len(pool.parameters) == 1
    pool.number([3, 5, 8], "int32", "other")
    pool.number([0.5, -0.0, 0.0], "float32", "scale")
    assert pool.number([0.5, 0.0, 0.0], "float32", "scale") is not pool.number([0.5, -0.0, 0.0], "float32", "scale")
    assert [parameter.var.name for parameter in pool.parameters] == ["n", "other", "scale", "scale_1"]


@pytest.mark.parametrize("name", [name for name in block_intrinsics.NAMES if name != "run"])
def test_counts_of_runs_are_those_of_their_sizes(name: str) -> None:
    counts = {"taps": (9,), "paired_taps": (9,)}.get(name, (3, 5, 1))
    assert len(counts) == len(block_intrinsics.COUNTS[name])
    sizes, result = block_intrinsics.sizes(name, counts)
    assert block_intrinsics.counts(name, sizes) == counts
    operands = [np.ones(size, np.int8 if place else np.int32) for place, size in enumerate(sizes)]
    sums = (block_intrinsics.matvec_s8 if name.startswith("dots") else block_intrinsics.depthwise_mac)(*operands)
    assert sums.size == result
    assert set(sums.tolist()) == {1 + (9 if "taps" in name else 56)}


def program_of(path: Path, target: str) -> list[PrimFunc]:
    module, params = mlfc.import_model(path)
    return list(mlfc.build(module, target, params, optimize="size").program.kernels)


def normal_form(prim: PrimFunc) -> str:
    """Return the text of a function as a family of one: one-dimensional buffers, indices as sums."""
    alone = merge_kernels([prim, prim])
    assert alone is not None
    assert not alone.parameters
    return signature(specialize(alone, 0))


# number of kernels per shared function, by the templates of the cores
FAMILIES = {
    ("vww_96_int8", "c -mcpu=cortex-m4"): [5, 4, 4, 3, 2],
    ("pretrainedResnet_quant", "c -mcpu=cortex-m4"): [3, 3, 2],
    ("ad01_int8", "c -mcpu=cortex-m4"): [10],
    ("ad01_int8", "c -mcpu=cortex-m55"): [10],
    ("ad01_int8", "c"): [9],
}


@pytest.mark.parametrize(("name", "target"), FAMILIES)
def test_kernels_of_models_share_functions_that_are_theirs(name: str, target: str, models: Path) -> None:
    kernels = program_of(models / f"{name}.tflite", target)
    families = merge_families(kernels)
    assert sorted((len(family.members) for family in families), reverse=True) == FAMILIES[name, target]
    assert {type(family) for family in families} == {SharedFunction}
    for family in families:
        for position, member in enumerate(family.members):
            verify(member)
            assert signature(specialize(family, position)) == normal_form(member)
