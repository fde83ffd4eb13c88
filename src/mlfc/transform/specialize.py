"""A module for certain values of its symbols: what was open is fixed, in types and in attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mlfc.errors import OptionError, unknown
from mlfc.relay import ir
from mlfc.relay.dynamic import input_symbols
from mlfc.relay.ir import Call, Constant, Expr, Function, GlobalVar, If, IRModule, Tuple, Var
from mlfc.relay.op import OPERATORS, Operator, Trait
from mlfc.relay.visitor import children, post_order, with_children
from mlfc.support.dims import Dim, Symbol, dims_in, substituted
from mlfc.support.dtypes import to_numpy


def fixed_symbols(module: IRModule, values: Mapping[str, int]) -> dict[Symbol, int]:
    """Return values of symbols by the symbols, given by their names.

    Raises OptionError for a symbol that no input has, or a value outside its bounds.
    """
    known = input_symbols(module)
    chosen: dict[Symbol, int] = {}
    for name, value in values.items():
        if name not in known:
            raise OptionError(unknown("open dimension", name, known), place="specialize")
        symbol = known[name]
        if not symbol.low <= value <= symbol.high:
            raise OptionError(
                f"expected {symbol.low} to {symbol.high} for the dimension '{name}', got {value}", place="specialize"
            )
        chosen[symbol] = value
    return chosen


def specialized(module: IRModule, values: Mapping[str, int]) -> IRModule:
    """Return the module for certain extents, by the names of their symbols; raise as `fixed_symbols` does."""
    chosen = fixed_symbols(module, values)
    functions = {name: _function(function, chosen) for name, function in module.functions.items()}
    return replace(module, functions=functions)


def _function(function: Function, values: Mapping[Symbol, int]) -> Function:
    done: dict[Expr, Expr] = {}
    params = tuple(_param(param, values) for param in function.params)
    done.update(zip(function.params, params, strict=True))
    for expr in post_order(function.body):
        if expr not in done:
            done[expr] = _rebuilt(expr, [done[child] for child in children(expr)], values)
    return Function(params, done[function.body], function.attrs, function.span)


def _param(param: Var, values: Mapping[Symbol, int]) -> Var:
    kind = ir.substituted(param.type, values)
    assert not isinstance(kind, ir.FuncType)
    return param if kind == param.type else replace(param, type=kind)


def _rebuilt(expr: Expr, args: list[Expr], values: Mapping[Symbol, int]) -> Expr:
    if isinstance(expr, If):
        then, otherwise = (_reference(item, values) for item in (expr.then, expr.otherwise))
        kind = ir.substituted(expr.type, values)
        return replace(expr, condition=args[0], args=tuple(args[1:]), then=then, otherwise=otherwise, type=kind)
    if isinstance(expr, Call) and isinstance(expr.op, GlobalVar):
        return ir.call_function(_reference(expr.op, values), args, span=expr.span)
    if isinstance(expr, Call) and isinstance(expr.op, Operator):
        return _called(expr.op.name, args, {name: _fixed(item, values) for name, item in expr.attrs.items()}, expr)
    return with_children(expr, args) if not isinstance(expr, Tuple) else Tuple(tuple(args), expr.span)


def _called(name: str, args: list[Expr], attrs: dict[str, Any], expr: Call) -> Expr:
    if OPERATORS.get(name).traits & Trait.SHAPE and not any(True for _ in dims_in(attrs["values"])):
        kind = ir.tensor_type(expr)
        return Constant(np.asarray(attrs["values"], to_numpy(kind.dtype)).reshape(kind.shape), None, expr.span)
    return ir.call(name, args, attrs, span=expr.span)


def _reference(reference: GlobalVar, values: Mapping[Symbol, int]) -> GlobalVar:
    kind = ir.substituted(reference.type, values)
    assert isinstance(kind, ir.FuncType)
    return replace(reference, type=kind)


def _fixed(item: Any, values: Mapping[Symbol, int]) -> Any:
    if isinstance(item, Dim):
        return substituted(item, values)
    return tuple(_fixed(part, values) for part in item) if isinstance(item, tuple) else item
