"""Elementwise operators on two or three tensors with numpy's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from mlfc.ops.elementwise import LIBM_CONTRACT
from mlfc.ops.rules import Element, broadcast_shape, check_alike, check_dtype, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Kind, Trait
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor, broadcast_read
from mlfc.tir.ir import Const, Expr

Rule = Callable[[Expr, Expr], Expr]


def _declare(name: str, rule: Rule, doc: str, *, takes: str = "number", result: str | None = None, **rest: Any) -> None:
    def infer(_: str, __: Attrs, a: TensorType, b: TensorType) -> TensorType:
        check_alike(name, a, b)
        check_dtype(name, a.dtype, takes)
        return TensorType(broadcast_shape(name, a.shape, b.shape), result or a.dtype)

    def element(of: Element, a: Tensor, b: Tensor) -> Expr:
        return rule(broadcast_read(a, of.at), broadcast_read(b, of.at))

    declare(name, 2, infer, Kind.BROADCAST, element=element, doc=doc, **rest)


def _guarded(op: str, a: Expr, b: Expr) -> Expr:
    """Return the integer quotient or remainder; division by zero returns 0, because hardware would trap."""
    if isinstance(b, Const) and b.value != 0:
        return tb.binary(op, a, b)
    return tb.select(tb.binary("eq", b, 0), tb.const(0, a.dtype), tb.binary(op, a, b))


def _quotient(rounding: str, op: str, a: Expr, b: Expr) -> Expr:
    """Return a quotient: floats divide and apply the intrinsic `rounding`, if any; integers use the operator `op`."""
    if not dtypes.is_float(a.dtype):
        return _guarded(op, a, b)
    return tb.intrinsic(rounding, a / b) if rounding else a / b


def _trunc_mod(a: Expr, b: Expr) -> Expr:
    return tb.intrinsic("fmod", a, b) if dtypes.is_float(a.dtype) else _guarded("truncmod", a, b)


def _floor_mod(a: Expr, b: Expr) -> Expr:
    if not dtypes.is_float(a.dtype):
        return _guarded("floormod", a, b)
    rest = tb.intrinsic("fmod", a, b)
    crossed = tb.binary("ne", tb.binary("lt", b, 0), tb.binary("lt", rest, 0))
    return tb.select(tb.land(tb.binary("ne", rest, 0), crossed), rest + b, rest)


def integer_power(x: Expr, exponent: int) -> Expr:
    """Raise x to a literal power of at least 1 by repeated squaring."""
    if exponent <= 1:
        return x
    half = integer_power(x * x, exponent // 2)
    return half * x if exponent % 2 else half


def _power(a: Expr, b: Expr) -> Expr:
    exponent = b.value if isinstance(b, Const) else None
    if exponent in (1, 2, 3):
        return integer_power(a, int(exponent or 0))
    if not dtypes.is_float(a.dtype):
        if exponent is not None and 1 <= exponent <= 16:
            return integer_power(a, int(exponent))
        wide = a.dtype if dtypes.bits(a.dtype) >= 32 else "uint32" if a.dtype.startswith("u") else "int32"
        return tb.cast(tb.intrinsic("integer_power", tb.cast(a, wide), tb.cast(b, wide)), a.dtype)
    if exponent in (0.5, -0.5):
        # the power of -0.0 is that of +0.0, and the power of -inf that of +inf
        root = tb.select(tb.binary("eq", a, -math.inf), tb.const(math.inf, a.dtype), tb.intrinsic("sqrt", a + 0.0))
        return root if exponent == 0.5 else 1 / root
    if exponent == -1:
        return 1 / a
    return tb.intrinsic("pow", a, b)


def _extreme(op: str, a: Expr, b: Expr) -> Expr:
    """Return the smaller or larger value, or NaN if either is NaN."""
    if not dtypes.is_float(a.dtype):
        return tb.binary(op, a, b)
    if isinstance(b, Const):
        a, b = b, a
    if isinstance(a, Const):
        if math.isnan(a.value):
            return a
        return tb.binary(op, a, b)  # C's (a > b ? a : b) returns b if b is NaN
    first = tb.binary("lt" if op == "min" else "gt", a, b)
    return tb.select(tb.binary("lor", first, tb.binary("ne", a, a)), a, b)


def _shift(op: str, a: Expr, b: Expr) -> Expr:
    # C leaves shifts by the width or more undefined
    amount = tb.binary("and", tb.cast(b, "int32"), dtypes.bits(a.dtype) - 1)
    return tb.binary(op, a, amount)


def _bitwise(op: str, a: Expr, b: Expr) -> Expr:
    logical = {"and": "land", "or": "lor", "xor": "ne"}
    return tb.binary(logical[op] if a.dtype == "bool" else op, a, b)


_WRAPS = "correctly rounded; integers wrap"
_declare("add", partial(tb.binary, "add"), "Sum", traits=Trait.SUM, contract=_WRAPS)
_declare("subtract", partial(tb.binary, "sub"), "Difference", traits=Trait.SUM, contract=_WRAPS)
_declare("multiply", partial(tb.binary, "mul"), "Product", traits=Trait.PRODUCT, contract=_WRAPS)
_declare(
    "divide", partial(_quotient, "", "truncdiv"), "Quotient; of integers, truncated toward zero",
    contract="correctly rounded; an integer by zero gives 0", expensive=True,
)  # fmt: skip
for _name, _rule, _doc in (
    ("trunc_divide", partial(_quotient, "trunc", "truncdiv"), "Quotient truncated toward zero"),
    ("floor_divide", partial(_quotient, "floor", "floordiv"), "Quotient rounded down"),
    ("mod", _trunc_mod, "Remainder with the sign of the dividend"),
    ("trunc_mod", _trunc_mod, "Remainder with the sign of the dividend"),
    ("floor_mod", _floor_mod, "Remainder with the sign of the divisor"),
):
    _declare(_name, _rule, _doc, contract="an integer by zero gives 0", expensive=True)
_declare(
    "power", _power, "First argument to the power of the second",
    contract=f"{LIBM_CONTRACT}; integers wrap; to a negative power 1 / power, towards zero, and 0 of 0",
    expensive=True,
)  # fmt: skip
_declare("maximum", partial(_extreme, "max"), "Larger of two; NaN if either is")
_declare("minimum", partial(_extreme, "min"), "Smaller of two; NaN if either is")
for _name, _op, _doc in (
    ("equal", "eq", "Whether equal"), ("not_equal", "ne", "Whether different"), ("less", "lt", "Whether smaller"),
    ("less_equal", "le", "Truth of a <= b"), ("greater", "gt", "Truth of a > b"),
    ("greater_equal", "ge", "Truth of a >= b"),
):  # fmt: skip
    _declare(_name, partial(tb.binary, _op), _doc, takes="any", result="bool", traits=Trait.COMPARISON)
for _op, _doc in (("and", "Logical conjunction"), ("or", "Logical disjunction"), ("xor", "Logical exclusive or")):
    _declare(f"logical_{_op}", partial(_bitwise, _op), _doc, takes="bool", traits=Trait.LOGIC)
    _declare(f"bitwise_{_op}", partial(_bitwise, _op), f"Bitwise {_op}", takes="bits", traits=Trait.LOGIC)
for _name, _op in (("left_shift", "shl"), ("right_shift", "shr")):
    _declare(
        _name, partial(_shift, _op), f"Bits of the first argument shifted {_name[:-6]} by the second", takes="integer",
        contract="exact; amounts count modulo the width; a signed value keeps its sign when shifted right",
    )  # fmt: skip


def _infer_where(name: str, _: Attrs, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    check_alike(name, x, y)
    return TensorType(broadcast_shape(name, condition.shape, x.shape, y.shape), x.dtype)


def _where(of: Element, *inputs: Tensor) -> Expr:
    condition, x, y = (broadcast_read(tensor, of.at) for tensor in inputs)
    return tb.select(tb.cast(condition, "bool"), x, y)


declare("where", 3, _infer_where, Kind.BROADCAST, element=_where, traits=Trait.SELECTION,
        doc="Elements of the second argument where the first is true, else of the third")  # fmt: skip
