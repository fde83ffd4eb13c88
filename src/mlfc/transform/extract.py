"""Taking calls out of a graph into a function of their own."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import InternalError
from mlfc.relay import ir
from mlfc.relay.ir import Attrs, Call, Constant, Expr, Function, Tuple, Var
from mlfc.relay.op import Operator
from mlfc.relay.visitor import with_span
from mlfc.transform.matching import flat_args


def as_function(members: Sequence[Call], last: Call, attrs: Attrs) -> tuple[Function, tuple[Expr, ...]]:
    """Return a function that computes `last`, and the expressions outside that its parameters stand for.

    `members` are the calls, what is read before what reads it; constants that they read go with them.
    """
    inner = set(members)
    params: dict[Expr, Var] = {}
    for call in members:
        for arg in flat_args(call):
            if arg not in inner and arg not in params and not isinstance(arg, Constant):
                params[arg] = Var(f"p{len(params)}", ir.tensor_type(arg), arg.span)
    body = _computation(members, last, params)
    return Function(tuple(params.values()), body, attrs, body.span), tuple(params)


def _computation(members: Sequence[Call], last: Call, params: dict[Expr, Var]) -> Expr:
    done: dict[Expr, Expr] = dict(params)

    def inside(arg: Expr) -> Expr:
        if isinstance(arg, Tuple):
            return Tuple(tuple(done.get(item, item) for item in arg.fields), arg.span)
        return done.get(arg, arg)

    nodes: list[str] = []
    for call in members:
        if not isinstance(call.op, Operator):
            raise InternalError("what is taken out holds something that is not an operator")
        done[call] = ir.call(call.op.name, [inside(arg) for arg in call.args], call.attrs, span=call.span)
        nodes += [name for name in call.span.nodes if name not in nodes]
    return with_span(done[last], ir.Span(tuple(nodes), last.span.tensor))
