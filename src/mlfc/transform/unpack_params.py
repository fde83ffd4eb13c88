"""Unpack parameters that store several numbers per byte into plain constants."""

from __future__ import annotations

from typing import ClassVar

from mlfc.kernels.codes import unpack_codes
from mlfc.relay.ir import Call, Constant, Expr
from mlfc.support import cost, dtypes
from mlfc.transform.matching import Rule, RulePass


def _unpacked(call: Call) -> Expr | None:
    packed = call.args[0]
    if not isinstance(packed, Constant):
        return None
    dtype = call.attrs["out_dtype"]
    numbers = unpack_codes(packed.data, dtypes.bits(dtype), call.attrs["extent"])
    cost.spend("constants", numbers.nbytes, packed.name or "qnn.unpack")
    return Constant(numbers.view(dtypes.to_numpy(dtype)), packed.name, call.span)


class UnpackParams(RulePass):
    """Evaluate qnn.unpack of constants, so that later passes see plain arrays."""

    _RULES: ClassVar[dict[str, Rule]] = {"qnn.unpack": _unpacked}
