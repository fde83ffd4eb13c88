"""If by a condition that only the run of the model gives: both branches are computed, and one result is taken.

Nothing in a branch has an effect, so this is what If means wherever both branches give tensors of one shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlfc.errors import ModelError
from mlfc.frontend.dynamic import NOTHING
from mlfc.frontend.onnx.containers import describe
from mlfc.frontend.onnx.node import UnknownValueError
from mlfc.relay import ir
from mlfc.relay.ir import Expr, Span, Tuple, tensor_type
from mlfc.relay.visitor import children


def either(condition: Expr, taken: Expr, other: Expr, name: str, advice: Mapping[str, Any]) -> Expr:
    """Return the first of two results where a condition of one element holds, else the second.

    `name` is the node's; `advice` tells what makes the condition known. Raises ModelError if the condition is none,
    UnknownValueError if the results have different types.
    """
    if isinstance(taken, Tuple) or isinstance(other, Tuple):
        return _either_sequence(condition, taken, other, name, advice)
    if isinstance(condition, Tuple):
        raise ModelError("the condition of If is one bool, not a sequence", place=f"node '{name}'")
    kinds = [tensor_type(item) for item in (condition, taken, other)]
    if kinds[0].dtype != "bool" or kinds[0].size != 1:
        raise ModelError(f"the condition of If is one bool, not {kinds[0]}", place=f"node '{name}'")
    if kinds[1] != kinds[2]:
        raise unknown(f"cannot give {kinds[1]} or {kinds[2]}", name, advice)
    span = Span((name,))
    flag = ir.call("reshape", [condition], {"newshape": ()}, span=span) if kinds[0].shape else condition
    return ir.call("where", [flag, taken, other], span=span)


def _either_sequence(condition: Expr, taken: Expr, other: Expr, name: str, advice: Mapping[str, Any]) -> Expr:
    """Return a sequence of which each element is that of one of two, which are equally long."""
    if taken is other:
        return taken
    lengths = [len(item.fields) if isinstance(item, Tuple) and item is not NOTHING else -1 for item in (taken, other)]
    if lengths[0] == lengths[1] >= 0:
        pairs = zip(children(taken), children(other), strict=True)
        return Tuple(tuple(either(condition, one, two, name, advice) for one, two in pairs))
    shown = [describe(item) if isinstance(item, Tuple) else str(item.type) for item in (taken, other)]
    raise unknown(f"cannot give {shown[0]} or {shown[1]}", name, advice)


def unknown(cause: str, name: str, advice: Mapping[str, Any]) -> UnknownValueError:
    """Return the error of an If that cannot be compiled unless its condition is known; `cause` goes on from that."""
    return UnknownValueError(
        f"If with a condition that is not constant {cause}",
        index=0,
        place=f"node '{name}'",
        **advice,
    )
