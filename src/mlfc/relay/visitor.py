"""Walking and rewriting graphs without recursion, as a model may be ten thousand operators deep.

Nodes are compared by identity. A walk does not enter called functions: a fused group is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, GlobalVar, If, Span, Tuple, TupleGetItem, Var
from mlfc.relay.op import Operator
from mlfc.support.dims import Dim, Extent, Symbol, dims_in, substituted, symbols_of
from mlfc.support.dtypes import to_numpy

E = TypeVar("E", bound=Expr)


# looked up for every node of every walk: a table is several times faster than a chain of isinstance
_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Call: attrgetter("args"),
    Tuple: attrgetter("fields"),
    TupleGetItem: lambda expr: (expr.value,),
    Function: lambda expr: (*expr.params, expr.body),
    Var: lambda _: (),
    Constant: lambda _: (),
    GlobalVar: lambda _: (),
    If: lambda expr: (expr.condition, *expr.args),
}


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the expressions that `expr` reads, in order; those of a function are its parameters and body."""
    return _CHILDREN[type(expr)](expr)


def post_order(
    expr: Expr, reads: Callable[[Expr], Iterable[Expr]] = children, seen: set[Expr] | None = None
) -> list[Expr]:
    """Return every expression that `expr` depends on, each once, operands before their users.

    The order only depends on the graph: arguments from left to right, `expr` last. `reads` returns the dependencies of
    an expression, by default all its arguments. Expressions in `seen` are skipped; visited ones are added to it.
    """
    order: list[Expr] = []
    seen = set() if seen is None else seen
    seen.add(expr)
    stack = [(expr, iter(reads(expr)))]
    while stack:
        node, rest = stack[-1]
        for child in rest:
            if child not in seen:
                seen.add(child)
                stack.append((child, iter(reads(child))))
                break
        else:
            order.append(node)
            stack.pop()
    return order


def users(expr: Expr) -> dict[Expr, list[Expr]]:
    """Return the users of every expression of the graph, once for each operand position."""
    found: dict[Expr, list[Expr]] = {}
    for node in post_order(expr):
        found.setdefault(node, [])
        for child in children(node):
            found[child].append(node)
    return found


def callees(function: Function) -> Iterator[str]:
    """Yield the names of the functions that a function calls, unconditionally or in a branch."""
    for expr in post_order(function.body):
        if isinstance(expr, If):
            yield from (expr.then.name, expr.otherwise.name)
        elif isinstance(expr, Call) and isinstance(expr.op, GlobalVar):
            yield expr.op.name


def called_functions(module: ir.IRModule, name: str, without: Collection[str] = ()) -> set[str]:
    """Return the functions that a function calls, directly or indirectly, without entering those in `without`."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for callee in callees(module.functions[waiting.pop()]):
            if callee not in found and callee not in without:
                found.add(callee)
                waiting.append(callee)
    return found


def with_children(expr: Expr, args: Iterable[Expr]) -> Expr:
    """Return `expr` with other operands; `expr` itself if they are unchanged.

    Types are inferred again, so they may change with those of the arguments.
    """
    given = tuple(args)
    if given == children(expr):  # nodes only equal themselves
        return expr
    if isinstance(expr, Call):
        if isinstance(expr.op, Operator):
            return ir.call(expr.op.name, given, expr.attrs, span=expr.span)
        is_same = [arg.type for arg in given] == [arg.type for arg in expr.args]
        return ir.call_function(expr.op, given, type=expr.type if is_same else None, span=expr.span)
    if isinstance(expr, Tuple):
        return Tuple(given, expr.span)
    if isinstance(expr, TupleGetItem):
        return TupleGetItem(given[0], expr.index, expr.span)
    if isinstance(expr, If):
        return replace(expr, condition=given[0], args=given[1:])
    if isinstance(expr, Function):
        params = tuple(node for node in given[:-1] if isinstance(node, Var))
        return Function(params, given[-1], expr.attrs, expr.span)
    return expr


def with_span(expr: E, span: Span) -> E:
    """Return a copy of `expr` with the origin `span`."""
    return replace(expr, span=span)


class Rewriter:
    """Rewrites a graph from the leaves up, each expression once.

    `rule`: called with each expression after its arguments were rewritten; returns the replacement: the expression
    itself, or another one of the same type. It is also called for parameters of functions, which must stay variables.
    """

    def __init__(self, rule: Callable[[Expr], Expr]) -> None:
        self._rule = rule
        self._reads: dict[Expr, int] = {}

    def __call__(self, expr: Expr) -> Expr:
        """Return the replacement of `expr`."""
        order = post_order(expr)
        for node in order:
            for child in children(node):
                self._reads[child] = self._reads.get(child, 0) + 1
        done: dict[Expr, Expr] = {}
        try:
            for node in order:
                rebuilt = with_children(node, (done[child] for child in children(node)))
                self._reads.setdefault(rebuilt, self.reads(node))
                done[node] = self._rule(rebuilt)
                self._reads.setdefault(done[node], self.reads(node))
        finally:
            self._reads.clear()  # a rule may refer to its rewriter: the cycle would keep the graph's constants alive
        return done[expr]

    def reads(self, expr: Expr) -> int:
        """Return the number of uses of the expression that `expr` replaces; 1 for expressions created by a rule."""
        return self._reads.get(expr, 1)


def rewrite(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Return `expr` with `rule` applied to every expression from the leaves up; see `Rewriter`."""
    return Rewriter(rule)(expr)


def substitute(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """Return `expr` with some of its expressions, mostly variables, replaced by others of the same type."""
    return rewrite(expr, lambda node: values.get(node, node))


class Substitution:
    """Rebuilds expressions with values in place of symbols, each once; unaffected expressions stay the same objects.

    `values_in_functions` are the values for the types of called functions, all values by default: the symbols of a
    function are parameters of its type, so that an unchanged function can be called with other shapes. `fold` is
    applied to rebuilt calls of operators.
    """

    def __init__(
        self,
        values: Mapping[Symbol, Extent],
        values_in_functions: Mapping[Symbol, Extent] | None = None,
        fold: Callable[[Call], Expr] | None = None,
    ) -> None:
        self.done: dict[Expr, Expr] = {}
        self._values = values
        self._in_functions = values if values_in_functions is None else values_in_functions
        self._fold = fold

    def __call__(self, root: Expr) -> Expr:
        """Return an expression with values substituted."""
        for expr in post_order(root, lambda expr: () if expr in self.done else children(expr)):
            if expr not in self.done:
                self.done[expr] = self._rebuilt(expr)
        return self.done[root]

    def function(self, function: Function) -> Function:
        """Return a function with values substituted, also for the symbols that it defines."""
        params = tuple(self(param) for param in function.params)
        attrs = function.attrs
        if "defines" in attrs:
            values = ((symbol, self._values.get(symbol)) for symbol in attrs["defines"])
            own = (symbol if not isinstance(value, Dim) else value.symbol or symbol for symbol, value in values)
            attrs = {**attrs, "defines": tuple(own)}
        return Function(params, self(function.body), attrs, function.span)  # type: ignore[arg-type]  # variables

    def _rebuilt(self, expr: Expr) -> Expr:
        args = [self.done[child] for child in children(expr)]
        kind = ir.substituted(expr.type, self._values)
        if isinstance(expr, Var):
            return expr if kind == expr.type else replace(expr, type=kind)  # type: ignore[arg-type]  # no function
        is_same = all(a is b for a, b in zip(args, children(expr), strict=True))
        if isinstance(expr, If):
            then, otherwise = self._reference(expr.then), self._reference(expr.otherwise)
            if is_same and kind == expr.type and (then, otherwise) == (expr.then, expr.otherwise):
                return expr
            return replace(expr, condition=args[0], args=tuple(args[1:]), then=then, otherwise=otherwise, type=kind)
        if isinstance(expr, Call) and isinstance(expr.op, GlobalVar):
            return ir.call_function(self._reference(expr.op), args, span=expr.span)
        if isinstance(expr, Call) and isinstance(expr.op, Operator):
            return self._called(expr, args, is_same)
        if is_same:
            return expr
        return Tuple(tuple(args), expr.span) if isinstance(expr, Tuple) else with_children(expr, args)

    def _called(self, expr: Call, args: list[Expr], is_same: bool) -> Expr:
        is_changed = any(symbol in self._values for symbol in symbols_of(dims_in(expr.attrs.values())))
        if not is_changed and is_same:
            return expr
        attrs = {name: self._value(item) for name, item in expr.attrs.items()} if is_changed else expr.attrs
        assert isinstance(expr.op, Operator)
        if not args and "values" in attrs and not any(True for _ in dims_in(attrs["values"])):
            kind = ir.tensor_type(expr)
            return Constant(np.asarray(attrs["values"], to_numpy(kind.dtype)).reshape(kind.shape), None, expr.span)
        call = ir.call(expr.op.name, args, attrs, span=expr.span)
        return call if self._fold is None else self._fold(call)

    def _reference(self, reference: GlobalVar) -> GlobalVar:
        kind = ir.substituted(reference.type, self._in_functions)
        assert isinstance(kind, ir.FuncType)
        return reference if kind == reference.type else replace(reference, type=kind)

    def _value(self, item: Any) -> Any:
        if isinstance(item, Dim):
            return substituted(item, self._values)
        return tuple(self._value(part) for part in item) if isinstance(item, tuple) else item
