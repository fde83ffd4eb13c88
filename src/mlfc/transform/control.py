"""Functions without control flow, so that passes see operators alone: results of branches and calls are variables.

`cut` takes out of a function what passes do not look into, and lets what it reads be results; `Cut.restored` puts it
back between what the passes made of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlfc.relay.ir import Call, Expr, Function, GlobalVar, If, ListType, Tuple, TupleGetItem, TupleType, Var
from mlfc.relay.visitor import children, post_order, substitute, with_children


@dataclass(frozen=True, eq=False)
class _Opaque:
    """What was taken out: the expression, the variables for its results, and its arguments in the cut function."""

    expr: Expr
    variables: tuple[Var, ...]
    args: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class Cut:
    """A function without its control flow; its last parameters and results are those of what was taken out."""

    function: Function
    original: Function
    opaque: tuple[_Opaque, ...]
    is_tail: bool  # whether the whole body was taken out

    def restored(self, function: Function) -> Function:
        """Return what passes made of `function`, with the control flow."""
        if not self.opaque:
            return function
        fields = function.body.fields if isinstance(function.body, Tuple) else (function.body,)
        count = len(fields) - sum(len(item.args) for item in self.opaque)
        results, rest = fields[:count], list(fields[count:])
        known: dict[Expr, Expr] = {}
        expr: Expr | None = None
        for item in self.opaque:
            args = [substitute(rest.pop(0), known) for _ in item.args]
            expr = with_children(item.expr, args)
            if isinstance(expr.type, TupleType):
                known.update((var, TupleGetItem(expr, index, var.span)) for index, var in enumerate(item.variables))
            else:
                known[item.variables[0]] = expr
        params = function.params[: len(function.params) - sum(len(item.variables) for item in self.opaque)]
        if self.is_tail:
            assert expr is not None
            return Function(params, expr, self.original.attrs, self.original.span)
        whole = Tuple(tuple(results), self.original.body.span)
        body = substitute(whole if isinstance(self.original.body, Tuple) else results[0], known)
        return Function(params, body, self.original.attrs, self.original.span)


def is_opaque(expr: Expr) -> bool:
    """Tell whether passes do not look into an expression: a branch, a call of a function, an operator on lists."""
    if isinstance(expr, If):
        return True
    if not isinstance(expr, Call):
        return False
    return isinstance(expr.op, GlobalVar) or any(isinstance(item.type, ListType) for item in (expr, *expr.args))


def cut(function: Function) -> Cut:
    """Return a function without control flow."""
    done: dict[Expr, Expr] = {}
    opaque: list[_Opaque] = []
    for expr in post_order(function.body):
        args = [done[child] for child in children(expr)]
        if is_opaque(expr):
            kinds = expr.type.fields if isinstance(expr.type, TupleType) else (expr.type,)
            variables = tuple(
                Var(f"{_PREFIX}{len(opaque)}_{index}", kind, expr.span)  # type: ignore[arg-type]  # no functions
                for index, kind in enumerate(kinds)
            )
            opaque.append(_Opaque(expr, variables, tuple(args)))
            done[expr] = Tuple(variables) if isinstance(expr.type, TupleType) else variables[0]
        elif isinstance(expr, TupleGetItem) and isinstance(done[expr.value], Tuple):
            fields = done[expr.value]
            assert isinstance(fields, Tuple)
            done[expr] = fields.fields[expr.index]
        else:
            done[expr] = with_children(expr, args)
    body = done[function.body]
    is_tail = is_opaque(function.body)
    results: Sequence[Expr] = () if is_tail else body.fields if isinstance(body, Tuple) else (body,)
    if not opaque:
        return Cut(function, function, (), is_tail=False)
    heads = (*results, *(arg for item in opaque for arg in item.args))
    params = (*function.params, *(var for item in opaque for var in item.variables))
    return Cut(Function(params, Tuple(heads), function.attrs, function.span), function, tuple(opaque), is_tail)


_PREFIX = "opaque_"
