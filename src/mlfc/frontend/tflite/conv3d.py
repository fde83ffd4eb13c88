"""Convolutions of volumes, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflite import Padding

from mlfc.errors import ModelError
from mlfc.frontend.tflite.activation import activated
from mlfc.frontend.tflite.linear import check_window, cut_of, mode_of, padding_of, same_padding
from mlfc.frontend.tflite.node import Node, converts
from mlfc.frontend.tflite.weights import arranged, bias_of, biased, shape_of, weights_of
from mlfc.relay.ir import Expr

_AXES = range(3)


def _steps(options: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return strides and dilation."""
    strides = (options.StrideD(), options.StrideH(), options.StrideW())
    return strides, (options.DilationDFactor(), options.DilationHFactor(), options.DilationWFactor())


def _finished(node: Node, result: Expr, place: int, channels: int) -> Expr:
    function = node.options("Conv3DOptions").FusedActivationFunction()
    return activated(node, biased(node, result, bias_of(node, place, channels), 4), function)


def _check(node: Node, data: int, size: Sequence[int], steps: tuple[Sequence[int], Sequence[int]]) -> None:
    check_window(size, *steps)
    if len(node.shape(data)) != 5:
        raise ModelError(f"data of shape {node.shape(data)} where volumes of channels belong")
    if mode_of(node, node.input(data), node.input(1)) != "float":
        node.refuse(f"{node.record.code} is supported in float32 only", "Use float32 throughout")


@converts("CONV_3D")
def _conv_3d(node: Node) -> Expr:
    options, weights, shape = node.options("Conv3DOptions"), weights_of(node, 1, 5), node.shape(0)
    strides, dilation = _steps(options)
    *size, taken, channels = shape_of(weights)
    _check(node, 0, size, (strides, dilation))
    if taken == 0 or shape[4] % taken:
        raise ModelError(f"weights of shape {shape_of(weights)} on data of shape {shape}")
    before, after = [0, 0, 0], [0, 0, 0]
    if padding_of(options) == Padding.SAME:
        for axis in _AXES:
            before[axis], after[axis] = same_padding(shape[axis + 1], size[axis], strides[axis], dilation[axis])
    result = node.call(
        "nn.conv3d", node.expr(0), weights, strides=strides, padding=(*before, *after), dilation=dilation,
        groups=shape[4] // taken, channels=channels, kernel_size=tuple(size), data_layout="NDHWC",
        kernel_layout="DHWIO",
    )  # fmt: skip
    return _finished(node, result, 2, channels)


@converts("CONV_3D_TRANSPOSE")
def _conv_3d_transpose(node: Node) -> Expr:
    """Convert CONV_3D_TRANSPOSE, whose data is input 2 and whose output shape is input 0."""
    options, weights, target = node.options("Conv3DOptions"), weights_of(node, 1, 5), node.integers(0)
    strides, dilation = _steps(options)
    *size, channels, taken = shape_of(weights)
    _check(node, 2, size, (strides, dilation))
    source = node.shape(2)
    if len(target) != 5 or source[4] != taken or target[4] != channels:
        raise ModelError(f"weights of shape {shape_of(weights)} do not turn {source} into {tuple(target)}")
    cuts = []
    for axis in _AXES:
        full = (source[axis + 1] - 1) * strides[axis] + (size[axis] - 1) * dilation[axis] + 1
        cuts.append(cut_of(node, options, full, target[axis + 1], strides[axis]))
    before, after, extra = zip(*cuts, strict=True)
    result = node.call(
        "nn.conv3d_transpose", node.expr(2), arranged(node, weights, (0, 1, 2, 4, 3)), strides=strides,
        padding=(*before, *after), dilation=dilation, channels=channels, kernel_size=tuple(size),
        output_padding=extra, data_layout="NDHWC", kernel_layout="DHWIO",
    )  # fmt: skip
    return _finished(node, result, 3, channels)
