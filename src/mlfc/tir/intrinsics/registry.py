"""Intrinsics and their declaration by a body in tir expressions.

A body is written once. C and its dialects print it as an inline function, LLVM inlines it, the interpreter evaluates
it; an instruction replaces it only on targets that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mlfc.registry import Registry
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.ir import Expr, Var
from mlfc.tir.visitor import rebuilt

Parameter = str | tuple[str, int, int]
"""The dtype of a parameter and, optionally for an integer, its least and greatest value."""


@dataclass(frozen=True, eq=False)
class Step:
    """A named intermediate value."""

    var: Var
    value: Expr
    note: str = ""  # the reason for its form, for readers of printed code; may be empty


@dataclass(frozen=True, eq=False)
class IntrinsicBody:
    """The definition of an intrinsic on scalars; on vectors it applies to each lane.

    All expressions may be evaluated speculatively: they do not access memory or divide integers. An arm of a `Select`
    that is not taken may have any value.
    """

    # name of the printed function: the intrinsic, plus its argument's dtype if it has bodies for several
    key: str
    doc: str  # one line
    params: tuple[Var, ...]
    steps: tuple[Step, ...]  # in order; each may use earlier ones
    result: Expr
    known: Mapping[Var, tuple[int, int]]  # least and greatest value of parameters and steps, if narrower than the dtype

    @cache  # noqa: B019  (bodies live as long as the program)
    def on_lanes(self, lanes: int) -> IntrinsicBody:
        """Return the body on vectors of `lanes` lanes."""
        if lanes == 1:
            return self
        variables: dict[Var, Var] = {}

        def wide_var(var: Var) -> Var:
            return variables.setdefault(var, Var(var.name, dtypes.vector(var.dtype, lanes)))

        def wide(expr: Expr) -> Expr:
            if isinstance(expr, Var):
                return wide_var(expr)
            if isinstance(expr, ir.Const):
                return tb.broadcast(expr, lanes)
            return replace(rebuilt(expr, wide), dtype=dtypes.vector(expr.dtype, lanes))

        params = tuple(map(wide_var, self.params))
        steps = tuple(Step(wide_var(step.var), wide(step.value), step.note) for step in self.steps)
        return replace(self, params=params, steps=steps, result=wide(self.result), known={})


@dataclass(frozen=True)
class Intrinsic:
    """An intrinsic."""

    name: str
    num_args: int
    # numpy arrays to numpy array, elementwise, in the result's dtype; None for an intrinsic with bodies
    evaluate: Callable[..., Any] | None
    doc: str = ""  # one line
    # by the dtype of the first argument; the key "" is for all dtypes
    bodies: dict[str, IntrinsicBody] = field(default_factory=dict)

    def body(self, dtype: str) -> IntrinsicBody | None:
        """Return the body for a first argument of a dtype, scalar or vector; None for an intrinsic without bodies."""
        return self.bodies.get("") or self.bodies.get(dtypes.element(dtype))


INTRINSICS: Registry[Intrinsic] = Registry("intrinsic")


def add(name: str, num_args: int, evaluate: Callable[..., Any], doc: str = "") -> None:
    """Register an intrinsic defined by a numpy function, with its own form in each language."""
    INTRINSICS.add(name, Intrinsic(name, num_args, evaluate, doc))


class BodySteps:
    """Collects the intermediate values of a body."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.known: dict[Var, tuple[int, int]] = {}

    def let(self, name: str, value: Expr, note: str = "", *, known: tuple[int, int] | None = None) -> Var:
        """Bind a value to a name; `known` is its least and greatest value."""
        var = Var(name, value.dtype)
        self.steps.append(Step(var, value, note))
        if known is not None:
            self.known[var] = known
        return var


def define(name: str, rule: Callable[..., Expr], params: Mapping[str, Parameter], dtype: str = "") -> IntrinsicBody:
    """Register an intrinsic by its body, or a body for another dtype of an intrinsic.

    `rule`: names intermediate values by ``steps.let`` and returns the result. Its docstring becomes a comment in
    printed code.
    `dtype`: of the first argument, for intrinsics with bodies for several dtypes.
    """
    steps = BodySteps()
    variables = []
    for title, parameter in params.items():
        kind, *ends = (parameter,) if isinstance(parameter, str) else parameter
        var = Var(title, str(kind))
        variables.append(var)
        if ends:
            steps.known[var] = (int(ends[0]), int(ends[1]))
    result = rule(steps, *variables)
    key, doc = f"{name}:{dtype}" if dtype else name, (rule.__doc__ or "").removeprefix("Return ").rstrip(".")
    body = IntrinsicBody(key, doc, tuple(variables), tuple(steps.steps), result, steps.known)
    if name not in INTRINSICS:
        INTRINSICS.add(name, Intrinsic(name, len(params), None, doc))
    INTRINSICS.get(name).bodies[dtype] = body
    return body


def defined(**params: Parameter) -> Callable[[Callable[..., Expr]], Callable[..., Expr]]:
    """Return a decorator that registers a rule as an intrinsic of its name; the decorated function creates calls."""

    def add_body(rule: Callable[..., Expr]) -> Callable[..., Expr]:
        body = define(rule.__name__, rule, params)

        def call(*args: Expr) -> Expr:
            return tb.intrinsic(body.key, *args, dtype=body.result.dtype)

        return call

    return add_body


def bits_of_float(value: Expr) -> Expr:
    """Return the bits of a float32 as a uint32."""
    return tb.intrinsic("bits_of_float", value, dtype="uint32")


def float_of_bits(bits: Expr) -> Expr:
    """Return the float32 that has the bits of a uint32."""
    return tb.intrinsic("float_of_bits", bits, dtype="float32")


def shr(value: Expr, amount: int | Expr) -> Expr:
    """Shift right by an int32; arithmetic for signed dtypes."""
    return tb.binary("shr", value, tb.as_expr(amount))


def shl(value: Expr, amount: int | Expr) -> Expr:
    """Shift left by an int32; bits beyond the dtype are lost."""
    return tb.binary("shl", value, tb.as_expr(amount))
