"""The functions that cells of recurrent operators apply to their gates, by ONNX's names of them in lower case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from mlfc.errors import TypeCheckError
from mlfc.kernels.functions import transcendental
from mlfc.ops.elementwise import limited, magnitude, sigmoid
from mlfc.ops.rules import check_choice
from mlfc.relay.ir import Attrs
from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Expr

Function = Callable[[Expr], Expr]


@dataclass(frozen=True)
class CellFunction:
    """A function of one number with up to two parameters, and what those are where a model does not say."""

    rule: Callable[[Context, Expr, Expr, Expr], Expr]  # (ctx, x, alpha, beta)
    alpha: float | None = None  # None where the function has no such parameter
    beta: float | None = None


def _elu(ctx: Context, x: Expr, alpha: Expr, _: Expr) -> Expr:
    grown = alpha * (transcendental(ctx, "exp", tb.minimum(x, tb.const(0, x.dtype))) - 1)
    return tb.select(tb.binary("lt", x, 0), grown, x)


def _softplus(ctx: Context, x: Expr) -> Expr:
    # exp of a positive number may overflow
    rest = tb.intrinsic("log", 1 + transcendental(ctx, "exp", magnitude(x) * -1))
    return rest + limited(x, 0, inf)


CELL_FUNCTIONS = {
    "affine": CellFunction(lambda _, x, alpha, beta: x * alpha + beta, 1.0, 0.0),
    "elu": CellFunction(_elu, 1.0),
    "hardsigmoid": CellFunction(lambda _, x, alpha, beta: limited(x * alpha + beta, 0, 1), 0.2, 0.5),
    "leakyrelu": CellFunction(lambda _, x, alpha, __: tb.select(tb.binary("lt", x, 0), x * alpha, x), 0.01),
    "relu": CellFunction(lambda _, x, *__: limited(x, 0, inf)),
    "scaledtanh": CellFunction(
        lambda ctx, x, alpha, beta: alpha * transcendental(ctx, "tanh", x * beta), 1.0, 1.0
    ),
    "sigmoid": CellFunction(lambda ctx, x, *_: sigmoid(ctx, x)),
    "softplus": CellFunction(lambda ctx, x, *_: _softplus(ctx, x)),
    "softsign": CellFunction(lambda _, x, *__: x / (1 + magnitude(x))),
    "tanh": CellFunction(lambda ctx, x, *_: transcendental(ctx, "tanh", x)),
    "thresholdedrelu": CellFunction(
        lambda _, x, alpha, __: tb.select(tb.binary("le", x, alpha), tb.const(0, x.dtype), x), 1.0
    ),
}  # fmt: skip


def check_functions(name: str, attrs: Attrs, count: int) -> None:
    """Raise TypeCheckError unless there are `count` known functions, each with its two parameters."""
    for function in attrs["activations"]:
        check_choice(name, "activation", str(function), CELL_FUNCTIONS)
    given = [len(attrs[title]) for title in ("activations", "alphas", "betas")]
    if given != [count] * 3:
        raise TypeCheckError(f"{name}: expected {count} activations, alphas and betas, got {given}")


def functions_of(
    ctx: Context, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> Iterator[Function]:
    """Yield the functions of these names and parameters."""
    for name, alpha, beta in zip(names, alphas, betas, strict=True):

        def function(x: Expr, name: str = name, alpha: float = alpha, beta: float = beta) -> Expr:
            return CELL_FUNCTIONS[name].rule(ctx, x, tb.const(alpha, x.dtype), tb.const(beta, x.dtype))

        yield function
