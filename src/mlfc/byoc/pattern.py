"""Patterns of operator calls, as entries of a generator's table write them.

``op("clip", op("qnn.requantize", op("qnn.conv2d", anything(), constant(), ...)))`` is the subgraph whose last call is
the ``clip``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from mlfc.relay.ir import Call, Constant, Expr, Tuple, op_name


class Pattern(ABC):
    """What an expression may look like."""

    @abstractmethod
    def match(self, expr: Expr) -> tuple[Call, ...] | None:
        """Return the calls that the pattern covers, what is read before what reads it; None if it does not fit."""


@dataclass(frozen=True)
class _Anything(Pattern):
    def match(self, expr: Expr) -> tuple[Call, ...] | None:  # noqa: ARG002  (it takes whatever there is)
        return ()


@dataclass(frozen=True)
class _ConstantPattern(Pattern):
    def match(self, expr: Expr) -> tuple[Call, ...] | None:
        return () if isinstance(expr, Constant) else None


@dataclass(frozen=True)
class _Op(Pattern):
    names: tuple[str, ...]
    args: tuple[Pattern, ...]
    where: Callable[[Call], bool] | None

    def match(self, expr: Expr) -> tuple[Call, ...] | None:
        if not isinstance(expr, Call) or op_name(expr) not in self.names:
            return None
        if self.where is not None and not self.where(expr):
            return None
        given = [item for arg in expr.args for item in (arg.fields if isinstance(arg, Tuple) else (arg,))]
        if self.args and len(self.args) != len(given):
            return None
        covered: dict[Call, None] = {}
        for pattern, arg in zip(self.args, given, strict=False):
            found = pattern.match(arg)
            if found is None:
                return None
            covered.update(dict.fromkeys(found))
        return (*covered, expr)


@dataclass(frozen=True)
class _Maybe(Pattern):
    name: str
    inner: Pattern
    where: Callable[[Call], bool] | None

    def match(self, expr: Expr) -> tuple[Call, ...] | None:
        if isinstance(expr, Call) and op_name(expr) == self.name and (self.where is None or self.where(expr)):
            found = self.inner.match(expr.args[0])
            if found is not None:
                return (*found, expr)
        return self.inner.match(expr)


def anything() -> Pattern:
    """Return the pattern of any expression, which stays outside."""
    return _Anything()


def constant() -> Pattern:
    """Return the pattern of a tensor whose value is known."""
    return _ConstantPattern()


def op(name: str | tuple[str, ...], *args: Pattern, where: Callable[[Call], bool] | None = None) -> Pattern:
    """Return the pattern of a call.

    Parameters
    ----------
    name : str or tuple of str
        Of the operator; one of several.
    *args : Pattern
        Of its arguments, those of tuples one by one; none leaves them open.
    where : callable, optional
        What else must hold of the call.
    """
    return _Op((name,) if isinstance(name, str) else name, args, where)


def maybe(name: str, inner: Pattern, *, where: Callable[[Call], bool] | None = None) -> Pattern:
    """Return the pattern of `inner`, with or without an operator of one input behind it."""
    return _Maybe(name, inner, where)
