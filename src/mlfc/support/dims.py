"""Symbolic dimensions: integer expressions of symbols whose values are known at run time.

A `Dim` is always in normal form: a sum of products of symbols, with quotients, remainders, minima and maxima among the
factors where they cannot be resolved. Constant results are `int`. Comparisons are decided by the symbols' bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd, lcm, prod
from typing import Any, TypeAlias, Union

LARGEST = (1 << 31) - 1
"""Default upper bound of symbols: the largest 32-bit index."""
_TERM_LIMIT = 256
_STEP_LIMIT = 64
"""Most steps of a symbolic division; the rest is not divided further."""
_CHOICE_LIMIT = 4
"""Most maxima and minima in a sum whose choices are examined for bounds."""
_REMEMBERED = 1 << 13
_DEPTH = 3
"""Most rewrites of a sum in search of tighter bounds; each form of a nested quotient yields different ones."""
_FACTORED_TERMS = 8
"""Most terms of a sum that is tried to be factored."""
_OPPOSITE = {"max": "min", "min": "max"}
_NO_BOUNDS = float("-inf"), float("inf")


class UndecidedError(ValueError):
    """A comparison that the bounds of the symbols do not decide, or a symbolic expression used as a constant.

    `extent` is the expression that was compared with 0, if known.
    """

    def __init__(self, message: str, extent: Dim | None = None) -> None:
        super().__init__(message)
        self.extent = extent


@dataclass(frozen=True, order=True)
class Symbol:
    """A named dimension with its smallest and largest value."""

    name: str
    low: int = 1
    high: int = LARGEST

    @property
    def dim(self) -> Dim:
        """The symbol as an expression."""
        return Dim((((_Atom("symbol", (self,)),), 1),))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class _Atom:
    """A factor that is not a sum: a symbol, or an operation (``//``, ``%``, ``max``, ``min``) on two extents."""

    kind: str
    args: tuple[Any, ...]

    @cached_property
    def key(self) -> tuple[str, str]:
        return (self.kind, ",".join(map(repr, self.args)))

    def __lt__(self, other: _Atom) -> bool:
        return self.key < other.key

    @cached_property
    def bounds(self) -> tuple[int, int]:
        if self.kind == "symbol":
            return self.args[0].low, self.args[0].high
        (low, high), (least, most) = map(bounds, self.args)
        if self.kind in ("max", "min"):
            chosen = max if self.kind == "max" else min
            return chosen(low, least), chosen(high, most)
        if least < 0 or not most:  # the sign of the divisor is unknown
            return -LARGEST, LARGEST
        least = max(least, 1)  # division by 0 fails at run time
        if self.kind == "//":
            corners = [a // b for a in (low, high) for b in (least, most)]
            return min(corners), max(corners)
        return 0, most - 1 if low < 0 else min(most - 1, high)

    def __str__(self) -> str:
        if self.kind == "symbol":
            return str(self.args[0])
        a, b = self.args
        if self.kind in ("max", "min"):
            return f"{self.kind}({a}, {b})"
        return f"{_in_brackets(a)} {self.kind} {_in_brackets(b)}"


_Monomial: TypeAlias = "tuple[_Atom, ...]"  # sorted factors; empty for 1
Extent: TypeAlias = Union[int, "Dim"]
Shape: TypeAlias = tuple[Any, ...]
"""Extents; those that are not `int` are `Dim`."""


@dataclass(frozen=True, eq=False)
class Dim:
    """A symbolic dimension. Created by symbols, arithmetic, `maximum` and `minimum`, never by the constructor."""

    terms: tuple[tuple[_Monomial, int], ...]  # sorted, with nonzero coefficients

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that it depends on."""
        return frozenset(_symbols(self))

    @property
    def symbol(self) -> Symbol | None:
        """The symbol, if the expression is just that; else None."""
        (factors, count), *others = self.terms
        is_symbol = not others and count == 1 and len(factors) == 1 and factors[0].kind == "symbol"
        return factors[0].args[0] if is_symbol else None

    @property
    def multiple(self) -> tuple[int, Symbol] | None:
        """The factor, at least 1, and the symbol, if the expression is their product; else None."""
        (factors, count), *others = self.terms
        is_multiple = not others and count > 0 and len(factors) == 1 and factors[0].kind == "symbol"
        return (count, factors[0].args[0]) if is_multiple else None

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The smallest and largest value that the bounds of its symbols allow; not necessarily tight."""
        return _bounds(self, _DEPTH)

    @property
    def choice(self) -> tuple[str, Any, Any] | None:
        """The kind (``max`` or ``min``) and both operands, if the expression is a choice of two; else None."""
        places = [index for index, (factors, _) in enumerate(self.terms) if _is_choice(factors)]
        if len(places) != 1:
            return None
        (factor,), count = self.terms[places[0]]
        rest = self - Dim((self.terms[places[0]],))
        one, other = (rest + count * item for item in factor.args)
        return factor.kind if count > 0 else _OPPOSITE[factor.kind], one, other

    @property
    def is_name(self) -> bool:
        """True if its text is a single name or call."""
        (factors, count), *others = self.terms
        return not others and count == 1 and len(factors) == 1 and factors[0].kind in ("symbol", "max", "min")

    def __add__(self, other: Any) -> Any:
        return _sum(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _sum(self, other, -1)

    def __rsub__(self, other: Any) -> Any:
        return _sum(-self, other, 1)

    def __neg__(self) -> Dim:
        return Dim(tuple((factors, -count) for factors, count in self.terms))

    def __pos__(self) -> Dim:
        return self

    def __mul__(self, other: Any) -> Any:
        if not _is_extent(other):
            return NotImplemented
        return _made((tuple(sorted(left + right)), a * b) for left, a in self.terms for right, b in _terms(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _quotient(self, other) if _is_extent(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return _quotient(other, self) if _is_extent(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return _remainder(self, other) if _is_extent(other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return _remainder(other, self) if _is_extent(other) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: Any) -> bool:
        return not _at_least(self, other, "<")

    def __ge__(self, other: Any) -> bool:
        return _at_least(self, other, ">=")

    def __gt__(self, other: Any) -> bool:
        return _at_least(self, other + 1, ">")

    def __le__(self, other: Any) -> bool:
        return not _at_least(self, other + 1, "<=")

    def __bool__(self) -> bool:
        low, high = self.bounds
        if low > 0 or high < 0:
            return True
        raise UndecidedError(f"{self} may be 0 or not", self)

    def __str__(self) -> str:
        text = ""
        for factors, count in self.terms:
            size = abs(count)
            parts = [str(size)] if size != 1 or not factors else []
            is_alone = not parts and len(factors) == len(self.terms) == 1 and count > 0
            parts += [str(factor) if is_alone else _in_product(factor) for factor in factors]
            sign = " - " if count < 0 else " + " if text else ""
            text += (sign if text else sign.strip()) + " * ".join(parts)
        return text

    __repr__ = __str__


def is_static(shape: Iterable[Any]) -> bool:
    """Return whether all dimensions of a shape are static."""
    return not any(isinstance(extent, Dim) for extent in shape)


def dims_in(values: Iterable[Any]) -> Iterator[Dim]:
    """Yield the symbolic expressions in values and nested tuples, such as shapes or attributes."""
    for value in values:
        if isinstance(value, Dim):
            yield value
        elif isinstance(value, tuple):
            yield from dims_in(value)


def bounds(extent: Extent) -> tuple[int, int]:
    """Return the smallest and the largest possible value of an extent."""
    return extent.bounds if isinstance(extent, Dim) else (extent, extent)


def symbols_of(extents: Iterable[Any]) -> list[Symbol]:
    """Return the symbols of extents, each once, in the order of their appearance."""
    found: dict[Symbol, None] = {}
    for extent in extents:
        if isinstance(extent, Dim):
            found.update(dict.fromkeys(_symbols(extent)))
    return list(found)


def maximum(a: Extent, b: Extent) -> Any:
    """Return the larger of two extents."""
    return _chosen("max", a, b)


def minimum(a: Extent, b: Extent) -> Any:
    """Return the smaller of two extents."""
    return _chosen("min", a, b)


def substituted(extent: Extent, values: Mapping[Symbol, Extent]) -> Any:
    """Return an extent with symbols replaced by values."""
    if not isinstance(extent, Dim):
        return extent
    terms: list[tuple[_Monomial, int]] = []
    for factors, count in extent.terms:
        parts = []
        for factor in factors:
            args = [substituted(item, values) for item in factor.args]
            if factor.kind == "symbol":
                parts.append(_terms(values.get(factor.args[0], factor.args[0].dim)))
            elif factor.kind in ("max", "min"):
                parts.append(_terms(_chosen(factor.kind, *args)))
            else:
                parts.append(_terms(args[0] // args[1] if factor.kind == "//" else args[0] % args[1]))
        single = [part[0] for part in parts if len(part) == 1]  # for example, one symbol replaces another
        product = tuple(sorted(factor for factors, _ in single for factor in factors))
        others = prod(_made(part) for part in parts if len(part) != 1)
        terms += _terms(_made([(product, count * prod(times for _, times in single))]) * others)
    return _made(terms)


def _is_extent(value: Any) -> bool:
    return isinstance(value, (int, Dim))


def _symbols(extent: Dim) -> Iterator[Symbol]:
    for factors, _ in extent.terms:
        for factor in factors:
            if factor.kind == "symbol":
                yield factor.args[0]
            else:
                for item in factor.args:
                    if isinstance(item, Dim):
                        yield from _symbols(item)


def _terms(extent: Extent) -> Sequence[tuple[_Monomial, int]]:
    return extent.terms if isinstance(extent, Dim) else (((), int(extent)),)


def _made(terms: Iterable[tuple[_Monomial, int]]) -> Any:
    """Return the normal form of a sum."""
    total: dict[_Monomial, int] = {}
    for factors, count in terms:
        total[factors] = total.get(factors, 0) + count
    kept = tuple(sorted(((factors, count) for factors, count in total.items() if count), key=_order))
    if len(kept) > _TERM_LIMIT:
        raise UndecidedError(f"a dimension has more than {_TERM_LIMIT} terms")
    if not kept:
        return 0
    return kept[0][1] if len(kept) == 1 and not kept[0][0] else Dim(kept)


def _order(term: tuple[_Monomial, int]) -> tuple[int, list[tuple[str, str]]]:
    """Sort products of many factors first, the constant last."""
    return -len(term[0]), [factor.key for factor in term[0]]


def _sum(a: Dim, b: Any, factor: int) -> Any:
    if not _is_extent(b):
        return NotImplemented
    return _made([*a.terms, *((factors, factor * count) for factors, count in _terms(b))])


def _at_least(a: Dim, b: Any, how: str) -> bool:
    difference = a - b
    low, high = bounds(difference)
    if low >= 0:
        return True
    if high < 0:
        return False
    raise UndecidedError(f"whether {a} {how} {b if how in ('<', '>=') else b - 1} depends on the run", difference)


def _divided(a: Extent, b: Extent) -> tuple[Any, Any]:
    """Return (quotient, rest) with ``a = quotient * b + rest``, where `b` cancels no term of the rest."""
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError("an extent is divided by 0")
    first, count = _terms(b)[0]
    quotient: Any = 0
    rest: Any = 0
    remaining: Any = a
    for _ in range(_STEP_LIMIT):
        if not isinstance(remaining, Dim) and not remaining:
            break
        factors, times = _terms(remaining)[0]
        other = _without(factors, first)
        whole = 0 if other is None else abs(times) // abs(count) * (1 if times * count > 0 else -1)
        part = _made([(other or (), whole)])
        left = _made([(factors, times - whole * count)])
        quotient, rest = quotient + part, rest + left
        remaining = remaining - part * b - left
    return quotient, rest + remaining


def _without(factors: _Monomial, taken: _Monomial) -> _Monomial | None:
    left = list(factors)
    for factor in taken:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _quotient(a: Extent, b: Extent) -> Any:
    if isinstance(b, int) and b < 0:
        return _quotient(-a, -b)
    quotient, rest = _divided(a, b)
    if _is_below(rest, b):
        return quotient
    if isinstance(rest, Dim) and isinstance(b, int) and b > 0:
        parts = rest.choice
        if parts is not None:
            kind, one, other = parts
            return quotient + _chosen(kind, one // b, other // b)
        if rest.terms[0][1] < 0:  # canonical form of rounding up
            return quotient - (b - 1 - rest) // b
        constant = next((count for factors, count in rest.terms if not factors), 0)
        if not 0 <= constant < b:
            return quotient + constant // b + (rest - constant + constant % b) // b
    return quotient + (rest // b if isinstance(rest, int) and isinstance(b, int) else _atom("//", rest, b))


def _remainder(a: Extent, b: Extent) -> Any:
    if isinstance(b, int) and b < 0:
        return -_remainder(-a, -b)
    _, rest = _divided(a, b)
    if _is_below(rest, b):
        return rest
    return rest % b if isinstance(rest, int) and isinstance(b, int) else _atom("%", rest, b)


@lru_cache(_REMEMBERED)
def _bounds(extent: Extent, depth: int) -> tuple[int, int]:
    """Return bounds of an extent, with at most `depth` rewrites of sums; the result depends only on the arguments."""
    if not isinstance(extent, Dim):
        return extent, extent
    low = high = 0
    for factors, count in extent.terms:
        least, most = 1, 1
        for factor in factors:
            corners = [a * b for a in (least, most) for b in factor.bounds]
            least, most = min(corners), max(corners)
        low, high = low + min(least * count, most * count), high + max(least * count, most * count)
    if not depth:
        return low, high
    for closer in (_bounds_by_rest, _bounds_by_choice):
        below, above = closer(extent, depth - 1)
        low, high = int(max(low, below)), int(min(high, above))
    if low < 0 < high:
        below, above = _bounds_by_factors(extent, depth - 1)
        low, high = int(max(low, below)), int(min(high, above))
    return low, high


def _bounds_by_rest(extent: Dim, depth: int) -> tuple[float, float]:
    """Return the tighter bounds of an extent with ``b * (a // b)`` rewritten as ``a - a % b``."""
    divisors = [_divisor(factors) // gcd(_divisor(factors), count) for factors, count in extent.terms]
    scale = lcm(*divisors)  # makes all coefficients integers
    if scale > LARGEST or all(_divisor(factors) == 1 for factors, _ in extent.terms):
        return _NO_BOUNDS
    total: Any = 0
    for factors, count in extent.terms:
        divisor = _divisor(factors)
        term: Any = Dim(((factors, 1),)) if factors else 1
        if divisor > 1:
            dividend = factors[0].args[0]
            term = dividend - dividend % divisor
        total = total + count * scale // divisor * term
    low, high = _bounds(total, depth)
    return -(-low // scale), high // scale


def _is_choice(factors: _Monomial) -> bool:
    return len(factors) == 1 and factors[0].kind in _OPPOSITE


def _divisor(factors: _Monomial) -> int:
    """Return the constant divisor of a term that is a quotient, else 1."""
    divisor = factors[0].args[1] if len(factors) == 1 and factors[0].kind == "//" else 1
    return divisor if isinstance(divisor, int) and divisor > 1 else 1


def _bounds_by_choice(extent: Dim, depth: int) -> tuple[float, float]:
    """Return bounds of a sum with a maximum or minimum, from both choices, which other terms may cancel."""
    chosen = [term for term in extent.terms if _is_choice(term[0])]
    if len(extent.terms) == 1 or not 0 < len(chosen) <= _CHOICE_LIMIT:
        return _NO_BOUNDS
    factors, count = chosen[0]
    rest = extent - Dim((chosen[0],))
    (low, high), (least, most) = (_bounds(rest + count * item, depth) for item in factors[0].args)
    is_larger = (factors[0].kind == "max") == (count > 0)
    found: tuple[float, float] = (max(low, least), max(high, most)) if is_larger else (min(low, least), min(high, most))
    for other in chosen[1:]:
        if other[0][0].kind == factors[0].kind and other[1] == -count:
            pairs = _bounds_of_difference(rest - Dim((other,)), count, factors[0].args, other[0][0].args, depth)
            found = max(found[0], pairs[0]), min(found[1], pairs[1])
    return found


def _bounds_of_difference(
    rest: Extent, count: int, first: Sequence[Extent], second: Sequence[Extent], depth: int
) -> tuple[float, float]:
    """Return bounds of ``rest + count * (max(a, b) - max(c, d))``: by pairing the operands both ways."""
    (a, b), (c, d) = first, second
    low, high = _NO_BOUNDS
    for pairing in (((a, c), (b, d)), ((a, d), (b, c))):
        ends = [_bounds(rest + count * (one - other), depth) for one, other in pairing]
        low, high = max(low, min(end[0] for end in ends)), min(high, max(end[1] for end in ends))
    return low, high


def _bounds_by_factors(extent: Dim, depth: int) -> tuple[float, float]:
    """Return bounds of an extent from its factorings as a product of sums."""
    if not 2 < len(extent.terms) <= _FACTORED_TERMS:
        return _NO_BOUNDS
    low, high = _NO_BOUNDS
    for one, other, rest in _factorings(extent):
        corners = [x * y for x in _bounds(one, depth) for y in _bounds(other, depth)]
        least, most = _bounds(rest, depth)
        low, high = max(low, min(corners) + least), min(high, max(corners) + most)
    return low, high


def _factorings(extent: Dim) -> Iterator[tuple[Dim, Extent, Extent]]:
    """Yield (a, b, rest) such that an extent is ``a * b + rest`` with a sum `a`."""
    atoms = dict.fromkeys(factor for factors, _ in extent.terms if len(factors) > 1 for factor in factors)
    for atom in list(atoms)[:_FACTORED_TERMS]:
        parts = [(_without(factors, (atom,)), count) for factors, count in extent.terms]
        factor = _made((factors, count) for factors, count in parts if factors is not None)
        if isinstance(factor, Dim) and len(factor.terms) > 1:
            others = _made(term for term, (left, _) in zip(extent.terms, parts, strict=True) if left is None)
            quotient, rest = _divided(others, factor)
            if not isinstance(rest, Dim) or len(rest.terms) < len(extent.terms) - 1:
                yield factor, Dim((((atom,), 1),)) + quotient, rest


def factors_of(extent: Extent) -> list[Extent]:
    """Return extents whose product is `extent`, as far as it can be factored."""
    if not isinstance(extent, Dim):
        return [extent]
    if len(extent.terms) == 1:
        ((factors, count),) = extent.terms
        return [*([count] if count != 1 else ()), *(Dim((((factor,), 1),)) for factor in factors)]
    shared = [factor for factor in dict.fromkeys(extent.terms[0][0]) if all(factor in f for f, _ in extent.terms)]
    whole = gcd(*(count for _, count in extent.terms))
    if shared or whole > 1:
        common = Dim((((shared[0],), 1),)) if shared else whole
        return [common, *factors_of(_divided(extent, common)[0])]
    for one, other, rest in _factorings(extent) if len(extent.terms) <= _FACTORED_TERMS else ():
        if not isinstance(rest, Dim) and rest == 0:
            return [*factors_of(one), *factors_of(other)]
    return [extent]


def _is_below(rest: Extent, b: Extent) -> bool:
    """Return whether ``rest // b`` is known to be 0."""
    if isinstance(rest, int) and rest == 0:
        return True
    low, high = bounds(rest)
    return low >= 0 and high < bounds(b)[0]


def _atom(kind: str, a: Extent, b: Extent) -> Any:
    atom = _Atom(kind, (a, b))
    low, high = atom.bounds
    return low if low == high else Dim((((atom,), 1),))


def _chosen(kind: str, a: Extent, b: Extent) -> Any:
    """Return the larger or smaller of two extents, with common terms moved outside of the choice."""
    difference = a - b
    low, high = bounds(difference)
    if low >= 0:
        return a if kind == "max" else b
    if high <= 0:
        return b if kind == "max" else a
    more = _made((factors, count) for factors, count in _terms(difference) if count > 0)
    less = _made((factors, -count) for factors, count in _terms(difference) if count < 0)
    for inner, other in ((more, less), (less, more)):
        for one, another in _choices(kind, inner):
            low, high = bounds(other - one) if kind == "max" else bounds(one - other)
            if high <= 0:  # the inner choice already dominates the other operand
                return b - less + inner
            if low >= 0:  # the other operand dominates one choice
                return b - less + _chosen(kind, another, other)
        for one, _ in _choices(_OPPOSITE[kind], inner):
            low, high = bounds(other - one)
            if (low >= 0) if kind == "max" else (high <= 0):  # the inner choice never exceeds the other operand
                return b - less + other
    first, second = sorted((more, less), key=str)
    return b - less + _atom(kind, first, second)


def _choices(kind: str, extent: Extent) -> list[tuple[Extent, Extent]]:
    """Return the operands of an extent that is a maximum or minimum, in both orders."""
    (factors, count), *others = _terms(extent)
    if others or count != 1 or len(factors) != 1 or factors[0].kind != kind:
        return []
    a, b = factors[0].args
    return [(a, b), (b, a)]


def _in_brackets(extent: Any) -> str:
    text = str(extent)
    return f"({text})" if text.startswith("-") or (isinstance(extent, Dim) and not extent.is_name) else text


def _in_product(atom: _Atom) -> str:
    return f"({atom})" if atom.kind in ("//", "%") else str(atom)
