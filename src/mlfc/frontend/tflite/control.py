"""IF and WHILE whose conditions are known when a model is compiled: the branch taken, and the loop unrolled."""

from __future__ import annotations

from itertools import count

from mlfc.errors import ModelError, UnsupportedError
from mlfc.frontend.tflite.node import Node, converts
from mlfc.ops.evaluate import evaluate
from mlfc.relay.ir import Call, Constant, Expr
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
    holds = _holds(node.expr(0))
    if holds is None:
        node.refuse(
            "which branch it takes is computed when the model runs", "Freeze the condition, or export one branch"
        )
    number = options.ThenSubgraphIndex() if holds else options.ElseSubgraphIndex()
    return node.inline(node, number, "then" if holds else "else", node.operands()[1:])


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
