"""Reductions over axes, positions of extremes, and running sums."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, prod

import numpy as np

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels.folding import Axes, Contest, Fold, emit_arg, emit_fold, serial_loops
from mlfc.ops import rules
from mlfc.ops.elementwise import converted
from mlfc.ops.rules import accumulator, check_dtype, declare, normalized_axes, optional_dtype, same_shape
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Elements, Kind, Layout, Trait
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, Shape, maximum
from mlfc.support.tensor_info import Array
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Tensor, broadcast_read
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Expr

_REDUCE = (Attr("axis", None), Attr("keepdims", False), Attr("exclude", False))
_ARG_REDUCE = (*_REDUCE[:2], Attr("select_last_index", False), _REDUCE[2])
_VARIANCE = (*_REDUCE, Attr("unbiased", False))
_SCAN = (Attr("axis", None), Attr("dtype", None), Attr("exclusive", None))
_IN_ANY_ORDER: Mapping[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "all": np.logical_and, "any": np.logical_or,
}  # fmt: skip
# reductions that are defined for zero elements
_OF_NOTHING = ("sum", "mean", "prod", "all", "any")


def axes_of(name: str, shape: Shape, attrs: Attrs) -> Axes:
    """Return the axes of the attribute `axis`."""
    folded = normalized_axes(name, attrs["axis"], len(shape), exclude=bool(attrs["exclude"]))
    return Axes(shape, folded, bool(attrs["keepdims"]))


def reduced_shape(axes: Axes) -> Shape:
    """Return the shape of the results."""
    if axes.keepdims:
        return tuple(1 if axis in axes.folded_axes else extent for axis, extent in enumerate(axes.shape))
    return tuple(extent for axis, extent in enumerate(axes.shape) if axis not in axes.folded_axes)


def _infer_reduce(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    if (data.dtype == "bool") != (name in ("all", "any")):
        raise TypeCheckError(f"{name} does not take {data.dtype}")
    axes = axes_of(name, data.shape, attrs)
    kind = TensorType(reduced_shape(axes), "int32" if name in ("argmax", "argmin") else data.dtype)
    if axes.count == 0 and 0 not in kind.shape and name not in _OF_NOTHING:
        raise TypeCheckError(f"{name} is undefined for an empty tensor (shape {data.shape})")
    return kind


def _infer_variance(name: str, attrs: Attrs, data: TensorType, mean: TensorType) -> TensorType:
    axes = axes_of(name, data.shape, attrs)
    if mean.dtype != data.dtype or not dtypes.is_float(data.dtype):
        raise TypeCheckError(f"{name} takes two float tensors of one dtype, not {data.dtype} and {mean.dtype}")
    wanted = reduced_shape(Axes(data.shape, axes.folded_axes, keepdims=True))
    if data.is_static and mean.shape != wanted:
        raise TypeCheckError(f"{name}: the mean of shape {mean.shape} does not belong to data of {data.shape}")
    same_shape(name, mean.shape, wanted, "shapes of means")
    return TensorType(reduced_shape(axes), data.dtype)


def lowest(dtype: str) -> float:
    """Return a lower bound of all values of `dtype`."""
    return -inf if dtypes.is_float(dtype) else dtypes.limits(dtype)[0]


def highest(dtype: str) -> float:
    """Return an upper bound of all values of `dtype`."""
    return inf if dtypes.is_float(dtype) else dtypes.limits(dtype)[1]


def _divided(count: Extent, dtype: str) -> Callable[[Expr], Expr]:
    if dtypes.is_float(dtype):
        return lambda total: total / count
    if not isinstance(count, Dim):
        return lambda total: tb.binary("truncdiv", total, tb.const(count, dtype))
    wide = dtype if dtypes.bits(dtype) >= 32 else "int32"  # the count may exceed the range of the dtype
    return lambda total: tb.cast(tb.binary("truncdiv", tb.cast(total, wide), tb.cast(as_index(count), wide)), dtype)


def _extreme(op: str) -> Callable[[Expr, Expr], Expr]:
    """Return the step that computes the larger ("gt") or smaller ("lt") of two; NaN if either is NaN."""

    def step(best: Expr, element: Expr) -> Expr:
        if not dtypes.is_float(best.dtype):
            return tb.maximum(best, element) if op == "gt" else tb.minimum(best, element)
        wins = tb.binary("lor", tb.binary(op, element, best), tb.binary("ne", element, element))
        return tb.select(wins, element, best)

    return step


def wins_by(op: str, dtype: str, *, nan_wins: bool = True) -> Callable[[Expr, Expr], Expr]:
    """Return the test that an element beats the best so far: by `op`; NaN beats every number, or none."""
    if not dtypes.is_float(dtype):
        return lambda element, best: tb.binary(op, element, best)
    if op in ("ge", "le"):  # finds the last NaN
        return lambda element, best: tb.binary("lor", tb.binary(op, element, best), tb.binary("ne", element, element))
    loses = "le" if op == "gt" else "ge"  # finds the first NaN

    def wins(element: Expr, best: Expr) -> Expr:
        known = best if nan_wins else element
        return tb.land(tb.binary("eq", tb.binary(loses, element, best), False), tb.binary("eq", known, known))

    return wins


def _wrapping(
    dtype: str,
    neutral: int = 0,
    step: Callable[[Expr, Expr], Expr] = operator.add,
    finish: Callable[[Expr], Expr] = lambda total: total,
) -> Fold:
    """Return the fold of a sum or product; integers wrap modulo the width of their dtype."""
    if dtype in ("int32", "int64"):
        # GCC 12 drops elements of narrow dtypes added to signed accumulators unless it can prove that they do not wrap
        wide = f"u{dtype}"
        return Fold(wide, neutral, lambda a, b: step(a, tb.cast(b, wide)), lambda total: finish(tb.cast(total, dtype)))
    return Fold(dtype, neutral, step, finish, rounds=dtypes.is_float(dtype) and neutral == 0)


def _fold(name: str, dtype: str, count: int) -> Fold:
    """Return the fold of `count` elements of `dtype` for the operator `name`."""
    wide = accumulator(dtype)
    if name == "sum":
        return _wrapping(wide)
    if name == "mean":
        wide = "int64" if dtypes.is_integer(dtype) and dtypes.bits(dtype) < 64 else wide  # so that no sum overflows
        return _wrapping(wide, finish=_divided(maximum(count, 1), wide))  # the mean of no elements is 0
    if name == "prod":
        return _wrapping(wide, 1, operator.mul)
    if name == "max":
        return Fold(dtype, lowest(dtype), _extreme("gt"), lambda best: best)
    if name == "min":
        return Fold(dtype, highest(dtype), _extreme("lt"), lambda best: best)
    op, neutral = ("land", True) if name == "all" else ("lor", False)
    return Fold("bool", neutral, lambda a, b: tb.binary(op, a, b), lambda found: found)


def _reduce_constants(name: str, attrs: Attrs, kind: TensorType, data: Array) -> Array | None:
    """Fold integer constants; the order does not matter, as sums and products wrap."""
    if name not in _IN_ANY_ORDER or (data.dtype.kind not in "iub") or dtypes.from_numpy(data.dtype) != kind.dtype:
        return None
    axes, folding = axes_of(name, data.shape, attrs), _IN_ANY_ORDER[name]
    if folding.identity is None and not axes.count:
        return None
    return np.asarray(folding.reduce(data, axis=axes.folded_axes, dtype=data.dtype)).reshape(kind.shape)


def _emit_reduce(name: str, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    (data,) = inputs
    axes = axes_of(name, data.shape, attrs)
    emit_fold(ctx, data.read, axes, _fold(name, data.dtype, axes.count), out)


def _emit_variance(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    data, mean = inputs
    axes = axes_of("variance", data.shape, attrs)
    wide = accumulator(data.dtype)

    def squared_distance(indices: Indices) -> Expr:
        difference = tb.cast(data.read(indices) - broadcast_read(mean, indices), wide)
        return difference * difference

    divisor = axes.count - 1 if attrs["unbiased"] else axes.count
    emit_fold(ctx, squared_distance, axes, _wrapping(wide, finish=_divided(divisor, wide)), out)


def _emit_arg(name: str, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    (data,) = inputs
    strict, loose, worst = ("gt", "ge", lowest) if name == "argmax" else ("lt", "le", highest)
    wins = wins_by(loose if attrs["select_last_index"] else strict, data.dtype)
    contest = Contest(data.dtype, worst(data.dtype), wins)
    emit_arg(ctx, data.read, axes_of(name, data.shape, attrs), contest, out)


def _infer_require(name: str, _: Attrs, flag: TensorType) -> TensorType:
    if flag.dtype != "bool" or flag.shape:
        raise TypeCheckError(f"{name}: expected a bool scalar, got {flag}")
    return flag


def _emit_require(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    if ctx.features.gpu:
        raise UnsupportedError("device code cannot check runtime values")
    holds = ctx.stmts.local("holds", (1,), "bool")
    ctx.stmts.store(holds, [0], inputs[0].read([]))
    ctx.stmts.require(holds, "a value contradicts a shape that the model declares")
    out.store([], tb.load(holds, [0]))


def _infer_scan(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    dtype = optional_dtype(attrs["dtype"], data.dtype)
    check_dtype(name, dtype, "number")
    if attrs["axis"] is None:
        return TensorType((prod(data.shape),), dtype)
    rules.normalized_axis(name, attrs["axis"], len(data.shape))
    return TensorType(data.shape, dtype)


def _emit_scan(name: str, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    data, stmts = inputs[0], ctx.stmts
    axis = None if attrs["axis"] is None else attrs["axis"] % len(data.shape)
    running = range(len(data.shape)) if axis is None else (axis,)
    others = [extent for index, extent in enumerate(data.shape) if index not in running]
    with serial_loops(ctx, others, "i") as kept:
        total = stmts.filled("total", 1, out.dtype, tb.const(0 if name == "cumsum" else 1, out.dtype))
        with serial_loops(ctx, [data.shape[index] for index in running], "r") as steps:
            rest, turn = iter(kept), iter(steps)
            indices = [next(turn) if index in running else next(rest) for index in range(len(data.shape))]
            place = indices if axis is not None else [tb.const(0)]
            for index, extent in zip(indices if axis is None else (), data.shape, strict=False):
                place = [place[0] * extent + index]
            before = stmts.let("before", tb.load(total, [0]))
            element = converted(data.read(indices), out.dtype)
            after = stmts.let("after", before + element if name == "cumsum" else before * element)
            stmts.store(total, [0], after)
            out.store(place, before if attrs["exclusive"] else after)


_ELEMENTS = {"max": Elements.EXTREME, "min": Elements.EXTREME, "mean": Elements.AVERAGED}
_CLOSE = "relative error below 4e-6 of the sum of magnitudes"
for _name, _doc in (
    ("sum", "Sum over axes."),
    ("mean", "Arithmetic mean over axes; integers are divided towards zero."),
    ("prod", "Product over axes."),
    ("max", "Largest element over axes; NaN if any is."),
    ("min", "Smallest element over axes; NaN if any is."),
    ("all", "Logical AND over axes."),
    ("any", "Logical OR over axes."),
):
    declare(_name, 1, _infer_reduce, Kind.REDUCE, _REDUCE, emit=partial(_emit_reduce, _name), traits=Trait.READS_ONCE,
            elements=_ELEMENTS.get(_name, Elements.COMPUTED),
            of_constants=partial(_reduce_constants, _name),
            contract=_CLOSE if _name in ("sum", "mean") else "exact", doc=_doc)  # fmt: skip
for _name, _which in (("argmax", "largest"), ("argmin", "smallest")):
    _doc = f"Position of the {_which} element over axes; the first one unless select_last_index; NaN beats all numbers."
    declare(_name, 1, _infer_reduce, Kind.REDUCE, _ARG_REDUCE, emit=partial(_emit_arg, _name), doc=_doc,
            traits=Trait.READS_ONCE | Trait.POSITION)  # fmt: skip
for _name, _doc in (("cumsum", "Running sum along an axis."), ("cumprod", "Running product along an axis.")):
    declare(_name, 1, _infer_scan, Kind.REDUCE, _SCAN, emit=partial(_emit_scan, _name), layout=Layout.AXIS, doc=_doc)
declare("require", 1, _infer_require, Kind.REDUCE, emit=_emit_require, traits=Trait.NOT_IN_TVM,
        doc="A bool that must be true; otherwise execution fails")  # fmt: skip
declare("variance", 2, _infer_variance, Kind.REDUCE, _VARIANCE, emit=_emit_variance, contract=_CLOSE,
        doc="Mean squared distance from a given mean over axes.")  # fmt: skip
