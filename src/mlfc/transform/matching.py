"""Predicates, accessors and small constructors of expressions, shared by the passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.relay import ir
from mlfc.relay.ir import NO_SPAN, Attrs, Call, Constant, Expr, Function, IRModule, Span, Tuple, Var, has_trait, op_name
from mlfc.relay.op import OPERATORS, Kind, Operator, Trait
from mlfc.relay.visitor import Rewriter, post_order, with_span
from mlfc.support.dims import Extent, Shape, bounds

Array: TypeAlias = npt.NDArray[Any]
Rule: TypeAlias = Callable[[Call], "Expr | None"]


def match_call(expr: Expr, *names: str) -> Call | None:
    """Return the expression as a Call if it applies one of the operators, else None."""
    return expr if isinstance(expr, Call) and op_name(expr) in names else None


def compares_constants(expr: Expr) -> bool:
    """Return whether an expression compares constants, or combines such masks by logical operators."""
    if not isinstance(expr, Call):
        return False
    if has_trait(expr, Trait.LOGIC):
        return all(compares_constants(arg) for arg in expr.args)
    return has_trait(expr, Trait.COMPARISON) and all(isinstance(arg, Constant) for arg in expr.args)


def names_of(test: Callable[[Operator], bool]) -> list[str]:
    """Return the names of the operators for which `test` is true, for tables of rules."""
    return [name for name in OPERATORS if test(OPERATORS.get(name))]


def value_of(expr: Expr) -> Array | None:
    """Return the value of a Constant, else None."""
    return expr.data if isinstance(expr, Constant) else None


def scalar_of(expr: Expr) -> float | None:
    """Return the value of a Constant whose elements are all equal, else None."""
    data = value_of(expr)
    if data is None or data.size == 0:
        return None
    first = data.reshape(-1)[0]
    return first.item() if data.size == 1 or bool(np.all(data == first)) else None


def is_moderate(value: Array) -> Array:
    """Return for each number whether it is zero or its magnitude is in [2**-32, 2**32].

    This is a quarter of float32's exponent range: such a factor overflows or underflows only results near the limits.
    """
    magnitude = np.abs(value.astype(np.float64))
    return np.asarray((magnitude == 0) | ((magnitude >= 2.0**-32) & (magnitude <= 2.0**32)))


def changed_constant(expr: Expr, data: Array) -> Constant:
    """Return new data under the name of a Constant."""
    return Constant(data, expr.name if isinstance(expr, Constant) else None, expr.span)


def joined_span(*exprs: Expr) -> Span:
    """Return a span of the nodes of all expressions, in order, with the tensor of the last one."""
    nodes = [name for expr in exprs for name in expr.span.nodes]
    return Span(tuple(dict.fromkeys(nodes)), exprs[-1].span.tensor)


def shape_of(expr: Expr) -> tuple[int, ...]:
    """Return the shape of a tensor expression; dynamic dimensions are `Dim`, for callers that support them."""
    return ir.tensor_type(expr).shape


def dtype_of(expr: Expr) -> str:
    """Return the dtype of a tensor expression."""
    return ir.tensor_type(expr).dtype


def flat_args(call: Call) -> list[Expr]:
    """Return the arguments of a call with tuples flattened."""
    flat: list[Expr] = []
    for arg in call.args:
        flat.extend(arg.fields if isinstance(arg, Tuple) else (arg,))
    return flat


def operator_of(call: Call) -> Operator:
    """Return the operator of a call in a fused group."""
    if not isinstance(call.op, Operator):
        raise InternalError("a fused group calls something that is not an operator")
    return call.op


def windows_of(call: Call) -> list[tuple[int, int, int, int]] | None:
    """Return the windows of a call, as `Operator.windows` does; None if it has none, or irregular ones."""
    find = operator_of(call).windows
    return None if find is None else find([ir.tensor_type(arg) for arg in call.args], call.attrs)


def macs_of(call: Call) -> int:
    """Return the multiply-accumulates of a call in a fused group."""
    operator = operator_of(call)
    return operator.macs([arg.type for arg in call.args], call.attrs, call.type) if operator.macs else 0


def storage_owner(expr: Expr) -> Expr:
    """Return the expression that owns the memory of `expr`, looking through views."""
    while isinstance(expr, Call) and isinstance(expr.op, Operator) and expr.op.kind is Kind.VIEW:
        expr = expr.args[0]
    return expr


def reshaped(expr: Expr, shape: Sequence[int], span: Span = NO_SPAN) -> Expr:
    """Return `expr` reshaped; constants are reshaped immediately, and an unchanged shape returns `expr`."""
    target = tuple(shape)
    if target == shape_of(expr):
        return expr
    if isinstance(expr, Constant):
        return Constant(expr.data.reshape(target), expr.name, expr.span)
    return ir.call("reshape", [expr], newshape=target, allowzero=0 in target, span=span)


def transpose_axes(call: Call) -> tuple[int, ...]:
    """Return the axes of a ``transpose``, counted from 0; without the attribute, all axes reversed."""
    rank = len(shape_of(call))
    return tuple(axis % rank for axis in call.attrs["axes"] or reversed(range(rank)))


def transposed(expr: Expr, axes: Sequence[int], span: Span = NO_SPAN) -> Expr:
    """Return `expr` with its axes in another order; a reshape if only axes of size 1 move."""
    order, shape = tuple(axes), shape_of(expr)
    if isinstance(expr, Constant):
        return Constant(expr.data.transpose(order), expr.name, expr.span)
    if order == tuple(range(len(order))):
        return expr
    if moves_nothing(shape, order):
        return reshaped(expr, [shape[axis] for axis in order], span)
    return ir.call("transpose", [expr], axes=order, span=span)


def moves_nothing(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Return whether transposing by `axes` keeps the order of the elements in memory."""
    long_axes = [axis for axis in axes if shape[axis] != 1]
    return long_axes == sorted(long_axes)


def matching_axes(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Return the smallest groups of consecutive axes of two shapes with equal products, without axes of size 1.

    If it is unknown at compile time which of two products is less, all remaining axes form one group.
    """
    left = [axis for axis, extent in enumerate(before) if extent != 1]
    right = [axis for axis, extent in enumerate(after) if extent != 1]
    pieces: list[tuple[list[int], list[int]]] = []
    while left and right:
        mine, theirs = [left.pop(0)], [right.pop(0)]
        while (a := prod(before[axis] for axis in mine)) != (b := prod(after[axis] for axis in theirs)):
            is_less = _is_less(a, b)
            if is_less is None or not (left if is_less else right):
                mine, theirs, left, right = [*mine, *left], [*theirs, *right], [], []
                break
            if is_less:
                mine.append(left.pop(0))
            else:
                theirs.append(right.pop(0))
        pieces.append((mine, theirs))
    return pieces


def _is_less(a: Extent, b: Extent) -> bool | None:
    """Return whether a product of dimensions is less than another; None if unknown at compile time."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if isinstance(b % a, int) or isinstance(a % b, int):  # one divides the other
        return isinstance(b % a, int) and b % a == 0
    low, high = bounds(b - a)
    return True if low > 0 else False if high < 0 else None


def per_channel(value: Array, shape: Sequence[int], axis: int) -> Array | None:
    """Return `value`, broadcast to `shape`, as a vector along `axis`; None if it varies along another axis."""
    rank, extent = len(shape), shape[axis]
    axis %= rank
    if value.ndim > rank or not isinstance(extent, int):
        return None
    wide = (1,) * (rank - value.ndim) + value.shape
    if any(wide[other] != 1 for other in range(rank) if other != axis) or wide[axis] not in (1, extent):
        return None
    return np.broadcast_to(value.reshape(-1), (extent,))


def same_quantization(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Return whether two ``(scale, zero_point)`` pairs of constants are equal, element by element."""
    pairs = [(value_of(x), value_of(y)) for x, y in zip(a, b, strict=True)]
    return all(x is not None and y is not None and np.array_equal(x, y) for x, y in pairs)


def keeps_order(scale: Expr) -> bool:
    """Return whether constant scales are positive and in a range where dequantization is monotonic."""
    value = value_of(scale)
    if value is None:
        return False
    wide = value.astype(np.float64)
    return bool(np.all((wide >= 2.0**-126) & (wide < 2.0**64)))


def typed_like(expr: Expr, original: Expr) -> bool:
    """Return whether `expr` has the tensor type of `original`, so that it can replace it."""
    return isinstance(expr.type, ir.TensorType) and expr.type == original.type


class RuleRewriter(Rewriter):
    """Rewriter that applies to each operator call the rule of its name.

    Rules are applied to their own results again, until none applies.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        super().__init__(self.apply)
        self._rules = rules

    def apply(self, node: Expr) -> Expr:
        """Return one expression rewritten by the rules."""
        while isinstance(node, Call):
            rule = self._rules.get(op_name(node) or "")
            found = rule(node) if rule else None
            if found is None or found is node:
                return node
            node = found
        return node


def apply_rules(module: IRModule, rules: Mapping[str, Rule]) -> IRModule:
    """Return `module` with the rules applied to ``main``."""
    if not any(isinstance(node, Call) and (op_name(node) or "") in rules for node in post_order(module.main.body)):
        return module  # the common case: skip the traversal that rewrites
    return module.with_body(RuleRewriter(rules)(module.main.body))


@dataclass(frozen=True)
class RulePass:
    """A pass that rewrites ``main`` by rules, keyed by operator name."""

    _RULES: ClassVar[Mapping[str, Rule]]

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with the rules applied."""
        return apply_rules(module, self._RULES)


def as_function(members: Sequence[Call], last: Call, attrs: Attrs) -> tuple[Function, tuple[Expr, ...]]:
    """Return a function that computes `last`, and the outside expressions to pass as its arguments.

    `members` are the calls in topological order; the constants that they read become part of the function.
    """
    inner = set(members)
    params: dict[Expr, Var] = {}
    for call in members:
        for arg in flat_args(call):
            if arg not in inner and arg not in params and not isinstance(arg, Constant):
                params[arg] = Var(f"p{len(params)}", ir.tensor_type(arg), arg.span)
    done: dict[Expr, Expr] = dict(params)
    nodes: list[str] = []
    for call in members:
        if not isinstance(call.op, Operator):
            raise InternalError("the extracted calls include one that is not of an operator")
        args = [
            Tuple(tuple(done.get(item, item) for item in arg.fields), arg.span)
            if isinstance(arg, Tuple)
            else done.get(arg, arg)
            for arg in call.args
        ]
        done[call] = ir.call(call.op.name, args, call.attrs, span=call.span)
        nodes += call.span.nodes
    body = with_span(done[last], ir.Span(tuple(dict.fromkeys(nodes)), last.span.tensor))
    return Function(tuple(params.values()), body, attrs, body.span), tuple(params)
