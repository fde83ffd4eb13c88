"""Detection of modules whose results depend on the last bit of a float: these must round as their references do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.relay import ir as relay
from mlfc.relay.op import Elements, Kind, Operator, Trait
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes
from mlfc.transform.matching import operator_of

# operators whose order of summation no reference defines
_LOOPS = (Kind.REDUCE, Kind.ANCHOR, Kind.OPAQUE, Kind.LIST, Kind.EXTERNAL)
_KEEPING = (Elements.SAME, Elements.MOVED)
_Around = Mapping[Any, relay.Expr]
_Place = tuple[relay.Expr, _Around]
"""An expression, and the arguments of the fused group that contains it; empty outside of groups."""

_OUTSIDE: _Around = {}


def is_rounding_sensitive(modules: Sequence[relay.IRModule]) -> bool:
    """Return whether results of a module depend on the last bit of a float.

    This is true for operators marked as rounding-sensitive, and where a sum with a product is quantized: sums of
    dequantized codes and constants are often halfway between two codes, where a fused multiply-add yields another code.
    """
    functions = [function for module in modules for function in module.functions.values()]
    calls = [expr for function in functions for expr in post_order(function.body) if isinstance(expr, relay.Call)]
    quantized: dict[relay.Function, list[relay.Expr]] = {}
    for group in dict.fromkeys(call.op for call in calls if isinstance(call.op, relay.Function)):
        inside = [(operator_of(call), call) for call in post_order(group.body) if isinstance(call, relay.Call)]
        if any(operator.rounding_sensitive for operator, _ in inside):
            return True
        quantized[group] = [call.args[0] for operator, call in inside if operator.traits & Trait.QUANTIZES]
    places: list[_Place] = []
    for call in calls:
        if isinstance(call.op, relay.Function) and quantized[call.op]:
            around = dict(zip(call.op.params, call.args, strict=True))
            places += [(value, around) for value in quantized[call.op]]
    return _have_sum_of_product(places)


def _have_sum_of_product(todo: list[_Place]) -> bool:
    """Return whether a value is computed, element by element and across groups, from a sum with a product."""
    seen: dict[tuple[relay.Expr, int], _Place] = {}  # keeps the places alive, so that their ids stay unique
    while todo:
        expr, around = todo.pop()
        if (expr, id(around)) in seen:
            continue
        seen[expr, id(around)] = (expr, around)
        if not isinstance(expr, relay.Call) or not isinstance(expr.op, Operator):
            todo += _behind(expr, around)
        elif expr.op.kind not in _LOOPS:
            if expr.op.traits & Trait.PRODUCT and dtypes.is_integer(relay.tensor_type(expr.args[0]).dtype):
                continue  # a product of integer codes, whose sources were already rounded
            if expr.op.traits & Trait.SUM and any(map(_is_product, expr.args)):
                return True
            todo += [(arg, around) for arg in expr.args]
    return False


def _behind(expr: relay.Expr, around: _Around) -> list[_Place]:
    """Return the sources of an expression that computes nothing itself."""
    if expr in around:
        return [(around[expr], _OUTSIDE)]
    if isinstance(expr, relay.Call) and isinstance(expr.op, relay.Function):
        return [(expr.op.body, dict(zip(expr.op.params, expr.args, strict=True)))]
    if isinstance(expr, relay.TupleGetItem):
        return [(expr.value, around)]
    return [(field, around) for field in expr.fields] if isinstance(expr, relay.Tuple) else []


def _is_product(expr: relay.Expr) -> bool:
    """Return whether a value is a product computed in the same kernel; values read from memory are rounded."""
    while isinstance(expr, relay.Call) and isinstance(expr.op, Operator):
        if expr.op.traits & Trait.PRODUCT:
            return True
        if expr.op.kind not in (Kind.VIEW, Kind.INJECTIVE) and expr.op.elements not in _KEEPING:
            return False
        expr = expr.args[0]
    return False
