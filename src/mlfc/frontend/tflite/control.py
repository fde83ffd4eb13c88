"""IF and WHILE. A branch with a known condition is inlined, and a loop with known conditions is unrolled.

Others become functions of the module if the import leaves control flow to run time; otherwise both branches are
computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

from mlfc.errors import ModelError, UnsupportedError
from mlfc.frontend.control import Body, Loop, branched, is_cheap, looped
from mlfc.frontend.dynamic import Dynamic
from mlfc.frontend.tflite.node import Node, converts
from mlfc.ops.evaluate import evaluate
from mlfc.relay.ir import Call, Constant, Expr, attribute_symbols, has_trait, tensor_type, type_symbols
from mlfc.relay.op import Trait
from mlfc.relay.visitor import post_order

_MOST_ELEMENTS = 1024  # of values that determine a loop condition
_MOST_STEPS = 64  # operators evaluated for one of these values
E = TypeVar("E", bound=Expr)


def _settled(expr: Expr) -> Expr:
    """Return a small value as a constant if it depends only on constants."""
    if not isinstance(expr, Call):
        return expr
    known: dict[Expr, Constant] = {}
    for step, item in enumerate(post_order(expr)):
        if isinstance(item, Constant):
            known[item] = item
            continue
        if step > _MOST_STEPS or not isinstance(item, Call) or any(arg not in known for arg in item.args):
            return expr
        is_large = getattr(item.type, "size", _MOST_ELEMENTS + 1) > _MOST_ELEMENTS
        if is_large or attribute_symbols(item.attrs) or type_symbols(item.type):
            return expr
        try:
            value = evaluate(replace(item, args=tuple(known[arg] for arg in item.args)))
        except UnsupportedError:
            value = None
        if value is None:
            return expr
        known[item] = Constant(value, None, item.span)
    return known[expr]


def _holds(condition: Expr) -> bool | None:
    """Return whether a condition is true; None if that is only known at run time."""
    settled = _settled(condition)
    return bool(_flag(settled).data.reshape(())) if isinstance(settled, Constant) else None


@converts("IF")
def _if(node: Node) -> list[Expr]:
    options, args = node.options("IfOptions"), node.operands()[1:]
    branches = {"then": options.ThenSubgraphIndex(), "else": options.ElseSubgraphIndex()}
    holds = _holds(node.expr(0))
    if holds is not None:
        role = "then" if holds else "else"
        return node.inline(node, branches[role], role, args)
    if node.dynamic is not None:
        return _branched(node, node.dynamic, branches, args)
    # an inlined branch writes no variables, so both may be computed
    both = [node.inline(node, number, role, args) for role, number in branches.items()]
    if len(both[0]) != len(both[1]):
        raise ModelError(f"its branches have {len(both[0])} and {len(both[1])} outputs")
    return [_either(node, one, other) for one, other in zip(*both, strict=True)]


def _branched(node: Node, dynamic: Dynamic, numbers: Mapping[str, int], args: Sequence[Expr]) -> list[Expr]:
    """Return the results of the subgraph that the condition selects; only that one is computed."""
    bodies = []
    for role, number in numbers.items():
        with dynamic.function() as frame:
            bodies.append(Body(frame, node.inline(node, number, role, args)))
    one, other = ([item.type for item in body.results] for body in bodies)
    if len(one) != len(other):
        raise ModelError(f"its branches have {len(one)} and {len(other)} outputs")
    outer = _outer(args)
    if one == other and is_cheap(bodies, outer):
        return [_either(node, *pair) for pair in zip(*(body.results for body in bodies), strict=True)]
    return branched(dynamic, _flag(node.expr(0)), bodies, outer, node.label, [""] * len(one))


def _outer(args: Sequence[Expr]) -> set[Expr]:
    """Return the values to pass to a function; it has its own copies of constants and dimension sizes."""
    return {arg for arg in args if not isinstance(arg, Constant) and not has_trait(arg, Trait.SHAPE)}


def _flag(condition: E) -> E:
    kind = tensor_type(condition)
    if kind.dtype != "bool" or not kind.is_static or kind.size != 1:
        raise ModelError(f"the condition must be a single bool, got {kind}")
    return condition


def _looped(node: Node, dynamic: Dynamic, values: list[Expr]) -> list[Expr]:
    """Return the final states of a loop whose number of iterations is a runtime value."""
    options = node.options("WhileOptions")
    condition, body = options.CondSubgraphIndex(), options.BodySubgraphIndex()
    with dynamic.function():  # values that an iteration does not change are not states
        after = node.inline(node, body, "turn", values)
    if len(after) != len(values):
        raise ModelError(f"an iteration returns {len(after)} states, expected {len(values)}")
    states = [place for place, (old, new) in enumerate(zip(values, after, strict=True)) if old is not new]

    def completed(given: Sequence[Expr]) -> list[Expr]:
        changed = dict(zip(states, given, strict=True))
        return [changed.get(place, value) for place, value in enumerate(values)]

    def goes_on(given: Sequence[Expr]) -> Expr:
        found = node.inline(node, condition, "condition", completed(given))
        if len(found) != 1:
            raise ModelError(f"expected one output of its condition, got {len(found)}")
        flag = _flag(found[0])
        return node.call("reshape", flag, newshape=()) if tensor_type(flag).shape else flag

    def turn(_: Expr, __: Expr, given: list[Expr]) -> tuple[Expr, list[Expr], list[Expr]]:
        new = node.inline(node, body, "turn", completed(given))
        kept = [new[place] for place in states]
        return goes_on(kept), kept, []

    initial = [values[place] for place in states]
    outer = _outer([value for place, value in enumerate(values) if place not in states])
    found, _, _ = looped(dynamic, Loop(node.label, initial, goes_on(initial), None, turn, outer))
    return completed(found)


def _either(node: Node, taken: Expr, other: Expr) -> Expr:
    """Return the first of two results if the condition is true, else the second."""
    condition, kinds = _flag(node.expr(0)), (tensor_type(taken), tensor_type(other))
    if kinds[0] != kinds[1]:
        node.refuse(
            f"its branches return {kinds[0]} and {kinds[1]}, and its condition is only known at run time",
            "Freeze the condition, or export one branch",
        )
    return node.call("where", node.call("reshape", condition, newshape=()), taken, other)


@converts("WHILE")
def _while(node: Node) -> list[Expr]:
    options, values = node.options("WhileOptions"), node.operands()
    for turn in count():
        decided = node.inline(node, options.CondSubgraphIndex(), f"condition {turn}", values)
        holds = _holds(decided[0]) if len(decided) == 1 else None
        if holds is None and node.dynamic is not None:
            return _looped(node, node.dynamic, values)
        if holds is None:
            node.refuse(
                "its number of iterations is only known at run time", "Freeze what it depends on, or unroll the loop"
            )
        if not holds:
            break
        values = [_settled(value) for value in node.inline(node, options.BodySubgraphIndex(), f"turn {turn}", values)]
    return values
