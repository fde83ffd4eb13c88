"""Branches of an ``if`` in Relay text: bodies that see the values around them become functions that take these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lark import Token, Tree

from mlfc.relay.ir import Constant, Expr, Function, GlobalVar, Var
from mlfc.relay.text_literals import unique_names


class BranchScope(dict[str, Expr]):
    """The scope of a branch, in which a value from outside is a parameter."""

    def __init__(self, outer: Mapping[str, Expr]) -> None:
        super().__init__()
        self._outer = outer
        self.params: dict[str, Var] = {}
        self._titles: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.params or name in self._outer

    def __missing__(self, name: str) -> Expr:
        value = self._outer[name]
        if isinstance(value, (Constant, Function, GlobalVar)):
            return value
        return self.param(name)

    def param(self, name: str) -> Var:
        """Return the parameter for a value from outside."""
        if name not in self.params:
            (title,) = unique_names([name.removeprefix("%")])
            while title in self._titles:
                title += "_"
            self._titles.add(title)
            kind = self._outer[name].type
            self.params[name] = Var(title, kind)  # type: ignore[arg-type]  # functions are no parameters
        return self.params[name]


def called_alone(body: Tree[Token]) -> tuple[Token, Tree[Token]] | None:
    """Return name and arguments if a branch is but the call of a function of the module."""
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
    """Tell whether two calls take the same values; a literal is written twice, so equal constants are the same."""
    return len(one) == len(other) and all(map(_is_same, one, other))


def _is_same(one: Expr, other: Expr) -> bool:
    if isinstance(one, Constant) and isinstance(other, Constant):
        return (one.type, one.name, one.span, one.data.tobytes()) == (
            other.type,
            other.name,
            other.span,
            other.data.tobytes(),
        )
    return one is other
