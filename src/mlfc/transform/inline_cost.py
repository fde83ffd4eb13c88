"""How often an operator's rule names its arguments, and the indices at which it reads them.

Fusion puts a producer's expression wherever its reader names it, so along a chain of rules that name their
argument twice the text doubles with each. The counts are taken from the rules themselves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mlfc.errors import InternalError
from mlfc.relay import ir as relay
from mlfc.relay.op import Operator
from mlfc.target.features import Features
from mlfc.tir import ir, visitor
from mlfc.tir.context import Context, Indices, Tensor
from mlfc.transform.matching import flat_args, value_of


@dataclass(frozen=True)
class InlineCost:
    """How one element of a call's result is written."""

    names: dict[relay.Expr, int]  # how often each argument is named
    index_growth: int  # how often, at most, a read of an argument names one index of the result


def inline_cost(call: relay.Call) -> InlineCost:
    """Return the counts of a call whose operator computes element by element."""
    operator = call.op
    if not isinstance(operator, Operator) or operator.compute is None:
        raise InternalError("only operators that compute element by element can be spelled out")
    out = relay.tensor_type(call)
    bound: dict[ir.Var, relay.Expr] = {}
    growth = 1

    def placeholder(arg: relay.Expr) -> Tensor:
        kind = relay.tensor_type(arg)

        def read(indices: Indices) -> ir.Expr:
            nonlocal growth
            seen = Counter(node for index in indices for node in visitor.walk_expr(index) if isinstance(node, ir.Var))
            growth = max(growth, *(seen[var] for var in own))
            var = ir.Var("element", kind.dtype)
            bound[var] = arg
            return var

        own = (*result_indices, ir.Var("none"))
        return Tensor(kind.shape, kind.dtype, read, None, value_of(arg))

    result_indices = tuple(ir.Var(f"i{axis}") for axis in range(len(out.shape)))
    inputs = [placeholder(arg) for arg in flat_args(call)]
    element = operator.compute(Context(Features()), inputs, call.attrs, out)(result_indices)
    named = Counter(bound[node] for node in visitor.walk_expr(element) if isinstance(node, ir.Var) and node in bound)
    return InlineCost(dict(named), growth)
