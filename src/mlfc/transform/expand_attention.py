"""Attention in products and a softmax, for devices: their tiled products are faster than what one query reads alone."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.ops.spelled_attention import SpelledAttention
from mlfc.relay import ir
from mlfc.relay.ir import Call, Expr, IRModule
from mlfc.relay.visitor import with_span
from mlfc.transform.matching import apply_rules


@dataclass(frozen=True)
class ExpandAttention:
    """Spell `nn.attention` out."""

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with those calls replaced."""
        return apply_rules(module, {"nn.attention": _spelled})


def _spelled(call: Call) -> Expr:
    def make(operator: str, *args: Expr, **attrs: object) -> Expr:
        return ir.call(operator, args, attrs, span=ir.Span(call.span.nodes))

    return with_span(SpelledAttention(call.args, call.attrs, make, call.span.place or "").result(), call.span)
