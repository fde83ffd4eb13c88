"""Layers with a dynamic dimension, from every family of operators, at small and medium sizes.

They are those of ResNet-50 and of a MobileNet with a dynamic batch, of networks on images of dynamic size, and of a
transformer's encoder and decoder with a dynamic length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlfc.relay import ir
from mlfc.support.dims import maximum

IMAGES = (1, 8)
TOKENS = (1, 16, 100, 128)
LENGTHS = TOKENS[1:]  # without 1: static rows of one element need no work
SIDES = (7, 14, 56)


@dataclass(frozen=True)
class Layer:
    """A layer as a function of its dynamic dimension, and the sizes at which it is timed."""

    name: str
    make: Callable[[Any], tuple[ir.Expr, list[ir.Var]]]
    extents: tuple[int, ...]


def _weights(*shape: int, dtype: str = "float32") -> ir.Expr:
    rng = np.random.default_rng(1)
    if dtype == "int8":
        return ir.const(rng.integers(-128, 128, shape).astype(np.int8))
    return ir.const((rng.standard_normal(shape) * 0.1).astype(np.float32))


def _var(name: str, *shape: Any, dtype: str = "float32") -> ir.Var:
    return ir.Var(name, ir.TensorType(shape, dtype))


def _conv(side: Any, channels: int, filters: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
    """Return a convolution on a dynamic batch of images with `side`; if that is None, on one with dynamic sides."""

    def make(open_extent: Any) -> tuple[ir.Expr, list[ir.Var]]:
        shape = (1, open_extent, open_extent, channels) if side is None else (open_extent, side, side, channels)
        x = _var("x", *shape)
        depthwise = groups == channels
        last = (channels, filters // channels) if depthwise else (channels // groups, filters)
        call = ir.call(
            "nn.conv2d", [x, _weights(kernel, kernel, *last)], strides=(stride,) * 2, padding=(kernel // 2,) * 4,
            groups=groups, data_layout="NHWC", kernel_layout="HWOI" if depthwise else "HWIO",
        )  # fmt: skip
        biased = ir.call("nn.bias_add", [call, _weights(filters)], axis=3)
        return ir.call("nn.relu", [biased]), [x]

    return make


def _quantized(side: int | None, channels: int, filters: int, kernel: int) -> Any:
    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", *((1, n, n) if side is None else (n, side, side)), channels, dtype="int8")
        zeros = [ir.const(-3), ir.const(0), ir.const(0.5), ir.const(0.25)]
        call = ir.call(
            "qnn.conv2d", [x, _weights(kernel, kernel, channels, filters, dtype="int8"), *zeros],
            padding=(kernel // 2,) * 4, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32",
            kernel_size=(kernel,) * 2, channels=filters,
        )  # fmt: skip
        return call, [x]

    return make


def _dense(inner: int, units: int, *, batched: bool = False) -> Any:
    def make(rows: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", rows, 1, inner) if batched else _var("x", 1, rows, inner)
        call = ir.call("nn.dense", [x, _weights(units, inner)], units=units)
        return ir.call("nn.bias_add", [call, _weights(units)], axis=2), [x]

    return make


def _packed(inner: int, units: int) -> Any:
    def make(rows: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x, rng = _var("x", rows, inner), np.random.default_rng(2)
        codes = ir.const(rng.integers(-128, 128, (units, inner)).astype(np.int8))
        scales = ir.const(rng.uniform(0.01, 0.1, (units, 1)).astype(np.float32))
        zeros = ir.const(np.zeros((units, 1), np.int32))
        return ir.call("qnn.weight_only_dense", [x, codes, scales, zeros], units=units), [x]

    return make


def _attention(heads: int, size: int, *, causal: bool = False, decode: bool = False) -> Any:
    def make(length: Any) -> tuple[ir.Expr, list[ir.Var]]:
        queries = 1 if decode else length
        parts = [_var(name, 1, heads, own, size) for name, own in (("q", queries), ("k", length), ("v", length))]
        right: dict[str, Any] = {"right": 0} if causal else {}
        return ir.call("nn.attention", parts, scale=size**-0.5, **right), parts

    return make


def _matmul(heads: int, size: int, *, mixes: bool = False) -> Any:
    def make(length: Any) -> tuple[ir.Expr, list[ir.Var]]:
        first = _var("a", heads, length, length if mixes else size)
        second = _var("b", heads, length, size)
        return ir.call("nn.batch_matmul", [first, second], transpose_b=not mixes), [first, second]

    return make


def _rows(operator: str, width: int) -> Any:
    def make(rows: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", 12, rows, rows) if operator == "nn.softmax" else _var("x", 1, rows, width)
        more = [] if operator == "nn.softmax" else [_weights(width), _weights(width)]
        return ir.call(operator, [x, *more], axis=-1), [x]

    return make


def _images(operator: str, channels: int, side: int | None = None, **attrs: Any) -> Any:
    """Return an operator on a dynamic batch of NHWC images with `side`; if that is None, on one with dynamic sides."""

    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", *((1, n, n) if side is None else (n, side, side)), channels)
        return ir.call(operator, [x], **attrs), [x]

    return make


def _pool(kernel: int, stride: int, *padding: int) -> dict[str, Any]:
    pads = padding * 4 if len(padding) == 1 else padding
    return {"pool_size": (kernel,) * 2, "strides": (stride,) * 2, "padding": pads, "layout": "NHWC"}


def _same(operator: str, channels: int, kernel: int, stride: int) -> Any:
    """Return a pool on an image with dynamic sides, with `same` padding."""

    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", 1, n, n, channels)
        total = maximum((-(-n // stride) - 1) * stride + kernel - n, 0)
        pads = (total // 2, total // 2, total - total // 2, total - total // 2)
        return ir.call(operator, [x], _pool(kernel, stride, *pads)), [x]

    return make


def _one(operator: str, *shape: Any, **attrs: Any) -> Any:
    """Return an operator on one tensor; None in the shape is the dynamic dimension."""

    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", *(n if extent is None else extent for extent in shape))
        return ir.call(operator, [x], **attrs), [x]

    return make


def _two(operator: str, first: tuple[Any, ...], second: tuple[Any, ...], **attrs: Any) -> Any:
    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        a, b = (
            _var(name, *(n if extent is None else extent for extent in shape))
            for name, shape in (("a", first), ("b", second))
        )
        args = [ir.Tuple((a, b))] if operator == "concatenate" else [a, b]
        return ir.call(operator, args, **attrs), [a, b]

    return make


def _resize(factor: int, **attrs: Any) -> Any:
    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", 1, n, n, 32)
        return ir.call("image.resize2d", [x], size=(factor * n, factor * n), layout="NHWC", **attrs), [x]

    return make


def _taken(rows: int, width: int) -> Any:
    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        indices = _var("indices", 1, n, dtype="int64")
        return ir.call("take", [_weights(rows, width), indices], axis=0), [indices]

    return make


def _transposed(channels: int, filters: int) -> Any:
    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", 1, n, n, channels)
        layouts: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        weights = _weights(3, 3, channels, filters)
        return ir.call("nn.conv2d_transpose", [x, weights], strides=(2, 2), padding=(1,) * 4, **layouts), [x]

    return make


def _padded(channels: int, **attrs: Any) -> Any:
    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", 1, n, n, channels)
        width = ((0, 0), (1, 1), (1, 1), (0, 0))
        return ir.call("nn.pad", [x, ir.const(np.float32(0))], pad_width=width, **attrs), [x]

    return make


def _norm(operator: str, axis: int) -> Any:
    def make(n: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", 1, n, n, 32)
        return ir.call(operator, [x, _weights(32), _weights(32)], axis=axis), [x]

    return make


LAYERS = (
    # images with a dynamic batch
    Layer("first 7x7 of 224, 3-64", _conv(224, 3, 64, 7, 2), IMAGES),
    Layer("3x3 of 56, 64-64", _conv(56, 64, 64, 3), IMAGES),
    Layer("1x1 of 56, 64-256", _conv(56, 64, 256), IMAGES),
    Layer("3x3 of 14, 256-256", _conv(14, 256, 256, 3), IMAGES),
    Layer("1x1 of 7, 2048-512", _conv(7, 2048, 512), IMAGES),
    Layer("depthwise 3x3 of 14, 384", _conv(14, 384, 384, 3, 1, 384), IMAGES),
    Layer("int8 3x3 of 28, 64-64", _quantized(28, 64, 64, 3), IMAGES),
    Layer("largest of 3x3 of 112, 64", _images("nn.max_pool2d", 64, 112, **_pool(3, 2, 1)), IMAGES),
    Layer("mean of 7x7, 2048", _images("nn.global_avg_pool2d", 2048, 7, layout="NHWC"), IMAGES),
    Layer("lrn of 5 of 13, 96", _images("nn.lrn", 96, 13, axis=3, size=5), IMAGES),
    Layer("classifier, 2048-1000", _dense(2048, 1000, batched=True), IMAGES),
    # images with dynamic sides
    Layer("3x3 of an open side, 32-32", _conv(None, 32, 32, 3), SIDES),
    Layer("3x3 of an open side, 3-32, every second", _conv(None, 3, 32, 3, 2), SIDES),
    Layer("3x3 of an open side, 64-64, every second", _conv(None, 64, 64, 3, 2), SIDES),
    Layer("1x1 of an open side, 64-64", _conv(None, 64, 64), SIDES),
    Layer("1x1 of an open side, 64-64, every second", _conv(None, 64, 64, 1, 2), SIDES),
    Layer("grouped 3x3 of an open side, 64-64", _conv(None, 64, 64, 3, 1, 4), SIDES),
    Layer("depthwise 3x3 of an open side, 64", _conv(None, 64, 64, 3, 1, 64), SIDES),
    Layer("depthwise 3x3 of an open side, 64, every second", _conv(None, 64, 64, 3, 2, 64), SIDES),
    Layer("int8 3x3 of an open side, 32-32", _quantized(None, 32, 32, 3), SIDES),
    Layer("int8 1x1 of an open side, 64-64", _quantized(None, 64, 64, 1), SIDES),
    Layer("transposed 3x3 of an open side, 32-32", _transposed(32, 32), SIDES),
    Layer("largest of 3x3, 32", _images("nn.max_pool2d", 32, **_pool(3, 2, 1)), SIDES),
    Layer("largest of 2x2, 32", _images("nn.max_pool2d", 32, **_pool(2, 2, 0)), SIDES),
    Layer("largest of 3x3, 3 channels", _images("nn.max_pool2d", 3, **_pool(3, 1, 1)), SIDES),
    Layer("mean of 3x3, 32", _images("nn.avg_pool2d", 32, **_pool(3, 1, 1)), SIDES),
    Layer("largest of 3x3 `same`, 32", _same("nn.max_pool2d", 32, 3, 2), SIDES),
    Layer("mean of 3x3 `same`, 32", _same("nn.avg_pool2d", 32, 3, 1), SIDES),
    Layer("mean of an open side, 64", _images("nn.global_avg_pool2d", 64, layout="NHWC"), SIDES),
    Layer("lrn of 5, 16", _images("nn.lrn", 16, axis=3, size=5), SIDES),
    Layer("lrn of 5 of the first axis, 16", _one("nn.lrn", 1, 16, None, None, axis=1, size=5), SIDES),
    Layer("twice as large, linear, 32", _resize(2, method="linear"), SIDES),
    Layer(
        "twice as large, nearest, 32",
        _resize(2, method="nearest_neighbor", coordinate_transformation_mode="asymmetric"),
        SIDES,
    ),
    Layer("padding by zeros, 32", _padded(32), SIDES),
    Layer("instance norm, 32", _norm("nn.instance_norm", 3), SIDES),
    Layer("channels to the front, 32", _one("transpose", 1, None, None, 32, axes=(0, 3, 1, 2)), SIDES),
    Layer("channels to the back, 32", _one("transpose", 1, 32, None, None, axes=(0, 2, 3, 1)), SIDES),
    Layer("channels of two images", _two("concatenate", (1, None, None, 32), (1, None, None, 16), axis=3), SIDES),
    # rows with a dynamic length
    Layer("dense, 768-768", _dense(768, 768), TOKENS),
    Layer("dense, 768-3072", _dense(768, 3072), TOKENS),
    Layer("dense, 64-10", _dense(64, 10), TOKENS),
    Layer("packed dense of int8, 768-768", _packed(768, 768), TOKENS),
    Layer("attention, 12 heads of 64", _attention(12, 64), TOKENS),
    Layer("causal attention, 12 heads of 64", _attention(12, 64, causal=True), TOKENS),
    Layer("attention of one query", _attention(12, 64, decode=True), (16, 100, 1000)),
    Layer("scores, 12 heads of 64", _matmul(12, 64), TOKENS),
    Layer("mixed values, 12 heads of 64", _matmul(12, 64, mixes=True), TOKENS),
    Layer("softmax of 12 heads", _rows("nn.softmax", 0), LENGTHS),
    Layer("softmax of rows of 10", _one("nn.softmax", None, 10, axis=-1), LENGTHS),
    Layer("softmax over the first axis", _one("nn.softmax", None, 16, axis=0), LENGTHS),
    Layer("log of softmax of one row", _one("nn.log_softmax", 8, None, axis=-1), LENGTHS),
    Layer("layer norm of 768", _rows("nn.layer_norm", 768), LENGTHS),
    Layer("layer norm of 32", _rows("nn.layer_norm", 32), LENGTHS),
    Layer("sums of rows", _one("sum", 8, None, axis=(1,)), LENGTHS),
    Layer("sums over the length", _one("sum", 1, None, 64, axis=(1,)), LENGTHS),
    Layer("sum of all", _one("sum", None, 16), LENGTHS),
    Layer("largest of rows", _one("max", 8, None, axis=(1,)), LENGTHS),
    Layer("mean of rows of 64", _one("mean", None, 64, axis=(1,)), LENGTHS),
    Layer("places of the largest of rows", _one("argmax", 8, None, axis=1), LENGTHS),
    Layer("places of the largest of 10", _one("argmax", None, 10, axis=1), LENGTHS),
    Layer("running sums", _one("cumsum", 4, None, axis=1), LENGTHS),
    Layer("heads to the front", _one("transpose", 1, None, 12, 64, axes=(0, 2, 1, 3)), LENGTHS),
    Layer("rows become columns", _one("transpose", None, 64, axes=(1, 0)), LENGTHS),
    Layer("two lengths in a row", _two("concatenate", (1, None, 64), (1, None, 64), axis=1), LENGTHS),
    Layer("features of two", _two("concatenate", (1, None, 64), (1, None, 32), axis=2), LENGTHS),
    Layer("sum of two", _two("add", (1, None, 256), (1, None, 256)), LENGTHS),
    Layer("sum with one row", _two("add", (1, None, 256), (256,)), LENGTHS),
    Layer("sum with a column", _two("add", (12, None, None), (12, None, 1)), LENGTHS),
    Layer("sigmoid of rows of 64", _one("sigmoid", None, 64), LENGTHS),
    Layer(
        "every second of rows", _one("strided_slice", None, 64, begin=(0,), end=(64,), strides=(2,), axes=(1,)), TOKENS
    ),
    Layer("embedding, 1000-256", _taken(1000, 256), LENGTHS),
)
