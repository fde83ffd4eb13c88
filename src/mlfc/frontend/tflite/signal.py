"""TFLite Micro's custom operators for audio front ends. Their internal memory becomes states of the model.

When TFLite Micro reports a result as not yet valid and leaves its memory unchanged, the result here is zeros.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from mlfc.errors import ModelError
from mlfc.frontend.tflite.node import Node, converts, option
from mlfc.ops.fft import GAINS
from mlfc.relay import ir
from mlfc.relay.ir import Expr, TensorType, const
from mlfc.support import cost

_LEAST_RFFT = 4  # the shortest transform that `signal.rfft` supports


def _rows(node: Node, data: Expr, rank: int) -> Expr:
    """Flatten all but the last `rank` dimensions into one."""
    shape = ir.tensor_type(data).shape
    if len(shape) < rank:
        raise ModelError(f"data of shape {shape} have too few dimensions")
    return node.call("reshape", data, newshape=(prod(shape[: len(shape) - rank]), *shape[len(shape) - rank :]))


def _int16(node: Node) -> None:
    if node.input(0).dtype != "int16":
        node.refuse(f"{node.record.code} of {node.input(0).type_name} is not supported", "Give it int16")


@converts("CUSTOM SignalWindow")
def _window(node: Node) -> Expr:
    _int16(node)
    weights = node.expr(1)
    if ir.tensor_type(weights) != TensorType(node.shape(0)[-1:], "int16"):
        raise ModelError(f"weights {weights.type} do not fit data of shape {node.shape(0)}")
    wide, weights = (node.call("cast", x, dtype="int32") for x in (node.expr(0), weights))
    shifted = node.call("right_shift", node.call("multiply", wide, weights), const(option(node, "shift", 0, 31)))
    return node.call("cast", node.call("clip", shifted, a_min=-32768.0, a_max=32767.0), dtype="int16")


@converts("CUSTOM SignalFftAutoScale")
def _auto_scale(node: Node) -> list[Expr]:
    _int16(node)
    data = node.expr(0)
    bits = node.call("signal.scale_bits", data)
    scaled = node.call("left_shift", node.call("cast", data, dtype="int32"), bits)
    return [node.call("cast", scaled, dtype="int16"), bits]


@converts("CUSTOM SignalRfft")
def _rfft(node: Node) -> Expr:
    length, shape = option(node, "fft_length", 4), node.shape(0)
    if not shape or not 0 < shape[-1] <= length:
        raise ModelError(f"data of shape {shape} do not fit transforms of {length} numbers")
    data = node.expr(0)
    if shape[-1] < length:
        around = (*((0, 0) for _ in shape[1:]), (0, length - shape[-1]))
        data = node.call("nn.pad", data, const(0, ir.tensor_type(data).dtype), pad_width=around)
    return node.call("signal.rfft", data)


@converts("CUSTOM SignalIrfft")
def _irfft(node: Node) -> Expr:
    if node.shape(0)[-1:] != (option(node, "fft_length", 4) + 2,):
        raise ModelError(f"a spectrum {node.shape(0)} does not fit transforms of {option(node, 'fft_length')} numbers")
    return node.call("signal.irfft", node.expr(0))


def _sized(node: Node, data: Expr, axis: int, length: int) -> Expr:
    """Return data cropped, or padded with zeros, to a length along an axis."""
    shape = ir.tensor_type(data).shape
    if shape[axis] > length:
        return node.cut(data, 0, length, axis)
    around = tuple((0, length - extent) if place == axis else (0, 0) for place, extent in enumerate(shape))
    return node.call("nn.pad", data, const(0, "float32"), pad_width=around) if shape[axis] < length else data


def _multiplied(node: Node, data: Expr, turns: npt.NDArray[np.complex128], *, is_real: bool) -> Expr:
    """Return products of rows of real or complex numbers with a matrix; the last axis has alternating parts."""
    blocks = np.array([[turns.real, -turns.imag], [turns.imag, turns.real]])[:, : 2 - is_real]
    table = blocks.transpose(2, 0, 3, 1).reshape(2 * len(turns), -1)
    cost.require("constants", 4 * table.size, node.label)
    *leading, _ = shape = ir.tensor_type(data).shape
    rows = node.call("reshape", data, newshape=(prod(leading), shape[-1]))
    result = node.call("nn.dense", rows, const(table, "float32"), units=len(table))
    return node.call("reshape", result, newshape=(*leading, len(table)))


@converts("RFFT2D")
def _rfft2d(node: Node) -> Expr:
    """Convert RFFT2D; a complex tensor has an additional axis of size 2 for real and imaginary parts."""
    lengths, rank = node.integers(1), len(node.shape(0))
    is_power = all(length > 0 and not length & (length - 1) for length in lengths)
    if len(lengths) != 2 or rank < 2 or not is_power or lengths[1] < 2:
        raise ModelError(f"expected two powers of two as the lengths of the transforms, got {lengths}")
    height, width = lengths
    data = _sized(node, _sized(node, node.expr(0), rank - 2, height), rank - 1, width)
    if width < _LEAST_RFFT:
        turns = np.exp(-2j * np.pi * np.outer(np.arange(width // 2 + 1), np.arange(width)) / width)
        data = _multiplied(node, data, turns, is_real=True)
    else:
        data = node.call("signal.rfft", data)
    half = (*ir.tensor_type(data).shape[:-1], width // 2 + 1, 2)
    data = node.call("reshape", data, newshape=half)
    if height == 1:
        return data
    order = (*range(rank - 2), rank - 1, rank - 2, rank)
    columns = node.call("transpose", data, axes=order)
    shape = ir.tensor_type(columns).shape
    turns = np.exp(-2j * np.pi * np.outer(np.arange(height), np.arange(height)) / height)
    columns = _multiplied(node, node.call("reshape", columns, newshape=(*shape[:-2], 2 * height)), turns, is_real=False)
    return node.call("transpose", node.call("reshape", columns, newshape=shape), axes=order)


@converts("COMPLEX_ABS", "REAL", "IMAG")
def _part(node: Node) -> Expr:
    if node.input(0).type_name != "COMPLEX64":
        node.refuse(f"{node.record.code} of {node.input(0).type_name} is not supported")
    data = node.expr(0)
    axis = len(ir.tensor_type(data).shape) - 1
    real, imaginary = (node.call("squeeze", node.cut(data, k, k + 1, axis), axis=(axis,)) for k in (0, 1))
    if node.record.code != "COMPLEX_ABS":
        return real if node.record.code == "REAL" else imaginary
    # dividing by the larger part avoids overflow
    real, imaginary = node.call("abs", real), node.call("abs", imaginary)
    most, least = node.call("maximum", real, imaginary), node.call("minimum", real, imaginary)
    ratio = node.call("where", node.call("equal", most, least), const(1.0), node.call("divide", least, most))
    square = node.call("add", node.call("multiply", ratio, ratio), const(1.0))
    return node.call("multiply", most, node.call("sqrt", square))


@converts("CUSTOM SignalEnergy")
def _energy(node: Node) -> Expr:
    """Convert SignalEnergy; outside its index range, where TFLite Micro writes nothing, the energy is 0."""
    _int16(node)
    if len(node.shape(0)) != 1 or node.shape(0)[0] % 2:
        raise ModelError(f"expected a spectrum of one dimension and even length, got shape {node.shape(0)}")
    count = node.shape(0)[0] // 2
    first, last = option(node, "start_index", 0, count), option(node, "end_index", 0, count)
    pairs = node.call("reshape", node.call("cast", node.expr(0), dtype="int32"), newshape=(count, 2))
    squares = node.call("cast", node.call("multiply", pairs, pairs), dtype="uint32")
    halves = (node.call("reshape", node.cut(squares, k, k + 1, 1), newshape=(count,)) for k in (0, 1))
    energy = node.call("add", *halves)
    if (first, last) == (0, count):
        return energy
    if first >= last:
        raise ModelError(f"invalid range of energies: start_index {first}, end_index {last}")
    inside = node.cut(energy, first, last)
    return node.call("nn.pad", inside, const(0, "uint32"), pad_width=((first, count - last),))


@converts("CUSTOM SignalFilterBank")
def _filter_bank(node: Node) -> Expr:
    channels = option(node, "num_channels", 1)
    weights, unweights, starts, weight_starts, widths = (node.integers(position) for position in range(1, 6))
    if len(weights) != len(unweights) or min(len(starts), len(weight_starts), len(widths)) <= channels:
        raise ModelError(f"its tables have fewer than {channels + 1} bands")
    bands = list(zip(starts, weight_starts, widths, strict=False))[: channels + 1]
    for start, place, width in bands:
        if min(start, place, width) < 0 or start + width > node.shape(0)[0] or place + width > len(weights):
            raise ModelError(f"a band of {width} bins from {start} on, with weights from {place} on, is out of range")
    tables = [weights, unweights, *([band[k] for band in bands] for k in range(3))]
    return node.call("signal.filter_bank", node.expr(0), *(const(np.array(table), "int16") for table in tables))


@converts("CUSTOM SignalFilterBankSquareRoot")
def _square_root(node: Node) -> Expr:
    return node.call("signal.square_root", node.expr(0), node.expr(1))


@converts("CUSTOM SignalFilterBankLog")
def _log(node: Node) -> Expr:
    correction, scale = option(node, "input_correction_bits", 0, 31), option(node, "output_scale", 0)
    return node.call("signal.log", node.expr(0), correction_bits=correction, output_scale=scale)


@converts("CUSTOM SignalFilterBankSpectralSubtraction")
def _spectral_subtraction(node: Node) -> list[Expr]:
    """Convert SignalFilterBankSpectralSubtraction: return the excess over a noise estimate, and the estimate."""
    data, kind = node.expr(0), ir.tensor_type(node.expr(0))
    channels = option(node, "num_channels", 1)
    if kind != TensorType((channels,), "uint32"):
        raise ModelError(f"expected uint32 data of {channels} channels, got {kind}")
    extra, bits = option(node, "smoothing_bits", 0, 31), option(node, "spectral_subtraction_bits", 0, 63)
    cost.require("constants", 16 * channels, node.label)

    def by_turns(name: str) -> Expr:
        """Return a factor per channel, for even channels `name`, for odd ones the alternate option."""
        even, odd = (option(node, title, 0) for title in (name, f"alternate_{name}"))
        return const(np.where(np.arange(channels) % 2, odd, even), "uint64")

    def scaled(value: Expr, factor: Expr) -> Expr:
        return node.call("multiply", node.call("cast", value, dtype="uint64"), factor)

    def shifted(value: Expr) -> Expr:
        return node.call("cast", node.call("right_shift", value, const(bits, "uint64")), dtype="uint32")

    noise = node.variables.of_operator(f"{node.output(1).name}/noise", kind)
    signal = node.call("left_shift", data, const(extra, "uint32"))
    smooth = scaled(signal, by_turns("smoothing")), scaled(noise, by_turns("one_minus_smoothing"))
    estimate = shifted(node.call("add", *smooth))
    limited = node.call("minimum", estimate, signal)
    kept = limited if option(node, "clamping") else estimate
    node.variables.keep(noise, kept)
    least = shifted(scaled(data, const(option(node, "min_signal_remaining", 0), "uint64")))
    above = node.call("right_shift", node.call("subtract", signal, limited), const(extra, "uint32"))
    return [node.call("maximum", above, least), kept]


@converts("CUSTOM SignalPCAN")
def _gain_control(node: Node) -> Expr:
    if len(node.shape(2)) != 1 or node.shape(2)[0] < GAINS:
        raise ModelError(f"expected a table of at least {GAINS} gains, got one of shape {node.shape(2)}")
    operands = (node.expr(position) for position in range(3))
    return node.call("signal.gain", *operands, snr_shift=option(node, "snr_shift", 0, 63))


def _with_kept(node: Node, data: Expr, kept: int) -> Expr:
    """Return rows of samples with the last `kept` samples of earlier runs prepended; store their own last ones."""
    rows, count = ir.tensor_type(data).shape
    if kept == 0:
        return data
    cost.require("constants", kept * rows, node.label)
    kind = TensorType((rows, kept), ir.tensor_type(data).dtype)
    held = node.variables.of_operator(f"{node.output().name}/samples", kind)
    samples = node.joined((held, data), 1)
    node.variables.keep(held, node.cut(samples, count, count + kept, 1))
    return samples


@converts("CUSTOM SignalFramer")
def _framer(node: Node) -> list[Expr]:
    """Convert SignalFramer: return overlapping frames, and whether all of them contain only actual samples."""
    _int16(node)
    size, step = option(node, "frame_size", 1), option(node, "frame_step", 1)
    prefills, data = bool(option(node, "prefill")), _rows(node, node.expr(0), 1)
    length = ir.tensor_type(data).shape[1]
    if length % step or (prefills and size < step):
        raise ModelError(f"{length} samples, frames of {size} and steps of {step} do not fit")
    count, steps = length // step, -(-size // step)
    samples = _with_kept(node, data, (size if prefills else steps * step) - step)
    frames = [node.cut(samples, 0, size, 1)]
    if count > 1:
        cost.require("constants", 8 * count * size, node.label)
        places = np.arange(count)[:, None] * step + np.arange(size)
        frames = [node.call("take", samples, const(places, "int32"), axis=1)]
    result = node.call("reshape", frames[0], newshape=(*node.shape(0)[:-1], count, size))
    if prefills or steps == 1:
        return [result, const(True, "bool", span=node.span)]
    seen = node.variables.of_operator(f"{node.output().name}/steps", TensorType((), "int32"))
    node.variables.keep(seen, node.call("minimum", node.call("add", seen, const(count)), const(steps)))
    return [result, node.call("greater_equal", seen, const(steps - 1))]


@converts("CUSTOM SignalDelay")
def _delay(node: Node) -> Expr:
    _int16(node)
    data = _rows(node, node.expr(0), 1)
    samples = _with_kept(node, data, option(node, "delay_length", 0))
    delayed = node.cut(samples, 0, ir.tensor_type(data).shape[1], 1)
    return node.call("reshape", delayed, newshape=node.shape(0))


@converts("CUSTOM SignalStacker")
def _stacker(node: Node) -> list[Expr]:
    """Convert SignalStacker: stack the last frames of channels, every `stacker_step` frames."""
    _int16(node)
    channels, step = option(node, "num_channels", 1), option(node, "stacker_step", 1)
    left, right = option(node, "stacker_left_context", 0), option(node, "stacker_right_context", 0)
    frames = left + right + 1
    if node.shape(0) != (channels,) or step > frames:
        raise ModelError(
            f"data of shape {node.shape(0)} does not fit stacks of {frames} frames of {channels} every {step}"
        )
    data, whole = node.expr(0), frames * channels
    cost.require("constants", 2 * whole, node.label)
    held = node.variables.of_operator(f"{node.output().name}/frames", TensorType((whole,), "int16"))
    # number of waiting frames; -1 before the first one, which is repeated for the missing left context
    waits = node.variables.of_operator(f"{node.output().name}/waiting", TensorType((), "int32"), np.array(-1, np.int32))
    is_first = node.call("less", waits, const(0))
    moved = data if frames == 1 else node.joined((node.cut(held, channels, whole), data), 0)
    stack = node.call("where", is_first, node.call("tile", data, reps=(frames,)), moved)
    count = node.call("where", is_first, const(left + 1), node.call("add", waits, const(1)))
    is_full = node.call("greater_equal", count, const(frames))
    node.variables.keep(held, stack)
    node.variables.keep(waits, node.call("where", is_full, node.call("subtract", count, const(step)), count))
    return [stack, is_full]


@converts("CUSTOM SignalOverlapAdd")
def _overlap_add(node: Node) -> Expr:
    step, frames = option(node, "frame_step", 1), _rows(node, node.expr(0), 2)
    kind = ir.tensor_type(frames)
    rows, count, size = kind.shape
    if kind.dtype not in ("int16", "float32"):
        node.refuse(f"SignalOverlapAdd of {node.input(0).type_name} is not supported", "Give it int16 or float32")
    if step > size:
        raise ModelError(f"frames of {size} samples do not overlap by steps of {step}")
    cost.require("constants", rows * size, node.label)
    held = node.variables.of_operator(f"{node.output().name}/overlap", TensorType((rows, size), kind.dtype))
    added = node.call("signal.overlap_add", frames, held, frame_step=step)
    node.variables.keep(held, node.cut(added, count * step, count * step + size, 1))
    ready = node.cut(added, 0, count * step, 1)
    return node.call("reshape", ready, newshape=(*node.shape(0)[:-2], count * step))


_EVERY_RUN = (5, 13, 25)  # sizes of buffers without options that TFLite Micro fills in every run


@converts("CUSTOM CIRCULAR_BUFFER")
def _circular_buffer(node: Node) -> Expr:
    """Convert CIRCULAR_BUFFER, which appends a slice to the last ones; its output is usually a variable tensor."""
    output, data = node.output(), node.expr(0)
    shape = node.shape(0)
    if node.input(0).dtype != "int8" or len(output.shape) != len(shape) or len(shape) != 4:
        raise ModelError(f"{node.input(0).type_name} of shape {shape} does not fit a buffer of shape {output.shape}")
    slots = output.shape[1]
    if shape != (output.shape[0], 1, *output.shape[2:]) or slots < 1:
        raise ModelError(f"a slice of shape {shape} does not fit a buffer of shape {output.shape}")
    cycles = option(node, "cycles_max", default=0) if node.record.custom else 0
    if cycles > 1 or (cycles < 1 and slots not in _EVERY_RUN):
        node.refuse(
            "a buffer after which most runs stop is not supported",
            "Split the model after it, and run the second part less often",
        )
    held, initial = node.exprs.get(output.index), None
    is_own = held is None
    if held is None:
        cost.require("constants", prod(output.shape), node.label)
        point = node.zero_point(output) if output.quantization is not None else 0
        initial = np.full(output.shape, point, np.int8) if point else None
        held = node.variables.of_operator(f"{output.name}/slots", TensorType(output.shape, "int8"), initial)
    moved = data if slots == 1 else node.joined((node.cut(held, 1, slots, 1), data), 1)
    if is_own:
        node.variables.keep(held, moved)
    else:
        node.assigned[output.index] = moved
    return moved
