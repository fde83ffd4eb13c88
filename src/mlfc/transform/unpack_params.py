"""Parameters whose numbers share bytes become constants of the numbers themselves."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.kernels.codes import unpack_codes
from mlfc.relay.ir import Call, Constant, Expr, IRModule
from mlfc.support import cost, dtypes
from mlfc.transform.matching import apply_rules


@dataclass(frozen=True)
class UnpackParams:
    """Evaluate qnn.unpack of constants, so that every later pass sees numbers."""

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with those calls replaced."""
        return apply_rules(module, {"qnn.unpack": _unpacked})


def _unpacked(call: Call) -> Expr | None:
    packed = call.args[0]
    if not isinstance(packed, Constant):
        return None
    dtype = call.attrs["out_dtype"]
    numbers = unpack_codes(packed.data, dtypes.bits(dtype), call.attrs["extent"])
    cost.spend("constants", numbers.nbytes, packed.name or "qnn.unpack")
    return Constant(numbers.view(dtypes.to_numpy(dtype)), packed.name, call.span)
