"""Fold explicit padding before a convolution or pool into its padding attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mlfc.ops.conv import letters_of, pad_pairs
from mlfc.relay import ir
from mlfc.relay.ir import Call, Expr
from mlfc.relay.op import Layout, Trait
from mlfc.support.dims import is_static
from mlfc.transform import matching
from mlfc.transform.matching import Rule, RulePass, joined_span, match_call, names_of, operator_of, scalar_of, value_of


def _fold_conv(call: Call) -> Expr | None:
    called, weights = operator_of(call), value_of(call.args[1])
    # an operator skips its own padding, even where a weight times zero is NaN
    if not called.integer_of and (weights is None or not np.all(np.isfinite(weights.astype(np.float64)))):
        return None
    return _folded(call, call.attrs["data_layout"], scalar_of(call.args[2]) if called.integer_of else 0.0, {})


def _fold_avg_pool(call: Call) -> Expr | None:
    counted = call.attrs["count_include_pad"] or all(pad == 0 for pad in call.attrs["padding"])
    windows = matching.windows_of(call)
    if not counted or windows is None:
        return None
    extents = [extent for extent, *_ in windows]
    return _folded(call, call.attrs["layout"], 0.0, {"count_include_pad": True}, extents)


def _folded(
    call: Call, layout: str, fill: float | None, changed: dict[str, bool], limits: Sequence[int] = ()
) -> Expr | None:
    """Return the call with the preceding pad folded in; None if the padding reaches `limits` in a dimension."""
    pad = match_call(call.args[0], "nn.pad")
    if pad is None or fill is None:
        return None
    if pad.attrs["pad_mode"] != "constant" or scalar_of(pad.args[1]) != fill:
        return None
    widths = pad.attrs["pad_width"]
    if any(widths[axis] != (0, 0) for axis, letter in enumerate(layout) if letter in "NC"):
        return None
    name, rank = operator_of(call).name, len(layout) - 2
    more = [widths[layout.index(letter)] for letter in letters_of(rank)]
    if not all(is_static(pair) and min(pair) >= 0 for pair in more):
        return None
    own = pad_pairs(name, call.attrs["padding"], rank)
    befores, afters = ([a[side] + b[side] for a, b in zip(own, more, strict=True)] for side in (0, 1))
    if any(max(pair) >= limit for *pair, limit in zip(befores, afters, limits, strict=False)):
        return None
    args = [pad.args[0], *call.args[1:]]
    return ir.call(name, args, {**call.attrs, "padding": (*befores, *afters), **changed}, span=joined_span(pad, call))


class FoldPad(RulePass):
    """Fold ``nn.pad`` whose value is the operator's own padding value: zero, or the input's zero point."""

    _RULES: ClassVar[dict[str, Rule]] = {
        **dict.fromkeys(
            names_of(lambda called: called.layout is Layout.CONVOLUTION and not called.traits & Trait.TRANSPOSED),
            _fold_conv,
        ),
        **dict.fromkeys((f"nn.avg_pool{rank}d" for rank in (1, 2, 3)), _fold_avg_pool),
    }
