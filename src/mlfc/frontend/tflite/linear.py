"""Convolutions, fully connected layers and matrix products, in float, quantized and hybrid form."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tflite import FullyConnectedOptionsWeightsFormat, Padding, TensorType

from mlfc.errors import ModelError
from mlfc.frontend.tflite.arithmetic import activated, requantized
from mlfc.frontend.tflite.node import Node, converts, is_quantized, shape_of
from mlfc.frontend.tflite.rounding import as_fixed_point
from mlfc.frontend.tflite.schema import TfliteTensor
from mlfc.ops.rules import broadcast_shape
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, const
from mlfc.support import dtypes
from mlfc.support.dims import is_static, maximum


@dataclass(frozen=True)
class WindowOptions:
    """Parameters of a window over the spatial dimensions; the padding has all begins, then all ends."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...] = ()

    def attrs(self) -> dict[str, Any]:
        """Return the attributes of a convolution."""
        return {
            "kernel_size": self.size, "strides": self.strides, "dilation": self.dilation, "padding": self.padding
        }  # fmt: skip


def window_of(
    node: Node, options: Any, size: Iterable[int], axes: str = "HW", *, dilated: bool = True
) -> WindowOptions:
    """Return the window of a convolution or pool over input 0; `axes` are the letters of its options."""
    numbers, shape = _numbers(options, tuple(size), axes, dilated), node.shape(0)
    if len(shape) != len(axes) + 2:
        raise ModelError(f"the data has {len(shape)} dimensions, expected {len(axes) + 2}")
    pairs = [(0, 0)] * len(axes)
    if _padding_of(options) == Padding.SAME:
        pairs = list(map(_same_padding, shape[1:-1], *numbers))
    before, after = zip(*pairs, strict=True)
    return WindowOptions(*numbers, (*before, *after))


def _transposed_window(
    node: Node, options: Any, size: Sequence[int], source: Sequence[int], result: Sequence[int], axes: str,
    *, dilated: bool,
) -> WindowOptions:  # fmt: skip
    """Return the window of a transposed convolution from sizes `source` to `result`."""
    numbers, cuts = _numbers(options, tuple(size), axes, dilated), []
    for extent, target, part, stride, step in zip(source, result, *numbers, strict=True):
        full = (extent - 1) * stride + (part - 1) * step + 1
        cuts.append(_cut_of(node, options, full, target, stride))
    before, after, extra = zip(*cuts, strict=True)
    return WindowOptions(*numbers, (*before, *after), extra)


def _numbers(
    options: Any, size: tuple[int, ...], axes: str, dilated: bool
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return size, strides and dilation; raise ModelError unless all are positive."""
    strides = tuple(getattr(options, f"Stride{axis}")() for axis in axes)
    dilation = tuple(getattr(options, f"Dilation{axis}Factor")() if dilated else 1 for axis in axes)
    _check_window(size, strides, dilation)
    return size, strides, dilation


def _cut_of(node: Node, options: Any, full: Any, result: Any, stride: int) -> tuple[int, int, int]:
    """Return the crop of a transposed convolution's `full` size at the start and the end, and the missing size."""
    rest = full - result
    if not is_static((rest,)) or -rest >= stride:
        node.refuse(
            f"an output of size {result} is not supported: inputs only reach {full} elements",
            "Export the output shape that follows from the strides",
        )
    before = max(rest, 0) // 2 if _padding_of(options) == Padding.SAME else 0
    cut = rest - before
    return before, max(cut, 0), max(-cut, 0)


def _kernel_of(node: Node, weights: Expr) -> tuple[int, ...]:
    """Return the spatial sizes of the weights of a 2-dimensional convolution."""
    size = shape_of(weights)[1:3]
    if not is_static(size):
        node.refuse(
            f"a kernel of dynamic size {' x '.join(map(str, size))} is not supported",
            "Declare the sizes of the weights: --shape NAME=32,3,3,16",
        )
    return size


def _padding_of(options: Any) -> int:
    """Return the kind of padding; raise ModelError for an unknown one."""
    kind = int(options.Padding())
    if kind not in (Padding.SAME, Padding.VALID):
        raise ModelError(f"unknown padding {kind}")
    return kind


def _check_window(size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> None:
    """Raise ModelError unless all parameters of a window are positive."""
    if min(*size, *strides, *dilation) < 1:
        raise ModelError(f"invalid window of size {tuple(size)}, strides {tuple(strides)}, dilation {tuple(dilation)}")


def _same_padding(extent: Any, size: int, stride: int, dilation: int) -> tuple[Any, Any]:
    """Return the padding at the start and the end of an axis for which the window fits ceil(extent / stride) times."""
    reach = (size - 1) * dilation + 1
    total = (-(-extent // stride) - 1) * stride + reach - extent
    if reach < stride:  # otherwise it is nonnegative for every extent
        total = maximum(total, 0)
    return total // 2, total - total // 2


_NARROW = ("int4", "int2")
"""Dtypes of weights that are packed in the file; the reference unpacks them to int8."""
_BYTES = ("int8", "uint8")
_WORDS, _SAME = "<3i", 1  # the format of the options of Convolution2DTransposeBias, and its SAME padding
_WIDE_WEIGHTS = ("FULLY_CONNECTED", "BATCH_MATMUL")  # may have int16 weights with int16 data


def _weights_of(node: Node, position: int, rank: int) -> Expr:
    """Return weights; raise ModelError unless they have `rank` dimensions."""
    expr = node.expr(position)
    if len(shape_of(expr)) != rank:
        raise ModelError(f"the weights have {len(shape_of(expr))} dimensions, expected {rank}")
    if ir.tensor_type(expr).dtype not in _NARROW:
        return expr
    if isinstance(expr, Constant):
        return Constant(expr.data.astype(np.int8), expr.name, expr.span)
    return node.refuse("weights of 4 or 2 bits must be constants", "Make them constants, or int8")


def _arranged(node: Node, weights: Expr, axes: Sequence[int] | None, shape: Sequence[int] | None = None) -> Expr:
    """Return weights transposed or reshaped; constants keep their name."""
    if isinstance(weights, Constant):
        data = weights.data if axes is None else weights.data.transpose(axes)
        data = data if shape is None else data.reshape(shape)
        return Constant(np.ascontiguousarray(data), weights.name, weights.span)
    result = weights if axes is None else node.call("transpose", weights, axes=tuple(axes))
    return result if shape is None else node.call("reshape", result, newshape=tuple(shape))


def _bias_of(node: Node, position: int, channels: int) -> Expr | None:
    """Return a bias of one number per channel, or None if the operator has none."""
    if not node.has(position):
        return None
    bias = node.expr(position)
    count = ir.tensor_type(bias).size
    if count != channels:
        raise ModelError(f"the bias has {count} numbers, expected {channels}, one per channel")
    return bias if shape_of(bias) == (channels,) else _arranged(node, bias, None, (channels,))


def _biased(node: Node, expr: Expr, bias: Expr | None, axis: int) -> Expr:
    """Add the bias, if any, to sums."""
    if bias is None:
        return expr
    given, dtype = ir.tensor_type(bias).dtype, ir.tensor_type(expr).dtype
    if given != dtype:
        node.refuse(f"a {given} bias on {dtype} sums is not supported", f"Use a {dtype} bias")
    return node.call("nn.bias_add", expr, bias, axis=axis)


def _mode_of(node: Node, data: TfliteTensor, weight: TfliteTensor) -> str:
    """Return ``float``, ``quantized`` or ``hybrid`` (float data, int8 weights)."""
    kinds = (data.dtype, "int8" if weight.dtype in _NARROW else weight.dtype, node.output().dtype)
    if kinds == ("float32", "float32", "float32"):
        return "float"
    if kinds[0] in _BYTES and kinds[0] == kinds[1] == kinds[2] and is_quantized(node.output()):
        return "quantized"
    weights = ("int8", "int16") if node.record.code in _WIDE_WEIGHTS else ("int8",)
    if kinds[0] == kinds[2] == "int16" and kinds[1] in weights and is_quantized(node.output()):
        return "quantized"
    if kinds == ("float32", "int8", "float32"):
        return "hybrid"
    given = ", ".join(tensor.type_name for tensor in (data, weight, node.output()))
    step = "Use float32 throughout, int8 throughout, or int16 or float32 data with int8 weights"
    return node.refuse(f"{node.record.code} with data, weights and result of types {given} is not supported", step)


def _weight_scales(weight: TfliteTensor, axis: int) -> npt.NDArray[Any]:
    quantization = weight.quantization
    if quantization is None:
        raise ModelError(f"the weights '{weight.name}' have no scale")
    if len(quantization.scales) > 1 and quantization.axis != axis:
        raise ModelError(f"the weights '{weight.name}' have scales for dimension {quantization.axis}, not {axis}")
    return quantization.scales


def _zero_points(weight: TfliteTensor, rank: int) -> npt.NDArray[np.int64]:
    """Return the zero points of weights in a shape that broadcasts to theirs."""
    quantization = weight.quantization
    if quantization is None:
        return np.zeros((1,) * rank, np.int64)
    shape = [1] * rank
    shape[quantization.axis if len(quantization.zero_points) > 1 else 0] = -1
    return quantization.zero_points.reshape(shape)


def _product_scales(
    node: Node, data: TfliteTensor, weight: TfliteTensor, axis: int, *, double: bool
) -> npt.NDArray[Any]:
    """Return the scales of the sums; `double` is True if the reference multiplies in float64."""
    scales = _weight_scales(weight, axis)
    kind = np.float64 if double or len(scales) > 1 else np.float32
    product: npt.NDArray[Any] = np.multiply(scales.astype(kind), np.array(node.scale(data), kind))
    return product


def _hybrid(
    node: Node, name: str, data: Expr, weights: Expr, scales: Expr, attrs: Mapping[str, Any], *,
    axes: tuple[int, ...], asymmetric: bool, own: Expr | None = None, in_turn: bool = False,
) -> Expr:  # fmt: skip
    """Return a linear operator whose float data is quantized at run time, as in TFLite's hybrid kernels.

    The data has a common scale for all elements along `axes`, and a common zero point if `asymmetric`. `own` is the
    scale of the weights in the operator itself.
    """
    codes, scale = _dynamic_codes(node, data, axes, asymmetric=asymmetric)
    one, zero = const(1.0, "float32"), const(0, "int32")
    sums = node.call(name, codes, weights, zero, zero, one, own or one, out_dtype="int32", **attrs)
    real = node.call("cast", sums, dtype="float32")
    if in_turn:  # the order of the two products determines the last bit
        return node.call("multiply", node.call("multiply", real, scales), scale)
    return node.call("multiply", real, node.call("multiply", scale, scales))


def hybrid_dense(node: Node, data: Expr, weights: Expr, weight_scale: npt.ArrayLike, *, asymmetric: bool) -> Expr:
    """Return a dense layer of float data with int8 weights; each row of the data has its own scale.

    `weight_scale` is one number, or one per unit.
    """
    scales, last = const(weight_scale, "float32"), len(shape_of(data)) - 1
    attrs = {"units": shape_of(weights)[0]}
    return _hybrid(node, "qnn.dense", data, weights, scales, attrs, axes=(last,), asymmetric=asymmetric)


def _dynamic_codes(node: Node, data: Expr, axes: tuple[int, ...], *, asymmetric: bool) -> tuple[Expr, Expr]:
    """Return float data as integers centred at zero, and their scale, one per batch element."""
    if not asymmetric:
        magnitude = node.call("max", node.call("abs", data), axis=axes, keepdims=True)
        scale = node.call("divide", magnitude, const(127.0))
        return node.call("qnn.symmetric_quantize", data, magnitude), scale
    low = node.call("minimum", node.call("min", data, axis=axes, keepdims=True), const(0.0))
    high = node.call("maximum", node.call("max", data, axis=axes, keepdims=True), const(0.0))
    scale = node.call("qnn.asymmetric_scale", low, high)
    zero_point = node.call("qnn.asymmetric_zero_point", low, high)
    return node.call("qnn.centred_quantize", data, scale, zero_point), scale


def _linear(
    node: Node, name: str, weights: Expr, weight_axis: int, bias: Expr | None, function: int,
    attrs: dict[str, Any], *, data: Expr, double: bool, rounding: str = "DOUBLE", source: int = 0,
) -> Expr:  # fmt: skip
    """Return ``nn.<name>`` or ``qnn.<name>`` with bias, requantization and activation."""
    tensor, weight = node.input(source), node.input(1)
    last = len(shape_of(data)) - 1
    mode = _mode_of(node, tensor, weight)
    if mode == "float":
        return activated(node, _biased(node, node.call(f"nn.{name}", data, weights, **attrs), bias, last), function)
    if mode == "hybrid" and (weight.quantization is None or np.any(weight.quantization.zero_points != 0)):
        node.refuse("int8 weights of a float operator must be symmetric", "Quantize weights with zero point 0")
    scales = _weight_scales(weight, weight_axis)
    own = const(scales[0] if len(scales) == 1 else scales, "float32")
    if mode == "hybrid":
        per_channel_conv = node.record.code == "CONV_2D" and len(scales) > 1
        asymmetric = per_channel_conv or node.record.code in ("DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")
        if node.record.code == "FULLY_CONNECTED":
            asymmetric = bool(node.options("FullyConnectedOptions").AsymmetricQuantizeInputs())
        result = _hybrid(
            node, f"qnn.{name}", data, weights, own, attrs, axes=tuple(range(1, last + 1)), asymmetric=asymmetric,
            own=own, in_turn=per_channel_conv,
        )  # fmt: skip
        return activated(node, _biased(node, result, bias, last), function)
    scale, zero_point = node.quantization(tensor)
    zeros = weight.quantization.zero_points if weight.quantization is not None else np.zeros(1, np.int64)
    if np.any(zeros) and weight.dtype == "int8" and node.record.code not in _WIDE_WEIGHTS:
        node.refuse(f"int8 weights of {node.record.code} must be symmetric", "Quantize weights with zero point 0")
    args = (zero_point, const(zeros[0] if np.all(zeros == zeros[0]) else zeros, "int32"), scale, own)
    if tensor.dtype == "int16":
        in_words = _adds_up_in_words(node, bias, weight)
        if rounding != "SINGLE" or weight.dtype == "int16":
            rounding = "DOUBLE" if in_words else "REDUCED"
        else:  # LiteRT's fully connected kernel multiplies by the float scale
            rounding = "FLOAT64"
        fit = in_words and _largest_sum(node, tensor, weight_axis, bias) <= dtypes.limits("int32")[1]
        sums = _wide_sums(node, name, (data, weights, *args), bias, in_words, fit, attrs)
    else:
        sums = _biased(node, node.call(f"qnn.{name}", data, weights, *args, out_dtype="int32", **attrs), bias, last)
    products = _product_scales(node, tensor, weight, weight_axis, double=double)
    if rounding == "SINGLE":
        products, rounding = _once_rounded(node, products, _largest_sum(node, tensor, weight_axis, bias))
    return requantized(node, sums, products, axis=last, rounding=rounding, function=function)


_BIAS_TYPES = {"CONV_2D": "Conv2DOptions", "FULLY_CONNECTED": "FullyConnectedOptions",
               "TRANSPOSE_CONV": "TransposeConvOptions"}  # fmt: skip


def _adds_up_in_words(node: Node, bias: Expr | None, weight: TfliteTensor) -> bool:
    """Return whether the reference accumulates products of int16 data in 32 bits, which it does for a 32-bit bias."""
    kind, is_wide = _BIAS_TYPES.get(node.record.code), weight.dtype == "int16"
    narrow = bias is not None and ir.tensor_type(bias).dtype == "int32"
    if kind is not None:
        declared = node.options(kind).QuantizedBiasType()
        read = declared != TensorType.INT64 if is_wide else declared == TensorType.INT32
        if bias is not None and narrow != read:
            raise ModelError(f"the bias type in its options differs from its bias of {ir.tensor_type(bias).dtype}")
        narrow = read
    return narrow and not is_wide  # products of two int16 are always accumulated in 64 bits


def _once_rounded(node: Node, scales: npt.NDArray[Any], largest_sum: int) -> tuple[npt.NDArray[Any], str]:
    """Return scales and rounding mode of 8-bit codes that the reference rounds in float64; fixed point if possible."""
    output = node.output()
    low, high = (limit - node.zero_point(output) for limit in dtypes.limits(output.dtype))
    out_scale = np.float64(node.scale(output))
    known = min(largest_sum, dtypes.limits("int32")[1])
    exact = np.atleast_1d(scales / out_scale)
    ratios = as_fixed_point(exact, known, max(high, -low))
    if ratios is None:
        return scales, "FLOAT64"
    return np.where(ratios == exact, scales, ratios * out_scale), "SINGLE"


def _largest_sum(node: Node, data: TfliteTensor, axis: int, bias: Expr | None) -> int:
    """Return an upper bound of the magnitude of sums; int64's maximum if weights or bias are not constant."""
    if not isinstance(node.expr(1), Constant) or not (bias is None or isinstance(bias, Constant)):
        return dtypes.limits("int64")[1]
    weights, zero_point = node.value(1).astype(np.int64), node.zero_point(data)
    centred = np.abs(np.moveaxis(weights - _zero_points(node.input(1), weights.ndim), axis, -1))
    low, high = dtypes.limits(data.dtype)
    start = 0 if bias is None else max(int(bias.data.max(initial=0)), -int(bias.data.min(initial=0)))
    sums = centred.reshape(-1, centred.shape[-1]).sum(axis=0)
    return int(sums.max()) * max(high - zero_point, zero_point - low) + start


def _wide_sums(
    node: Node, name: str, args: Sequence[Expr], bias: Expr | None, in_words: bool, fit: bool, attrs: dict[str, Any]
) -> Expr:
    """Return the sums of a linear operator over int16 data with the bias; 32-bit sums wrap as in the reference."""
    dtype = "int32" if fit else "int64"
    sums = node.call(f"qnn.{name}", *args, out_dtype=dtype, **attrs)
    if bias is not None:
        given = ir.tensor_type(bias).dtype
        if given not in ("int32", "int64"):
            node.refuse(f"a {given} bias on int16 data is not supported", "Use an int64 or an int32 bias")
        if isinstance(bias, Constant):
            bias = Constant(bias.data.astype(dtype), bias.name, bias.span)
        elif given != dtype:
            bias = node.call("cast", bias, dtype=dtype)
        sums = node.call("nn.bias_add", sums, bias, axis=len(shape_of(sums)) - 1)
    return node.call("cast", sums, dtype="int32") if in_words and not fit else sums


@converts("CONV_2D")
def _conv(node: Node) -> Expr:
    options, weights = node.options("Conv2DOptions"), _weights_of(node, 1, 4)
    data, window = node.expr(0), window_of(node, options, _kernel_of(node, weights))
    channels, taken = shape_of(weights)[0], shape_of(weights)[3]
    available = shape_of(data)[-1]
    if taken == 0 or available % taken:
        raise ModelError(f"weights for {taken} channels do not fit data of {available}")
    attrs = {
        **window.attrs(), "groups": available // taken, "channels": channels,
        "data_layout": "NHWC", "kernel_layout": "HWIO",
    }  # fmt: skip
    ordered = _arranged(node, weights, (1, 2, 3, 0))
    bias = _bias_of(node, 2, channels)
    function, double = options.FusedActivationFunction(), node.input(1).dtype != "uint8"
    return _linear(node, "conv2d", ordered, 0, bias, function, attrs, data=data, double=double)


@converts("DEPTHWISE_CONV_2D")
def _depthwise_conv(node: Node) -> Expr:
    options, weights = node.options("DepthwiseConv2DOptions"), _weights_of(node, 1, 4)
    data, window = node.expr(0), window_of(node, options, _kernel_of(node, weights))
    channels = shape_of(data)[-1]
    height, width, filters = shape_of(weights)[1:]
    if shape_of(weights)[0] != 1 or channels == 0 or filters % channels:
        raise ModelError(f"depthwise weights of shape {shape_of(weights)} do not fit data of {channels} channels")
    # TFLite's output channel is channel * multiplier + m, which is the memory order of HWOI with I = multiplier
    ordered = _arranged(node, weights, None, (height, width, channels, filters // channels))
    layout = "HWOI" if channels > 1 else "HWIO"  # a single group is an ordinary convolution
    attrs = {
        **window.attrs(), "groups": channels, "channels": filters, "data_layout": "NHWC", "kernel_layout": layout,
    }  # fmt: skip
    bias = _bias_of(node, 2, filters)
    function, double = options.FusedActivationFunction(), node.input(1).dtype != "uint8"
    return _linear(node, "conv2d", ordered, 3, bias, function, attrs, data=data, double=double)


@converts("TRANSPOSE_CONV")
def _transpose_conv(node: Node) -> Expr:
    """Convert TRANSPOSE_CONV, whose data is input 2 and whose output shape is input 0."""
    options, weights = node.options("TransposeConvOptions"), _weights_of(node, 1, 4)
    data, shape = node.expr(2), node.extents(0)
    channels, height, width, taken = shape_of(weights)
    source = shape_of(data)
    if len(source) != 4 or len(shape) != 4 or taken != source[3] or shape[3] != channels:
        raise ModelError(f"weights {shape_of(weights)} do not fit data {source} and the output {tuple(shape)}")
    window = _transposed_window(node, options, (height, width), source[1:3], shape[1:3], "HW", dilated=False)
    attrs = {
        **window.attrs(), "channels": channels, "data_layout": "NHWC", "kernel_layout": "HWIO",
        "output_padding": window.output_padding,
    }  # fmt: skip
    # Relay's conv2d_transpose has the weights of its gradient's convolution: HW, channels in, channels out
    ordered = _arranged(node, weights, (1, 2, 3, 0))
    bias, function = _bias_of(node, 3, channels), int(options.FusedActivationFunction())
    return _linear(node, "conv2d_transpose", ordered, 0, bias, function, attrs, data=data, double=True, source=2)


@converts("CUSTOM Convolution2DTransposeBias")
def _transpose_conv_bias(node: Node) -> Expr:
    """Convert MediaPipe's transposed convolution; its options are int32: padding, horizontal and vertical stride."""
    weights, data = _weights_of(node, 1, 4), node.expr(0)
    channels, *size, taken = shape_of(weights)
    source = shape_of(data)
    if len(node.record.custom) < struct.calcsize(_WORDS) or len(source) != 4 or taken != source[3]:
        raise ModelError(
            f"expected {struct.calcsize(_WORDS)} bytes of options and NHWC data of {taken} channels, got "
            f"{len(node.record.custom)} bytes and data of shape {source}"
        )
    kind, *across_and_down = struct.unpack_from(_WORDS, node.record.custom)
    strides = across_and_down[::-1]
    _check_window(size, strides, (1, 1))
    if _mode_of(node, node.input(0), node.input(1)) != "float":
        node.refuse(f"{node.record.code} is supported in float32 only", "Use float32 throughout")
    places = zip(source[1:3], size, strides, strict=True)
    cuts = [max(0, part - (extent - 1) % stride - 1) if kind == _SAME else 0 for extent, part, stride in places]
    (top, left), (bottom, right) = [cut // 2 for cut in cuts], [cut - cut // 2 for cut in cuts]
    attrs = {
        "kernel_size": tuple(size), "strides": tuple(strides), "padding": (top, left, bottom, right),
        "channels": channels, "data_layout": "NHWC", "kernel_layout": "HWIO",
    }  # fmt: skip
    ordered, bias = _arranged(node, weights, (1, 2, 3, 0)), _bias_of(node, 2, channels)
    return _linear(node, "conv2d_transpose", ordered, 0, bias, 0, attrs, data=data, double=True)


@converts("FULLY_CONNECTED")
def _fully_connected(node: Node) -> Expr:
    options, weights = node.options("FullyConnectedOptions"), _weights_of(node, 1, 2)
    if options.WeightsFormat() != FullyConnectedOptionsWeightsFormat.DEFAULT:
        node.refuse("shuffled weights of FULLY_CONNECTED are not supported", "Export with the default weight format")
    data, (units, taken) = node.expr(0), shape_of(weights)
    shape = shape_of(data)
    if taken == 0 or ir.tensor_type(data).size % taken:
        raise ModelError(f"weights for {taken} inputs do not fit data of shape {shape}")
    if len(shape) != 2 or shape[1] != taken:
        data = node.call("reshape", data, newshape=(-1, taken))
    # LiteRT's fully connected kernel multiplies the scales in float64 and rounds once; TFLite Micro's kernel, and
    # LiteRT's for int16 weights, multiply them in float32
    is_litert = node.numerics == "litert"
    rounding, double = "SINGLE" if is_litert else "DOUBLE", is_litert and node.input(1).dtype != "int16"
    bias, function = _bias_of(node, 2, units), options.FusedActivationFunction()
    result = _linear(
        node, "dense", weights, 0, bias, function, {"units": units}, data=data, rounding=rounding, double=double
    )
    kept = (*shape[:-1], units)
    if options.KeepNumDims() and shape_of(result) != kept:
        return node.call("reshape", result, newshape=kept)
    return result


@converts("BATCH_MATMUL")
def _batch_matmul(node: Node) -> Expr:
    options = node.options("BatchMatMulOptions")
    lhs, rhs = node.expr(0), node.expr(1)
    left, right = shape_of(lhs), shape_of(rhs)
    if min(len(left), len(right)) < 2:
        raise ModelError(f"expected matrices, got shapes {left} and {right}")
    mode = _mode_of(node, node.input(0), node.input(1))
    batch = broadcast_shape("BATCH_MATMUL", left[:-2], right[:-2])
    lhs, rhs = _batched(node, lhs, batch), _batched(node, rhs, batch)
    attrs = {"transpose_a": bool(options.AdjX()), "transpose_b": bool(options.AdjY())}
    if mode == "float":
        result = node.call("nn.batch_matmul", lhs, rhs, **attrs)
    elif mode == "hybrid":
        if options.AdjX():
            lhs = node.call("transpose", lhs, axes=(0, 2, 1))
        if node.zero_point(node.input(1)):
            node.refuse("int8 weights of a float operator must be symmetric", "Quantize weights with zero point 0")
        scales = const(node.scale(node.input(1)), "float32")
        asymmetric, attrs = bool(options.AsymmetricQuantizeInputs()), {"transpose_b": bool(options.AdjY())}
        result = _hybrid(
            node, "qnn.batch_matmul", lhs, rhs, scales, attrs, axes=(2,), asymmetric=asymmetric
        )  # each row has its own scale
    else:
        (lhs_scale, lhs_zero), (rhs_scale, rhs_zero) = (node.quantization(node.input(i)) for i in (0, 1))
        is_wide = node.input(0).dtype == "int16"
        sums = node.call("qnn.batch_matmul", lhs, rhs, lhs_zero, rhs_zero, lhs_scale, rhs_scale,
                         out_dtype="int64" if is_wide else "int32", **attrs)  # fmt: skip
        products = _product_scales(node, node.input(0), node.input(1), 0, double=False)
        result = requantized(node, sums, products, axis=2, rounding="REDUCED" if is_wide else "DOUBLE", function=0)
    matrix = shape_of(result)[-2:]
    return result if len(batch) == 1 else node.call("reshape", result, newshape=(*batch, *matrix))


def _batched(node: Node, expr: Expr, batch: tuple[int, ...]) -> Expr:
    """Return matrices broadcast over `batch`, flattened into one dimension."""
    shape = shape_of(expr)
    if shape[:-2] != batch:
        expr = node.call("broadcast_to", expr, shape=(*batch, *shape[-2:]))
    return expr if len(batch) == 1 else node.call("reshape", expr, newshape=(prod(batch), *shape[-2:]))


def _steps_3d(node: Node, data: int) -> Any:
    """Return the options of a 3-dimensional convolution, which must be in float32."""
    if len(node.shape(data)) != 5:
        raise ModelError(f"expected data of 5 dimensions (NDHWC), got shape {node.shape(data)}")
    if _mode_of(node, node.input(data), node.input(1)) != "float":
        node.refuse(f"{node.record.code} is supported in float32 only", "Use float32 throughout")
    return node.options("Conv3DOptions")


@converts("CONV_3D")
def _conv_3d(node: Node) -> Expr:
    weights, shape, options = _weights_of(node, 1, 5), node.shape(0), _steps_3d(node, 0)
    *size, taken, channels = shape_of(weights)
    if taken == 0 or shape[4] % taken:
        raise ModelError(f"weights of shape {shape_of(weights)} do not fit data of shape {shape}")
    attrs = {
        **window_of(node, options, size, "DHW").attrs(), "groups": shape[4] // taken, "channels": channels,
        "data_layout": "NDHWC", "kernel_layout": "DHWIO",
    }  # fmt: skip
    result = node.call("nn.conv3d", node.expr(0), weights, **attrs)
    return activated(node, _biased(node, result, _bias_of(node, 2, channels), 4), options.FusedActivationFunction())


@converts("CONV_3D_TRANSPOSE")
def _conv_3d_transpose(node: Node) -> Expr:
    """Convert CONV_3D_TRANSPOSE, whose data is input 2 and whose output shape is input 0."""
    weights, target, options = _weights_of(node, 1, 5), node.extents(0), _steps_3d(node, 2)
    *size, channels, taken = shape_of(weights)
    source = node.shape(2)
    if len(target) != 5 or source[4] != taken or target[4] != channels:
        raise ModelError(f"weights {shape_of(weights)} do not fit data {source} and the output {tuple(target)}")
    window = _transposed_window(node, options, size, source[1:4], target[1:4], "DHW", dilated=True)
    attrs = {
        **window.attrs(), "channels": channels, "output_padding": window.output_padding, "data_layout": "NDHWC",
        "kernel_layout": "DHWIO",
    }  # fmt: skip
    result = node.call("nn.conv3d_transpose", node.expr(2), _arranged(node, weights, (0, 1, 2, 4, 3)), **attrs)
    return activated(node, _biased(node, result, _bias_of(node, 3, channels), 4), options.FusedActivationFunction())
