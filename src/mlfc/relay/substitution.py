"""Substitution of values for symbols in the types and attributes of expressions and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, GlobalVar, If, Tuple, Var
from mlfc.relay.op import Operator
from mlfc.relay.visitor import children, post_order, with_children
from mlfc.support.dims import Dim, Extent, Symbol, dims_in, substituted, symbols_of
from mlfc.support.dtypes import to_numpy


class Substitution:
    """Rebuilds expressions with values in place of symbols, each once; unaffected expressions stay the same objects.

    `values_in_functions` are the values for the types of called functions, all values by default: the symbols of a
    function are parameters of its type, so that an unchanged function can be called with other shapes. `fold` is
    applied to rebuilt calls of operators.
    """

    def __init__(
        self,
        values: Mapping[Symbol, Extent],
        values_in_functions: Mapping[Symbol, Extent] | None = None,
        fold: Callable[[Call], Expr] | None = None,
    ) -> None:
        self.done: dict[Expr, Expr] = {}
        self._values = values
        self._in_functions = values if values_in_functions is None else values_in_functions
        self._fold = fold

    def __call__(self, root: Expr) -> Expr:
        """Return an expression with values substituted."""
        for expr in post_order(root, lambda expr: () if expr in self.done else children(expr)):
            if expr not in self.done:
                self.done[expr] = self._rebuilt(expr)
        return self.done[root]

    def function(self, function: Function) -> Function:
        """Return a function with values substituted, also for the symbols that it defines."""
        params = tuple(self(param) for param in function.params)
        attrs = function.attrs
        if "defines" in attrs:
            values = ((symbol, self._values.get(symbol)) for symbol in attrs["defines"])
            own = (symbol if not isinstance(value, Dim) else value.symbol or symbol for symbol, value in values)
            attrs = {**attrs, "defines": tuple(own)}
        return Function(params, self(function.body), attrs, function.span)  # type: ignore[arg-type]  # variables

    def _rebuilt(self, expr: Expr) -> Expr:
        args = [self.done[child] for child in children(expr)]
        kind = ir.substituted(expr.type, self._values)
        if isinstance(expr, Var):
            return expr if kind == expr.type else replace(expr, type=kind)  # type: ignore[arg-type]  # no function
        is_same = all(a is b for a, b in zip(args, children(expr), strict=True))
        if isinstance(expr, If):
            then, otherwise = self._reference(expr.then), self._reference(expr.otherwise)
            if is_same and kind == expr.type and (then, otherwise) == (expr.then, expr.otherwise):
                return expr
            return replace(expr, condition=args[0], args=tuple(args[1:]), then=then, otherwise=otherwise, type=kind)
        if isinstance(expr, Call) and isinstance(expr.op, GlobalVar):
            return ir.call_function(self._reference(expr.op), args, span=expr.span)
        if isinstance(expr, Call) and isinstance(expr.op, Operator):
            return self._called(expr, args, is_same)
        if is_same:
            return expr
        return Tuple(tuple(args), expr.span) if isinstance(expr, Tuple) else with_children(expr, args)

    def _called(self, expr: Call, args: list[Expr], is_same: bool) -> Expr:
        is_changed = any(symbol in self._values for symbol in symbols_of(dims_in(expr.attrs.values())))
        if not is_changed and is_same:
            return expr
        attrs = {name: self._value(item) for name, item in expr.attrs.items()} if is_changed else expr.attrs
        assert isinstance(expr.op, Operator)
        if not args and "values" in attrs and not any(True for _ in dims_in(attrs["values"])):
            kind = ir.tensor_type(expr)
            return Constant(np.asarray(attrs["values"], to_numpy(kind.dtype)).reshape(kind.shape), None, expr.span)
        call = ir.call(expr.op.name, args, attrs, span=expr.span)
        return call if self._fold is None else self._fold(call)

    def _reference(self, reference: GlobalVar) -> GlobalVar:
        kind = ir.substituted(reference.type, self._in_functions)
        assert isinstance(kind, ir.FuncType)
        return reference if kind == reference.type else replace(reference, type=kind)

    def _value(self, item: Any) -> Any:
        if isinstance(item, Dim):
            return substituted(item, self._values)
        return tuple(self._value(part) for part in item) if isinstance(item, tuple) else item
