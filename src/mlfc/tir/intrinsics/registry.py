"""What an intrinsic is, and how one is declared by a body in tir expressions.

A body is written once. C and its dialects print it as an inline function, LLVM inlines it, the interpreter evaluates
it; an instruction of a target takes its place only where the target has one.
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
"""The dtype of a parameter, and for an integer optionally the least and the greatest value that it takes."""


@dataclass(frozen=True, eq=False)
class Step:
    """A named intermediate value."""

    var: Var
    value: Expr
    note: str = ""  # why it is computed so, for readers of printed code; may be empty


@dataclass(frozen=True, eq=False)
class IntrinsicBody:
    """The definition of an intrinsic on scalars; on vectors it applies to each lane.

    Everything in it may be computed whether or not it is selected: it reads no memory and divides no integers.
    An arm of a `Select` that is not taken may be any value.
    """

    # names the function that printers make of it: the intrinsic, and its argument's dtype where it has several
    key: str
    doc: str  # one line
    params: tuple[Var, ...]
    steps: tuple[Step, ...]  # in order; each may use what is before it
    result: Expr
    known: Mapping[Var, tuple[int, int]]  # least and greatest value of parameters and steps, where the dtype says less

    @cache  # noqa: B019  (bodies live as long as the program)
    def on_lanes(self, lanes: int) -> IntrinsicBody:
        """Return the body on vectors of so many lanes."""
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
    # Numpy arrays in, numpy array out, elementwise, in the result's dtype; of those without bodies
    evaluate: Callable[..., Any] | None
    doc: str = ""  # one line
    # by the dtype of the first argument, or one by "" for all calls
    bodies: dict[str, IntrinsicBody] = field(default_factory=dict)

    def body(self, dtype: str) -> IntrinsicBody | None:
        """Return the body for a first argument of a dtype, scalar or vector; None for an intrinsic without."""
        return self.bodies.get("") or self.bodies.get(dtypes.element(dtype))


INTRINSICS: Registry[Intrinsic] = Registry("intrinsic")


def add(name: str, num_args: int, evaluate: Callable[..., Any], doc: str = "") -> None:
    """Add an intrinsic that has its meaning in numpy, and in each language a form of its own."""
    INTRINSICS.add(name, Intrinsic(name, num_args, evaluate, doc))


class BodySteps:
    """Collects the intermediate values of a body."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.known: dict[Var, tuple[int, int]] = {}

    def let(self, name: str, value: Expr, note: str = "", *, known: tuple[int, int] | None = None) -> Var:
        """Name a value; `known` are the least and the greatest number that it may be."""
        var = Var(name, value.dtype)
        self.steps.append(Step(var, value, note))
        if known is not None:
            self.known[var] = known
        return var


def define(name: str, rule: Callable[..., Expr], params: Mapping[str, Parameter], dtype: str = "") -> IntrinsicBody:
    """Add an intrinsic by its body, or a body for another dtype to an intrinsic.

    `rule`: names intermediate values by ``steps.let`` and returns the result. Its docstring is a line for printed
    code.
    `dtype`: of the first argument, for intrinsics that have a body for each of several.
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
    """Return a decorator that adds an intrinsic named as the rule is; what it gives makes a call of it."""

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
    """Shift to the right by an int32, with the sign if the dtype has one."""
    return tb.binary("shr", value, tb.as_expr(amount))


def shl(value: Expr, amount: int | Expr) -> Expr:
    """Shift to the left by an int32; what leaves the dtype is lost."""
    return tb.binary("shl", value, tb.as_expr(amount))
