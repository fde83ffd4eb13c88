"""Integer expressions as sums ``coefficient * term + ... + constant`` of terms that are not sums themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlfc.tir import ir
from mlfc.tir.ir import Expr
from mlfc.tir.visitor import children


@dataclass(frozen=True, eq=False)
class Affine:
    """A sum."""

    # coefficient of each term by its number in an `ExprTable`, in order of appearance; none is zero
    terms: Mapping[int, int]
    constant: int = 0

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        """Return ``self + factor * other``."""
        if factor == 1 and not self.terms and not self.constant:
            return other
        terms = dict(self.terms)
        for key, coefficient in other.terms.items():
            total = terms.get(key, 0) + factor * coefficient
            if total:
                terms[key] = total
            else:
                terms.pop(key, None)
        return Affine(terms, self.constant + factor * other.constant)

    def times(self, factor: int) -> Affine:
        """Return ``factor * self``."""
        if factor == 1:
            return self
        terms = {key: factor * coefficient for key, coefficient in self.terms.items()} if factor else {}
        return Affine(terms, factor * self.constant)


@dataclass(eq=False)
class ExprTable:
    """Value numbering of expressions: equal computations have the same number.

    Two loads of one buffer at the same index have one number, so the table is only valid for expressions that do not
    load memory that is written in between.
    """

    exprs: list[Expr] = field(default_factory=list)
    definitions: dict[int, Affine] = field(default_factory=dict)
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _by_node: dict[int, int] = field(default_factory=dict)
    _affine: dict[int, Affine] = field(default_factory=dict)
    _kept: list[Expr] = field(default_factory=list)

    def number(self, expr: Expr) -> int:
        """Return the number of an expression."""
        known = self._by_node.get(id(expr))
        if known is not None:
            return known
        key = self._key(expr)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.exprs)
            self.exprs.append(expr)
        self._kept.append(expr)  # keeps the node alive, so that its id stays a valid key
        self._by_node[id(expr)] = number
        return number

    def _key(self, expr: Expr) -> tuple[object, ...]:
        if isinstance(expr, ir.Binary):
            return (expr.op, expr.dtype, self.number(expr.a), self.number(expr.b))
        if isinstance(expr, ir.Var):
            return ("var", id(expr))
        if isinstance(expr, ir.Const):
            # floats by their text, as 0.0 equals -0.0
            return ("const", expr.value if type(expr.value) is int else repr(expr.value), expr.dtype)
        own = expr.name if isinstance(expr, ir.Call) else expr.buffer if isinstance(expr, ir.Load) else None
        return (type(expr), own, expr.dtype, *map(self.number, children(expr)))

    def define(self, var: ir.Var, value: Expr) -> None:
        """Replace `var` by its value in the results of `affine` from now on."""
        self.definitions[self.number(var)] = self.affine(value)

    def affine(self, expr: Expr) -> Affine:
        """Return an int32 expression as a sum."""
        number = self.number(expr)
        known = self._affine.get(number)
        if known is None:
            known = self._affine[number] = self._expand(expr, number)
        return known

    def _expand(self, expr: Expr, number: int) -> Affine:
        if isinstance(expr, ir.Const):
            return Affine({}, int(expr.value))
        if number in self.definitions:
            return self.definitions[number]
        if isinstance(expr, ir.Binary):
            if expr.op in ("add", "sub"):
                return self.affine(expr.a).plus(self.affine(expr.b), 1 if expr.op == "add" else -1)
            if expr.op == "mul":
                a, b = self.affine(expr.a), self.affine(expr.b)
                if not b.terms:
                    return a.times(b.constant)
                if not a.terms:
                    return b.times(a.constant)
        return Affine({number: 1}, 0)
