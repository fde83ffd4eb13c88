"""Integers among a model's inputs that have few values: places in tables, and masks.

Made-up places must be inside of the smallest table. A mask of another number than 0 and 1 makes infinite scores of most
models, and NaN of these.
"""

from __future__ import annotations

from mlfc.relay.ir import Call, Expr, IRModule, TensorType, Var, has_trait, operator, tensor_type
from mlfc.relay.op import Elements, Trait
from mlfc.relay.visitor import post_order

_KEEPING = (Elements.SAME, Elements.CONVERTED, Elements.MOVED)


def index_ends(module: IRModule) -> dict[str, int]:
    """Return for inputs of places in tables the number of elements of the smallest table, 2 for masks.

    A mask is known by its name, as exporters call it: ``attention_mask``. Other inputs are left out.
    """
    found = {param.name: 2 for param in module.main.params if "mask" in param.name.lower()}
    for node in post_order(module.main.body):
        if not isinstance(node, Call) or not has_trait(node, Trait.PICK | Trait.PUT):
            continue
        table, places = node.args[0].type, _source(node.args[1])
        if places is None or not isinstance(table, TensorType):
            continue
        sizes = [size for size in table.shape[_axes(node)] if isinstance(size, int)]
        if sizes:
            found[places] = min(*sizes, found.get(places, sizes[0]))
    return found


def _axes(lookup: Call) -> slice:
    """Return the axes of the table that the indices address."""
    if not has_trait(lookup, Trait.TUPLES):
        axis = lookup.attrs.get("axis", 0)
        return slice(None) if axis is None else slice(axis, axis + 1 or None)
    first, places = lookup.attrs.get("batch_dims", 0), tensor_type(lookup.args[1]).shape[0]
    return slice(first, first + places if isinstance(places, int) else None)


def _source(expr: Expr) -> str | None:
    """Return the name of the input whose elements `expr` has, perhaps counted from the end where they are negative."""
    while isinstance(expr, Call):
        called = operator(expr)
        if has_trait(expr, Trait.SELECTION):
            expr = expr.args[2]
        elif called is not None and called.elements in _KEEPING:
            expr = expr.args[0]
        else:
            return None
    return expr.name if isinstance(expr, Var) else None
