"""Modules whose results depend on the last bit of a float: they are computed as the references compute them."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.relay import ir as relay
from mlfc.relay.visitor import post_order
from mlfc.transform.matching import operator_of


def is_rounding_sensitive(modules: Sequence[relay.IRModule]) -> bool:
    """Tell whether fused groups of a module have an operator to which the last bit of a float matters."""
    functions = (function for module in modules for function in module.functions.values())
    calls = (expr for function in functions for expr in post_order(function.body) if isinstance(expr, relay.Call))
    groups = {call.op: None for call in calls if isinstance(call.op, relay.Function)}
    inside = (expr for group in groups for expr in post_order(group.body) if isinstance(expr, relay.Call))
    return any(operator_of(call).rounding_sensitive for call in inside)
