"""IF and WHILE: of a condition that is known the branch taken, else both and a choice; loops are unrolled."""

from __future__ import annotations

from itertools import count

from mlfc.errors import ModelError, UnsupportedError
from mlfc.frontend.tflite.node import Node, converts
from mlfc.ops.evaluate import evaluate
from mlfc.relay.ir import Call, Constant, Expr, tensor_type
from mlfc.relay.visitor import post_order

_MOST_ELEMENTS = 1024  # of values that decide about a loop
_MOST_STEPS = 64  # operators that are evaluated for one of them


def _settled(expr: Expr) -> Expr:
    """Return a small value as a constant, if it follows from constants alone."""
    if not isinstance(expr, Call):
        return expr
    known: dict[Expr, Constant] = {}
    for step, item in enumerate(post_order(expr)):
        if isinstance(item, Constant):
            known[item] = item
            continue
        if step > _MOST_STEPS or not isinstance(item, Call) or any(arg not in known for arg in item.args):
            return expr
        if getattr(item.type, "size", _MOST_ELEMENTS + 1) > _MOST_ELEMENTS:
            return expr
        call = Call(item.op, tuple(known[arg] for arg in item.args), item.attrs, item.type, item.span)
        try:
            value = evaluate(call)
        except UnsupportedError:
            return expr
        if value is None:
            return expr
        known[item] = Constant(value, None, item.span)
    return known[expr]


def _holds(condition: Expr) -> bool | None:
    """Tell whether a condition holds; None if that is known only when the model runs."""
    settled = _settled(condition)
    if not isinstance(settled, Constant):
        return None
    if settled.data.size != 1 or settled.data.dtype != bool:
        raise ModelError(f"the condition is {settled.type}, and no single bool")
    return bool(settled.data.reshape(()))


@converts("IF")
def _if(node: Node) -> list[Expr]:
    options = node.options("IfOptions")
    branches = {"then": options.ThenSubgraphIndex(), "else": options.ElseSubgraphIndex()}
    holds = _holds(node.expr(0))
    if holds is not None:
        role = "then" if holds else "else"
        return node.inline(node, branches[role], role, node.operands()[1:])
    # a branch that is inlined writes no variables, so both may be computed
    both = [node.inline(node, number, role, node.operands()[1:]) for role, number in branches.items()]
    if len(both[0]) != len(both[1]):
        raise ModelError(f"its branches have {len(both[0])} and {len(both[1])} outputs")
    return [_either(node, one, other) for one, other in zip(*both, strict=True)]


def _either(node: Node, taken: Expr, other: Expr) -> Expr:
    """Return the first of two results where the condition holds, else the second."""
    condition, kinds = tensor_type(node.expr(0)), (tensor_type(taken), tensor_type(other))
    if condition.dtype != "bool" or condition.size != 1:
        raise ModelError(f"the condition is {condition}, and no single bool")
    if kinds[0] != kinds[1]:
        node.refuse(
            f"its branches give {kinds[0]} and {kinds[1]}, and which it takes is computed when the model runs",
            "Freeze the condition, or export one branch",
        )
    return node.call("where", node.call("reshape", node.expr(0), newshape=()), taken, other)


@converts("WHILE")
def _while(node: Node) -> list[Expr]:
    options, values = node.options("WhileOptions"), node.operands()
    for turn in count():
        decided = node.inline(node, options.CondSubgraphIndex(), f"condition {turn}", values)
        holds = _holds(decided[0]) if len(decided) == 1 else None
        if holds is None:
            node.refuse(
                "how often it repeats is computed when the model runs", "Freeze what it depends on, or unroll the loop"
            )
        if not holds:
            break
        values = [_settled(value) for value in node.inline(node, options.BodySubgraphIndex(), f"turn {turn}", values)]
    return values
