"""CMSIS-NN as a generator: C that calls the public functions of ARM's library (4.1 to 7), which the user links.

Requantization rounds twice, as in TFLite's reference convolutions and TFLite Micro. Each call checks whether it needs
more memory than is available.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.byoc.generator import GENERATORS, Composite, Generator, Subgraph
from mlfc.byoc.pattern import Pattern, anything, constant, maybe, op
from mlfc.relay import ir as relay
from mlfc.relay.ir import Call, Constant
from mlfc.relay.op import Trait
from mlfc.support.fixed_point import quantize_multiplier
from mlfc.target.features import Features
from mlfc.tir.ir import External

NAME = "cmsis_nn"
_DECLARATIONS = ("#include <arm_nnfunctions.h>",)
_LOWEST, _HIGHEST = -128, 127
# headroom of the operands of an addition, in bits, as in TFLite
_LEFT_SHIFT = 20
# channels that the MVE functions process at a time
_MVE_CHANNELS = 124


def _value(expr: relay.Expr) -> npt.NDArray[Any]:
    assert isinstance(expr, Constant)  # the patterns require constants
    return expr.data


def _number(expr: relay.Expr) -> float:
    return float(_value(expr).reshape(-1)[0])


def _is_number(expr: relay.Expr) -> bool:
    return isinstance(expr, Constant) and expr.data.size == 1


def _shape(expr: relay.Expr) -> tuple[int, ...]:
    return relay.tensor_type(expr).shape


def _is_int8(*exprs: relay.Expr) -> bool:
    return all(relay.tensor_type(expr).dtype == "int8" for expr in exprs)


def _requantizes(call: Call) -> bool:
    """Return True if a ``qnn.requantize`` rounds as the library does."""
    plain = _is_number(call.args[2]) and _number(call.args[2]) == 0 and _is_number(call.args[4])
    return plain and _is_number(call.args[3]) and call.attrs["rounding"] == "DOUBLE" and _is_int8(call)


def _accepts_linear(calls: Sequence[Call], features: Features) -> bool:
    """Return True if the library supports this product and its requantization."""
    product = calls[0]
    zeros = all(map(_is_number, product.args[2:4])) and _number(product.args[3]) == 0
    takes = _is_int8(product.args[0], product.args[1]) and zeros
    last = len(_shape(product)) - 1
    biased = all(call.attrs["axis"] % (last + 1) == last for call in calls if relay.has_trait(call, Trait.BIAS))
    return not features.vector_bytes and takes and biased


def _accepts_conv(calls: Sequence[Call], features: Features) -> bool:
    attrs, data = calls[0].attrs, _shape(calls[0].args[0])
    if not _accepts_linear(calls, features) or attrs["data_layout"] != "NHWC":
        return False
    if attrs["groups"] == 1:
        return bool(attrs["kernel_layout"] == "HWIO")
    depthwise = attrs["groups"] == data[3] and attrs["kernel_layout"] == "HWOI" and attrs["dilation"] == (1, 1)
    return depthwise and data[0] == 1


def _accepts_pool(calls: Sequence[Call], features: Features) -> bool:
    attrs = calls[0].attrs
    plain = attrs["layout"] == "NHWC" and attrs["dilation"] == (1, 1) and not attrs["ceil_mode"]
    return not features.vector_bytes and plain and _is_int8(calls[0])


def _accepts_add(calls: Sequence[Call], features: Features) -> bool:
    lhs, rhs = calls[0].args[:2]
    same = _shape(lhs) == _shape(rhs) == _shape(calls[0])
    return not features.vector_bytes and same and _is_int8(lhs, rhs, calls[0])


def _limits(subgraph: Subgraph) -> tuple[int, int]:
    """Return the bounds of the result: those of int8, or of a ``clip`` at the end."""
    clips = subgraph.calls("clip")
    if not clips:
        return _LOWEST, _HIGHEST
    return max(_LOWEST, int(clips[0].attrs["a_min"])), min(_HIGHEST, int(clips[0].attrs["a_max"]))


def _dims(name: str, sizes: Sequence[int]) -> str:
    n, h, w, c = sizes
    return f"const cmsis_nn_dims {name} = {{{n}, {h}, {w}, {c}}};"


def _tile(name: str, width: int, height: int) -> str:
    return f".{name} = {{{width}, {height}}}"


def _finished(lines: Sequence[str]) -> External:
    return External(NAME, "\n".join(lines), _DECLARATIONS)


def _call(function: str, operands: Sequence[str], sizer: str | None = None, nbytes: int = 0) -> list[str]:
    """Return a call that ends the kernel if the library reports an error or needs more memory than provided."""
    lines = [] if sizer is None else [f"if ({sizer} > {nbytes}) {{", "  return -1;", "}"]
    inside = ",\n    ".join(operands)
    return [*lines, f"if ({function}(\n    {inside}) != ARM_CMSIS_NN_SUCCESS) {{", "  return -1;", "}"]


def _linear(
    subgraph: Subgraph, function: str, params: Sequence[str], sizes: Sequence[Sequence[int]], nbytes: int
) -> External:
    """Return the call of a convolution; `sizes` are the shapes of input, filter and output."""
    kind = "cmsis_nn_dw_conv_params" if "depthwise" in function else "cmsis_nn_conv_params"
    filters = sizes[2][3]
    if nbytes:
        subgraph.scratch("buffer", nbytes)
    memory = f"${{buffer}}, {nbytes}" if nbytes else "0, 0"
    lines = [f"const cmsis_nn_context context = {{{memory}}};"]
    lines += [f"const {kind} params = {{", *(f"  {item}," for item in params), "};"]
    scales = subgraph.call("qnn.requantize").args
    ratios = np.atleast_1d(_value(scales[1]).astype(np.float64) / _number(scales[3]))
    pairs = np.array([quantize_multiplier(float(ratio)) for ratio in ratios], np.int32)
    subgraph.constant("multipliers", np.broadcast_to(pairs[:, 0], (filters,)))
    subgraph.constant("shifts", np.broadcast_to(pairs[:, 1], (filters,)))
    # the library's struct lacks const, but its pointers are only read through
    lines.append("const cmsis_nn_per_channel_quant_params scaling = {(int32_t *)${multipliers}, (int32_t *)${shifts}};")
    names = ("input_dims", "filter_dims", "output_dims")
    lines += [_dims(name, size) for name, size in zip(names, sizes, strict=True)]
    lines.append(_dims("bias_dims", (1, 1, 1, filters)))
    added = subgraph.calls("nn.bias_add")
    bias = _value(added[0].args[1]) if added else np.zeros(filters, np.int32)
    subgraph.constant("bias", bias.astype(np.int32).reshape(-1))
    operands = ("&context", "&params", "&scaling", "&input_dims", "${input0}", "&filter_dims", "${weights}",
                "&bias_dims", "${bias}", "&output_dims", "${output}")  # fmt: skip
    sizer = f"{function}_get_buffer_size(&params, &input_dims, &filter_dims, &output_dims)"
    return _finished([*lines, *_call(function, operands, sizer, nbytes)])


def _params(subgraph: Subgraph, product: Call, tiles: Sequence[str]) -> list[str]:
    low, high = _limits(subgraph)
    zero, out_zero = int(_number(product.args[2])), int(_number(subgraph.call("qnn.requantize").args[4]))
    offsets = [f".input_offset = {-zero}", f".output_offset = {out_zero}"]
    return [*offsets, *tiles, f".activation = {{{low}, {high}}}"]


def _conv2d(subgraph: Subgraph) -> External:
    conv = subgraph.call("qnn.conv2d")
    attrs, data, weights = conv.attrs, _shape(conv.args[0]), _value(conv.args[1])
    kernel = weights.shape[:2]
    top, left = attrs["padding"][:2]
    strides, dilation = attrs["strides"], attrs["dilation"]
    tiles = [_tile("stride", *strides[::-1]), _tile("padding", left, top), _tile("dilation", *dilation[::-1])]
    out = _shape(conv)
    if attrs["groups"] == 1:
        subgraph.constant("weights", weights.transpose(3, 0, 1, 2))
        filter_dims = (out[3], *kernel, data[3])
        nbytes = _conv_bytes(subgraph.features, kernel, data, out, strides[1], left)
        params = _params(subgraph, conv, tiles)
        return _linear(subgraph, "arm_convolve_wrapper_s8", params, (data, filter_dims, out), nbytes)
    subgraph.constant("weights", weights.reshape(1, *kernel, out[3]))
    params = _params(subgraph, conv, [f".ch_mult = {weights.shape[3]}", *tiles])
    sizes = (data, (1, *kernel, out[3]), out)
    taps, features = kernel[0] * kernel[1], subgraph.features
    nbytes = 4 * _MVE_CHANNELS * taps if features.has("mve") else 2 * data[3] * taps if features.has("dsp") else 0
    return _linear(subgraph, "arm_depthwise_conv_wrapper_s8", params, sizes, nbytes)


def _dense(subgraph: Subgraph) -> External:
    """Return a dense layer as a convolution of a one-pixel image, which does not need precomputed sums."""
    product = subgraph.call("qnn.dense")
    rows, reduction = _shape(product.args[0])
    units = _shape(product)[1]
    subgraph.constant("weights", _value(product.args[1]))
    tiles = [_tile("stride", 1, 1), _tile("padding", 0, 0), _tile("dilation", 1, 1)]
    data, out = (rows, 1, 1, reduction), (rows, 1, 1, units)
    nbytes = _conv_bytes(subgraph.features, (1, 1), data, out, 1, 0)
    params = _params(subgraph, product, tiles)
    return _linear(subgraph, "arm_convolve_wrapper_s8", params, (data, (units, 1, 1, reduction), out), nbytes)


def _conv_bytes(
    features: Features, kernel: Sequence[int], data: Sequence[int], out: Sequence[int], stride: int, left: int
) -> int:
    """Return the maximum bytes that a convolution needs on any processor of the target's kind."""
    columns = kernel[0] * kernel[1] * data[3]
    plain = 2 * (-(-columns // 4) * 4) * 2
    if not features.has("mve"):
        return plain
    # edges of images with one row are copied
    odd = ((out[2] - 1) * stride + kernel[1] - data[2]) % 2
    right = max(1, -(-(left + odd) // stride)) if left + odd else 0
    row = (kernel[1] + max(left, right if odd else left)) * data[3]
    return max(4 * (-(-columns // 16) * 16), row if data[1] == 1 else 0)


def _max_pool2d(subgraph: Subgraph) -> External:
    pool = subgraph.call("nn.max_pool2d")
    low, high = _limits(subgraph)
    attrs, (top, left) = pool.attrs, pool.attrs["padding"][:2]
    lines = [
        "const cmsis_nn_context context = {0, 0};",
        "const cmsis_nn_pool_params params = {",
        f"  {_tile('stride', attrs['strides'][1], attrs['strides'][0])},",
        f"  {_tile('padding', left, top)},",
        f"  .activation = {{{low}, {high}}},",
        "};",
        _dims("input_dims", _shape(pool.args[0])),
        _dims("filter_dims", (1, *attrs["pool_size"], 1)),
        _dims("output_dims", _shape(pool)),
    ]
    operands = ("&context", "&params", "&input_dims", "${input0}", "&filter_dims", "&output_dims", "${output}")
    return _finished([*lines, *_call("arm_max_pool_s8", operands)])


def _add(subgraph: Subgraph) -> External:
    added = subgraph.call("qnn.add")
    lhs, lhs_zero, rhs, rhs_zero, out, out_zero = map(_number, added.args[2:])
    twice_larger = 2.0 * max(lhs, rhs)
    factors = (lhs / twice_larger, rhs / twice_larger, twice_larger / ((1 << _LEFT_SHIFT) * out))
    (left, right, result) = map(quantize_multiplier, factors)
    low, high = _limits(subgraph)
    same = added.args[0] is added.args[1]
    numbers = (
        -int(lhs_zero), *left, -int(rhs_zero), *right, _LEFT_SHIFT, "${output}", int(out_zero), *result, low, high,
        relay.tensor_type(added).size,
    )  # fmt: skip
    operands = ("${input0}", "${input0}" if same else "${input1}", *map(str, numbers))
    return _finished(_call("arm_elementwise_add_s8", operands))


_KNOWN = (anything(), constant(), constant(), constant(), constant(), constant())


def _requantized(product: str) -> Pattern:
    inner = op(product, *_KNOWN)
    biased = maybe("nn.bias_add", inner, where=lambda call: isinstance(call.args[1], Constant))
    scaled = op("qnn.requantize", biased, *(constant(),) * 4, where=_requantizes)
    return maybe("clip", scaled)


_MAKERS = {"conv2d": _conv2d, "dense": _dense, "add": _add, "max_pool2d": _max_pool2d}


_PAIR = (anything(), anything(), *(constant(),) * 6)

GENERATORS.add(
    NAME,
    Generator(
        NAME,
        (
            Composite("conv2d", _requantized("qnn.conv2d"), _accepts_conv),
            Composite("dense", _requantized("qnn.dense"), _accepts_linear),
            Composite("add", maybe("clip", op("qnn.add", *_PAIR)), _accepts_add),
            Composite("max_pool2d", maybe("clip", op("nn.max_pool2d")), _accepts_pool),
        ),
        lambda subgraph: _MAKERS[subgraph.name](subgraph),
        supply="CMSIS-NN, whose arm_nnfunctions.h the compiler must find and whose library the linker",
    ),
)
