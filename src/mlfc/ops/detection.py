"""Greedy non-maximum suppression of boxes that overlap better ones."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import check_dtype, declare, scalar
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support import dtypes
from mlfc.support.dims import maximum, minimum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Buffer, Expr

_LOWEST = float("-inf")


def _infer(
    name: str, attrs: Attrs, boxes: TensorType, scores: TensorType, most: TensorType, *limits: TensorType
) -> TensorType:
    """Check boxes (batch, boxes, 4), scores (batch, classes, boxes) and three scalars; the result has `rows` rows."""
    for kind in (boxes, scores, *limits):
        check_dtype(name, kind.dtype, "float")
    check_dtype(name, most.dtype, "integer")
    if any(kind.size != 1 for kind in (most, *limits)):
        raise TypeCheckError(f"{name}: the maximum number of boxes and the thresholds must be scalars")
    fits = len(boxes.shape) == len(scores.shape) == 3 and boxes.dtype == scores.dtype
    if not fits or boxes.shape != (scores.shape[0], scores.shape[2], 4):
        raise TypeCheckError(f"{name}: boxes {boxes} and scores {scores} do not fit")
    if attrs["rows"] < 0:
        raise TypeCheckError(f"{name}: the result cannot have {attrs['rows']} rows")
    return TensorType((attrs["rows"], 3), "int64")


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    """Select the best remaining box and suppress those that overlap it, until none remains."""
    boxes, scores, most, overlap, lowest = inputs
    stmts, rows = ctx.stmts, out.shape[0]
    batches, classes, count = scores.shape
    found = ctx.scratch("found", (maximum(rows, 1), 3), "int64")
    left = ctx.scratch("left", (maximum(count, 1),), "bool")
    row = stmts.filled("row", 1, "int32")
    with ctx.loops((rows, 3), "clear") as at:
        stmts.store(found, at, -1)
    low, high = dtypes.limits(most.dtype)
    limited = tb.minimum(scalar(most), minimum(count, int(high)))
    wanted = stmts.let("wanted", tb.cast(limited if low == 0 else tb.maximum(limited, 0), "int32"))
    limit = stmts.let("limit", tb.cast(scalar(overlap), _wide(boxes)))
    threshold = stmts.let("threshold", tb.cast(scalar(lowest), scores.dtype))
    with stmts.loop(batches, "batch") as batch, stmts.loop(classes, "label") as label:
        with stmts.loop(count, "box") as box:
            score = stmts.let("score", scores(batch, label, box))
            unlimited = tb.binary("eq", threshold, tb.const(_LOWEST, threshold.dtype))
            passes = tb.binary("lor", tb.binary("gt", score, threshold), unlimited)
            # NaN is equal to nothing, so a box with this score is never selected
            stmts.store(left, [box], tb.land(passes, tb.binary("eq", score, score)))
        with stmts.loop(wanted, "turn"):
            # the remaining box with the highest score, the first if several are equal; -1 if none remains
            found_box, found_score = stmts.local("best", (1,), "int32"), stmts.local("best_score", (1,), scores.dtype)
            stmts.store(found_box, [0], -1)
            stmts.store(found_score, [0], _LOWEST)
            with stmts.loop(count, "box") as box, stmts.when(tb.load(left, [box])):
                own = stmts.let("own", scores(batch, label, box))
                is_first = tb.binary("lt", tb.load(found_box, [0]), 0)
                with stmts.when(tb.binary("lor", is_first, tb.binary("gt", own, tb.load(found_score, [0])))):
                    stmts.store(found_box, [0], box)
                    stmts.store(found_score, [0], own)
            best = stmts.let("best_box", tb.load(found_box, [0]))
            with stmts.when(tb.binary("ge", best, 0)):
                chosen = stmts.let("chosen", tb.clamp(best, 0, count - 1))
                place = stmts.let("place", tb.load(row, [0]))
                with stmts.when(tb.binary("lt", place, rows)):
                    inside = stmts.let("inside", tb.clamp(place, 0, maximum(rows, 1) - 1))
                    for column, value in enumerate((batch, label, chosen)):
                        stmts.store(found, [inside, column], tb.cast(value, "int64"))
                    stmts.store(row, [0], place + 1)
                stmts.store(left, [chosen], False)
                _strike_out(ctx, boxes, left, batch, chosen, limit, centred=bool(attrs["center_point_box"]))
    with ctx.loops(out.shape, "o") as at:
        out.store(at, tb.load(found, at))


def _wide(boxes: Tensor) -> str:
    return "float64" if boxes.dtype == "float64" else "float32"


def _strike_out(
    ctx: Context, boxes: Tensor, left: Buffer, batch: Expr, chosen: Expr, limit: Expr, *, centred: bool
) -> None:
    """Suppress the boxes whose intersection over union with the chosen box exceeds `limit`."""
    stmts = ctx.stmts
    own = _edges(ctx, boxes, batch, chosen, centred=centred)
    with stmts.loop(boxes.shape[1], "box") as box, stmts.when(tb.load(left, [box])):
        other = _edges(ctx, boxes, batch, box, centred=centred)
        sides = [
            stmts.let("common", tb.minimum(own[axis][1], other[axis][1]) - tb.maximum(own[axis][0], other[axis][0]))
            for axis in range(2)
        ]
        both = stmts.let("both", sides[0] * sides[1])
        areas = [stmts.let("area", (y[1] - y[0]) * (x[1] - x[0])) for y, x in (own, other)]
        union = stmts.let("union", areas[0] + areas[1] - both)
        zero = tb.const(0, both.dtype)
        positive = [tb.binary("gt", value, zero) for value in (*sides, both, *areas, union)]
        share = tb.binary("div", both, union)
        with stmts.when(tb.land(*positive)), stmts.when(tb.binary("gt", share, limit)):
            stmts.store(left, [box], False)


def _edges(ctx: Context, boxes: Tensor, batch: Expr, box: Expr, *, centred: bool) -> list[tuple[Expr, Expr]]:
    """Return the lower and the upper edge along both axes."""
    a, b, c, d = (ctx.stmts.let("edge", tb.cast(boxes(batch, box, k), _wide(boxes))) for k in range(4))
    let = ctx.stmts.let
    if centred:
        half = tb.const(0.5, _wide(boxes))
        pairs = [(b - d * half, b + d * half), (a - c * half, a + c * half)]
    else:
        pairs = [(tb.minimum(a, c), tb.maximum(a, c)), (tb.minimum(b, d), tb.maximum(b, d))]
    return [(let("low", low), let("high", high)) for low, high in pairs]


declare("vision.select_boxes", 5, _infer, Kind.ANCHOR, (Attr("rows", REQUIRED), Attr("center_point_box", False)),
        emit=_emit, traits=Trait.NOT_IN_TVM,
        contract="exact up to the rounding of areas; rows without a box are -1, boxes without a row are left out",
        note="rows without a box are -1, boxes without a row are left out",
        doc="Batch, class and index of the boxes with the best scores that do not overlap better ones")  # fmt: skip
