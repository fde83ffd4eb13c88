"""Weights and biases of linear operators: constants, which are arranged at once, or values that come late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlfc.errors import ModelError
from mlfc.frontend.tflite.node import Node
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr

NARROW = ("int4", "int2")
"""Weights that are packed in the file; the reference unpacks them to int8."""


def shape_of(expr: Expr) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    return ir.tensor_type(expr).shape


def weights_of(node: Node, position: int, rank: int) -> Expr:
    """Return weights; ModelError unless they have `rank` dimensions."""
    expr = node.expr(position)
    if len(shape_of(expr)) != rank:
        raise ModelError(f"weights of {len(shape_of(expr))} dimensions where {rank} belong")
    if ir.tensor_type(expr).dtype not in NARROW:
        return expr
    if isinstance(expr, Constant):
        return Constant(expr.data.astype(np.int8), expr.name, expr.span)
    return node.refuse("weights of 4 or 2 bits must be constants", "Make them constants, or int8")


def arranged(node: Node, weights: Expr, axes: Sequence[int] | None, shape: Sequence[int] | None = None) -> Expr:
    """Return weights with their axes in another order, or in another shape; constants keep their name."""
    if isinstance(weights, Constant):
        data = weights.data if axes is None else weights.data.transpose(axes)
        data = data if shape is None else data.reshape(shape)
        return Constant(np.ascontiguousarray(data), weights.name, weights.span)
    result = weights if axes is None else node.call("transpose", weights, axes=tuple(axes))
    return result if shape is None else node.call("reshape", result, newshape=tuple(shape))


def bias_of(node: Node, position: int, channels: int) -> Expr | None:
    """Return a bias of one number for each channel, None where there is none."""
    if not node.has(position):
        return None
    bias = node.expr(position)
    count = ir.tensor_type(bias).size
    if count != channels:
        raise ModelError(f"a bias of {count} numbers for {channels} channels")
    return bias if shape_of(bias) == (channels,) else arranged(node, bias, None, (channels,))


def biased(node: Node, expr: Expr, bias: Expr | None, axis: int) -> Expr:
    """Return sums with the bias, if there is one."""
    if bias is None:
        return expr
    given, dtype = ir.tensor_type(bias).dtype, ir.tensor_type(expr).dtype
    if given != dtype:
        node.refuse(f"a {given} bias on {dtype} sums is not supported", f"Use a {dtype} bias")
    return node.call("nn.bias_add", expr, bias, axis=axis)
