"""Dynamic shapes and control flow of modules."""

from __future__ import annotations

from mlfc.relay.ir import Call, GlobalVar, IRModule, ListType, extents_of
from mlfc.relay.op import Operator
from mlfc.relay.visitor import post_order
from mlfc.support.dims import Dim, Symbol, symbols_of


def is_dynamic(module: IRModule) -> bool:
    """Tell whether a module has dynamic shapes, branches, loops or lists, so that it requires the executor ``vm``."""
    main = module.main
    if len(module.functions) > 1 or "defines" in main.attrs or input_symbols(module):
        return True
    return any(isinstance(expr.type, ListType) for expr in post_order(main.body) if not isinstance(expr, GlobalVar))


def input_symbols(module: IRModule) -> dict[str, Symbol]:
    """Return the symbols of the inputs' dimensions, by name, in order of appearance."""
    extents = extents_of(param.type for param in module.main.params)
    return {symbol.name: symbol for symbol in symbols_of(extents)}


def unproven_extents(call: Call) -> dict[Dim, int]:
    """Return the dimension sizes of a result that may be too small, with the minimum of each.

    The minimum is 0, or 1 for convolutions, whose window must fit into the data.
    """
    slides = isinstance(call.op, Operator) and call.op.slides
    kept = set(extents_of([call.args[0].type])) if slides else set()
    found = {
        extent: int(slides and extent not in kept)
        for extent in extents_of([call.type])
        if isinstance(extent, Dim) and extent.symbol is None
    }
    return {extent: least for extent, least in found.items() if extent.bounds[0] < least}
