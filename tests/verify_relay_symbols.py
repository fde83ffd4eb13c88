"""Check that each symbol of a function has exactly one source, and that the source does not depend on the symbol."""

from __future__ import annotations

from collections.abc import Iterator

from mlfc.errors import TypeCheckError
from mlfc.relay.ir import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    ListType,
    TensorType,
    Tuple,
    TupleType,
    Type,
    applied,
    attribute_symbols,
    defined_by,
    type_symbols,
)
from mlfc.relay.visitor import children, post_order
from mlfc.support.dims import Dim, Symbol


def scope(function: Function) -> list[Expr]:
    """Return the expressions that `function` computes itself; a nested function is one expression."""
    order = post_order(function.body)
    inside: set[Expr] = set()
    for expr in order:
        if isinstance(expr, Function):
            inside.update(post_order(expr.body), expr.params)
    return [expr for expr in order if expr not in inside]


def symbol_faults(module: IRModule, name: str) -> Iterator[str]:
    """Yield the faults of the symbols of a function of the module."""
    function = module.functions[name]
    sources: dict[Symbol, Expr | None] = {}  # None: a dimension of a parameter
    for param in function.params:
        for symbol in _fixed_symbols(param.type) if name != "main" else _alone(param.type):
            sources[symbol] = None
    definitions: list[tuple[Symbol, Expr]] = []
    if isinstance(function.body, Tuple) and function.defines:
        definitions += zip(function.defines, function.body.fields[-len(function.defines) :], strict=False)
    inside = scope(function)
    definitions += [(symbol, expr) for expr in inside for symbol in _defined(expr)]
    known = {*sources, *(symbol for symbol, _ in definitions)}
    definitions += [(symbol, expr) for expr in inside for symbol in _read_of_lists(expr) if symbol not in known]
    for symbol, expr in definitions:
        if symbol in sources:
            yield f"the symbol {symbol} comes from two places"
        sources.setdefault(symbol, expr)
    used = {expr: [symbol for symbol in _used(expr) if symbol not in sources] for expr in inside}
    used.update((param, [symbol for symbol in _used(param) if symbol not in sources]) for param in function.params)
    missing = dict.fromkeys(symbol for symbols in used.values() for symbol in symbols)
    for symbol in missing:
        yield f"the symbol {symbol} comes from nowhere: it is no extent of a parameter, and nothing defines it"
    if not missing and any(expr is not None for expr in sources.values()):
        yield from _depending_on_themselves(inside, sources)


def _alone(kind: Type) -> list[Symbol]:
    """Return the symbols of which some dimension is a multiple, so that their values can be read at run time."""
    extents = kind.shape if isinstance(kind, TensorType) else ()
    multiples = [extent.multiple for extent in extents if isinstance(extent, Dim)]
    return list(dict.fromkeys(multiple[1] for multiple in multiples if multiple is not None))


def _used(expr: Expr) -> list[Symbol]:
    """Return the symbols that an expression, or a nested function that it calls, mentions."""
    if isinstance(expr, (Constant, GlobalVar)) or isinstance(expr.type, ListType):
        return []  # the dimensions in a list's type belong to each element separately
    found = dict.fromkeys(_fixed_symbols(expr.type))
    if isinstance(expr, Call):
        found.update(dict.fromkeys(attribute_symbols(expr.attrs)))
    nested = expr.op if isinstance(expr, Call) else expr
    if isinstance(nested, Function):
        own = {symbol for param in nested.params for symbol in type_symbols(param.type)}
        inner = dict.fromkeys(symbol for item in post_order(nested.body) for symbol in _used(item))
        found.update((symbol, None) for symbol in inner if symbol not in own)
    return list(found)


def _defined(expr: Expr) -> list[Symbol]:
    """Return the symbols whose values are read at run time from the shape of an expression's result."""
    targets: tuple[GlobalVar, ...] = ()
    if isinstance(expr, If):
        targets = (expr.then, expr.otherwise)
    elif isinstance(expr, Call) and isinstance(expr.op, GlobalVar):
        targets = (expr.op,)
    if not targets or not isinstance(expr, (If, Call)):
        return []
    try:
        found = defined_by(expr.type, [applied(target, expr.args) for target in targets])
    except TypeCheckError:
        return []
    return sorted(found or ())


def _read_of_lists(expr: Expr) -> list[Symbol]:
    """Return the symbols that may be read from the shape of a list element that an operator returns."""
    if not isinstance(expr, Call) or not any(isinstance(arg.type, ListType) for arg in expr.args):
        return []
    return _alone(expr.type)


def _fixed_symbols(kind: Type) -> list[Symbol]:
    """Return the symbols in the shapes of tensors that are not list elements."""
    if isinstance(kind, TupleType):
        return [symbol for item in kind.fields for symbol in _fixed_symbols(item)]
    return type_symbols(kind) if isinstance(kind, TensorType) else []


def _depending_on_themselves(inside: list[Expr], sources: dict[Symbol, Expr | None]) -> Iterator[str]:
    """Yield the symbols that remain after a topological sort of expressions and symbols."""
    own = {
        expr: {*_defined(expr), *(symbol for symbol in _read_of_lists(expr) if sources.get(symbol) is expr)}
        for expr in inside
    }
    waits: dict[Expr | Symbol, int] = {}
    readers: dict[Expr | Symbol, list[Expr | Symbol]] = {}
    for expr in inside:
        needed: list[Expr | Symbol] = [*children(expr), *(item for item in _used(expr) if item not in own[expr])]
        waits[expr] = len(needed)
        for item in needed:
            readers.setdefault(item, []).append(expr)
    for symbol, source in sources.items():
        waits[symbol] = source is not None
        if source is not None:
            readers.setdefault(source, []).append(symbol)
    ready = [item for item, count in waits.items() if not count]
    while ready:
        for reader in readers.get(ready.pop(), ()):
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    for symbol in sources:
        if waits[symbol]:
            yield f"the symbol {symbol} depends on itself"
