"""Elementwise operators: mathematics, rounding, tests, limits and casts; arithmetic with numpy's broadcasting.

Rules map one element to one element. If a rule uses its argument twice, lowering binds the fused producer to a local.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import Element, broadcast_shape, check_alike, check_choice, check_dtype, declare
from mlfc.relay import ir as relay
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Elements, Kind, Layout, Trait
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Tensor, broadcast_read
from mlfc.tir.intrinsics import conversions, float32
from mlfc.tir.ir import Const, Expr

LIBM_CONTRACT = "what the target's math.h gives: within 2 ULP on common C libraries"
NEAR_CONTRACT = "within 4 ULP of the correctly rounded result with a math.h of 1 ULP"

# Functions that vector targets compute with the compiler's own arithmetic, with the largest error.
_VECTORIZABLE = {"exp": float32.EXP_ULP, "tanh": float32.TANH_ULP, "erf": float32.ERF_ULP}


def declare_unary(
    name: str, rule: Callable[..., Expr], doc: str, *, takes: str = "float", result: str | None = None,
    for_target: bool = False, **rest: Any,
) -> None:  # fmt: skip
    """Register an operator that maps each element by `rule`.

    `takes` is a class of `rules.DTYPE_CLASSES`; `result` is the dtype of the result if it differs from the argument's;
    a rule with `for_target` has the context as its first argument; `rest` are other fields of `mlfc.relay.op.Operator`.
    """

    def infer(_: str, __: Attrs, data: TensorType) -> TensorType:
        check_dtype(name, data.dtype, takes)
        return TensorType(data.shape, result or data.dtype)

    def element(of: Element, data: Tensor) -> Expr:
        return rule(*([of.ctx] if for_target else []), data.read(of.at))

    declare(name, 1, infer, Kind.ELEMENTWISE, element=element, doc=doc, **rest)


def _number(value: float, like: Expr) -> Expr:
    return tb.const(value, like.dtype)


def negated(x: Expr) -> Expr:
    """Return -x; unlike 0 - x, it changes the sign of a float zero."""
    return x * -1 if dtypes.is_float(x.dtype) else _number(0, x) - x


def magnitude(x: Expr) -> Expr:
    """Return the absolute value; that of the smallest integer is itself."""
    if dtypes.is_float(x.dtype):
        return tb.intrinsic("fabs", x)
    return x if x.dtype.startswith("u") else tb.select(tb.binary("lt", x, 0), negated(x), x)


def sigmoid(ctx: Context, x: Expr) -> Expr:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + ctx.transcendental("exp", negated(x)))


def _mish(ctx: Context, x: Expr) -> Expr:
    # tanh(log(1 + e)) is e (e + 2) / (e (e + 2) + 2), which is accurate for small e, and 1 from exp(20) on
    wide = tb.cast(x, "float32") if x.dtype in dtypes.HALVES else x
    grown = ctx.transcendental("exp", tb.minimum(wide, tb.const(20.0, wide.dtype)))
    product = grown * (grown + 2)
    return tb.cast(wide * (product / (product + 2)), x.dtype)


def _mish_in_tvm(args: Sequence[relay.Expr], _: Attrs, out: TensorType) -> relay.Expr:
    grown = relay.call("add", [relay.call("exp", args), relay.const(1.0, out.dtype)])
    return relay.call("multiply", [args[0], relay.call("tanh", [relay.call("log", [grown])])])


def _sign(x: Expr) -> Expr:
    if x.dtype.startswith("u"):
        return tb.minimum(x, 1)
    # a value that is neither above, below nor equal to zero is NaN and is returned
    neither = tb.select(tb.binary("eq", x, 0), _number(0, x), x) if dtypes.is_float(x.dtype) else _number(0, x)
    negative = tb.select(tb.binary("lt", x, 0), _number(-1, x), neither)
    return tb.select(tb.binary("gt", x, 0), _number(1, x), negative)


def _bitwise_not(x: Expr) -> Expr:
    if x.dtype == "bool":
        return tb.binary("eq", x, False)
    low, high = dtypes.limits(x.dtype)
    return tb.binary("xor", x, high if low == 0 else -1)


_LIBM = {
    "acos": "Arc cosine", "acosh": "Inverse hyperbolic cosine", "asin": "Arc sine",
    "asinh": "Inverse hyperbolic sine", "atan": "Arc tangent", "atanh": "Inverse hyperbolic tangent",
    "cos": "Cosine", "cosh": "Hyperbolic cosine", "log": "Natural logarithm", "log2": "Logarithm to base 2",
    "log10": "Logarithm to base 10", "sin": "Sine", "sinh": "Hyperbolic sine", "tan": "Tangent",
}  # fmt: skip
for _name, _doc in _LIBM.items():
    declare_unary(_name, partial(tb.intrinsic, _name), _doc, contract=LIBM_CONTRACT, expensive=True)
for _name, _doc in {"exp": "Exponential", "tanh": "Hyperbolic tangent", "erf": "Gauss error function"}.items():
    _contract = f"within {_VECTORIZABLE[_name]} ULP on targets with vectors, else {LIBM_CONTRACT}"
    _rule = partial(lambda function, ctx, x: ctx.transcendental(function, x), _name)
    for _form, _text in ((_name, _doc), (f"fast_{_name}", f"{_doc}, with the accuracy of `{_name}`")):
        declare_unary(_form, _rule, _text, for_target=True, contract=_contract, expensive=True,
                      magnitude=0.0 if _name == "exp" else 1.0)  # fmt: skip

declare_unary("sqrt", partial(tb.intrinsic, "sqrt"), "Square root", contract="correctly rounded", expensive=True)
declare_unary("rsqrt", lambda x: 1 / tb.intrinsic("sqrt", x), "One over the square root", contract="two roundings",
              expensive=True)  # fmt: skip
declare_unary("sigmoid", sigmoid, "1 / (1 + exp(-x))", for_target=True, contract=NEAR_CONTRACT, expensive=True,
              magnitude=1.0)  # fmt: skip
declare_unary("nn.mish", _mish, "x * tanh(log(1 + exp(x)))", for_target=True, expensive=True, in_tvm=_mish_in_tvm,
              contract="within 1e-6 of the larger of 1 and the magnitude of x")  # fmt: skip
for _name, _intrinsic, _doc in (
    ("ceil", "ceil", "Nearest integer above"),
    ("floor", "floor", "Nearest integer below"),
    ("trunc", "trunc", "Nearest integer toward zero"),
    # ONNX and TFLite both round ties to the even neighbour
    ("round", "round_even", "Nearest integer, ties to even"),
):
    _rule = partial(lambda name, x: tb.intrinsic(name, x) if dtypes.is_float(x.dtype) else x, _intrinsic)
    declare_unary(_name, _rule, _doc, takes="number")
declare_unary("abs", magnitude, "Absolute value", takes="number")
declare_unary("negative", negated, "The value with the opposite sign", takes="number")
declare_unary("sign", _sign, "-1, 0 or 1 by the sign; NaN for NaN", takes="number")
declare_unary("logical_not", _bitwise_not, "Logical negation", takes="bool", traits=Trait.LOGIC)
declare_unary("bitwise_not", _bitwise_not, "All bits inverted", takes="bits", traits=Trait.LOGIC)
declare_unary("copy", lambda x: x, "The same value", takes="any", takes_narrow=True, elements=Elements.SAME,
              traits=Trait.NEUTRAL)  # fmt: skip
declare_unary("zeros_like", lambda x: _number(0, x), "Zeros of the argument's type", takes="any")
declare_unary("ones_like", lambda x: _number(1, x), "Ones of the argument's type", takes="any")
declare_unary("isnan", lambda x: tb.binary("ne", x, x), "True where the value is NaN", result="bool")
declare_unary("isinf", lambda x: tb.intrinsic("isinf", x, dtype="bool"), "True where it is infinite", result="bool")
# the difference is NaN for infinities and NaN
declare_unary("isfinite", lambda x: tb.binary("eq", x - x, 0), "True where the value is finite", result="bool")


def limited(x: Expr, low: float, high: float) -> Expr:
    """Clamp `x` to [low, high], keeping NaN; a limit outside the range of the dtype is omitted."""
    if dtypes.is_float(x.dtype):
        # with the constant first, C's (a > b ? a : b) returns b if b is NaN
        x = x if low == -math.inf else tb.maximum(_number(low, x), x)
        return x if high == math.inf else tb.minimum(_number(high, x), x)
    floor, ceiling = dtypes.limits(x.dtype)
    first = floor if low == -math.inf else max(floor, min(math.ceil(low), ceiling))
    last = ceiling if high == math.inf else max(floor, min(math.floor(high), ceiling))
    x = tb.maximum(x, first) if first > floor else x
    return tb.minimum(x, last) if last < ceiling else x


def _infer_clip(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "number")
    if math.isnan(attrs["a_min"]) or math.isnan(attrs["a_max"]):
        raise TypeCheckError(f"{name}: a limit is NaN")
    return data


declare("clip", 1, _infer_clip, Kind.ELEMENTWISE, (Attr("a_min", REQUIRED, True), Attr("a_max", REQUIRED, True)),
        lambda of, data: limited(data.read(of.at), of.attrs["a_min"], of.attrs["a_max"]),
        traits=Trait.CLOSING, doc="Limits values to [a_min, a_max]; where a_min > a_max, a_max")  # fmt: skip


def converted(x: Expr, dtype: str) -> Expr:
    """Convert `x` to `dtype` by the rules of `_CAST_CONTRACT`."""
    if dtypes.is_float(x.dtype) and dtypes.is_integer(dtype):
        # via a signed integer, so that negative numbers wrap to unsigned ones
        wide = {"uint64": "uint64", "int64": "int64", "uint32": "int64"}.get(dtype, "int32")
        return tb.cast(tb.truncated(x, wide, "as"), dtype)
    return tb.cast(_rounded_to_odd(x, dtype), dtype)


def _rounded_to_odd(x: Expr, dtype: str) -> Expr:
    """Round `x` to odd, so that the conversion to `dtype` via float32 rounds only once."""
    if dtype not in ("float16", "bfloat16", *dtypes.NARROW_FLOATS):
        return x
    # float16 and most narrow floats represent only integers that are exact in float32
    if dtype in ("bfloat16", "float8_e8m0fnu") and x.dtype.endswith(("int32", "int64")):
        is_wide = dtypes.bits(x.dtype) == 64
        x = tb.intrinsic("float64_of_odd", x, dtype="float64") if is_wide else tb.cast(x, "float64")
    return tb.intrinsic("float32_of_odd", x, dtype="float32") if x.dtype == "float64" else x


def _infer_cast(_: str, attrs: Attrs, data: TensorType) -> TensorType:
    dtypes.bits(attrs["dtype"])
    return TensorType(data.shape, attrs["dtype"])


def _cast(of: Element, data: Tensor, *_: Tensor) -> Expr:
    return _between(data.read(of.at), data.dtype, of.out.dtype)


def _between(x: Expr, source: str, target: str, **how: Any) -> Expr:
    """Convert an element from dtype `source` to `target`; the intermediate type of narrow ones is int32 or float32."""
    wide = conversions.widened(x, source) if dtypes.is_narrow(source) else x
    if not dtypes.is_narrow(target):
        return converted(wide, target)
    if target in dtypes.NARROW_FLOATS:
        return conversions.narrowed(tb.cast(_rounded_to_odd(wide, target), "float32"), target, **how)
    return conversions.narrowed(converted(wide, "int32"), target, **how)


def _infer_cast_narrow(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_choice(name, "dtype", attrs["dtype"], dtypes.NARROW_FLOATS)
    check_choice(name, "round_mode", attrs["round_mode"], conversions.ROUND_MODES)
    return TensorType(data.shape, attrs["dtype"])


def _infer_reinterpret(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    parts, rest = divmod(dtypes.bits(data.dtype), dtypes.bits(attrs["dtype"]))
    if rest or (parts != 1 and not data.shape):
        raise TypeCheckError(f"{name}: {data.dtype} and {attrs['dtype']} differ in size")
    return TensorType((*data.shape[:-1], *(extent * parts for extent in data.shape[-1:])), attrs["dtype"])


_CAST_CONTRACT = (
    "floats become integers by truncation, as on x86-64: NaN and values that do not fit give -2**31 (int32) or -2**63 "
    "(int64); integers of 8, 16 and fewer bits are the low bits of the int32, uint32 of the int64; uint64 is the bits "
    "of the int64 below 2**63 and 0 from 2**64 on; integers keep their low bits; to floats: the nearest, ties to even, "
    "rounded once; 8-bit and 4-bit floats saturate (float8_e8m0fnu: the next power of two of the same or a larger "
    "magnitude)"
)
declare("cast", 1, _infer_cast, Kind.ELEMENTWISE, (Attr("dtype"),), _cast, contract=_CAST_CONTRACT,
        takes_narrow=True, elements=Elements.CONVERTED, traits=Trait.NEUTRAL | Trait.CLOSING,
        doc="Converts to another dtype")  # fmt: skip
declare("cast_like", 2, lambda _, __, data, like: TensorType(data.shape, like.dtype), Kind.INJECTIVE, (), _cast,
        contract=_CAST_CONTRACT, takes_narrow=True, elements=Elements.CONVERTED, traits=Trait.NEUTRAL,
        doc="Converts to the second argument's dtype")  # fmt: skip
declare("cast_narrow", 1, _infer_cast_narrow, Kind.ELEMENTWISE,
        (Attr("dtype"), Attr("saturate", True), Attr("round_mode", "up")),
        lambda of, data: _between(data.read(of.at), data.dtype, of.out.dtype, saturate=bool(of.attrs["saturate"]),
                                  round_mode=of.attrs["round_mode"]),
        takes_narrow=True, in_tvm=lambda args, attrs, _: relay.call("cast", args, dtype=attrs["dtype"]),
        contract="as onnx casts, rounded once",
        doc="Converts to a float of 8 or 4 bits; unsaturated, values out of range become infinity or NaN")  # fmt: skip
declare("reinterpret", 1, _infer_reinterpret, Kind.VIEW, (Attr("dtype"),), layout=Layout.LOGICAL,
        doc="The same bits as another dtype; of a smaller one, along the last axis")  # fmt: skip


def _infer_fixed_point(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    if data.dtype != "int32":
        raise TypeCheckError(f"{name}: expected int32 data, got {data.dtype}")
    if not 0 <= attrs["multiplier"] < 1 << 31 or not -31 <= attrs["shift"] <= 30:
        raise TypeCheckError(f"{name}: multiplier must be in [0, 2**31), shift in [-31, 30]")
    return data


declare("fixed_point_multiply", 1, _infer_fixed_point, Kind.ELEMENTWISE, (Attr("multiplier"), Attr("shift")),
        lambda of, data: tb.intrinsic("requantize_single", data.read(of.at), tb.const(of.attrs["multiplier"]),
                                      tb.const(of.attrs["shift"])),
        doc="x * multiplier * 2**(shift - 31) on int32, one rounding, ties up")  # fmt: skip


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
for _name, _of_two, _doc in (
    ("trunc_divide", partial(_quotient, "trunc", "truncdiv"), "Quotient truncated toward zero"),
    ("floor_divide", partial(_quotient, "floor", "floordiv"), "Quotient rounded down"),
    ("mod", _trunc_mod, "Remainder with the sign of the dividend"),
    ("trunc_mod", _trunc_mod, "Remainder with the sign of the dividend"),
    ("floor_mod", _floor_mod, "Remainder with the sign of the divisor"),
):
    _declare(_name, _of_two, _doc, contract="an integer by zero gives 0", expensive=True)
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
