"""Recognize layer normalization written in elementary operators as `nn.layer_norm`, which is one kernel."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr
from mlfc.support import dtypes
from mlfc.transform import matching
from mlfc.transform.matching import Rule, RulePass, dtype_of, joined_span, match_call, per_channel, scalar_of, shape_of


def _normalization(call: Call) -> Expr | None:
    distance, root = match_call(call.args[0], "subtract"), match_call(call.args[1], "sqrt")
    inside = match_call(root.args[0], "add") if root else None
    if distance is None or inside is None or not dtypes.is_float(dtype_of(call)):
        return None
    data, mean = distance.args[0], match_call(distance.args[1], "mean")
    variance, epsilon = match_call(inside.args[0], "mean"), scalar_of(inside.args[1])
    if mean is None or variance is None or epsilon is None or mean.args[0] is not data:
        return None
    axis = _single_axis(mean)
    power, product = match_call(variance.args[0], "power"), match_call(variance.args[0], "multiply")
    factors = product.args if product else ()
    if power is not None and scalar_of(power.args[1]) == 2:
        factors = power.args[:1]
    # the square of the difference, or of an equal one
    if not factors or not all(_same_difference(arg, distance) for arg in factors):
        return None
    if axis is None or axis != _single_axis(variance):
        return None
    if not isinstance(shape_of(data)[axis], int):  # the operator's gamma and beta are constants
        return None
    ones = np.ones(shape_of(data)[axis], dtype_of(data))
    attrs = {"axis": axis, "epsilon": epsilon, "center": False, "scale": False}
    assert root is not None  # it has the argument `inside`
    span = joined_span(mean, distance, variance.args[0], variance, inside, root, call)
    return ir.call("nn.layer_norm", [data, Constant(ones), Constant(0 * ones)], attrs, span=span)


def _single_axis(mean: Call) -> int | None:
    """Return the one axis of a mean that keeps its dimensions, else None."""
    axis, rank = mean.attrs["axis"], len(shape_of(mean.args[0]))
    if not mean.attrs["keepdims"] or mean.attrs["exclude"] or axis is None:
        return None
    axes = (axis,) if isinstance(axis, int) else axis
    return axes[0] % rank if len(axes) == 1 else None


def _same_difference(expr: Expr, distance: Call) -> bool:
    other = match_call(expr, "subtract")
    if other is None or other is distance:
        return other is distance
    means = match_call(other.args[1], "mean"), match_call(distance.args[1], "mean")
    if other.args[0] is not distance.args[0] or means[0] is None or means[1] is None:
        return False
    return means[0].args[0] is means[1].args[0] and _single_axis(means[0]) == _single_axis(means[1]) is not None


def _absorbed(name: str, position: int, unused: tuple[str, ...], call: Call) -> Expr | None:
    """Absorb the constant vector that follows a normalization, unless it has one already."""
    for norm, other in (call.args, call.args[::-1]):
        found, value = match_call(norm, "nn.layer_norm"), matching.value_of(other)
        if found is None or value is None or any(found.attrs[attr] for attr in unused):
            continue
        if shape_of(found) != shape_of(call) or dtype_of(other) != dtype_of(found):
            continue
        vector = per_channel(value, shape_of(found), found.attrs["axis"])
        if vector is not None:
            args = list(found.args)
            args[position] = Constant(np.ascontiguousarray(vector))
            return ir.call("nn.layer_norm", args, {**found.attrs, name: True}, span=joined_span(found, call))
    return None


class RecognizeLayerNorm(RulePass):
    """Recognize ``(x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon) * gamma + beta`` along one axis.

    Exporters write it this way for ONNX before opset 17.
    """

    _RULES: ClassVar[dict[str, Rule]] = {
        "divide": _normalization,
        "multiply": partial(_absorbed, "scale", 1, ("scale", "center")),
        "add": partial(_absorbed, "center", 2, ("center",)),
    }
