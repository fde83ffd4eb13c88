"""Operators of TFLite Micro's audio front end other than Fourier transforms, in unsigned fixed point."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import Element, check_choice, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Expr

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


_CONTRACT = "bit-exact to TFLite Micro's"
_declare = partial(declare, traits=Trait.NOT_IN_TVM)
_declare("signal.scale_bits", 1, _infer_scale_bits, Kind.REDUCE, emit=_emit_scale_bits, contract=_CONTRACT,
        doc="Number of bits by which all 16-bit numbers of a vector can be shifted left")  # fmt: skip
_declare("signal.filter_bank", 6, _infer_filter_bank, Kind.REDUCE, emit=_emit_filter_bank, contract=_CONTRACT,
        doc="Energies of overlapping bands: each bin counts by a weight in one, by another in the next")  # fmt: skip
_declare("signal.square_root", 2, _infer_square_root, Kind.REDUCE, emit=_emit_square_root, contract=_CONTRACT,
        doc="Square roots of 64-bit numbers, rounded, then shifted down by a number of bits")  # fmt: skip
_declare("signal.log", 1, _infer_log, Kind.ELEMENTWISE, (Attr("correction_bits", 0), Attr("output_scale", 1)), _log,
        expensive=True, contract=_CONTRACT,
        doc="Natural logarithm in fixed point, from a table of segments")  # fmt: skip
_declare("signal.gain", 3, _infer_gain, Kind.INJECTIVE, (Attr("snr_shift", 0),), _gain, expensive=True,
        contract=_CONTRACT,
        doc="Per-channel amplitude normalization: energies times a function of the noise, compressed")  # fmt: skip
_declare("signal.overlap_add", 2, _infer_overlap_add, Kind.REDUCE, (Attr("frame_step", REQUIRED),),
        emit=_emit_overlap_add, contract=f"{_CONTRACT}; floats in its order",
        doc="Sums of overlapping frames, and the remainder of earlier ones")  # fmt: skip
