"""Walking and rewriting graphs without recursion, as a model may be ten thousand operators deep.

Nodes are compared by identity. A walk does not enter called functions: a fused group is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, GlobalVar, If, Span, Tuple, TupleGetItem, Var
from mlfc.relay.op import Operator

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
