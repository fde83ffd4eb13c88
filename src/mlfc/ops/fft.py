"""Fourier transforms of real numbers as TFLite Micro computes them: mixed radix, decimation in time.

A transform of 2 n real numbers is computed as one of n complex numbers, whose result is then separated into both
halves. In integers every stage divides by its radix with the rounding of the reference, so results match bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops.rules import check_choice, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Kind, Trait
from mlfc.support import cost, dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

_DTYPES = {"int16": "int32", "int32": "int64", "float32": "float32"}  # dtype of an element -> dtype of products


def factors_of(count: int) -> list[tuple[int, int]]:
    """Return the radix of each stage and the length of the transforms that it combines, from the last stage on.

    Fours first, then twos, then odd numbers: the order determines the rounding of integers.
    """
    found, radix, limit = [], 4, math.isqrt(count)
    while True:
        while count % radix:
            radix = {4: 2, 2: 3}.get(radix, radix + 2)
            if radix > limit:
                radix = count
        count //= radix
        found.append((radix, count))
        if count <= 1:
            return found


class Complex(NamedTuple):
    """A complex number as two expressions of one dtype."""

    re: Expr
    im: Expr


class ComplexArithmetic:
    """Complex arithmetic in floats, or in fixed point where all bits below the sign are fraction bits."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.wide = dtype, _DTYPES[dtype]
        self.is_fixed = dtype != "float32"
        self.bits = dtypes.bits(dtype) - 1

    def narrow(self, x: Expr) -> Expr:
        """Return a value truncated to an element, in the dtype of products."""
        return tb.cast(tb.cast(x, self.dtype), self.wide) if self.is_fixed else x

    def rounded(self, product: Expr) -> Expr:
        """Round a product, or a sum of two products, to an element."""
        if not self.is_fixed:
            return product
        return self.narrow((product + (1 << (self.bits - 1))) >> tb.const(self.bits))

    def scaled(self, x: Complex, factor: Expr) -> Complex:
        """Return the product of a complex and a real number."""
        return Complex(self.rounded(x.re * factor), self.rounded(x.im * factor))

    def divided(self, x: Complex, by: int) -> Complex:
        """Divide a number so that sums of `by` such numbers do not overflow; floats are not divided."""
        return self.scaled(x, tb.const(((1 << self.bits) - 1) // by, self.wide)) if self.is_fixed else x

    def times(self, a: Complex, b: Complex) -> Complex:
        """Return the product of two numbers."""
        return Complex(self.rounded(a.re * b.re - a.im * b.im), self.rounded(a.re * b.im + a.im * b.re))

    def of(self, re: Expr, im: Expr) -> Complex:
        """Convert two sums to the elements of a number."""
        return Complex(self.narrow(re), self.narrow(im))

    def plus(self, a: Complex, b: Complex) -> Complex:
        """Return the sum of two numbers."""
        return self.of(a.re + b.re, a.im + b.im)

    def minus(self, a: Complex, b: Complex) -> Complex:
        """Return the difference of two numbers."""
        return self.of(a.re - b.re, a.im - b.im)

    def half(self, x: Expr) -> Expr:
        """Return half of a sum, rounded down."""
        if not self.is_fixed:
            return x * 0.5
        return (x if self.dtype == "int16" else self.narrow(x)) >> tb.const(1)

    def unit_circle(self, phases: Sequence[float]) -> npt.NDArray[Any]:
        """Return the numbers of magnitude 1 with these phases, as rows (real, imaginary)."""
        most = float((1 << self.bits) - 1)
        pairs = [(math.cos(phase), math.sin(phase)) for phase in phases]
        if self.is_fixed:
            pairs = [(math.floor(0.5 + most * re), math.floor(0.5 + most * im)) for re, im in pairs]
        return np.array(pairs, dtypes.to_numpy(self.dtype)).reshape(len(pairs), 2)


class _Transform:
    """One transform under construction: its length, direction, tables and memory."""

    def __init__(self, ctx: Context, dtype: str, count: int, *, inverse: bool, name: str) -> None:
        cost.require("constants", 64 * count, name)
        self.ctx, self.math, self.count, self.inverse = ctx, ComplexArithmetic(dtype), count, inverse
        turn = 2 * math.pi if inverse else -2 * math.pi
        self.twiddles = ctx.constant("twiddles", self.math.unit_circle([turn * i / count for i in range(count)]))
        sign = math.pi if inverse else -math.pi
        halves = [sign * ((i + 1) / count + 0.5) for i in range(count // 2)]
        self.apart = ctx.constant("apart", self.math.unit_circle(halves))
        self.work = ctx.scratch("work", (count, 2), dtype)

    def let(self, name: str, x: Complex) -> Complex:
        """Bind a number to a name."""
        return Complex(
            *(self.ctx.stmts.let(f"{name}_{part}", value) for part, value in zip(("re", "im"), x, strict=True))
        )

    def read(self, buffer: Buffer, at: Any, name: str = "x") -> Complex:
        """Load a number."""
        parts = (tb.cast(tb.load(buffer, [at, part]), self.math.wide) for part in (0, 1))
        return self.let(name, Complex(*parts))

    def write(self, buffer: Buffer, at: Any, x: Complex) -> None:
        """Store a number."""
        for part, value in enumerate(x):
            self.ctx.stmts.store(buffer, [at, part], tb.cast(value, self.math.dtype))

    def order(self) -> Buffer:
        """Return the table of the input index of each position of the first stage."""
        rest, source, stride = np.arange(self.count), np.zeros(self.count, np.int64), 1
        for radix, length in factors_of(self.count):
            source += rest // length * stride
            rest %= length
            stride *= radix
        return self.ctx.constant("order", source.astype(np.int32))

    def run(self) -> None:
        """Write the stages, which transform `work` in place."""
        stmts, stages = self.ctx.stmts, factors_of(self.count)
        for index in reversed(range(len(stages))):
            radix, length = stages[index]
            stride = math.prod(earlier for earlier, _ in stages[:index])
            kinds = ("serial", "vectorized") if length > 1 else ("vectorized", "serial")
            with stmts.loop(stride, "block", kinds[0]) as block, stmts.loop(length, "k", kinds[1]) as k:
                places = [block * (radix * length) + k + part * length for part in range(radix)]
                found = [self.read(self.work, place) for place in places]
                found = [self.let("part", self.math.divided(x, radix)) for x in found]
                turned = [found[0]]
                for part, x in enumerate(found[1:], 1):
                    turn = self.read(self.twiddles, k * (stride * part), "turn")
                    turned.append(self.let("turned", self.math.times(x, turn)))
                rules = {3: self._three, 4: self._four, 5: self._five}
                if radix == 2:
                    joined = [self.math.plus(*turned), self.math.minus(*turned)]
                else:  # stride is the distance between the twiddles of this radix
                    joined = rules[radix](turned, stride * length)
                for place, x in zip(places, joined, strict=True):
                    self.write(self.work, place, x)

    def _three(self, x: list[Complex], step: int) -> list[Complex]:
        m = self.math
        total, apart = self.let("total", m.plus(x[1], x[2])), m.minus(x[1], x[2])
        middle = self.let("middle", m.of(x[0].re - m.half(total.re), x[0].im - m.half(total.im)))
        height = tb.cast(tb.load(self.twiddles, [step, 1]), m.wide)
        turned = self.let("apart", m.scaled(apart, height))
        first = m.of(middle.re - turned.im, middle.im + turned.re)
        return [m.plus(x[0], total), first, m.of(middle.re + turned.im, middle.im - turned.re)]

    def _four(self, x: list[Complex], _: int) -> list[Complex]:
        m = self.math
        even, odd = self.let("even", m.plus(x[0], x[2])), self.let("odd", m.plus(x[1], x[3]))
        across, along = self.let("across", m.minus(x[0], x[2])), self.let("along", m.minus(x[1], x[3]))
        down = m.of(across.re + along.im, across.im - along.re)
        up = m.of(across.re - along.im, across.im + along.re)
        first, third = (up, down) if self.inverse else (down, up)
        return [m.plus(even, odd), first, m.minus(even, odd), third]

    def _five(self, x: list[Complex], step: int) -> list[Complex]:
        m = self.math
        one, two = self.read(self.twiddles, step, "one"), self.read(self.twiddles, 2 * step, "two")
        outer, outer_apart = self.let("outer", m.plus(x[1], x[4])), self.let("outer_apart", m.minus(x[1], x[4]))
        inner, inner_apart = self.let("inner", m.plus(x[2], x[3])), self.let("inner_apart", m.minus(x[2], x[3]))

        def level(a: Expr, b: Expr) -> Complex:
            near, far = m.scaled(outer, a), m.scaled(inner, b)
            return m.of(x[0].re + near.re + far.re, x[0].im + near.im + far.im)

        def side(a: Expr, b: Expr, sign: int) -> Complex:
            """Return the imaginary-twiddle terms of the upper and lower result; `sign` is that of the inner pair."""
            near, far = m.scaled(outer_apart, a), m.scaled(inner_apart, b)
            if sign > 0:
                return m.of(near.im + far.im, tb.const(0, m.wide) - near.re - far.re)
            return m.of(far.im - near.im, near.re - far.re)

        levels = [self.let("level", level(one.re, two.re)), self.let("level", level(two.re, one.re))]
        sides = [self.let("side", side(one.im, two.im, 1)), self.let("side", side(two.im, one.im, -1))]
        whole = m.of(x[0].re + outer.re + inner.re, x[0].im + outer.im + inner.im)
        (below, across), (above, along) = (
            (m.minus(near, far), m.plus(near, far)) for near, far in zip(levels, sides, strict=True)
        )
        return [whole, below, along, above, across]


def _infer(name: str, _: Attrs, data: TensorType) -> TensorType:
    check_choice(name, "data of", data.dtype, _DTYPES)
    if name == "signal.rfft":
        if not data.shape:
            raise TypeCheckError(f"{name}: expected data of at least one dimension")
        length, made = data.shape[-1], data.shape[-1] + 2
    else:
        if not data.shape or data.shape[-1] < 6:
            raise TypeCheckError(
                f"{name}: expected data with at least 3 complex numbers along the last axis, got {data}"
            )
        length = made = data.shape[-1] - 2
    rest = length // 2
    for radix in (2, 3, 5):
        while rest > 1 and rest % radix == 0:
            rest //= radix
    if length < 4 or length % 2 or rest != 1:
        raise TypeCheckError(
            f"{name}: expected an even length with the prime factors 2, 3 and 5, got {length}",
            next_step="Choose a power of two",
        )
    return TensorType((*data.shape[:-1], made), data.dtype)


def _emit_rfft(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    (data,) = inputs
    count = data.shape[-1] // 2
    fft = _Transform(ctx, data.dtype, count, inverse=False, name="signal.rfft")
    order, m, stmts = fft.order(), fft.math, ctx.stmts
    with serial_loops(ctx, data.shape[:-1], "row") as row:

        def put(place: Any, x: Complex) -> None:
            for part, value in enumerate(x):
                out.store([*row, tb.as_expr(place) * 2 + part], tb.cast(value, out.dtype))

        with stmts.loop(count, "i") as i:
            source = stmts.let("source", tb.clamp(tb.load(order, [i]), 0, count - 1))
            fft.write(fft.work, i, Complex(*(tb.cast(data.read([*row, source * 2 + part]), m.wide) for part in (0, 1))))
        fft.run()
        mean = fft.let("mean", m.divided(fft.read(fft.work, 0), 2))
        zero = tb.const(0, m.wide)
        put(0, Complex(mean.re + mean.im, zero))
        put(count, Complex(mean.re - mean.im, zero))
        with stmts.loop((count - 1) // 2, "k", "vectorized") as less:
            k = less + 1
            first, second = _told_apart(fft, k)
            put(k, first)
            put(tb.const(count) - k, second)
        if count % 2 == 0:
            # LLVM 22 vectorizes these stores with others, and AVX2 shifts the unselected lanes too
            stmts.fence("joined with the stores above, some compilers get these wrong")
            put(count // 2, _told_apart(fft, count // 2)[1])


def _told_apart(fft: _Transform, k: Any) -> tuple[Complex, Complex]:
    """Return the elements k and n - k of the transform of the real numbers."""
    m, other = fft.math, tb.const(fft.count) - k
    here = fft.let("here", m.divided(fft.read(fft.work, k), 2))
    there = fft.read(fft.work, other)
    there = fft.let("there", m.divided(Complex(there.re, m.narrow(tb.const(0, m.wide) - there.im)), 2))
    total, apart = fft.let("total", m.plus(here, there)), m.minus(here, there)
    turned = fft.let("turned", m.times(apart, fft.read(fft.apart, tb.as_expr(k) - 1, "turn")))
    first = Complex(m.half(total.re + turned.re), m.half(total.im + turned.im))
    return first, Complex(m.half(total.re - turned.re), m.half(turned.im - total.im))


def _emit_irfft(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    (data,) = inputs
    count = out.shape[-1] // 2
    fft = _Transform(ctx, data.dtype, count, inverse=True, name="signal.irfft")
    order, m, stmts = fft.order(), fft.math, ctx.stmts
    mixed = ctx.scratch("mixed", (count, 2), data.dtype)
    with serial_loops(ctx, out.shape[:-1], "row") as row:

        def given(place: Any, name: str) -> Complex:
            parts = (tb.cast(data.read([*row, tb.as_expr(place) * 2 + part]), m.wide) for part in (0, 1))
            return fft.let(name, Complex(*parts))

        first, last = given(0, "first"), given(count, "last")
        fft.write(mixed, 0, m.divided(m.of(first.re + last.re, first.re - last.re), 2))
        with stmts.loop(count // 2, "k") as less:
            k = less + 1
            here, there = given(k, "here"), given(tb.const(count) - k, "there")
            here = fft.let("here", m.divided(here, 2))
            there = Complex(there.re, m.narrow(tb.const(0, m.wide) - there.im))
            there = fft.let("there", m.divided(there, 2))
            total, apart = fft.let("total", m.plus(here, there)), m.minus(here, there)
            turned = fft.let("turned", m.times(apart, fft.read(fft.apart, k - 1, "turn")))
            fft.write(mixed, k, m.plus(total, turned))
            low = m.minus(total, turned)
            fft.write(mixed, tb.const(count) - k, Complex(low.re, tb.const(0, m.wide) - low.im))
        with stmts.loop(count, "i") as i:
            source = stmts.let("source", tb.clamp(tb.load(order, [i]), 0, count - 1))
            fft.write(fft.work, i, fft.read(mixed, source))
        fft.run()
        with stmts.loop(count, "i") as i, stmts.loop(2, "part") as part:
            value = tb.load(fft.work, [i, part])
            # floats are divided by the length here, integers were divided at every stage
            out.store([*row, i * 2 + part], value if m.is_fixed else value / float(2 * count))


def _macs(types: Sequence[TensorType], _: Attrs, out: TensorType) -> Any:
    length = min(types[0].shape[-1], out.shape[-1])
    return 2 * out.size * max(1, (length // 2).bit_length())


_CONTRACT = "bit-exact to TFLite Micro's on integers; floats in its order"
declare("signal.rfft", 1, _infer, Kind.REDUCE, emit=_emit_rfft, macs=_macs, contract=_CONTRACT,
        traits=Trait.NOT_IN_TVM,
        doc="Fourier transform of real numbers: real and imaginary parts in turn, the lower half of the spectrum",
        )  # fmt: skip
declare("signal.irfft", 1, _infer, Kind.REDUCE, emit=_emit_irfft, macs=_macs, contract=_CONTRACT,
        traits=Trait.NOT_IN_TVM,
        doc="Real numbers of which this is the lower half of the spectrum, real and imaginary parts in turn",
        )  # fmt: skip
