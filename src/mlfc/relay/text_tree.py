"""The parse tree of a Relay text by the grammar in `text_grammar.lark`, and the names of tokens in messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from lark import Lark, Token, Tree

from mlfc.relay.ir import Constant, Expr, Function, GlobalVar, Var
from mlfc.relay.text_literals import INTEGERS, STATIC_TYPE, unique_names

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
