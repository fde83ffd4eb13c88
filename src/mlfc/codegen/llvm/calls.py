"""Intrinsics of loop-level code as LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm import powers
from mlfc.codegen.llvm.context import Context
from mlfc.codegen.llvm.llvm_types import FLOAT, INT32, Value, resized
from mlfc.errors import InternalError
from mlfc.tir.forms import LLVM_FORMS

# exact, so whether the processor has an instruction or a library is called makes no difference
_EXACT = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fabs": "fabs", "round_even": "rint",
    "round_away": "round",
}  # fmt: skip
_LIBRARY = frozenset(
    {
        "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf", "pow", "fmod",
    }
)  # fmt: skip

_BITCASTS = {"bits_of_float": INT32, "float_of_bits": FLOAT}

OF_BITS = frozenset({"run"})
"""Intrinsics that take numbers of any dtype as their bits."""


def instruction(context: Context, name: str, args: Sequence[Value]) -> Value | None:
    """Return the value of an intrinsic by instructions of the machine's own, where it has them."""
    for form in map(LLVM_FORMS.get, LLVM_FORMS):
        value = form.call(context, name, args)
        if value is not None:
            return value
    if name == "clz32":
        return context.intrinsic("ctlz", args, flag=False)
    return None


def call(context: Context, name: str, args: Sequence[Value], dtype: str) -> Value:
    """Return the value of an intrinsic without a body.

    Parameters
    ----------
    context : Context
    name : str
    args : sequence of value
    dtype : str
        Of the result.

    Raises
    ------
    InternalError
        For an intrinsic that has no form in LLVM.
    """
    value = instruction(context, name, args)
    if value is not None:
        return value
    if name == "integer_power":
        return powers.integer_power(context, args[0], args[1], signed=not dtype.startswith("u"))
    if name in _BITCASTS:
        return context.builder.bitcast(args[0], resized(args[0].type, _BITCASTS[name]))
    if name in ("isnan", "isinf"):
        return _classified(context, name, args[0])
    if name in _EXACT:
        return context.intrinsic(_EXACT[name], args)
    if name in _LIBRARY and not isinstance(args[0].type, ll.VectorType):
        kind = args[0].type
        symbol = f"{name}f" if isinstance(kind, ll.FloatType) else name
        return context.builder.call(context.declared(symbol, kind, [kind] * len(args), pure=True), list(args))
    raise InternalError(f"LLVM code has no intrinsic '{name}' of {dtype}")


def _classified(context: Context, name: str, value: Value) -> Value:
    builder = context.builder
    if name == "isnan":
        return builder.fcmp_unordered("uno", value, value)
    size = context.intrinsic("fabs", [value])
    return builder.fcmp_ordered("==", size, context.number(float("inf"), value))
