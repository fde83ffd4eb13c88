"""Turn matrix products with a constant right operand into `nn.dense`, whose weights are packed at compile time."""

from __future__ import annotations

from typing import ClassVar

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr
from mlfc.transform.matching import Rule, RulePass, match_call, reshaped, shape_of, transposed


def _product(call: Call) -> Expr | None:
    """Rewrite a product of two matrices, or of each matrix of a batch with the same one."""
    left, right = call.args
    is_batch = match_call(call, "nn.batch_matmul") is not None
    if call.attrs["transpose_a"] or (is_batch and shape_of(right)[0] != 1):
        return None
    if is_batch and isinstance(right, Constant):
        right = reshaped(right, shape_of(right)[1:])
    elif is_batch:
        whole = _dequantized(right)
        if whole is None or shape_of(whole.args[1]) or shape_of(whole.args[2]):
            return None
        data = reshaped(whole.args[0], shape_of(right)[1:])
        right = ir.call("qnn.dequantize", [data, *whole.args[1:]], whole.attrs, span=whole.span)
    weights = _units_by_inputs(right, call.attrs["transpose_b"]) if len(shape_of(right)) == 2 else None
    if weights is None:
        return None
    attrs = {"units": shape_of(weights)[0], "out_dtype": call.attrs["out_dtype"]}
    return ir.call("nn.dense", [left, weights], attrs, span=call.span)


def _units_by_inputs(matrix: Expr, is_transposed: bool) -> Expr | None:
    """Return the constant `matrix` as (units, inputs), the order of nn.dense."""
    if isinstance(matrix, Constant):
        return matrix if is_transposed else transposed(matrix, (1, 0))
    dequantize = _dequantized(matrix)
    if dequantize is None or is_transposed:
        return dequantize
    data = transposed(dequantize.args[0], (1, 0))
    attrs = {**dequantize.attrs, "axis": 1 - dequantize.attrs["axis"] % 2}
    return ir.call("qnn.dequantize", [data, *dequantize.args[1:]], attrs, span=dequantize.span)


def _dequantized(expr: Expr) -> Call | None:
    call = match_call(expr, "qnn.dequantize")
    return call if call is not None and isinstance(call.args[0], Constant) else None


class ToDense(RulePass):
    """Turn nn.matmul and nn.batch_matmul with one constant (or dequantized constant) matrix into nn.dense."""

    _RULES: ClassVar[dict[str, Rule]] = {"nn.matmul": _product, "nn.batch_matmul": _product}
