"""Expand `nn.attention` into products and a softmax for devices: tiled products are faster than single queries."""

from __future__ import annotations

from typing import ClassVar

from mlfc.ops.attention import SpelledAttention
from mlfc.relay import ir
from mlfc.relay.ir import Call, Expr
from mlfc.relay.visitor import with_span
from mlfc.transform.matching import Rule, RulePass


def _spelled(call: Call) -> Expr:
    def make(operator: str, *args: Expr, **attrs: object) -> Expr:
        return ir.call(operator, args, attrs, span=ir.Span(call.span.nodes))

    return with_span(SpelledAttention(call.args, call.attrs, make, call.span.place or "").result(), call.span)


class ExpandAttention(RulePass):
    """Expand `nn.attention` into elementary operators."""

    _RULES: ClassVar[dict[str, Rule]] = {"nn.attention": _spelled}
