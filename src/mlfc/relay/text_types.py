"""The parse tree of a Relay text by `text_grammar.lark`: names of tokens, types, extents, and bounds of symbols.

``Tensor[(batch, 3, 2 * n + 1), float32]``: a symbol is a name. Quotients and remainders are ``floordiv(n, 2)`` and
``floormod(n, 2)``, as TVM prints them, because two slashes start a comment. The attribute
``symbols="batch=1..32,n=0.."`` of a function declares bounds that differ from those of inputs (at least 1, no upper
bound).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from lark import Lark, Token, Tree

from mlfc.errors import MlfcError, TypeCheckError
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, Function, GlobalVar, ListType, TensorType, TupleType, Var
from mlfc.relay.text_literals import INTEGERS, STATIC_TYPE, unique_names
from mlfc.support import dims, dtypes
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, bounds

Node: TypeAlias = "Tree[Token] | Token"

_RULES = Path(__file__).with_name("text_grammar.lark").read_text(encoding="utf-8")
_GRAMMAR = f"{_RULES}INTEGERS.1: /{INTEGERS}/\nSTATIC_TYPE.1: /{STATIC_TYPE}/\n"
_DESCRIPTIONS = {
    "LOCAL": "a variable such as %x",
    "GRAPH": "a numbered variable such as %0",
    "GLOBAL": "a function name such as @main",
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "INTEGERS": "`[`",
    "STATIC_TYPE": "`Tensor`",
    "PROJECTION": "a projection such as .0",
    "EQUALITY": "`==`",
    "RELATION": "`<`",
    "$END": "the end of the text",
}
_TYPES = ("static_type", "tensor_type", "scalar_type", "tuple_type", "list_type")
# Relay's keywords for constructs that a graph of tensors does not have
_RESERVED = frozenset(("match", "type", "extern", "free_var", "ref", "ref_read", "ref_write"))
RESERVED = "RESERVED"


def _told_apart(token: Token) -> Token:
    return token.update(type=RESERVED) if token in _RESERVED else token


@cache
def parser() -> Lark:
    """Return the cached parser. Reserved words become tokens that the grammar does not use."""
    return Lark(
        _GRAMMAR,
        start="module",
        parser="lalr",
        maybe_placeholders=False,
        propagate_positions=True,
        lexer_callbacks={"NAME": _told_apart},
    )


def described(terminals: Iterable[str]) -> str:
    """Return a readable list of terminals, in a fixed order."""
    patterns = {terminal.name: terminal.pattern.value for terminal in parser().terminals}
    words = {_DESCRIPTIONS.get(name, f"`{patterns.get(name, name)}`") for name in terminals}
    # operators can follow every expression, so listing them all would hide the missing token
    words -= {"`==`", "`<`", "`+`", "`-`", "`*`", "`/`"} if len(words) > 6 else set()
    ordered = sorted(words)
    return ", ".join(ordered[:-1]) + f" or {ordered[-1]}" if len(ordered) > 1 else "".join(ordered)


def result_type(parts: Sequence[Node]) -> Node | None:
    """Return the type of a function's result, or None if it is omitted."""
    return next((part for part in trees(parts) if part.data in _TYPES), None)


def trees(nodes: Sequence[Node]) -> list[Tree[Token]]:
    """Return the nodes that are not tokens."""
    return [node for node in nodes if isinstance(node, Tree)]


def tree_of(node: Node) -> Tree[Token]:
    """Return a node that the grammar guarantees to be a tree."""
    assert isinstance(node, Tree)
    return node


def token_of(node: Node) -> Token:
    """Return a node that the grammar guarantees to be a token."""
    assert isinstance(node, Token)
    return node


class BranchScope(dict[str, Expr]):
    """The scope of a branch, in which a value from outside becomes a parameter."""

    def __init__(self, outer: Mapping[str, Expr]) -> None:
        super().__init__()
        self._outer = outer
        self.params: dict[str, Var] = {}
        self._titles: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.params or name in self._outer

    def __missing__(self, name: str) -> Expr:
        value = self._outer[name]
        return value if isinstance(value, (Constant, Function, GlobalVar)) else self.param(name)

    def param(self, name: str) -> Var:
        """Return the parameter for a value from outside."""
        if name not in self.params:
            (title,) = unique_names([name.removeprefix("%")])
            while title in self._titles:
                title += "_"
            self._titles.add(title)
            kind = self._outer[name].type
            self.params[name] = Var(title, kind)  # type: ignore[arg-type]  # functions are not parameters
        return self.params[name]


def called_alone(body: Tree[Token]) -> tuple[Token, Tree[Token]] | None:
    """Return name and arguments if a branch only calls a function of the module."""
    (last,) = body.children[-1:]
    if len(body.children) != 1 or not isinstance(last, Tree) or last.data != "applied" or len(last.children) != 2:
        return None
    head, arguments = last.children
    if not isinstance(head, Tree) or head.data != "global_function" or not isinstance(arguments, Tree):
        return None
    name = head.children[0]
    assert isinstance(name, Token)
    return name, arguments


def same_arguments(one: Sequence[Expr], other: Sequence[Expr]) -> bool:
    """Tell whether two calls have the same arguments; literals are written twice, so equal constants are the same."""

    def key(expr: Expr) -> object:
        return (expr.type, expr.name, expr.span, expr.data.tobytes()) if isinstance(expr, Constant) else expr

    return [*map(key, one)] == [*map(key, other)]


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
