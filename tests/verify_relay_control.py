"""Recursion in a module that would not terminate or would use stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mlfc.relay.ir import Call, Expr, Function, GlobalVar, If, IRModule
from mlfc.relay.visitor import children, post_order


def callees(function: Function) -> set[str]:
    """Return the names of the module's functions that a function, or a function nested in it, refers to."""
    return {name for expr in _all_inside([function.body]) for name in _references(expr)}


def _all_inside(exprs: Iterable[Expr]) -> Iterator[Expr]:
    """Yield the subexpressions of expressions, including the bodies of called nested functions."""
    seen: set[Expr] = set()
    pending = list(exprs)
    while pending:
        for expr in post_order(pending.pop()):
            if expr not in seen:
                seen.add(expr)
                yield expr
                if isinstance(expr, Call) and isinstance(expr.op, Function):
                    pending.append(expr.op.body)


def _references(expr: Expr) -> tuple[str, ...]:
    """Return the names of the module's functions to which an expression itself refers."""
    if isinstance(expr, If):
        return expr.then.name, expr.otherwise.name
    target = expr.op if isinstance(expr, Call) else expr
    return (target.name,) if isinstance(target, GlobalVar) else ()


def circles(module: IRModule) -> list[str]:
    """Return a fault for each set of mutually recursive functions, unless they recurse by conditional tail calls.

    A loop is allowed: a function that continues or ends by an if, and its body, which ends with a tail call to it.
    """
    calls = {name: callees(function) & set(module.functions) for name, function in module.functions.items()}
    faults = []
    for group in _groups(calls):
        listed = ", ".join(sorted(group))
        tails = {name: _last_calls(module.functions[name]) for name in group}
        if any(calls[name] & group - _only_last(module.functions[name]) for name in group):
            faults.append(f"functions call each other in a circle, and not as their last step: {listed}")
        elif _groups({name: targets & group for name, targets in tails.items()}):
            faults.append(f"functions call each other in a circle that never ends: {listed}")
    return faults


def _last_calls(function: Function) -> set[str]:
    """Return the function that another one always calls last."""
    body = function.body
    return {body.op.name} if isinstance(body, Call) and isinstance(body.op, GlobalVar) else set()


def _only_last(function: Function) -> set[str]:
    """Return the functions to which a function refers only in its tail position."""
    body = function.body
    inner = [body.op.body] if isinstance(body, Call) and isinstance(body.op, Function) else []
    before = {name for expr in _all_inside([*children(body), *inner]) for name in _references(expr)}
    is_last = isinstance(body, (If, Call))
    return set(_references(body)) - before if is_last else set()


def _groups(calls: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of functions that reach each other, and those that reach themselves (Tarjan's algorithm)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    waiting: set[str] = set()
    groups = []
    for root in sorted(calls):
        pending = [] if root in numbers else [(root, iter(sorted(calls[root])))]
        while pending:
            name, rest = pending[-1]
            if name not in numbers:
                numbers[name] = lowest[name] = len(numbers)
                stack.append(name)
                waiting.add(name)
            following = None
            for target in rest:
                if target not in numbers:
                    following = target
                    break
                if target in waiting:
                    lowest[name] = min(lowest[name], numbers[target])
            if following is not None:
                pending.append((following, iter(sorted(calls[following]))))
                continue
            pending.pop()
            if pending:
                lowest[pending[-1][0]] = min(lowest[pending[-1][0]], lowest[name])
            if lowest[name] == numbers[name]:
                group = set(stack[stack.index(name) :])
                del stack[stack.index(name) :]
                waiting -= group
                if len(group) > 1 or name in calls[name]:
                    groups.append(group)
    return groups
