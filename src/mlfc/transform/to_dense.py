"""Matrix products with a constant on the right become `nn.dense`, whose weights are packed at compile time."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule
from mlfc.transform.matching import Rule, apply_rules, match_call, reshaped, shape_of, transposed


@dataclass(frozen=True)
class ToDense:
    """Turn nn.matmul and nn.batch_matmul with one constant (or dequantized constant) matrix into nn.dense."""

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with those products replaced."""
        return apply_rules(module, _RULES)


def _from_matmul(call: Call) -> Expr | None:
    if call.attrs["transpose_a"] or len(shape_of(call.args[1])) != 2:
        return None
    weights = _units_by_inputs(call.args[1], call.attrs["transpose_b"])
    return None if weights is None else _dense(call.args[0], weights, call)


def _from_batch_matmul(call: Call) -> Expr | None:
    """Rewrite a product of every matrix of the batch with the same one."""
    left, right = call.args
    if call.attrs["transpose_a"] or shape_of(right)[0] != 1:
        return None
    matrix = _without_batch(right)
    weights = None if matrix is None else _units_by_inputs(matrix, call.attrs["transpose_b"])
    return None if weights is None else _dense(left, weights, call)


def _dense(data: Expr, weights: Expr, call: Call) -> Expr:
    out_dtype = call.attrs["out_dtype"]
    return ir.call("nn.dense", [data, weights], units=shape_of(weights)[0], out_dtype=out_dtype, span=call.span)


def _without_batch(right: Expr) -> Expr | None:
    if isinstance(right, Constant):
        return reshaped(right, shape_of(right)[1:])
    dequantize = _dequantized(right)
    if dequantize is None or shape_of(dequantize.args[1]) or shape_of(dequantize.args[2]):
        return None
    data = reshaped(dequantize.args[0], shape_of(right)[1:])
    return ir.call("qnn.dequantize", [data, *dequantize.args[1:]], dequantize.attrs, span=dequantize.span)


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


_RULES: dict[str, Rule] = {"nn.matmul": _from_matmul, "nn.batch_matmul": _from_batch_matmul}
