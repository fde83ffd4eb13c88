"""Arithmetic of dynamic dimensions as host code: in int64, without overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from mlfc.codegen.vm.runtime import number
from mlfc.support.c_names import unique
from mlfc.support.dim_walk import MOST_CHARS, combined, number_name, walked
from mlfc.support.dims import LARGEST, Extent, Symbol, bounds
from mlfc.support.executable import RunCode
from mlfc.tir.host import INT64, Body, Choice, Expr, Name, Number, Operand

Refuse: TypeAlias = Callable[..., None]
"""Writes code that ends the run if a condition is true; takes the condition, the error's code and its values."""

_SAFE = 1 << 62
"""Sums of two values up to this bound do not overflow int64."""
_MOST = 1 << 31
"""Larger terms and factors are rejected if they could overflow int64: no tensor has so many elements."""
LARGEST_NUMBER = LARGEST - (1 << 16)
"""The limit of a kernel's numbers, so that rounding them up, as in ``(n + 63) // 64``, does not overflow int32."""


@dataclass(frozen=True)
class _Integer:
    """An expression, its minimum and maximum, its symbols, and its description."""

    expr: Expr
    low: int
    high: int
    name: str
    key: Any  # equal only for equal expressions
    symbols: frozenset[Symbol]


class Dimensions:
    """Computes dimensions, each expression once, until a symbol in it changes or a label invalidates it.

    Parameters
    ----------
    body : Body
        Body of the function that computes them.
    refuse : callable
    taken : set of str
        Lower-case names used in the function; new names are added.
    """

    def __init__(self, body: Body, refuse: Refuse, taken: set[str]) -> None:
        self._body = body
        self._refuse = refuse
        self._taken = taken
        self._symbols: dict[Symbol, Name] = {}
        self._made: dict[Any, tuple[Expr, frozenset[Symbol]]] = {}

    @property
    def declared(self) -> Iterable[Name]:
        """The variables of symbols, whose scope is the whole function."""
        return self._symbols.values()

    def fresh(self, name: str) -> str:
        """Return an unused name."""
        (found,) = unique([name], self._taken)
        self._taken.add(found.lower())
        return found

    def symbol(self, symbol: Symbol) -> Name:
        """Return the variable of a symbol."""
        if symbol not in self._symbols:
            self._symbols[symbol] = Name(INT64, self.fresh(symbol.name))
        return self._symbols[symbol]

    def changed(self, symbol: Symbol) -> None:
        """Forget the expressions computed from a symbol."""
        self._made = {key: item for key, item in self._made.items() if symbol not in item[1]}

    def forget(self) -> None:
        """Forget all computed expressions."""
        self._made.clear()

    def of(self, extent: Extent) -> Expr:
        """Return a dimension."""
        return self._of(extent).expr

    def named(self, extent: Extent) -> Expr:
        """Return a dimension as a number or variable, for use in several places."""
        found: Expr = self._named(self._of(extent))
        return found

    def size(self, extent: Extent) -> Expr:
        """Return a dimension or number of bytes, which is not negative."""
        found = self._of(extent)
        if found.low >= 0:
            return found.expr
        name: Expr = self._named(found)
        self._once(("not negative", found.key), found, name < number(0), RunCode.NEGATIVE, name)
        return name

    def require(self, extent: Extent, low: int, high: int, code: RunCode, *values: Operand) -> None:
        """Write the check that a dimension is from `low` to `high`, unless that is statically known.

        The error has the dimension, the least and the largest value, unless `values` are given.
        """
        found = self._of(extent)
        name = self._named(found)
        conditions = []
        if found.low < low:
            conditions.append(name < number(low))
        if found.high > high:
            conditions.append(name > number(high))
        if conditions:
            condition = conditions[0] if len(conditions) == 1 else conditions[0] | conditions[1]
            given = values or (name, number(low), number(high))
            self._once(("within", found.key, low, high), found, condition, code, *given)

    def count(self, extent: Extent) -> None:
        """Write the check that an int32 can represent the number of elements."""
        if bounds(extent)[1] > LARGEST:
            found = self._of(extent)
            if found.high > LARGEST:
                name = self._named(found)
                self._once(("counted", found.key), found, name > number(LARGEST), RunCode.SIZE, name)

    def _once(self, key: Any, of: _Integer, condition: Expr, code: RunCode, *values: Operand) -> None:
        if key not in self._made:
            self._made[key] = (condition, of.symbols)
            self._refuse(condition, code, *values)

    def _of(self, extent: Extent) -> _Integer:
        def leaf(value: int | Symbol) -> _Integer:
            if isinstance(value, Symbol):
                low, high = max(value.low, -LARGEST), min(value.high, LARGEST)
                return _Integer(self.symbol(value), low, high, value.name, value, frozenset((value,)))
            return _Integer(number(value), value, value, number_name(value), value, frozenset())

        found: _Integer = walked(extent, leaf, self._apply)
        low, high = bounds(extent)
        return replace(found, low=max(found.low, low), high=min(found.high, high))

    def _apply(self, op: str, a: _Integer, b: _Integer) -> _Integer:
        name, key, symbols = combined(op, a.name, b.name), (op, a.key, b.key), a.symbols | b.symbols
        if op == "*":
            a, b = self._limited(a, b, lambda x, y: x * y <= _SAFE)
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            return _Integer(a.expr * b.expr, min(corners), max(corners), name, key, symbols)
        if op == "+":
            a, b = self._limited(a, b, lambda x, y: x + y <= _SAFE)
            return _Integer(a.expr + b.expr, a.low + b.low, a.high + b.high, name, key, symbols)
        if op in ("max", "min"):
            chosen = max if op == "max" else min
            first, second = self._named(a), self._named(b)
            larger, smaller = (first, second) if op == "max" else (second, first)
            expr = Choice(INT64, first > second, larger, smaller)
            return _Integer(expr, chosen(a.low, b.low), chosen(a.high, b.high), name, key, symbols)
        return self._divided(op, a, b, name, key)

    def _limited(self, a: _Integer, b: _Integer, fits: Callable[[int, int], bool]) -> tuple[_Integer, _Integer]:
        """Return two integers whose sum or product does not overflow: larger ones are rejected at run time."""
        if fits(max(abs(a.low), abs(a.high)), max(abs(b.low), abs(b.high))):
            return a, b
        limited = [a, b]
        for place, value in enumerate((a, b)):
            if value.low < -_MOST or value.high > _MOST:
                name = self._named(value)
                condition = (name > number(_MOST)) | (name < number(-_MOST))
                self._once(("fits", value.key), value, condition, RunCode.OVERFLOW, name, number(_MOST))
                low, high = max(value.low, -_MOST), min(value.high, _MOST)
                limited[place] = replace(value, expr=name, low=low, high=high)
        return limited[0], limited[1]

    def _divided(self, op: str, a: _Integer, b: _Integer, name: str, key: Any) -> _Integer:
        """Divide, rounding towards minus infinity; C rounds negative quotients towards zero."""
        first = self._named(a) if a.low < 0 or op == "%" else a.expr
        second, symbols = self._named(b), a.symbols | b.symbols
        if b.low <= 0:
            self._once(("divisor", b.key), b, second < number(1), RunCode.DIVISION, first)
        quotient = first // second
        if a.low < 0:
            quotient = Choice(INT64, first < number(0), (first - second + number(1)) // second, quotient)
        if op == "//":
            found = _Integer(quotient, min(a.low, 0), max(a.high, 0), name, key, symbols)
            return replace(found, expr=self._named(found))
        whole_name, whole_key = combined("//", a.name, b.name), ("//", a.key, b.key)
        whole = _Integer(quotient, a.low, a.high, whole_name, whole_key, symbols)
        return _Integer(first - self._named(whole) * second, 0, max(0, b.high - 1), name, key, symbols)

    def _named(self, value: _Integer) -> Any:
        """Return a variable for a value that is used several times; equal values have the same variable."""
        if isinstance(value.expr, (Name, Number)):
            return value.expr
        if value.key not in self._made:
            name = value.name if len(value.name) <= MOST_CHARS else "size"
            made = self._body.declare(self.fresh(f"extent_{name}" if name[0].isdigit() else name), INT64, value.expr)
            self._made[value.key] = (made, value.symbols)
        return self._made[value.key][0]
