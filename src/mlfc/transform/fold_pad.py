"""Explicit padding in front of a convolution or pool moves into its padding attribute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlfc.ops.conv import pad_pairs
from mlfc.relay import ir
from mlfc.relay.ir import Call, Expr, IRModule
from mlfc.relay.op import Operator
from mlfc.support.dims import is_static
from mlfc.transform.matching import Rule, apply_rules, joined_span, match_call, scalar_of, value_of


@dataclass(frozen=True)
class FoldPad:
    """Fold ``nn.pad`` with what the operator pads with itself: zero, or the input's zero point."""

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with those pads folded."""
        return apply_rules(module, _RULES)


def _fold_conv2d(call: Call) -> Expr | None:
    weights = value_of(call.args[1])  # padding by the operator is left out, also where a weight times zero is NaN
    if match_call(call, "nn.conv2d") and (weights is None or not np.all(np.isfinite(weights.astype(np.float64)))):
        return None
    return _folded(call, call.attrs["data_layout"], scalar_of(call.args[2]) if len(call.args) > 2 else 0.0, {})


def _fold_avg_pool2d(call: Call) -> Expr | None:
    counted = call.attrs["count_include_pad"] or all(pad == 0 for pad in call.attrs["padding"])
    if not counted or call.attrs["ceil_mode"]:
        return None
    return _folded(call, call.attrs["layout"], 0.0, {"count_include_pad": True})


def _folded(call: Call, layout: str, fill: float | None, changed: dict[str, bool]) -> Expr | None:
    pad = match_call(call.args[0], "nn.pad")
    if pad is None or fill is None or not isinstance(call.op, Operator):
        return None
    if pad.attrs["pad_mode"] != "constant" or scalar_of(pad.args[1]) != fill:
        return None
    widths = pad.attrs["pad_width"]
    if any(widths[axis] != (0, 0) for axis, letter in enumerate(layout) if letter in "NC"):
        return None
    (top, bottom), (left, right) = widths[layout.index("H")], widths[layout.index("W")]
    if not is_static((top, bottom, left, right)) or min(top, bottom, left, right) < 0:
        return None
    own = pad_pairs(call.op.name, call.attrs["padding"], 2)
    padding = (own[0][0] + top, own[1][0] + left, own[0][1] + bottom, own[1][1] + right)
    args = [pad.args[0], *call.args[1:]]
    return ir.call(call.op.name, args, {**call.attrs, "padding": padding, **changed}, span=joined_span(pad, call))


_RULES: dict[str, Rule] = {"nn.conv2d": _fold_conv2d, "qnn.conv2d": _fold_conv2d, "nn.avg_pool2d": _fold_avg_pool2d}
