"""Fold constant scales and shifts after a convolution or dense layer into its weights and bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule
from mlfc.support import dtypes
from mlfc.transform import matching
from mlfc.transform.matching import Array, dtype_of, joined_span, match_call, per_channel, shape_of, value_of

_MOST_CANCELLED = 64.0  # largest ratio of a bias to the sum at which biases are merged


@dataclass(frozen=True)
class FoldScale:
    """Fold ``multiply`` and ``add`` of constants after convolutions and dense layers, in float arithmetic.

    Per-channel factors are multiplied into constant weights; per-channel summands become ``nn.bias_add``, with which
    kernels initialize their accumulators. All factors must be moderate (`matching.is_moderate`), all new constants
    normal or zero, and two biases are merged only if they do not cancel. Chains of ``multiply`` and ``add`` on other
    operators are kept, except batch norms and factors of 16-bit floats: merging can overflow, underflow or cancel.
    """

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with these operators folded."""
        return module.with_body(_Folding()(module.main.body))


class _Folding(matching.RuleRewriter):
    """The rules. Values with other readers are kept: folding would compute them twice."""

    def __init__(self) -> None:
        super().__init__(
            {"multiply": self.multiply, "add": self.add, "subtract": self.subtract, "nn.bias_add": self.bias_add}
        )

    def _alone(self, expr: Expr) -> bool:
        return self.reads(expr) <= 1

    def multiply(self, call: Call) -> Expr | None:
        data, factor = _split(call)
        if data is None or factor is None or not self._alone(data):
            return None
        if _is_anchor(data):
            scale = per_channel(factor, shape_of(data), _channels(data)[0])
            return None if scale is None else _scaled_anchor(data, scale, call.span)
        if isinstance(data, Call) and match_call(data, "nn.bias_add"):
            return self._scaled_bias_add(data, factor, call)
        norm = self._norm(data)
        if norm is None:  # factors of 16-bit floats: ONNX Runtime multiplies in float32, without overflow
            inner, known = _split(data) if match_call(data, "multiply") else (None, None)
            product = None if known is None or dtypes.bits(dtype_of(call)) > 16 else _product(known, factor)
            if inner is None or product is None:
                return None
            return ir.call("multiply", [inner, Constant(product)], span=joined_span(data, call))
        scale, offset = (_product(part, factor) for part in norm[1:])
        if scale is None or offset is None or not np.all(matching.is_moderate(factor)):
            return None
        return _affine(norm[0], scale, offset, joined_span(data, call))

    def _norm(self, expr: Expr) -> tuple[Expr, Array, Array] | None:
        """Return the operands of ``x * a + b`` from a single node: a batch normalization, which rounds twice."""
        product, offset = _split(expr) if match_call(expr, "add") else (None, None)
        inner, scale = _split(product) if product is not None and match_call(product, "multiply") else (None, None)
        if product is None or inner is None or scale is None or offset is None or not self._alone(product):
            return None
        same = product.span.nodes and product.span.nodes == expr.span.nodes
        return (inner, scale, offset) if same else None

    def _scaled_bias_add(self, data: Call, factor: Array, call: Call) -> Expr | None:
        anchor, bias = data.args[0], value_of(data.args[1])
        if not _is_anchor(anchor) or not self._alone(anchor):
            return None
        axis = data.attrs["axis"] % len(shape_of(data))
        scale = per_channel(factor, shape_of(data), axis)
        if scale is None or bias is None or axis != _channels(anchor)[0]:
            return None
        scaled, bias = _scaled_anchor(anchor, scale, data.span), _product(bias, scale)
        if scaled is None or bias is None:
            return None
        return ir.call("nn.bias_add", [scaled, Constant(bias)], axis=axis, span=joined_span(data, call))

    def add(self, call: Call) -> Expr | None:
        data, shift = _split(call)
        if data is None or shift is None:
            return None
        biased = match_call(data, "nn.bias_add")
        axis = None if biased is None else biased.attrs["axis"] % len(shape_of(biased))
        if _is_anchor(data):
            axis = _channels(data)[0]
        if axis is not None:
            vector = per_channel(shift, shape_of(data), axis)
            if vector is None:
                return None
            return ir.call("nn.bias_add", [data, Constant(vector)], axis=axis, span=call.span)
        norm = self._norm(data) if self._alone(data) else None
        total = None if norm is None else _sum(norm[2], shift)
        return None if norm is None or total is None else _affine(*norm[:2], total, joined_span(data, call))

    def subtract(self, call: Call) -> Expr | None:
        """Rewrite ``x - c`` as ``x + -c``, which is equal in float arithmetic."""
        shift = value_of(call.args[1])
        if shift is None or not dtypes.is_float(dtype_of(call)):
            return None
        return ir.call("add", [call.args[0], Constant(-shift)], span=call.span)

    def bias_add(self, call: Call) -> Expr | None:
        """Merge two consecutive biases along the same axis."""
        inner, bias = match_call(call.args[0], "nn.bias_add"), value_of(call.args[1])
        if inner is None or bias is None or not dtypes.is_float(dtype_of(call)) or not self._alone(inner):
            return None
        first, rank = value_of(inner.args[1]), len(shape_of(call))
        if first is None or inner.attrs["axis"] % rank != call.attrs["axis"] % rank:
            return None
        total = _sum(first, bias)
        if total is None:
            return None
        return ir.call("nn.bias_add", [inner.args[0], Constant(total)], call.attrs, span=joined_span(inner, call))


def _split(expr: Expr) -> tuple[Expr | None, Array | None]:
    """Return the tensor and the constant of a float ``multiply`` or ``add`` that keeps the tensor's shape."""
    call = match_call(expr, "multiply", "add")
    if call is None or not dtypes.is_float(dtype_of(call)):
        return None, None
    for data, other in (call.args, call.args[::-1]):
        value = value_of(other)
        if value is not None and not isinstance(data, Constant) and data.type == call.type:
            return data, value
    return None, None


def _affine(data: Expr, scale: Array, offset: Array, span: ir.Span) -> Expr:
    product = ir.call("multiply", [data, Constant(scale)], span=ir.Span(span.nodes))
    return ir.call("add", [product, Constant(offset)], span=span)


def _product(a: Array, b: Array) -> Array | None:
    """Return the product of constants, rounded once; None unless each element is normal, or has a zero factor."""
    with np.errstate(all="ignore"):
        product = (a.astype(np.float64) * b.astype(np.float64)).astype(a.dtype)
    dtype = dtypes.from_numpy(product.dtype)
    is_zero = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64)) & ((a == 0) | (b == 0))
    magnitude, (smallest, largest) = np.abs(product.astype(np.float64)), dtypes.float_range(dtype)
    is_normal = (magnitude >= smallest) & (magnitude <= largest)
    return product if np.all(is_normal | is_zero) else None


def _sum(a: Array, b: Array) -> Array | None:
    """Return the sum of constants, rounded once; None if they cancel, since the sum would hide their rounding."""
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64) + b.astype(np.float64)
        total = wide.astype(a.dtype)
    *parts, most = (float(np.max(np.abs(each.astype(np.float64)), initial=0.0)) for each in (a, b, total))
    return total if np.all(np.isfinite(wide)) and np.isfinite(most) and most * _MOST_CANCELLED >= max(parts) else None


def _is_anchor(expr: Expr) -> TypeGuard[Call]:
    """Return whether an expression is a product with unpacked weights."""
    called = ir.operator(expr)
    return called is not None and called.filters is not None and not called.packed_of


def _channels(anchor: Call) -> tuple[int, tuple[int, ...]]:
    """Return the axes of the result and of the weights that count output channels, as `Operator.filters`."""
    filters = matching.operator_of(anchor).filters
    assert filters is not None
    return filters([ir.tensor_type(arg) for arg in anchor.args], anchor.attrs)


def _scaled_anchor(anchor: Call, scale: Array, span: ir.Span) -> Expr | None:
    """Return the anchor with the weights of each output channel scaled; None if that is not possible."""
    weights = value_of(anchor.args[1])
    axes = _channels(anchor)[1]
    if weights is None or not axes or not np.all(matching.is_moderate(scale)):
        return None
    shape = [extent if axis in axes else 1 for axis, extent in enumerate(weights.shape)]
    product = _product(weights, scale.reshape(shape))
    if product is None:
        return None
    joined = ir.Span(anchor.span.merged(span).nodes, span.tensor)
    args = [anchor.args[0], matching.changed_constant(anchor.args[1], product)]
    return ir.call(matching.operator_of(anchor).name, args, anchor.attrs, span=joined)
