"""In which order of axes each tensor of a graph lies in memory while the graph's layout is converted.

A tensor of the given ("logical") graph has a form: the expression that computes it, whose axes may be in
another order. Transposes are made only where somebody asks for an order that is not there; a transpose of
the logical graph costs nothing but a note. So transposes sink through the graph and meet their inverses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlfc.errors import InternalError
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, TensorType, Tuple
from mlfc.relay.op import Operator
from mlfc.transform.matching import flat_args, match_call, reshaped, shape_of, transposed


@dataclass(frozen=True, eq=False)
class Form:
    """A tensor: axis ``i`` of `expr` is axis ``order[i]`` of the logical tensor."""

    expr: Expr
    order: tuple[int, ...]


def identity(rank: int) -> tuple[int, ...]:
    """Return the order of the logical tensor itself."""
    return tuple(range(rank))


class Forms:
    """The forms of the expressions of one graph."""

    def __init__(self) -> None:
        self._forms: dict[Expr, Form] = {}
        self._ordered: dict[tuple[Expr, tuple[int, ...]], Expr] = {}
        self._bound: set[Expr] = set()

    def put(self, logical: Expr, expr: Expr, order: Sequence[int] | None = None) -> None:
        """Note that `expr` computes `logical`, with its axes in `order`."""
        if isinstance(logical.type, TensorType):
            rank = len(logical.type.shape)
            self._forms[logical] = Form(expr, identity(rank) if order is None else tuple(order))
        else:
            self._forms[logical] = Form(expr, ())
        if isinstance(logical, Call) and any(arg in self._bound for arg in flat_args(logical)):
            self._bound.add(logical)

    def bind(self, logical: Expr) -> None:
        """Note that an operator dictates the order of a tensor, and so of what is computed from it."""
        self._bound.add(logical)

    def is_bound(self, logical: Expr) -> bool:
        """Tell whether an operator dictates the order of a tensor or of what it is computed from."""
        return logical in self._bound

    def order(self, logical: Expr) -> tuple[int, ...]:
        """Return the order in which a tensor is at hand."""
        return self._forms[logical].order

    def at_hand(self, logical: Expr) -> Expr:
        """Return what computes a tensor in that order."""
        return self._forms[logical].expr

    def ordered(self, logical: Expr, order: Sequence[int]) -> Expr:
        """Return a tensor with its axes in `order`, transposed if there is no other way."""
        form, wanted = self._forms[logical], tuple(order)
        if form.order == wanted:
            return form.expr
        key = (logical, wanted)
        if key not in self._ordered:
            self._ordered[key] = self._turned(logical, form, wanted)
        return self._ordered[key]

    def _turned(self, logical: Expr, form: Form, wanted: tuple[int, ...]) -> Expr:
        dequantize = match_call(logical, "qnn.dequantize")
        if dequantize is not None:  # the integers are smaller to move, and perhaps are at hand in this order
            axis = wanted.index(dequantize.attrs["axis"] % len(wanted))
            return apply(dequantize, [self.ordered(dequantize.args[0], wanted), *dequantize.args[1:]], axis=axis)
        tensor = logical.span.tensor if wanted == identity(len(wanted)) else None
        span = ir.Span(logical.span.nodes, tensor)
        return transposed(form.expr, [form.order.index(axis) for axis in wanted], span)

    def logical(self, expr: Expr) -> Expr:
        """Return an argument of the logical graph as it is there; tuples field by field."""
        if isinstance(expr, Tuple):
            return Tuple(tuple(self.logical(item) for item in expr.fields), expr.span)
        if not isinstance(expr.type, TensorType):
            return self._forms[expr].expr
        return self.ordered(expr, identity(len(expr.type.shape)))

    def broadcast(self, expr: Expr, order: Sequence[int]) -> Expr:
        """Return an operand of numpy's broadcasting for results with axes in `order`."""
        shape, rank = shape_of(expr), len(order)
        if isinstance(expr, Constant) and expr.data.size == 1:
            return expr
        if len(shape) == rank:
            return self.ordered(expr, order)
        wide = reshaped(self.logical(expr), (1,) * (rank - len(shape)) + shape)
        return transposed(wide, order)

    def common_order(self, operands: Sequence[Expr], rank: int) -> tuple[int, ...]:
        """Return the order of most bytes of the operands; between equals, of one that an operator dictates."""
        sizes: dict[tuple[int, ...], int] = {}
        bound: set[tuple[int, ...]] = set()
        for operand in operands:
            if isinstance(operand, Constant) or len(shape_of(operand)) != rank:
                continue
            order = self.order(operand)
            sizes[order] = sizes.get(order, 0) + ir.tensor_type(operand).nbytes
            if operand in self._bound:
                bound.add(order)
        plain = identity(rank)
        return max(sizes, key=lambda order: (sizes[order], order in bound, order != plain), default=plain)


def apply(call: Call, args: Sequence[Expr], **changed: object) -> Call:
    """Return `call` on other arguments, with some attributes changed."""
    if not isinstance(call.op, Operator):
        raise InternalError("layouts are converted before fusion")
    return ir.call(call.op.name, args, {**call.attrs, **changed}, span=call.span)
