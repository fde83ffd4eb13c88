"""Convolutions, fully connected layers and matrix products, in float, quantized and hybrid form."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tflite import FullyConnectedOptionsWeightsFormat, Padding, TensorType

from mlfc.errors import ModelError
from mlfc.frontend.tflite.activation import activated, requantized
from mlfc.frontend.tflite.node import Node, converts, is_quantized
from mlfc.frontend.tflite.rounding import as_fixed_point
from mlfc.frontend.tflite.schema import TfliteTensor
from mlfc.frontend.tflite.weights import NARROW, arranged, bias_of, biased, shape_of, weights_of
from mlfc.ops.rules import broadcast_shape
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, const
from mlfc.support import dtypes
from mlfc.support.dims import maximum


@dataclass(frozen=True)
class WindowOptions:
    """Extents over height and width; padding is top, left, bottom, right."""

    size: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]
    output_padding: tuple[int, int] = (0, 0)

    def attrs(self) -> dict[str, Any]:
        """Return the attributes of a convolution."""
        return {
            "kernel_size": self.size, "strides": self.strides, "dilation": self.dilation, "padding": self.padding
        }  # fmt: skip

    @staticmethod
    def of_conv(node: Node, options: Any, size: Sequence[int]) -> WindowOptions:
        """Return the window of a convolution of input 0 with options that have strides and dilation."""
        strides = (options.StrideH(), options.StrideW())
        dilation = (options.DilationHFactor(), options.DilationWFactor())
        return _window(node, options, (int(size[0]), int(size[1])), strides, dilation)

    @staticmethod
    def of_pool(node: Node, options: Any) -> WindowOptions:
        """Return the window of a pool of input 0."""
        size = (options.FilterHeight(), options.FilterWidth())
        return _window(node, options, size, (options.StrideH(), options.StrideW()), (1, 1))

    @staticmethod
    def of_transpose(
        node: Node, options: Any, size: tuple[int, int], source: Sequence[int], result: tuple[int, int]
    ) -> WindowOptions:
        """Return the window of a transposed convolution from `source` to `result` (heights and widths)."""
        strides = (options.StrideH(), options.StrideW())
        check_window(size, strides, (1, 1))
        before, after, extra = [0, 0], [0, 0], [0, 0]
        for axis in (0, 1):
            full = (source[axis] - 1) * strides[axis] + size[axis]
            before[axis], after[axis], extra[axis] = cut_of(node, options, full, result[axis], strides[axis])
        return WindowOptions(size, strides, (1, 1), (before[0], before[1], after[0], after[1]), (extra[0], extra[1]))


def cut_of(node: Node, options: Any, full: int, result: int, stride: int) -> tuple[int, int, int]:
    """Return what a transposed convolution cuts off its `full` extent at the start and the end, or what is missing."""
    before = max(full - result, 0) // 2 if padding_of(options) == Padding.SAME else 0
    cut = full - before - result
    if -cut >= stride:
        node.refuse(
            f"an output of {result} where inputs reach {full} leaves cells that no input reaches",
            "Export the output shape that the strides give",
        )
    return before, max(cut, 0), max(-cut, 0)


def padding_of(options: Any) -> int:
    """Return the kind of padding; ModelError for an unknown one."""
    kind = int(options.Padding())
    if kind not in (Padding.SAME, Padding.VALID):
        raise ModelError(f"unknown padding {kind}")
    return kind


def check_window(size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> None:
    """Raise ModelError unless all numbers of a window are positive."""
    if min(*size, *strides, *dilation) < 1:
        raise ModelError(f"a window of size {tuple(size)}, strides {tuple(strides)}, dilation {tuple(dilation)}")


def _window(
    node: Node, options: Any, size: tuple[int, int], strides: tuple[int, int], dilation: tuple[int, int]
) -> WindowOptions:
    check_window(size, strides, dilation)
    shape = node.shape(0)
    if len(shape) != 4:
        raise ModelError(f"the data has {len(shape)} dimensions where 4 belong")
    before, after = [0, 0], [0, 0]
    if padding_of(options) == Padding.SAME:
        for axis in (0, 1):
            before[axis], after[axis] = same_padding(shape[axis + 1], size[axis], strides[axis], dilation[axis])
    return WindowOptions(size, strides, dilation, (before[0], before[1], after[0], after[1]))


def same_padding(extent: Any, size: int, stride: int, dilation: int) -> tuple[Any, Any]:
    """Return the padding at the start and the end of an axis with which the window fits ``extent / stride`` times."""
    reach = (size - 1) * dilation + 1
    total = (-(-extent // stride) - 1) * stride + reach - extent
    if reach < stride:  # else it is 0 at least, whatever the extent
        total = maximum(total, 0)
    return total // 2, total - total // 2


_BYTES = ("int8", "uint8")
_WORDS, _SAME = "<3i", 1  # the options of Convolution2DTransposeBias, and one of its paddings
_WIDE_WEIGHTS = ("FULLY_CONNECTED", "BATCH_MATMUL")  # may have int16 weights for int16 data


def mode_of(node: Node, data: TfliteTensor, weight: TfliteTensor) -> str:
    """Return ``float``, ``quantized`` or ``hybrid`` (float data, int8 weights)."""
    kinds = (data.dtype, "int8" if weight.dtype in NARROW else weight.dtype, node.output().dtype)
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
    return node.refuse(
        f"{node.record.code} with data, weights and result of types {given} is not supported",
        "Use float32 throughout, int8 throughout, or int16 or float32 data with int8 weights",
    )


def _weight_scales(weight: TfliteTensor, axis: int) -> npt.NDArray[Any]:
    quantization = weight.quantization
    if quantization is None:
        raise ModelError(f"the weights '{weight.name}' have no scale")
    if len(quantization.scales) > 1 and quantization.axis != axis:
        raise ModelError(f"the weights '{weight.name}' have scales for dimension {quantization.axis}, not {axis}")
    return quantization.scales


def _weight_zeros(node: Node, weight: TfliteTensor) -> Constant:
    zeros = weight.quantization.zero_points if weight.quantization is not None else np.zeros(1, np.int64)
    if np.any(zeros) and weight.dtype == "int8" and node.record.code not in _WIDE_WEIGHTS:
        node.refuse(f"int8 weights of {node.record.code} must be symmetric", "Quantize weights with zero point 0")
    return const(zeros[0] if np.all(zeros == zeros[0]) else zeros, "int32")


def _zero_points(weight: TfliteTensor, rank: int) -> npt.NDArray[np.int64]:
    """Return the zero points of weights in a shape that broadcasts to theirs."""
    quantization = weight.quantization
    if quantization is None:
        return np.zeros((1,) * rank, np.int64)
    shape = [1] * rank
    shape[quantization.axis if len(quantization.zero_points) > 1 else 0] = -1
    return quantization.zero_points.reshape(shape)


def _weight_scale_constant(scales: npt.NDArray[Any]) -> Constant:
    return const(scales[0] if len(scales) == 1 else scales, "float32")


def _product_scales(
    node: Node, data: TfliteTensor, weight: TfliteTensor, axis: int, *, double: bool
) -> npt.NDArray[Any]:
    """Return the scales of the sums; `double` says that the reference multiplies in float64."""
    scales = _weight_scales(weight, axis)
    kind = np.float64 if double or len(scales) > 1 else np.float32
    product: npt.NDArray[Any] = np.multiply(scales.astype(kind), np.array(node.scale(data), kind))
    return product


def _hybrid(node: Node, name: str, weights: Expr, axis: int, data: Expr, attrs: dict[str, Any]) -> Expr:
    """Return a linear operator whose float data is quantized when the model runs, as TFLite's hybrid kernels do it.

    Each batch element has a scale of its own. Whether it has a zero point too depends on the kernel.
    """
    weight, rank = node.input(1), len(ir.tensor_type(data).shape)
    if weight.quantization is None or np.any(weight.quantization.zero_points != 0):
        node.refuse("int8 weights of a float operator must be symmetric", "Quantize weights with zero point 0")
    per_channel_conv = node.record.code == "CONV_2D" and len(weight.quantization.scales) > 1
    asymmetric = per_channel_conv or node.record.code in ("DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")
    if node.record.code == "FULLY_CONNECTED":
        asymmetric = bool(node.options("FullyConnectedOptions").AsymmetricQuantizeInputs())
    codes, scale = _dynamic_codes(node, data, tuple(range(1, rank)), asymmetric=asymmetric)
    one, zero = const(1.0, "float32"), const(0, "int32")
    scales = _weight_scale_constant(_weight_scales(weight, axis))
    sums = node.call(name, codes, weights, zero, zero, one, scales, out_dtype="int32", **attrs)
    real = node.call("cast", sums, dtype="float32")
    # the order of the two products decides the last bit
    if per_channel_conv:
        return node.call("multiply", node.call("multiply", real, scales), scale)
    return node.call("multiply", real, node.call("multiply", scale, scales))


def hybrid_dense(node: Node, data: Expr, weights: Expr, weight_scale: npt.ArrayLike, *, asymmetric: bool) -> Expr:
    """Return a dense layer of float data with int8 weights; each row of the data has a scale of its own.

    `weight_scale`: one number, or one for each unit.
    """
    rank = len(ir.tensor_type(data).shape)
    codes, scale = _dynamic_codes(node, data, (rank - 1,), asymmetric=asymmetric)
    one, zero, scales = const(1.0, "float32"), const(0, "int32"), const(weight_scale, "float32")
    sums = node.call("qnn.dense", codes, weights, zero, zero, one, one, units=ir.tensor_type(weights).shape[0],
                     out_dtype="int32")  # fmt: skip
    return node.call("multiply", node.call("cast", sums, dtype="float32"), node.call("multiply", scale, scales))


def _dynamic_codes(node: Node, data: Expr, axes: tuple[int, ...], *, asymmetric: bool) -> tuple[Expr, Expr]:
    """Return float data as integers centred at zero, and their scale, one for each batch element."""
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
    last = len(ir.tensor_type(data).shape) - 1
    mode = mode_of(node, tensor, weight)
    if mode != "quantized":
        if mode == "float":
            result = node.call(f"nn.{name}", data, weights, **attrs)
        else:
            result = _hybrid(node, f"qnn.{name}", weights, weight_axis, data, attrs)
        return activated(node, biased(node, result, bias, last), function)
    scale, zero_point = node.quantization(tensor)
    args = (zero_point, _weight_zeros(node, weight), scale, _weight_scale_constant(_weight_scales(weight, weight_axis)))
    if tensor.dtype == "int16":
        in_words = _adds_up_in_words(node, bias, weight)
        if rounding != "SINGLE" or weight.dtype == "int16":
            rounding = "DOUBLE" if in_words else "REDUCED"
        else:  # LiteRT's fully connected kernel multiplies by the scale itself
            rounding = "FLOAT64"
        fit = in_words and _fit_in_words(node, tensor, weight_axis, bias)
        sums = _wide_sums(node, name, (data, weights, *args), bias, in_words, fit, attrs)
    else:
        sums = biased(node, node.call(f"qnn.{name}", data, weights, *args, out_dtype="int32", **attrs), bias, last)
    scales = _product_scales(node, tensor, weight, weight_axis, double=double)
    if rounding == "SINGLE":
        scales, rounding = _once_rounded(node, scales, _largest_sum(node, tensor, weight_axis, bias))
    return requantized(node, sums, scales, axis=last, rounding=rounding, function=function)


_BIAS_TYPES = {"CONV_2D": "Conv2DOptions", "FULLY_CONNECTED": "FullyConnectedOptions",
               "TRANSPOSE_CONV": "TransposeConvOptions"}  # fmt: skip


def _adds_up_in_words(node: Node, bias: Expr | None, weight: TfliteTensor) -> bool:
    """Tell whether the reference adds up products of int16 data in 32 bits: it does where the bias has 32 bits."""
    kind, is_wide = _BIAS_TYPES.get(node.record.code), weight.dtype == "int16"
    narrow = bias is not None and ir.tensor_type(bias).dtype == "int32"
    if kind is not None:
        declared = node.options(kind).QuantizedBiasType()
        read = declared != TensorType.INT64 if is_wide else declared == TensorType.INT32
        if bias is not None and narrow != read:
            raise ModelError(f"the bias type in its options differs from its bias of {ir.tensor_type(bias).dtype}")
        narrow = read
    return narrow and not is_wide  # products of two int16 are always added up in 64 bits


def _once_rounded(node: Node, scales: npt.NDArray[Any], largest_sum: int) -> tuple[npt.NDArray[Any], str]:
    """Return scales and rounding of 8-bit codes, which the reference rounds in float64, in fixed point if possible."""
    output = node.output()
    low, high = (limit - node.zero_point(output) for limit in dtypes.limits(output.dtype))
    out_scale = np.float64(node.scale(output))
    known = min(largest_sum, dtypes.limits("int32")[1])
    exact = np.atleast_1d(scales / out_scale)
    ratios = as_fixed_point(exact, known, max(high, -low))
    if ratios is None:
        return scales, "FLOAT64"
    return np.where(ratios == exact, scales, ratios * out_scale), "SINGLE"


def _fit_in_words(node: Node, data: TfliteTensor, axis: int, bias: Expr | None) -> bool:
    """Tell whether no sum can be beyond an int32."""
    return _largest_sum(node, data, axis, bias) <= dtypes.limits("int32")[1]


def _largest_sum(node: Node, data: TfliteTensor, axis: int, bias: Expr | None) -> int:
    """Return a magnitude that no sum exceeds: of weights or a bias that come late, that of int64."""
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
    """Return the sums of a linear operator over int16 data, with the bias.

    A reference that adds up in 32 bits wraps around, and so does this: in 64 bits, cut off at the end.
    """
    dtype = "int32" if fit else "int64"
    sums = node.call(f"qnn.{name}", *args, out_dtype=dtype, **attrs)
    if bias is not None:
        given = ir.tensor_type(bias).dtype
        if given not in ("int32", "int64"):
            node.refuse(f"a {given} bias on int16 data is not supported", "Use an int64 or an int32 bias")
        wide = (
            Constant(bias.data.astype(dtype), bias.name, bias.span)
            if isinstance(bias, Constant)
            else bias
            if given == dtype
            else node.call("cast", bias, dtype=dtype)
        )
        sums = node.call("nn.bias_add", sums, wide, axis=len(ir.tensor_type(sums).shape) - 1)
    return node.call("cast", sums, dtype="int32") if in_words and not fit else sums


@converts("CONV_2D")
def _conv(node: Node) -> Expr:
    options, weights = node.options("Conv2DOptions"), weights_of(node, 1, 4)
    data, window = node.expr(0), WindowOptions.of_conv(node, options, shape_of(weights)[1:3])
    channels, taken = shape_of(weights)[0], shape_of(weights)[3]
    available = ir.tensor_type(data).shape[-1]
    if taken == 0 or available % taken:
        raise ModelError(f"weights for {taken} channels on data of {available}")
    attrs = {
        **window.attrs(), "groups": available // taken, "channels": channels,
        "data_layout": "NHWC", "kernel_layout": "HWIO",
    }  # fmt: skip
    ordered = arranged(node, weights, (1, 2, 3, 0))
    bias = bias_of(node, 2, channels)
    function, double = options.FusedActivationFunction(), node.input(1).dtype != "uint8"
    return _linear(node, "conv2d", ordered, 0, bias, function, attrs, data=data, double=double)


@converts("DEPTHWISE_CONV_2D")
def _depthwise_conv(node: Node) -> Expr:
    options, weights = node.options("DepthwiseConv2DOptions"), weights_of(node, 1, 4)
    data, window = node.expr(0), WindowOptions.of_conv(node, options, shape_of(weights)[1:3])
    channels = ir.tensor_type(data).shape[-1]
    height, width, filters = shape_of(weights)[1:]
    if shape_of(weights)[0] != 1 or channels == 0 or filters % channels:
        raise ModelError(f"depthwise weights of shape {shape_of(weights)} on data of {channels} channels")
    # TFLite's output channel is channel * multiplier + m, which is how HWOI with I = multiplier lies in memory
    ordered = arranged(node, weights, None, (height, width, channels, filters // channels))
    layout = "HWOI" if channels > 1 else "HWIO"  # one group is a plain convolution
    attrs = {
        **window.attrs(), "groups": channels, "channels": filters, "data_layout": "NHWC", "kernel_layout": layout,
    }  # fmt: skip
    bias = bias_of(node, 2, filters)
    function, double = options.FusedActivationFunction(), node.input(1).dtype != "uint8"
    return _linear(node, "conv2d", ordered, 3, bias, function, attrs, data=data, double=double)


@converts("TRANSPOSE_CONV")
def _transpose_conv(node: Node) -> Expr:
    """Convert TRANSPOSE_CONV, whose data is input 2 and whose output shape is input 0."""
    options, weights = node.options("TransposeConvOptions"), weights_of(node, 1, 4)
    data, shape = node.expr(2), node.integers(0)
    channels, height, width, taken = shape_of(weights)
    source = ir.tensor_type(data).shape
    if len(source) != 4 or len(shape) != 4 or taken != source[3] or shape[3] != channels:
        raise ModelError(f"weights {shape_of(weights)} do not turn {source} into {tuple(shape)}")
    window = WindowOptions.of_transpose(node, options, (height, width), source[1:3], (shape[1], shape[2]))
    attrs = {
        **window.attrs(), "channels": channels, "data_layout": "NHWC", "kernel_layout": "HWIO",
        "output_padding": window.output_padding,
    }  # fmt: skip
    # Relay's conv2d_transpose takes the weights as its gradient's convolution has them: HW, channels in, channels out
    ordered = arranged(node, weights, (1, 2, 3, 0))
    bias, function = bias_of(node, 3, channels), int(options.FusedActivationFunction())
    return _linear(node, "conv2d_transpose", ordered, 0, bias, function, attrs, data=data, double=True, source=2)


@converts("CUSTOM Convolution2DTransposeBias")
def _transpose_conv_bias(node: Node) -> Expr:
    """Convert MediaPipe's transposed convolution, whose options are words: padding, horizontal and vertical stride."""
    weights, data = weights_of(node, 1, 4), node.expr(0)
    channels, *size, taken = shape_of(weights)
    source = ir.tensor_type(data).shape
    if len(node.record.custom) < struct.calcsize(_WORDS) or len(source) != 4 or taken != source[3]:
        raise ModelError(
            f"expected {struct.calcsize(_WORDS)} bytes of options and NHWC data of {taken} channels, got "
            f"{len(node.record.custom)} bytes and data of shape {source}"
        )
    kind, *across_and_down = struct.unpack_from(_WORDS, node.record.custom)
    strides = across_and_down[::-1]
    check_window(size, strides, (1, 1))
    if mode_of(node, node.input(0), node.input(1)) != "float":
        node.refuse(f"{node.record.code} is supported in float32 only", "Use float32 throughout")
    places = zip(source[1:3], size, strides, strict=True)
    cuts = [max(0, part - (extent - 1) % stride - 1) if kind == _SAME else 0 for extent, part, stride in places]
    (top, left), (bottom, right) = [cut // 2 for cut in cuts], [cut - cut // 2 for cut in cuts]
    attrs = {
        "kernel_size": tuple(size), "strides": tuple(strides), "padding": (top, left, bottom, right),
        "channels": channels, "data_layout": "NHWC", "kernel_layout": "HWIO",
    }  # fmt: skip
    ordered, bias = arranged(node, weights, (1, 2, 3, 0)), bias_of(node, 2, channels)
    return _linear(node, "conv2d_transpose", ordered, 0, bias, 0, attrs, data=data, double=True)


@converts("FULLY_CONNECTED")
def _fully_connected(node: Node) -> Expr:
    options, weights = node.options("FullyConnectedOptions"), weights_of(node, 1, 2)
    if options.WeightsFormat() != FullyConnectedOptionsWeightsFormat.DEFAULT:
        node.refuse("shuffled weights of FULLY_CONNECTED are not supported", "Export with the default weight format")
    data, (units, taken) = node.expr(0), shape_of(weights)
    shape = ir.tensor_type(data).shape
    if taken == 0 or ir.tensor_type(data).size % taken:
        raise ModelError(f"weights for {taken} inputs on data of shape {shape}")
    if len(shape) != 2 or shape[1] != taken:
        data = node.call("reshape", data, newshape=(-1, taken))
    # LiteRT's fully connected kernel multiplies the scales in float64 and rounds once; TFLite Micro's, and LiteRT's
    # of int16 weights, multiply them in float32
    is_litert = node.numerics == "litert"
    rounding, double = "SINGLE" if is_litert else "DOUBLE", is_litert and node.input(1).dtype != "int16"
    bias, function = bias_of(node, 2, units), options.FusedActivationFunction()
    result = _linear(
        node, "dense", weights, 0, bias, function, {"units": units}, data=data, rounding=rounding, double=double
    )
    kept = (*shape[:-1], units)
    if options.KeepNumDims() and ir.tensor_type(result).shape != kept:
        return node.call("reshape", result, newshape=kept)
    return result


@converts("BATCH_MATMUL")
def _batch_matmul(node: Node) -> Expr:
    options = node.options("BatchMatMulOptions")
    lhs, rhs = node.expr(0), node.expr(1)
    left, right = ir.tensor_type(lhs).shape, ir.tensor_type(rhs).shape
    if min(len(left), len(right)) < 2:
        raise ModelError(f"matrices of shapes {left} and {right}")
    mode = mode_of(node, node.input(0), node.input(1))
    batch = broadcast_shape("BATCH_MATMUL", left[:-2], right[:-2])
    lhs, rhs = _batched(node, lhs, batch), _batched(node, rhs, batch)
    attrs = {"transpose_a": bool(options.AdjX()), "transpose_b": bool(options.AdjY())}
    if mode == "float":
        result = node.call("nn.batch_matmul", lhs, rhs, **attrs)
    elif mode == "hybrid":
        result = _hybrid_matmul(node, lhs, rhs, options)
    else:
        (lhs_scale, lhs_zero), (rhs_scale, rhs_zero) = (node.quantization(node.input(i)) for i in (0, 1))
        is_wide = node.input(0).dtype == "int16"
        sums = node.call("qnn.batch_matmul", lhs, rhs, lhs_zero, rhs_zero, lhs_scale, rhs_scale,
                         out_dtype="int64" if is_wide else "int32", **attrs)  # fmt: skip
        scales = _product_scales(node, node.input(0), node.input(1), 0, double=False)
        result = requantized(node, sums, scales, axis=2, rounding="REDUCED" if is_wide else "DOUBLE", function=0)
    matrix = ir.tensor_type(result).shape[-2:]
    return result if len(batch) == 1 else node.call("reshape", result, newshape=(*batch, *matrix))


def _hybrid_matmul(node: Node, lhs: Expr, rhs: Expr, options: Any) -> Expr:
    """Return the product of float matrices, each row of which has a scale of its own, with int8 ones."""
    if options.AdjX():
        lhs = node.call("transpose", lhs, axes=(0, 2, 1))
    if node.zero_point(node.input(1)):
        node.refuse("int8 weights of a float operator must be symmetric", "Quantize weights with zero point 0")
    codes, scale = _dynamic_codes(node, lhs, (2,), asymmetric=bool(options.AsymmetricQuantizeInputs()))
    one, zero = const(1.0, "float32"), const(0, "int32")
    sums = node.call(
        "qnn.batch_matmul", codes, rhs, zero, zero, one, one, transpose_b=bool(options.AdjY()), out_dtype="int32"
    )
    scale = node.call("multiply", scale, const(node.scale(node.input(1)), "float32"))
    return node.call("multiply", node.call("cast", sums, dtype="float32"), scale)


def _batched(node: Node, expr: Expr, batch: tuple[int, ...]) -> Expr:
    """Return matrices broadcast over `batch`, which becomes one dimension."""
    shape = ir.tensor_type(expr).shape
    if shape[:-2] != batch:
        expr = node.call("broadcast_to", expr, shape=(*batch, *shape[-2:]))
    return expr if len(batch) == 1 else node.call("reshape", expr, newshape=(prod(batch), *shape[-2:]))
