"""NHWC inside: every convolution, pool and image operator reads and writes channels last."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.relay.ir import Call, Expr, IRModule, Tuple, TupleGetItem
from mlfc.relay.op import Kind, Layout, Operator
from mlfc.relay.visitor import post_order, with_children
from mlfc.transform.layout_rules import Forms, convert_call
from mlfc.transform.matching import (
    Rule,
    apply_rules,
    changed_constant,
    match_call,
    names_of,
    reshaped,
    scalar_of,
    shape_of,
    value_of,
)


@dataclass(frozen=True)
class ConvertLayout:
    """Turn channels-first operators to channels last, weights to HWIO (depthwise: HWOI).

    Transposes stay where inputs and outputs of the model have both channels and a spatial extent, and where
    an operator needs another order; between layers there are none. Dense layers behind a flattened image
    get their weights' columns in the order of channels last.
    """

    def __call__(self, module: IRModule) -> IRModule:
        """Return the converted module."""
        return apply_rules(module.with_body(_converted(module.main.body)), _RULES)


def _converted(body: Expr) -> Expr:
    forms = Forms()
    for node in post_order(body):
        if isinstance(node, Call):
            convert_call(forms, node)
        elif isinstance(node, TupleGetItem):
            forms.put(node, with_children(node, [forms.logical(node.value)]))
        elif not isinstance(node, Tuple):
            forms.put(node, node)
    return forms.logical(body)


def _flattened_dense(call: Call) -> Expr | None:
    """Let a dense layer read a flattened tensor in the order in which it lies, instead of transposing it."""
    if call.attrs.get("block_size"):  # whose blocks of columns share a scale
        return None
    weights, chain, data = value_of(call.args[1]), _pointwise_chain(call.args[0]), call.args[0]
    if chain:
        data = chain[-1].args[0]
    view = match_call(data, "reshape")
    turned = match_call(view.args[0], "transpose") if view else None
    if weights is None or view is None or turned is None or len(shape_of(view)) != 2:
        return None
    axes, shape = turned.attrs["axes"], shape_of(turned)
    if axes is None or axes[0] != 0 or shape[0] != shape_of(view)[0]:
        return None
    result = reshaped(turned.args[0], shape_of(view), view.span)
    for step in reversed(chain):
        result = with_children(step, [result, *step.args[1:]])
    # columns in the order before the transpose
    wide = weights.reshape(weights.shape[0], *shape[1:]).transpose([axes.index(axis) for axis in range(len(axes))])
    packed = changed_constant(call.args[1], wide.reshape(weights.shape))
    return with_children(call, [result, packed, *call.args[2:]])


def _pointwise_chain(expr: Expr) -> list[Call]:
    """Return the operators, last first, that map each element of a tensor alike."""
    chain: list[Call] = []
    while isinstance(expr, Call) and isinstance(expr.op, Operator) and expr.op.kind is Kind.ELEMENTWISE:
        first, *rest = expr.args
        if shape_of(first) != shape_of(expr) or any(scalar_of(arg) is None for arg in rest):
            break
        chain.append(expr)
        expr = first
    return chain


def _is_dense(operator: Operator) -> bool:
    return operator.filters is not None and operator.layout is Layout.LOGICAL


_RULES: dict[str, Rule] = dict.fromkeys(names_of(_is_dense), _flattened_dense)
