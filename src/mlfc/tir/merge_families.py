"""Families of functions that differ in numbers alone, and the function that each family can share."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.support import dtypes
from mlfc.tir.ir import PrimFunc
from mlfc.tir.merge_kernels import merge_kernels
from mlfc.tir.parameters import SharedFunction
from mlfc.tir.visitor import own_exprs, walk, walk_expr

# rough bytes of code that a node of a function takes, that loading a parameter takes, and of a parameter's value
_NODE_BYTES, _LOAD_BYTES, _VALUE_BYTES = 2, 6, 2


def merge_families(functions: Sequence[PrimFunc]) -> tuple[SharedFunction, ...]:
    """Return the shared functions that make the code smaller, in the order of their first members.

    `functions`: all that are printed into one file. Each is a member of one family at most.
    """
    families: list[list[PrimFunc]] = []
    for function in (item for item in functions if item.external is None):
        for family in families:
            if merge_kernels([family[0], function]) is not None:
                family.append(function)
                break
        else:
            families.append([function])
    found = (merge_kernels(family) for family in families if len(family) > 1)
    return tuple(shared for shared in found if shared is not None and _is_smaller(shared))


def _is_smaller(shared: SharedFunction) -> bool:
    """Tell whether one function and its numbers take fewer bytes than the functions that it replaces."""
    own = _NODE_BYTES * sum(1 for stmt in walk(shared.prim.body) for expr in own_exprs(stmt) for _ in walk_expr(expr))
    count = len(shared.members)
    values = sum(
        _VALUE_BYTES if dtypes.is_integer(parameter.var.dtype) else dtypes.nbytes(parameter.var.dtype)
        for parameter in shared.parameters
    )
    return own + len(shared.parameters) * _LOAD_BYTES + count * values < count * own
