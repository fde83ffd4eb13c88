"""Operators of TFLite Micro's audio front end: Fourier transforms, and filters in unsigned fixed point.

A transform of 2 n real numbers is computed as one of n complex numbers, whose result is then separated into both
halves. In integers every stage divides by its radix with the rounding of the reference, so results match bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError
from mlfc.kernels.folding import serial_loops
from mlfc.ops.rules import Element, check_choice, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
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


_LOG_FRACTION = 16
_LOG_SEGMENTS = 7
_NATURAL = 45426  # the natural logarithm of 2, with 16 fraction bits
# formats of the gain control: fraction bits of the ratio to the noise, and of the result
_RATIO_BITS, _GAINED_BITS = 12, 6
GAINS = 125
"""Entries of the gain table: 3 for the smallest numbers, 4 for each number of bits up to 32, except the last."""


def _check(name: str, kind: TensorType, dtype: str, rank: int | None = None) -> None:
    if kind.dtype != dtype or (rank is not None and len(kind.shape) != rank):
        what = f"{dtype} tensor" if rank is None else f"{dtype} tensor of {rank} dimensions"
        raise TypeCheckError(f"{name}: expected a {what}, got {kind}")


def _infer_scale_bits(name: str, _: Attrs, data: TensorType) -> TensorType:
    _check(name, data, "int16", 1)
    return TensorType((), "int32")


def _emit_scale_bits(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    (data,), stmts = inputs, ctx.stmts
    largest = stmts.filled("largest", 1, "int16")
    with stmts.loop(data.shape[0], "i") as i:
        value, best = stmts.let("value", data(i)), stmts.let("best", tb.load(largest, [0]))
        negated = tb.const(0) - tb.cast(value, "int32")
        # -32768 has no magnitude in 16 bits; the reference continues with -32768
        below = tb.select(tb.binary("gt", negated, tb.cast(best, "int32")), tb.cast(negated, "int16"), best)
        stmts.store(largest, [0], tb.select(tb.binary("gt", value, best), value, below))
    zeros = tb.intrinsic("clz32", tb.cast(tb.load(largest, [0]), "uint32"), dtype="int32")
    # silence has nothing to scale: the reference assumes 32 bits
    out.store([], tb.select(tb.binary("eq", tb.load(largest, [0]), 0), tb.const(0), tb.maximum(zeros - 17, 0)))


def _infer_filter_bank(name: str, _: Attrs, data: TensorType, *tables: TensorType) -> TensorType:
    _check(name, data, "uint32", 1)
    for table in tables:
        _check(name, table, "int16", 1)
    weights, unweights, starts, weight_starts, widths = tables
    if not starts.shape == weight_starts.shape == widths.shape or starts.shape[0] < 2 or weights != unweights:
        raise TypeCheckError(f"{name}: tables of {', '.join(str(table.shape) for table in tables)} do not fit")
    if 0 in (*data.shape, *weights.shape):
        raise TypeCheckError(f"{name}: expected data and weights that are not empty")
    return TensorType((starts.shape[0] - 1,), "uint64")


def _emit_filter_bank(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    data, weights, unweights, starts, weight_starts, widths = inputs
    stmts, bins, count = ctx.stmts, data.shape[0], weights.shape[0]
    with stmts.loop(out.shape[0], "channel") as channel:
        total = stmts.filled("total", 1, "uint64")
        for band, table in ((channel, unweights), (channel + 1, weights)):
            first, place, width = (
                stmts.let(name, tb.cast(bands(band), "int32"))
                for name, bands in (("first", starts), ("place", weight_starts), ("width", widths))
            )
            with stmts.loop(stmts.let("count", tb.maximum(width, 0)), "j") as j:
                # the clamps do not change indices of valid tables, and keep those of all others inside the data
                weight = table(tb.clamp(place + j, 0, count - 1))
                energy = tb.cast(data(tb.clamp(first + j, 0, bins - 1)), "uint64")
                stmts.store(total, [0], tb.load(total, [0]) + tb.cast(tb.cast(weight, "int64"), "uint64") * energy)
        out.store([channel], tb.load(total, [0]))


def _infer_square_root(name: str, _: Attrs, data: TensorType, bits: TensorType) -> TensorType:
    _check(name, data, "uint64")
    _check(name, bits, "int32")
    if bits.size != 1:
        raise TypeCheckError(f"{name}: expected one number of bits, got {bits}")
    return TensorType(data.shape, "uint32")


def _emit_square_root(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    (data, bits), stmts = inputs, ctx.stmts
    down = stmts.let("down", tb.clamp(bits.read([tb.const(0)] * len(bits.shape)), 0, 31))
    rest, root = (stmts.local(name, (1,), "uint64") for name in ("rest", "root"))
    with stmts.loops(data.shape) as at:
        number = stmts.let("number", data.read(list(at)))
        stmts.store(rest, [0], number)
        stmts.store(root, [0], 0)
        with stmts.loop(32, "step") as step:
            bit = stmts.let("bit", tb.const(1, "uint64") << (tb.const(62) - step * 2))
            known, trial = tb.load(root, [0]), stmts.let("trial", tb.load(root, [0]) + bit)
            fits = stmts.let("fits", tb.binary("ge", tb.load(rest, [0]), trial))
            half = stmts.let("half", known >> tb.const(1))
            stmts.store(rest, [0], tb.select(fits, tb.load(rest, [0]) - trial, tb.load(rest, [0])))
            stmts.store(root, [0], tb.select(fits, half + bit, half))
        found = stmts.let("found", tb.load(root, [0]))
        # 32-bit numbers have 16-bit roots, which are not rounded up beyond 16 bits
        is_short = tb.binary("eq", number >> tb.const(32), 0)
        most = tb.select(is_short, tb.const(0xFFFF, "uint64"), tb.const(0xFFFFFFFF, "uint64"))
        rounds = tb.land(tb.binary("gt", tb.load(rest, [0]), found), tb.binary("ne", found, most))
        rounded = tb.cast(found + tb.cast(rounds, "uint64"), "uint32")
        out.store(list(at), stmts.let("rounded", rounded) >> down)


def _infer_log(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    _check(name, data, "uint32")
    if not 0 <= attrs["correction_bits"] < 32 or not 0 <= attrs["output_scale"] < 1 << 31:
        raise TypeCheckError(f"{name}: correction of {attrs['correction_bits']} bits, scale {attrs['output_scale']}")
    return TensorType(data.shape, "int16")


def _log(of: Element, data: Tensor) -> Expr:
    scaled = data.read(of.at) << tb.const(of.attrs["correction_bits"])
    whole = tb.const(31) - tb.intrinsic("clz32", tb.maximum(scaled, 1), dtype="int32")
    above = scaled - (tb.const(1, "uint32") << whole)
    left, right = tb.maximum(tb.const(_LOG_FRACTION) - whole, 0), tb.maximum(whole - _LOG_FRACTION, 0)
    fraction = tb.cast((above << left) >> right, "int32")
    width = _LOG_FRACTION - _LOG_SEGMENTS
    segment = tb.clamp(fraction >> tb.const(width), 0, (1 << _LOG_SEGMENTS) - 1)
    # binary logarithm of 1 + x minus x, at each segment of [0, 1] and one beyond
    x = np.arange((1 << _LOG_SEGMENTS) + 1) / (1 << _LOG_SEGMENTS)
    excess = np.rint((np.log2(1 + x) - x) * (1 << _LOG_FRACTION)).astype(np.int32)
    table = of.ctx.constant("log_table", excess)
    low, high = tb.load(table, [segment]), tb.load(table, [segment + 1])
    between = ((high - low) * (fraction - segment * (1 << width))) >> tb.const(_LOG_FRACTION)
    binary = (tb.cast(whole, "uint32") << tb.const(_LOG_FRACTION)) + tb.cast(fraction + low + between, "uint32")
    half = 1 << (_LOG_FRACTION - 1)
    wide = tb.cast(binary, "uint64") * _NATURAL + half
    natural = tb.cast(wide >> tb.const(_LOG_FRACTION), "uint32")
    result = (natural * of.attrs["output_scale"] + half) >> tb.const(_LOG_FRACTION)
    limited = tb.cast(tb.minimum(result, 32767), "int16")
    return tb.select(tb.binary("gt", scaled, 1), limited, tb.const(0, "int16"))


def _infer_gain(name: str, attrs: Attrs, data: TensorType, noise: TensorType, gains: TensorType) -> TensorType:
    _check(name, data, "uint32")
    _check(name, gains, "int16", 1)
    if noise != data or gains.shape[0] < GAINS or not 0 <= attrs["snr_shift"] < 64:
        raise TypeCheckError(
            f"{name}: data {data}, noise {noise}, gains {gains} and a shift by {attrs['snr_shift']} do not fit"
        )
    return data


def _gain(of: Element, data: Tensor, noise: Tensor, gains: Tensor) -> Expr:
    level = noise.read(of.at)
    bits = tb.const(32) - tb.intrinsic("clz32", level, dtype="int32")
    base = tb.clamp(bits * 4 - 6, 0, GAINS - 3)
    left, right = tb.maximum(tb.const(11) - bits, 0), tb.maximum(bits - 11, 0)
    fraction = tb.cast(((level << left) >> right) & 0x3FF, "int32")
    start, slope, bend = (tb.cast(gains(base + k), "int32") for k in range(3))
    curve = ((bend * fraction) >> tb.const(5)) + slope * 32
    gain = ((curve * fraction + (1 << 14)) >> tb.const(15)) + start
    small = gains(tb.cast(tb.minimum(level, 2), "int32"))
    chosen = tb.select(tb.binary("le", level, 2), small, tb.cast(gain, "int16"))
    # a negative gain is reinterpreted as an unsigned number
    factor = tb.cast(tb.cast(tb.cast(chosen, "int32"), "uint32"), "uint64")
    ratio = tb.cast((tb.cast(data.read(of.at), "uint64") * factor) >> tb.const(of.attrs["snr_shift"]), "uint32")
    squared = (ratio * ratio) >> tb.const(2 + 2 * _RATIO_BITS - _GAINED_BITS)
    linear = (ratio >> tb.const(_RATIO_BITS - _GAINED_BITS)) - (1 << _GAINED_BITS)
    return tb.select(tb.binary("lt", ratio, 2 << _RATIO_BITS), squared, linear)


def _infer_overlap_add(name: str, attrs: Attrs, frames: TensorType, state: TensorType) -> TensorType:
    check_choice(name, "frames of", frames.dtype, ("int16", "float32"))
    step = attrs["frame_step"]
    if len(frames.shape) != 3 or 0 in frames.shape or not 0 < step <= frames.shape[-1]:
        raise TypeCheckError(f"{name}: frames of shape {frames.shape} do not overlap by steps of {step}")
    rows, count, size = frames.shape
    if state != TensorType((rows, size), frames.dtype):
        raise TypeCheckError(f"{name}: a state {state} does not fit frames of shape {frames.shape}")
    return TensorType((rows, count * step + size), frames.dtype)


def _emit_overlap_add(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    (frames, state), stmts, step = inputs, ctx.stmts, attrs["frame_step"]
    rows, count, size = frames.shape
    reach = -(-size // step)  # number of frames that overlap at one position
    with stmts.loop(rows, "row") as row, stmts.loop(out.shape[-1], "i") as i:
        start = state(row, tb.minimum(i, size - 1))
        total = stmts.filled("total", 1, out.dtype, tb.select(tb.binary("lt", i, size), start, tb.const(0, out.dtype)))
        last = stmts.let("last", i // step)
        with stmts.loop(reach, "back") as back:
            frame = stmts.let("frame", last - (reach - 1) + back)
            inside = stmts.let("inside", i - frame * step)
            with stmts.when(
                tb.land(tb.binary("ge", frame, 0), tb.binary("lt", frame, count), tb.binary("lt", inside, size))
            ):
                given = frames(row, tb.clamp(frame, 0, count - 1), tb.clamp(inside, 0, size - 1))
                before = tb.load(total, [0])
                if out.dtype == "float32":
                    value = before + given
                else:
                    wide = tb.cast(before, "int32") + tb.cast(given, "int32")
                    value = tb.cast(tb.clamp(wide, -32768, 32767), "int16")
                stmts.store(total, [0], value)
        out.store([row, i], tb.load(total, [0]))


_FILTER_CONTRACT = "bit-exact to TFLite Micro's"
_declare = partial(declare, traits=Trait.NOT_IN_TVM)
_declare("signal.scale_bits", 1, _infer_scale_bits, Kind.REDUCE, emit=_emit_scale_bits, contract=_FILTER_CONTRACT,
        doc="Number of bits by which all 16-bit numbers of a vector can be shifted left")  # fmt: skip
_declare("signal.filter_bank", 6, _infer_filter_bank, Kind.REDUCE, emit=_emit_filter_bank, contract=_FILTER_CONTRACT,
        doc="Energies of overlapping bands: each bin counts by a weight in one, by another in the next")  # fmt: skip
_declare("signal.square_root", 2, _infer_square_root, Kind.REDUCE, emit=_emit_square_root, contract=_FILTER_CONTRACT,
        doc="Square roots of 64-bit numbers, rounded, then shifted down by a number of bits")  # fmt: skip
_declare("signal.log", 1, _infer_log, Kind.ELEMENTWISE, (Attr("correction_bits", 0), Attr("output_scale", 1)), _log,
        expensive=True, contract=_FILTER_CONTRACT,
        doc="Natural logarithm in fixed point, from a table of segments")  # fmt: skip
_declare("signal.gain", 3, _infer_gain, Kind.INJECTIVE, (Attr("snr_shift", 0),), _gain, expensive=True,
        contract=_FILTER_CONTRACT,
        doc="Per-channel amplitude normalization: energies times a function of the noise, compressed")  # fmt: skip
_declare("signal.overlap_add", 2, _infer_overlap_add, Kind.REDUCE, (Attr("frame_step", REQUIRED),),
        emit=_emit_overlap_add, contract=f"{_FILTER_CONTRACT}; floats in its order",
        doc="Sums of overlapping frames, and the remainder of earlier ones")  # fmt: skip
