"""Types and extents in the tree of a Relay text, and the bounds of symbols.

``Tensor[(batch, 3, 2 * n + 1), float32]``: a symbol is a name. Quotients and remainders are ``floordiv(n, 2)`` and
``floormod(n, 2)``, as TVM prints them, because two slashes start a comment. The attribute
``symbols="batch=1..32,n=0.."`` of a function declares bounds that differ from those of inputs (at least 1, no upper
bound).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from lark import Token, Tree

from mlfc.errors import MlfcError, TypeCheckError
from mlfc.relay import ir
from mlfc.relay.ir import ListType, TensorType, TupleType
from mlfc.relay.text_tree import Node
from mlfc.support import dims, dtypes
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, bounds

Fault: TypeAlias = Callable[..., MlfcError]  # (node, cause, help) -> error
_CALLS: Mapping[str, Callable[[Any, Any], Any]] = {
    "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b, "max": dims.maximum, "min": dims.minimum,
}  # fmt: skip
_BOUND = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<low>-?[0-9]{1,10})\.\.(?P<high>-?[0-9]{1,10})?")
_WORD = re.compile(r"\w+")
# limits of one extent: words, and factors of a product
_MAX_WORDS = 1_024
_MAX_FACTORS = 16
_MAX_ELEMENTS = 1 << 40
_MAX_DIGITS = 18
_MAX_STEPS = 1 << 17  # limit on arithmetic on extents, counted in terms; a model needs a few for each operator
EXTENTS = ("symbol", "extent_call", "extent_group", "extent_chain")


class TypeReader:
    """Reads types and extents; all mentions of a symbol's name are one symbol.

    `symbols`: those with declared bounds or original names, by the name in the text.
    `code`: the text, to find unused names.
    `fault`: creates an error that points at a node.
    """

    def __init__(self, symbols: Mapping[str, Symbol], code: str, fault: Fault) -> None:
        self._symbols = dict(symbols)
        self._fault = fault
        self._code = code
        self._next: int | None = None
        self._any: dict[int, Symbol] = {}
        self._steps = 0

    def type(self, node: Node) -> TensorType | TupleType | ListType:
        """Return the type that a node describes."""
        assert isinstance(node, Tree)
        if node.data == "static_type":
            *numbers, dtype = _words(node.children[0])
            return self._tensor_type(numbers, [int(number) for number in numbers], dtype)
        if node.data == "list_type":
            name, *elements = node.children
            element, *others = (self.type(child) for child in elements)
            if name != "List" or not all(isinstance(kind, TensorType) for kind in (element, *others)):
                raise self._fault(node, "expected a list of tensors, such as List[Tensor[(n, 3), float32]]")
            try:
                return ListType(element, tuple(others))  # type: ignore[arg-type]  # tensors
            except TypeCheckError as error:
                raise self._fault(node, str(error)) from None
        if node.data == "tuple_type":
            return TupleType(tuple(self.type(child) for child in node.children))
        *extents, last = node.children
        assert isinstance(last, Token)
        return self._tensor_type(extents, [self._shape_extent(extent) for extent in extents], last)

    def extent(self, node: Node) -> Any:
        """Return the integer or `Dim` of an expression."""
        try:
            if isinstance(node, Tree) and sum(1 for _ in node.scan_values(lambda _: True)) > _MAX_WORDS:
                raise ValueError(f"an extent of more than {_MAX_WORDS:,} words and signs")
            return self._value(node)
        except ZeroDivisionError:
            raise self._fault(node, "an extent is divided by 0") from None
        except ValueError as error:
            raise self._fault(node, str(error)) from None

    def matches(self, declared: ir.Type, kind: ir.Type) -> bool:
        """Tell whether a type matches the declared one, in which ``?`` matches any extent."""
        if declared == kind or not self._any:
            return declared == kind
        wild = set(self._any.values())
        found = ir.in_place_of_symbols([declared], [kind])
        return ir.substituted(declared, {symbol: found[symbol] for symbol in found.keys() & wild}) == kind

    def _tensor_type(self, places: Sequence[Node], shape: Sequence[Any], dtype: Token) -> TensorType:
        if dtype not in dtypes.SCALARS:
            raise self._fault(dtype, f"`{dtype}` is not a type", f"dtypes are {', '.join(dtypes.SCALARS)}")
        size = 1
        for extent, place in zip(shape, places, strict=True):
            low, high = bounds(extent)
            size *= max(1, low)
            if size > _MAX_ELEMENTS:
                raise self._fault(place, "this tensor exceeds the address space")
            if high < 0:
                raise self._fault(place, f"expected an extent of at least 0, got {extent}")
        return TensorType(tuple(shape), str(dtype))

    def _shape_extent(self, node: Node) -> Any:
        assert isinstance(node, Tree)
        if node.data != "any":
            return self.extent(node)
        if node.meta.start_pos not in self._any:
            self._any[node.meta.start_pos] = self._fresh()
        return self._any[node.meta.start_pos].dim

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise ValueError(f"the extents of this text take more than {_MAX_STEPS:,} steps")

    def _fresh(self) -> Symbol:
        """Return a symbol whose name does not occur in the text."""
        if self._next is None:
            numbers = [int(found) for found in re.findall(r"\bd([0-9]{1,9})\b", self._code)]
            self._next = max(numbers, default=-1) + 1
        self._next += 1
        return Symbol(f"d{self._next - 1}")

    def _value(self, node: Node) -> Any:
        assert isinstance(node, Tree)
        if node.data == "extent_chain":
            return self._sum([item if isinstance(item, Token) else self._value(item) for item in node.children])
        first, *rest = node.children
        is_negative = isinstance(first, Token) and first.type == "MINUS"
        if is_negative:
            first, *rest = rest
        value = self._unsigned(node, first, rest)
        return -value if is_negative else value

    def _unsigned(self, node: Tree[Token], first: Node, rest: Sequence[Node]) -> Any:
        if node.data == "extent_group":
            return self._value(first)
        assert isinstance(first, Token)
        if node.data == "symbol":
            return self._symbol(first).dim
        if node.data == "extent_call":
            values = [self._value(item) for item in rest]
            if first not in _CALLS or len(values) != 2:
                step = "extents have floordiv(a, b), floormod(a, b), max(a, b) and min(a, b)"
                raise self._fault(node, f"`{first}` of {len(rest)} is not a function of extents", step)
            a, b = map(_terms, values)
            self._spend(a * b if first in ("max", "min") else 32 * a * (1 + b))
            return _CALLS[first](*values)
        if not first.isdecimal() or len(first) > _MAX_DIGITS:
            raise self._fault(node, "expected a whole number or a symbol, such as 3 or batch")
        return int(first)

    def _product(self, factors: Sequence[Extent]) -> Any:
        if len(factors) > _MAX_FACTORS:
            raise ValueError(f"a product of more than {_MAX_FACTORS} factors")
        total: Any = factors[0]
        for factor in factors[1:]:
            self._spend(_terms(total) * _terms(factor))
            total = total * factor
        return total

    def _sum(self, parts: Sequence[Any]) -> Any:
        """Evaluate operands separated by ``+``, ``-`` and ``*``."""
        terms, factors = [], [parts[0]]
        for operator, operand in zip(parts[1::2], parts[2::2], strict=True):
            if operator == "*":
                factors.append(operand)
            else:
                terms.append(self._product(factors))
                factors = [operand if operator == "+" else -operand]
        terms.append(self._product(factors))
        while len(terms) > 1:  # pairwise: the time of each sum is linear in its terms
            self._spend(sum(map(_terms, terms)))
            terms = [sum(terms[index : index + 2]) for index in range(0, len(terms), 2)]
        return terms[0]

    def _symbol(self, token: Token) -> Symbol:
        if "." in token:
            raise self._fault(token, f"expected the name of a symbol, got {token[:40]}")
        return self._symbols.setdefault(str(token), Symbol(str(token), 1, LARGEST))


def _words(token: Node) -> list[Token]:
    """Return the extents and the dtype of a type that is one token, each with its position."""
    assert isinstance(token, Token)
    start = token.start_pos or 0
    return [Token("WORD", found[0], start + found.start()) for found in _WORD.finditer(token, len("Tensor"))]


def _terms(extent: Extent) -> int:
    return len(extent.terms) if isinstance(extent, Dim) else 1


def read_bounds(text: str) -> dict[str, Symbol]:
    """Return the symbols and bounds of a text such as ``batch=1..32,n=0..``; raise ValueError for invalid text."""
    found: dict[str, Symbol] = {}
    for part in text.split(","):
        match = _BOUND.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"expected bounds such as n=1..32 or n=0.., got '{part.strip()[:40]}'")
        low, high = int(match["low"]), int(match["high"] or LARGEST)
        if not -LARGEST <= low <= high <= LARGEST:
            raise ValueError(f"invalid bounds {low}..{high} for {match['name']}")
        if match["name"] in found:
            raise ValueError(f"the bounds of {match['name']} are given twice")
        found[match["name"]] = Symbol(match["name"], low, high)
    return found
