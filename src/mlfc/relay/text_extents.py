"""How extents that the run decides are written in Relay text: expressions of symbols, and the bounds of symbols.

``Tensor[(batch, 3, 2 * n + 1), float32]``: a symbol is a name. Quotients and remainders are ``floordiv(n, 2)`` and
``floormod(n, 2)``, as TVM prints them, for two slashes begin a comment. The attribute ``symbols="batch=1..32,n=0.."``
of a function gives bounds that are not those of inputs (1 and no upper one).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mlfc.relay import ir
from mlfc.relay.ir import Function, IRModule
from mlfc.relay.text_literals import unique_names
from mlfc.relay.visitor import post_order
from mlfc.support import dims
from mlfc.support.dim_walk import walked
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol

BOUNDS = "symbols"  # the attribute that gives bounds
ANY = "?"
# what a name of a symbol cannot be: words of the grammar
_KEYWORDS = frozenset(
    (
        *("def", "let", "fn", "meta", "if", "else", "True", "False", "None", "inf", "nan"),
        *("match", "type", "extern", "free_var", "ref", "ref_read", "ref_write"),
    )
)
_CALLS: Mapping[str, Callable[[Any, Any], Any]] = {
    "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b, "max": dims.maximum, "min": dims.minimum,
}  # fmt: skip
_CALL_OF = {"//": "floordiv", "%": "floormod"}
_BOUND = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<low>-?[0-9]{1,10})\.\.(?P<high>-?[0-9]{1,10})?")
# of one extent: words, and factors of a product
_MAX_WORDS = 1_024
_MAX_FACTORS = 16


class SymbolNames:
    """The names under which the symbols of a module are printed, and where their bounds are."""

    def __init__(self, module: IRModule | None = None) -> None:
        found: dict[Symbol, None] = {}
        self._declared: dict[Function, list[Symbol]] = {}
        functions = module.functions if module else {}
        for name in sorted(functions):
            function = functions[name]
            own = function_symbols(function)
            self._declared[function] = [symbol for symbol in own if symbol not in found]
            found.update(dict.fromkeys(own))
        titles = unique_names([f"{symbol.name}_" if symbol.name in _KEYWORDS else symbol.name for symbol in found])
        self.titles = dict(zip(found, titles, strict=True))
        self._renamed: dict[Symbol, Extent] = {
            symbol: Symbol(title, symbol.low, symbol.high).dim
            for symbol, title in self.titles.items()
            if symbol.name != title
        }

    def text(self, extent: Extent | Symbol) -> str:
        """Return an extent as text."""
        if isinstance(extent, Symbol):
            return self.titles.get(extent, extent.name)
        return extent_text(dims.substituted(extent, self._renamed) if self._renamed else extent)

    def type_text(self, kind: ir.Type, any_shape: bool = False) -> str:
        """Return a type as text; with `any_shape`, what the run decides is ``?``."""
        if isinstance(kind, ir.TensorType):
            if kind.is_static:
                return str(kind)
            extents = (ANY if any_shape and isinstance(item, Dim) else self.text(item) for item in kind.shape)
            return f"Tensor[({', '.join(extents)}), {kind.dtype}]"
        if isinstance(kind, ir.ListType):
            return f"List[{', '.join(self.type_text(item, any_shape) for item in kind.elements)}]"
        if isinstance(kind, ir.TupleType):
            inner = ", ".join(self.type_text(item, any_shape) for item in kind.fields)
            return f"({inner},)" if len(kind.fields) == 1 else f"({inner})"
        return str(kind)

    def bounds_text(self, function: Function) -> str:
        """Return the bounds of the symbols that a function is the first to have, where they are not the default."""
        declared = [symbol for symbol in self._declared.get(function, ()) if (symbol.low, symbol.high) != (1, LARGEST)]
        return ",".join(
            f"{self.titles[symbol]}={symbol.low}..{'' if symbol.high == LARGEST else symbol.high}"
            for symbol in declared
        )

    def original(self) -> dict[str, str]:
        """Return the symbols' own names by the printed ones, where they differ."""
        return {title: symbol.name for symbol, title in self.titles.items() if symbol.name != title}


def function_symbols(function: Function) -> list[Symbol]:
    """Return the symbols in the types and attributes of a function and of those nested in it, in their order."""
    found: dict[Symbol, None] = {}
    seen: set[Function] = {function}
    pending = [function]
    while pending:
        current = pending.pop()
        for param in current.params:
            found.update(dict.fromkeys(ir.type_symbols(param.type)))
        for expr in post_order(current.body):
            if not isinstance(expr, ir.Constant):
                found.update(dict.fromkeys(ir.type_symbols(expr.type)))
            if isinstance(expr, ir.Call):
                found.update(dict.fromkeys(ir.attribute_symbols(expr.attrs)))
            nested = expr.op if isinstance(expr, ir.Call) else expr
            if isinstance(nested, Function) and nested not in seen:
                seen.add(nested)
                pending.append(nested)
        found.update(dict.fromkeys(ir.attribute_symbols(current.attrs)))
    return list(found)


def extent_text(extent: Extent) -> str:
    """Return an extent as an expression that `extent_call` and infix operators make again."""

    def applied(operation: str, a: str, b: str) -> str:
        if operation == "+":
            return f"{a} - {b[1:]}" if b.startswith("-") else f"{a} + {b}"
        if operation == "*":
            if not b.removeprefix("-").isdecimal():
                return f"{a} * {b}"
            return f"-{a}" if b == "-1" else f"{b} * {a}"
        return f"{_CALL_OF.get(operation, operation)}({a}, {b})"

    text: str = walked(extent, str, applied)
    return text


def extent_call(name: str, values: Iterable[Extent], spend: Callable[[int], None]) -> Any:
    """Return what a function of extents gives; KeyError for another function, TypeError for another number of values.

    ValueError and ZeroDivisionError where it cannot be computed. `spend` takes the number of steps before they are
    done.
    """
    a, b, *others = (*values, None, None)
    if a is None or b is None or others != [None, None]:
        raise TypeError
    spend(_terms(a) * _terms(b) if name in ("max", "min") else 32 * _terms(a) * (1 + _terms(b)))
    return _CALLS[name](a, b)


def _terms(extent: Extent) -> int:
    return len(extent.terms) if isinstance(extent, Dim) else 1


def _product(factors: Sequence[Extent], spend: Callable[[int], None]) -> Any:
    if len(factors) > _MAX_FACTORS:
        raise ValueError(f"a product of more than {_MAX_FACTORS} factors")
    total: Any = factors[0]
    for factor in factors[1:]:
        spend(_terms(total) * _terms(factor))
        total = total * factor
    return total


def extent_sum(parts: Iterable[Any], spend: Callable[[int], None]) -> Any:
    """Return what operands with ``+``, ``-`` and ``*`` between them make; `spend` is as that of `extent_call`."""
    first, *rest = parts
    terms, factors = [], [first]
    for operator, operand in zip(rest[::2], rest[1::2], strict=True):
        if operator == "*":
            factors.append(operand)
        else:
            terms.append(_product(factors, spend))
            factors = [operand if operator == "+" else -operand]
    terms.append(_product(factors, spend))
    while len(terms) > 1:  # in pairs: every sum takes as long as it has terms
        spend(sum(map(_terms, terms)))
        terms = [sum(terms[index : index + 2]) for index in range(0, len(terms), 2)]
    return terms[0]


def read_bounds(text: str) -> dict[str, Symbol]:
    """Return the symbols whose bounds a text such as ``batch=1..32,n=0..`` gives; raise ValueError for another text."""
    found: dict[str, Symbol] = {}
    for part in text.split(","):
        match = _BOUND.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"expected bounds such as n=1..32 or n=0.., got '{part.strip()[:40]}'")
        low, high = int(match["low"]), int(match["high"] or LARGEST)
        if not -LARGEST <= low <= high <= LARGEST:
            raise ValueError(f"the bounds {low}..{high} of {match['name']} are none")
        if match["name"] in found:
            raise ValueError(f"the bounds of {match['name']} are given twice")
        found[match["name"]] = Symbol(match["name"], low, high)
    return found


def check_length(words: int) -> None:
    """Raise ValueError for an expression of too many words."""
    if words > _MAX_WORDS:
        raise ValueError(f"an extent of more than {_MAX_WORDS:,} words and signs")
