"""Counter-based random numbers: a draw depends only on the run number, the key and the element index."""

from __future__ import annotations

import math
from functools import partial

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import LIBM_CONTRACT
from mlfc.ops.rules import Element, check_choice, checked_shape, declare, scalar
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor
from mlfc.tir.intrinsics.philox import philox
from mlfc.tir.ir import Expr

_DTYPES = ("float32", "float64")


def _infer(name: str, attrs: Attrs, runs: TensorType) -> TensorType:
    if runs.size != 1 or runs.dtype != "int64":
        raise TypeCheckError(f"{name}: expected the number of the run, one int64, got {runs}")
    check_choice(name, "dtype", attrs["dtype"], _DTYPES)
    key = attrs["key"]
    if not isinstance(key, tuple) or len(key) != 2 or any(not isinstance(k, int) or not 0 <= k < 1 << 32 for k in key):
        raise TypeCheckError(f"{name}: expected a key of two numbers of 32 bits, got {key}")
    return TensorType(checked_shape(name, attrs["shape"]), attrs["dtype"])


def _bits(of: Element, runs: Tensor) -> Expr:
    """Return 64 random bits for an element."""
    place = tb.const(0)
    for extent, index in zip(of.out.shape, of.at, strict=True):
        place = place * extent + index
    low, high = of.attrs["key"]
    key = tb.const(low, "uint64") | tb.binary("shl", tb.const(high, "uint64"), tb.const(32))
    return philox(tb.cast(place, "uint32"), tb.const(0, "uint32"), tb.cast(scalar(runs), "uint64"), key)


def _share(bits: Expr, count: int, dtype: str, begin: int = 0) -> Expr:
    """Scale the highest `count` bits to a number in [0, 1), in steps of 2^-count; `begin` is added in these steps."""
    whole = tb.binary("shr", bits, tb.const(64 - count)) + tb.const(begin, "uint64")
    # signed, as every target converts signed integers natively
    return tb.cast(tb.cast(whole, "int64"), dtype) * tb.const(2.0**-count, dtype)


def _uniform(of: Element, runs: Tensor) -> Expr:
    dtype = of.out.dtype
    low, high = (tb.const(of.attrs[name], dtype) for name in ("low", "high"))
    return low + _share(_bits(of, runs), 53 if dtype == "float64" else 24, dtype) * (high - low)


def _normal(of: Element, runs: Tensor) -> Expr:
    """Return the first number of the Box-Muller pair; the second is not computed."""
    dtype, count = of.out.dtype, 32 if of.out.dtype == "float64" else 24
    bits = _bits(of, runs)
    lower = tb.binary("shl", bits, tb.const(32))
    radius = tb.intrinsic("sqrt", tb.const(-2.0, dtype) * tb.intrinsic("log", _share(bits, count, dtype, 1)))
    turn = tb.intrinsic("cos", tb.const(2 * math.pi, dtype) * _share(lower, count, dtype))
    return tb.const(of.attrs["mean"], dtype) + tb.const(of.attrs["scale"], dtype) * (radius * turn)


_SHAPED = (Attr("shape", REQUIRED), Attr("dtype", "float32"), Attr("key", (0, 0)))
_declare = partial(declare, num_inputs=1, infer=_infer, kind=Kind.INJECTIVE, expensive=True,
                   traits=Trait.NOT_IN_TVM)  # fmt: skip
_declare("random.philox_uniform", element=_uniform,
         attrs=(*_SHAPED, Attr("low", 0.0, is_float=True), Attr("high", 1.0, is_float=True)),
         contract="bits exact; low + u * (high - low) of u in [0, 1), each operation rounded",
         doc="Random numbers from low to high: Philox 4x32-10 of element, number of the run, and key")  # fmt: skip
_declare("random.philox_normal", element=_normal,
         attrs=(*_SHAPED, Attr("mean", 0.0, is_float=True), Attr("scale", 1.0, is_float=True)),
         contract=LIBM_CONTRACT,
         doc="Normally distributed random numbers, by Box and Muller from the bits of Philox 4x32-10")  # fmt: skip
