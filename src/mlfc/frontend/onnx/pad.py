"""Padding with constant widths, symbolic widths, or widths computed at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mlfc.frontend.onnx.node import Node, int64, shape_of
from mlfc.frontend.onnx.run_tables import RunTable, as_expr, counted, per_axis, placed, within
from mlfc.frontend.onnx.table import importer
from mlfc.ops.rules import TooSmallError
from mlfc.relay.ir import Expr
from mlfc.support.dims import Dim, Extent, UndecidedError, bounds, maximum

_MODES = ("constant", "edge", "reflect", "wrap")


@importer("Pad")
@importer("Pad", since=11)
def _pad(node: Node) -> Expr:
    x, rank = node.input(0), node.rank(0)
    if node.opset < 11:
        pads = int64(node, node.integers("pads"))
        node = replace(node, inputs=[x, pads, node.like(node.real("value", 0.0), x)])
    node.has_shape(node.shape(1), (2 * (prod(node.shape(3)) if node.has(3) else rank),))
    known = node.known_integers(1, "pads")
    given = node.known_integers(3, "axes") if node.has(3) else range(rank)
    value = node.reshape(node.input(2), ()) if node.has(2) else node.like(0, x)
    mode = node.string("mode", "constant")
    if known is None or given is None:
        return _padded_at_run(node, _computed_widths(node), value, mode)
    axes = [node.axis(axis, rank) for axis in given]
    if len(known) != 2 * len(axes):
        node.wrong(f"{len(known)} pads do not fit {len(axes)} axes")
    full = [0] * 2 * rank
    for position, axis in enumerate(axes):
        full[axis], full[rank + axis] = known[position], known[len(axes) + position]
    try:
        return pad(node, x, full, value, mode)
    except UndecidedError as error:
        node.undecided(error)
    widths = {
        axis: (int64(node, before), maximum(size + before + after, 0))
        for axis, (size, before, after) in enumerate(zip(node.shape(0), full[:rank], full[rank:], strict=True))
        if (before, after) != (0, 0)
    }
    return _padded_at_run(node, widths, value, mode)


def _computed_widths(node: Node) -> dict[int, tuple[Expr, Extent]]:
    """Return the runtime begin padding and the new size of each axis that a Pad may change."""
    old = node.shape(0)
    index, what = (1, "pads") if node.known_integers(1, "pads") is None else (3, "axes")
    if isinstance(prod(node.shape(1)), Dim):
        raise node.unknown(index, what)
    count = prod(node.shape(1)) // 2
    number = per_axis(node, node.optional(3), count)
    ends = [node.cut(node.input(1), 0, begin, begin + count) for begin in (0, count)]
    pads = {axis: [pad for end in ends if (pad := number(end, axis, 0)) is not None] for axis in range(len(old))}
    changed = {axis: pair for axis, pair in pads.items() if pair}
    declared: Sequence[int | None] = node.declared_along([*changed]) or [None] * len(changed)
    widths = {}
    for wanted, (axis, (before, after)) in zip(declared, changed.items(), strict=True):
        size = node.call("maximum", node.call("add", node.call("add", before, after), old[axis]), 0)
        widths[axis] = before, node.size(index, what, size, wanted)
    return widths


def _padded_at_run(node: Node, widths: dict[int, tuple[Expr, Extent]], value: Expr, mode: str) -> Expr:
    """Return input 0 padded along each axis by a gather: per axis, `widths` has the begin padding and the new size."""
    x, old = node.input(0), node.shape(0)
    if mode not in _MODES:
        node.wrong(f"mode '{mode}' is not known")
    if 0 in old:
        node.unsupported("of no elements by pads that are computed at run time is not supported")
    for axis, (before, size) in widths.items():
        if mode == "constant":
            x = placed(node, x, axis, RunTable(node, node.call("negative", before)), size, value)
            continue
        # negative pads crop; at least one element remains
        cut = node.call("maximum", node.call("negative", before), 0)
        cut_behind = node.call("maximum", node.call("subtract", before, size - old[axis]), 0)
        kept = node.call("maximum", node.call("subtract", old[axis], node.call("add", cut, cut_behind)), 1)
        at = node.call("subtract", node.counted(size), node.call("maximum", before, 0))
        if mode == "reflect":
            period = node.call("multiply", 2, node.call("subtract", kept, 1))
            at = node.call("floor_mod", at, node.call("maximum", period, 1))
            at = node.call("minimum", at, node.call("subtract", period, at))
        inside = node.call("floor_mod", at, kept) if mode == "wrap" else within(node, at, kept)
        x = node.call("take", x, within(node, node.call("add", cut, inside), int64(node, old[axis])), axis=axis)
    return x


def pad(node: Node, x: Expr, pads: Sequence[int], value: Expr, mode: str) -> Expr:
    """Return `x` padded by `pads`: all begins, then all ends; negative values crop."""
    rank = len(shape_of(x))
    if len(pads) != 2 * rank:
        node.wrong(f"{len(pads)} pads do not fit a tensor of {rank} dimensions")
    widths = list(zip(pads[:rank], pads[rank:], strict=True))
    for axis, (before, after) in enumerate(widths):
        extent = shape_of(x)[axis]
        begin, end = maximum(0, -before), extent - maximum(0, -after)
        if bounds(extent + before + after)[1] < 0 or (mode != "constant" and bounds(begin - end)[0] > 0):
            node.wrong(f"pads {tuple(pads)} cut more than dimension {axis} has")
        if bounds(extent + before + after)[0] < 0:  # negative pads may crop more elements than exist
            if isinstance(before + after, int) and isinstance(extent, Dim) and extent.symbol is not None:
                raise TooSmallError(node.operator, extent, -(before + after), "a dimension")
            left = node.call("greater_equal", int64(node, extent + before + after), 0)
            node.require(left, f"whether '{node.name}' cuts elements that there are")
        if mode == "constant" and bounds(end - begin)[0] < 0 < bounds(maximum(before, after))[1]:
            # elements cropped at one end may be padding from the other end
            x = placed(node, x, axis, -before, extent + before + after, value)
            widths[axis] = (0, 0)
        else:
            x = node.cut(x, axis, begin, end)
    widths = [(maximum(0, before), maximum(0, after)) for before, after in widths]
    if all(pair == (0, 0) for pair in widths):
        return x
    if mode == "wrap":
        for axis, (before, after) in enumerate(widths):
            extent = shape_of(x)[axis]
            if (before, after) != (0, 0):
                (steps,) = counted(node, extent + before + after)
                x = node.call("take", x, as_expr(node, (steps - before) % extent, "int32"), axis=axis)
        return x
    if mode not in _MODES:
        node.wrong(f"mode '{mode}' is not known")
    return node.call("nn.pad", x, value, pad_width=tuple(widths), pad_mode=mode)


@importer("CenterCropPad")
def _center_crop_pad(node: Node) -> Expr:
    x, rank = node.input(0), node.rank(0)
    axes = [node.axis(axis, rank) for axis in node.integers("axes", range(rank))]
    node.has_shape(node.shape(1), (len(axes),))
    sizes = node.sizes(1, "shape", node.declared_along(axes))
    if len(sizes) != len(axes) or any(bounds(size)[1] < 0 for size in sizes):
        node.wrong(f"shape {sizes} does not fit the axes {tuple(axes)}")
    pads = [0] * 2 * rank
    for axis, size in zip(axes, sizes, strict=True):
        missing = size - node.shape(0)[axis]
        # cropping removes the smaller half at the start, padding adds it there
        before = maximum(missing, 0) // 2 - maximum(-missing, 0) // 2
        pads[axis], pads[rank + axis] = before, missing - before
    return pad(node, x, pads, node.like(0, x), "constant")
