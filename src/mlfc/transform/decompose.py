"""Decompose operators with several results: the loop level supports only single results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule, Tuple, TupleGetItem, op_name
from mlfc.relay.visitor import rewrite
from mlfc.support.dims import minimum
from mlfc.transform.matching import dtype_of, reshaped, shape_of, value_of


@dataclass(frozen=True)
class Decompose:
    """Rewrite split, nn.batch_norm and nn.dropout; replace fields of known tuples by their expressions."""

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module without these operators."""
        return module.with_body(rewrite(module.main.body, _visit))


def _visit(node: Expr) -> Expr:
    if not isinstance(node, TupleGetItem):
        return node
    source = node.value
    if isinstance(source, Tuple):
        return source.fields[node.index]
    rule = _RULES.get(op_name(source) or "")
    return node if rule is None or not isinstance(source, Call) else rule(node, source)


def _span(item: TupleGetItem, source: Call) -> ir.Span:
    return item.span if item.span.nodes or item.span.tensor else source.span


def _slice(item: TupleGetItem, split: Call) -> Expr:
    data, shape = split.args[0], shape_of(split.args[0])
    axis, sections = split.attrs["axis"] % len(shape), split.attrs["indices_or_sections"]
    if isinstance(sections, int):
        cuts = [shape[axis] // sections * index for index in range(1, sections)]
    else:
        cuts = [minimum(cut, shape[axis]) for cut in sections]
    edges = [0, *cuts, shape[axis]]
    begin, end = edges[item.index], edges[item.index + 1]
    return ir.call(
        "strided_slice", [data], begin=(begin,), end=(end,), strides=(1,), axes=(axis,), span=_span(item, split)
    )


def _batch_norm(item: TupleGetItem, norm: Call) -> Expr:
    """Return ``data * scale + shift``, with both computed here in float64 if the statistics are constant."""
    if item.index:
        return item
    data, gamma, beta, mean, variance = norm.args
    attrs, dtype, rank = norm.attrs, dtype_of(data), len(shape_of(data))
    axis = attrs["axis"] % rank
    shape = [shape_of(data)[axis]] + [1] * (rank - 1 - axis)
    values = [value_of(arg) for arg in norm.args[1:]]
    if all(value is not None for value in values):
        wide = [np.asarray(value, np.float64) for value in values]
        with np.errstate(all="ignore"):  # a negative variance gives NaN, as in the operator itself
            factor = (wide[0] if attrs["scale"] else 1.0) / np.sqrt(wide[3] + attrs["epsilon"])
        offset = (wide[1] if attrs["center"] else 0.0) - wide[2] * factor
        scale: Expr = Constant(factor.astype(dtype).reshape(shape))
        shift: Expr = Constant(offset.astype(dtype).reshape(shape))
    else:
        root = ir.call("sqrt", [ir.call("add", [variance, ir.const(attrs["epsilon"], dtype)])])
        numerator = gamma if attrs["scale"] else ir.const(1.0, dtype)
        factor_expr = ir.call("divide", [numerator, root])
        moved = ir.call("multiply", [mean, factor_expr])
        offset_expr = ir.call("subtract", [beta if attrs["center"] else ir.const(0.0, dtype), moved])
        scale, shift = reshaped(factor_expr, shape), reshaped(offset_expr, shape)
    span = _span(item, norm)
    product = ir.call("multiply", [data, scale], span=ir.Span(span.nodes))
    return ir.call("add", [product, shift], span=span)


_RULES: dict[str, Callable[[TupleGetItem, Call], Expr]] = {
    "split": _slice,
    "nn.dropout": lambda item, dropout: item if item.index else dropout.args[0],
    "nn.batch_norm": _batch_norm,
}
