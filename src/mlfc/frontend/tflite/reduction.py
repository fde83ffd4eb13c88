"""Pools, reductions, normalizations and resizing."""

from __future__ import annotations

from math import prod
from typing import Any

from mlfc.errors import ModelError
from mlfc.frontend.tflite.arithmetic import activated, clipped, of_codes
from mlfc.frontend.tflite.linear import window_of
from mlfc.frontend.tflite.node import CODES, Node, converts
from mlfc.ops.rules import normalized_axes
from mlfc.relay import ir
from mlfc.relay.ir import Expr, const
from mlfc.support.dims import bounds


def _pool_attrs(node: Node, options: Any) -> dict[str, Any]:
    window = window_of(node, options, (options.FilterHeight(), options.FilterWidth()), dilated=False)
    return {"pool_size": window.size, "strides": window.strides, "padding": window.padding, "layout": "NHWC"}


@converts("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(node: Node) -> Expr:
    options, name = node.options("Pool2DOptions"), node.record.code[:3].lower()
    name = f"{'avg' if name == 'ave' else name}_pool2d"
    attrs, function = _pool_attrs(node, options), options.FusedActivationFunction()
    if node.output().dtype not in CODES:
        return activated(node, node.call(f"nn.{name}", node.expr(0), **attrs), function)
    node.refuse_new_scale()
    if name == "max_pool2d":
        return clipped(node, node.call("nn.max_pool2d", node.expr(0), **attrs), function)
    # the mean of codes does not depend on their scale
    scales = node.quantizations(node.input(0), node.output()) if node.quantized else [const(1.0), const(0)] * 2
    return clipped(node, node.call("qnn.avg_pool2d", node.expr(0), *scales, **attrs), function)


@converts("L2_POOL_2D")
def _l2_pool(node: Node) -> Expr:
    options = node.options("Pool2DOptions")
    if node.quantized:
        node.refuse("quantized L2_POOL_2D is not supported", "Keep this operator in float32")
    squares = node.call("multiply", node.expr(0), node.expr(0))
    mean = node.call("nn.avg_pool2d", squares, **_pool_attrs(node, options))
    return activated(node, node.call("sqrt", mean), options.FusedActivationFunction())


def _axes(node: Node) -> tuple[int, ...]:
    axes = node.integers(1)
    rank = len(node.shape(0))
    if any(not -rank <= axis < rank for axis in axes):
        raise ModelError(f"axes {axes} are out of range for a tensor of {rank} dimensions")
    return normalized_axes(node.record.code, axes, rank)


def _reduced(node: Node, name: str, data: Expr, *scales: Expr) -> Expr:
    keep = bool(node.options("ReducerOptions").KeepDims())
    return node.call(name, data, *scales, axis=_axes(node), keepdims=keep)


@converts("MEAN", scaled=CODES)
def _mean(node: Node) -> Expr:
    scales = node.quantizations(node.input(0), node.output()) if node.quantized else ()
    return _reduced(node, "qnn.mean" if scales else "mean", node.expr(0), *scales)


@converts("SUM", scaled=CODES)
def _sum(node: Node) -> Expr:
    if not node.quantized:
        is_bool = node.input(0).dtype == "bool"
        return _reduced(node, "any" if is_bool else "sum", node.expr(0))
    source, output = node.input(0), node.output()
    if source.dtype != "uint8" and node.numerics == "litert":
        node.refuse(
            f"LiteRT's reference kernel reads {source.type_name} codes as unsigned bytes",
            "Import it with --numerics tflm, or keep SUM in float32",
        )
    # the sum of codes is exact, and is requantized once
    count = prod(node.shape(0)[axis] for axis in _axes(node))
    wide = _reduced(node, "sum", node.call("cast", node.expr(0), dtype="int32"))
    scale, _ = node.quantization(source)
    return node.call(
        "qnn.requantize", wide, scale, const(count * node.zero_point(source), "int32"), *node.quantization(output),
        rounding="DOUBLE", out_dtype=output.dtype,
    )  # fmt: skip


@converts("REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")
def _reduce(node: Node) -> Expr:
    name = node.record.code.removeprefix("REDUCE_").lower()
    if name == "prod" and node.quantized:
        return _reduced(node, "qnn.prod", node.expr(0), *node.quantizations(node.input(0), node.output()))
    node.refuse_new_scale()
    if node.input(0).dtype == "bool":
        name = {"max": "any", "min": "all", "prod": "all"}.get(name, name)
    return _reduced(node, name, node.expr(0))


@converts("ARG_MAX", "ARG_MIN")
def _arg(node: Node) -> Expr:
    name = "argmax" if node.record.code == "ARG_MAX" else "argmin"
    data = node.expr(0)
    if ir.tensor_type(data).dtype == "bool":
        data = node.call("cast", data, dtype="uint8")
    result = node.call(name, data, axis=(node.integer(1),), keepdims=False)
    node.check_type("ArgMaxOptions", lambda options: options.OutputType())
    wanted = node.output().dtype
    return result if ir.tensor_type(result).dtype == wanted else node.call("cast", result, dtype=wanted)


@converts("L2_NORMALIZATION", scaled=CODES)
def _l2_normalization(node: Node) -> Expr:
    if node.quantized:
        return of_codes(node, "qnn.l2_normalize", ("int8", "uint8"))
    squares = node.call("multiply", node.expr(0), node.expr(0))
    norm = node.call("sqrt", node.call("sum", squares, axis=(-1,), keepdims=True))
    result = node.call("divide", node.expr(0), node.call("maximum", norm, const(1e-6)))
    return activated(node, result, node.options("L2NormOptions").FusedActivationFunction())


@converts("LOCAL_RESPONSE_NORMALIZATION")
def _local_response_normalization(node: Node) -> Expr:
    options, rank = node.options("LocalResponseNormalizationOptions"), len(node.shape(0))
    size = 2 * options.Radius() + 1
    # Relay divides alpha by the window size, TFLite does not
    return node.call(
        "nn.lrn", node.expr(0), size=size, axis=rank - 1, bias=float(options.Bias()),
        alpha=float(options.Alpha()) * size, beta=float(options.Beta()),
    )  # fmt: skip


def _target(node: Node, kind: str) -> tuple[tuple[Any, ...], bool, bool]:
    """Return height and width, whether corners are aligned, and whether pixel centres are at halves."""
    options, size = node.options(kind), node.extents(1)
    if len(size) != 2 or any(bounds(extent)[1] < 1 for extent in size) or len(node.shape(0)) != 4:
        raise ModelError(f"cannot resize {node.shape(0)} to {size}")
    return tuple(size), bool(options.AlignCorners()), bool(options.HalfPixelCenters())


@converts("RESIZE_BILINEAR", scaled=CODES)
def _resize_bilinear(node: Node) -> Expr:
    size, align, half = _target(node, "ResizeBilinearOptions")
    if node.quantized:
        node.refuse_new_scale()
        return node.call("qnn.resize_bilinear", node.expr(0), size=size, align_corners=align, half_pixel_centers=half)
    mode = "align_corners" if align else "half_pixel" if half else "asymmetric"
    return _resized(node, size, method="linear", coordinate_transformation_mode=mode)


@converts("RESIZE_NEAREST_NEIGHBOR")
def _resize_nearest(node: Node) -> Expr:
    size, align, half = _target(node, "ResizeNearestNeighborOptions")
    node.refuse_new_scale()
    mode = "align_corners" if align else "tf_half_pixel_for_nn" if half else "asymmetric"
    return _resized(node, size, method="nearest_neighbor", rounding_method="", coordinate_transformation_mode=mode)


def _resized(node: Node, size: tuple[Any, ...], **attrs: Any) -> Expr:
    data = node.expr(0)
    return data if size == node.shape(0)[1:3] else node.call("image.resize2d", data, size=size, layout="NHWC", **attrs)
