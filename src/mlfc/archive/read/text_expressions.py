"""Expressions of a Relay text with TVM's names of calls.

Quantized operators are lowered as TVM lowers them. Operators that only change shape, dtype or range are left out, as
TVM merges and removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from lark import Token, Tree

from mlfc.errors import ArchiveError
from mlfc.relay.text_literals import number_value
from mlfc.relay.text_types import tree_of, trees

Array: TypeAlias = "npt.NDArray[Any]"
Node: TypeAlias = "Tree[Token]"
Key: TypeAlias = "tuple[int, int] | str"
"""Of a leaf: the text of a variable or constant, else the places of its first and last character."""

DIGITS = 6  # of floats in TVM's text
VIEWS = ("reshape", "expand_dims", "squeeze", "nn.batch_flatten", "clip", "cast")
FACTOR = "factor"
_LEAVES = ("constant", "literal", "true", "false")


@dataclass(frozen=True, eq=False)
class Expression:
    """An expression; each variable and constant of the text is one object."""

    kind: str  # as in the syntax tree; `FACTOR` for the constants of fixed-point products
    text: str  # the name of the operator, or the text of a leaf
    args: tuple[Expression, ...] = ()
    attrs: Mapping[str, str] = field(default_factory=dict)
    value: Array | None = None  # of a literal
    varies: bool = False  # whether it depends on an input

    @property
    def is_rounded(self) -> bool:
        """True for a float of as many digits as TVM prints, whose value may have more."""
        return self.kind == "literal" and is_rounded(self.text)


@dataclass(frozen=True)
class Rescaling:
    """A change of scale; `linear` are the scales of data and weights of the operator that computed its operand."""

    factors: tuple[Expression, ...]  # multiplier, left shift, right shift
    from_scale: Expression
    to_scale: Expression
    linear: Sequence[Expression]


class Expressions:
    """The expressions of the body of a function.

    `weights` are the variables that are not inputs. Raises ArchiveError unless the body is a sequence of calls of
    operators with one result.
    """

    def __init__(self, body: Node, weights: Collection[str]) -> None:
        self.leaves: dict[Key, Expression] = {}
        self.rescalings: list[Rescaling] = []
        self.unused: set[Expression] = set()  # scales on which no result depends except through factors
        self.scales: set[Expression] = set()  # of other operators, except powers of two
        self._weights = weights
        self._linear: dict[Expression, Sequence[Expression]] = {}
        self._bound: dict[str, Expression] = {}
        self._dropped: set[str] = set()  # results of dropout, which are tuples
        *statements, result = trees(body.children)
        for item in statements:
            name, value = str(item.children[0]), tree_of(item.children[-1])
            if item.data != "binding" or name in self._bound:
                raise _not_a_sequence()
            self._bound[name] = self._read(value)
            if value.data == "applied" and text_of(tree_of(value.children[0])) == "nn.dropout":
                self._dropped.add(name)
        self.result = self._read(result)

    def _read(self, node: Node) -> Expression:
        text = text_of(node) if node.data in (*_LEAVES, "local") else ""
        if node.data == "local" and text in self._bound:
            return self._bound[text]
        if node.data == "tuple":
            return _call("", [*map(self._read, trees(node.children))], kind="tuple")
        if node.data == "applied" and len(node.children) == 2:
            head, suffix = tree_of(node.children[0]), node.children[1]
            if isinstance(suffix, Token) and text_of(head) in self._dropped:
                return self._read(head)
            parts = trees(suffix.children) if isinstance(suffix, Tree) else []
            args = [self._read(part) for part in parts if part.data != "attribute"]
            named = (part.children for part in parts if part.data == "attribute")
            attrs = {str(name): text_of(tree_of(value)) for name, value in named}
            if args and head.data == "operator":
                return self._operator(text_of(head), args, attrs)
        elif node.data in _LEAVES or (node.data == "local" and not text[1:].isdecimal()):
            key = key_of(node)
            value = number_value(text.lstrip("-"), negative=text[0] == "-") if node.data == "literal" else None
            varies = node.data == "local" and text[1:] not in self._weights
            return self.leaves.setdefault(key, Expression(str(node.data), text, value=value, varies=varies))
        raise _not_a_sequence()

    def _operator(self, name: str, args: Sequence[Expression], attrs: Mapping[str, str]) -> Expression:
        if name == "nn.dropout" or (name in VIEWS and args[0].varies):
            return args[0]
        if name in ("qnn.conv2d", "qnn.dense") and len(args) == 6:
            data, weight, zero, weight_zero, *scales = args
            weight = _call("subtract", [weight, weight_zero])
            result = _call(name[1:], [_shifted("subtract", data, zero), weight], attrs)
            self._linear[result] = scales
            self.unused |= {*scales}
            return result
        if name == "qnn.requantize" and len(args) == 5:
            data, from_scale, zero, to_scale, to_zero = args
            factors = tuple(Expression(FACTOR, "") for _ in range(3))
            linear = self._linear.get(data.args[0] if data.text == "nn.bias_add" else data, ())
            self.rescalings.append(Rescaling(factors, from_scale, to_scale, linear))
            self.unused |= {from_scale, to_scale}
            product = "fixed_point_multiply" + ("_per_axis" if from_scale.kind == "constant" else "")
            return _shifted("add", _call(product, [_shifted("subtract", data, zero), *factors]), to_zero)
        if name in ("qnn.dequantize", "qnn.quantize") and len(args) == 3:
            self.scales |= {scale for scale in args[1:2] if scale.value is None or np.frexp(scale.value)[0] != 0.5}
        if name == "qnn.dequantize" and len(args) == 3:
            return _call("multiply", [_shifted("subtract", args[0], args[2]), args[1]])
        if name == "qnn.quantize" and len(args) == 3:
            return _shifted("add", _call("round", [_call("divide", args[:2])]), args[2])
        return _call(name, args, attrs)


def _call(
    name: str, args: Sequence[Expression], attrs: Mapping[str, str] | None = None, kind: str = "applied"
) -> Expression:
    return Expression(kind, name, tuple(args), attrs or {}, varies=any(arg.varies for arg in args))


def _shifted(name: str, data: Expression, zero: Expression) -> Expression:
    """Return a sum or difference with a zero point, which TVM leaves out if it is 0."""
    return data if zero.value is not None and not zero.value.any() else _call(name, [data, zero])


def _not_a_sequence() -> ArchiveError:
    return ArchiveError("only calls of operators with one result, in sequence, are supported")


def text_of(node: Node) -> str:
    """Return the text of a node's tokens."""
    return "".join(map(str, node.scan_values(lambda _: True)))


def key_of(node: Node) -> Key:
    """Return the key of a leaf."""
    return text_of(node) if node.data in ("local", "constant") else (node.meta.start_pos, node.meta.end_pos)


def is_rounded(literal: str) -> bool:
    """Return True for the text of a float of as many digits as TVM prints."""
    digits, suffix, _ = literal.lstrip("-").partition("f")
    return bool(suffix) and len(digits.partition("e")[0].replace(".", "").strip("0")) >= DIGITS


def prints_alike(value: Array, printed: Array) -> bool:
    """Return True if TVM prints two scalars of the same dtype alike."""
    digits = f".{DIGITS}g" if printed.dtype.kind == "f" else ""
    return format(value.item(), digits) == format(printed.item(), digits)
