"""Names of tensors on what a node becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlfc.relay.ir import Call, Constant, Expr, Span, Tuple, Var
from mlfc.relay.visitor import children, with_children


def named_results(results: Sequence[Expr], tensors: Sequence[str], node: str) -> list[Expr]:
    """Return the results of a node, knowing the names of the tensors that they are.

    An expression that has got its name is another one, so what a result has in common with the others takes its place
    in them: else both would be computed.
    """
    titles: dict[Expr, str] = {}
    for tensor, result in zip(tensors, results, strict=False):
        if tensor:
            titles.setdefault(result, tensor)
    done: dict[Expr, Expr] = {}
    for result in results:
        for expr in _own(result, done, node):
            seen = expr
            if len(results) > 1 and isinstance(expr, (Call, Tuple)):
                seen = with_children(expr, (done.get(child, child) for child in children(expr)))
            done[expr] = _named(seen, titles[expr], node) if expr in titles else seen
    return [done[result] for result in results]


def _own(result: Expr, done: dict[Expr, Expr], node: str) -> list[Expr]:
    """Return what the node made to compute a result, each once and what is read first, ending with the result."""
    if result in done:
        return []
    order: list[Expr] = []
    seen = {result, *done}
    stack = [(result, iter(children(result)))]
    while stack:
        expr, rest = stack[-1]
        for child in rest:
            if child not in seen and _is_of(child, node):
                seen.add(child)
                stack.append((child, iter(children(child))))
                break
        else:
            order.append(expr)
            stack.pop()
    return order


def _is_of(expr: Expr, node: str) -> bool:
    return isinstance(expr, (Call, Tuple)) and expr.span.nodes == (node,) and expr.span.tensor is None


def _named(result: Expr, tensor: str, node: str) -> Expr:
    """Return `result` knowing the name of the tensor that it is, unless it already is another tensor."""
    if isinstance(result, Constant):
        return result if result.name is not None else Constant(result.data, tensor, Span((node,), tensor))
    if isinstance(result, (Var, Tuple)) or result.span.tensor is not None:
        return result
    return replace(result, span=Span(result.span.nodes or (node,), tensor))
