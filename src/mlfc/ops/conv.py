"""Convolutions and transposed convolutions, dense layers, matrix products and determinants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.folding import serial_loops
from mlfc.kernels.templates import Conv, Product
from mlfc.ops.rules import broadcast_shape, check_dtype, declare, optional_dtype, same_extent
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support.dims import Dim, bounds, is_static
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor


def _attrs(rank: int, *, transposed: bool) -> tuple[Attr, ...]:
    """Return the attributes of a convolution over `rank` spatial dimensions."""
    letters, groups = letters_of(rank), Attr("groups", 1)
    sizes = Attr("channels", None), Attr("kernel_size", None)
    strides, dilation = Attr("strides", (1,) * rank), Attr("dilation", (1,) * rank)
    if transposed:
        pads = Attr("output_padding", (0,) * rank), Attr("padding", (0,) * rank)
        numbers: tuple[Attr, ...] = (*sizes, strides, *pads, dilation, groups)
    else:
        numbers = (strides, Attr("padding", (0,) * max(rank, 2)), dilation, groups, *sizes)
    layouts = Attr("data_layout", f"NC{letters}"), Attr("kernel_layout", f"{'IO' if transposed else 'OI'}{letters}")
    return (*numbers, *layouts, Attr("out_layout", ""), Attr("out_dtype", None))


def named_sizes(name: str, what: str, shape: Sequence[int], layout: str, letters: str) -> dict[str, int]:
    """Return the extent of each letter of `layout`, which must be a permutation of `letters`."""
    if sorted(layout) != sorted(letters):
        raise TypeCheckError(f"{name}: {what} layout '{layout}' is not a permutation of {letters}")
    if len(shape) != len(letters):
        raise TypeCheckError(f"{name}: the {what} must have {len(letters)} dimensions, not {len(shape)}")
    return dict(zip(layout, shape, strict=True))


def per_dimension(name: str, what: str, value: Any, rank: int, low: int = 1) -> tuple[Any, ...]:
    """Return one integer per spatial dimension from an integer or a sequence of 1 or `rank` integers."""
    given = (value,) if isinstance(value, (int, Dim)) else tuple(value)
    given = given * rank if len(given) == 1 else given
    if len(given) != rank or any(not isinstance(item, (int, Dim)) or bounds(item)[1] < low for item in given):
        raise TypeCheckError(f"{name}: {what} {value} must be {rank} integers of at least {low}")
    return given


def pad_pairs(name: str, value: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """Return (before, after) per dimension from 1, `rank` or 2 * `rank` values (all befores first)."""
    given = (value,) if isinstance(value, int) else tuple(value)
    if len(given) == 2 * rank:
        before, after = (per_dimension(name, "padding", half, rank, 0) for half in (given[:rank], given[rank:]))
        return tuple(zip(before, after, strict=True))
    return tuple((item, item) for item in per_dimension(name, "padding", given, rank, 0))


def letters_of(rank: int) -> str:
    """Return the letters of the spatial dimensions."""
    return "DHW"[-rank:]


def is_depthwise_hwoi(attrs: Attrs, channels: int) -> bool:
    """Tell whether the kernel is TFLite's depthwise form: O counts input channels, I the multiplier."""
    return bool(attrs["groups"] == channels and channels > 1 and attrs["kernel_layout"].endswith("OI"))


def _sizes(name: str, data: TensorType, weight: TensorType, attrs: Attrs) -> tuple[str, dict[str, int], dict[str, int]]:
    """Return the letters of the spatial dimensions, and the sizes of data and kernel by letter."""
    letters = letters_of(len(data.shape) - 2)
    sizes = named_sizes(name, "data", data.shape, attrs["data_layout"], f"NC{letters}")
    kernel = named_sizes(name, "kernel", weight.shape, attrs["kernel_layout"], f"OI{letters}")
    groups, channels = attrs["groups"], sizes["C"]
    if isinstance(channels, Dim) and isinstance(groups, int):
        taken = kernel["I"] * (1 if attrs["kernel_layout"].startswith("I") else groups)
        own = kernel["O"] if attrs["kernel_layout"].endswith("OI") and groups > 1 else taken
        same_extent(name, channels, own, "channels of the data and of the kernel")
    if not isinstance(groups, int) or groups < 1 or channels % groups:
        raise TypeCheckError(f"{name}: {channels} input channels cannot be split into {groups} groups")
    return letters, sizes, kernel


def conv_geometry(name: str, data: TensorType, weight: TensorType, attrs: Attrs, *, transposed: bool = False) -> Conv:
    """Return the sizes of a convolution; raise TypeCheckError if types and attributes are incompatible.

    The sizes of a transposed convolution are those of the forward convolution that it transposes: its `spatial` is this
    operator's result and its `output` this operator's data; `channels` and `filters` are this operator's output and
    input channels.
    """
    letters, sizes, kernel = _sizes(name, data, weight, attrs)
    rank, groups, channels = len(letters), attrs["groups"], sizes["C"]
    filters = kernel["O"]
    if transposed:
        if kernel["I"] != channels:
            raise TypeCheckError(f"{name}: the kernel has {kernel['I']} input channels, the data has {channels}")
        filters *= groups
    elif is_depthwise_hwoi(attrs, channels):
        filters *= kernel["I"]
    elif kernel["I"] != channels // groups:
        raise TypeCheckError(
            f"{name}: the kernel has {kernel['I']} input channels per group, the data has {channels // groups}"
        )
    if filters % groups:
        raise TypeCheckError(f"{name}: {filters} output channels cannot be split into {groups} groups")
    taps, declared = tuple(kernel[letter] for letter in letters), attrs["kernel_size"]
    if attrs["channels"] not in (None, filters):
        raise TypeCheckError(f"{name}: channels={attrs['channels']}, but the kernel makes {filters}")
    if declared is not None and per_dimension(name, "kernel_size", declared, rank) != taps:
        raise TypeCheckError(f"{name}: kernel_size={declared}, but the kernel has {taps}")
    strides, dilation = (per_dimension(name, what, attrs[what], rank) for what in ("strides", "dilation"))
    pads = pad_pairs(name, attrs["padding"], rank)
    spatial = tuple(sizes[letter] for letter in letters)
    if transposed:
        spatial = _transposed_spatial(name, attrs, spatial, [taps, strides, dilation, pads])
        return Conv(sizes["N"], spatial, filters, channels, taps, strides, dilation, pads, groups)
    conv = Conv(sizes["N"], spatial, channels, filters, taps, strides, dilation, pads, groups)
    if any(bounds(extent)[1] < 1 for extent in conv.output):
        raise TypeCheckError(f"{name}: the kernel of extent {conv.extents} does not fit the data of {conv.spatial}")
    return conv


def _transposed_spatial(
    name: str, attrs: Attrs, data: Sequence[int], window: Sequence[Sequence[Any]]
) -> tuple[int, ...]:
    """Return the spatial shape of the result; `window` is taps, strides, dilations and paddings."""
    _, strides, dilation, pads = window
    if any(not is_static(pair) for pair in pads):
        raise UnsupportedError(f"{name}: expected static padding, got {pads}")
    extra = per_dimension(name, "output_padding", attrs["output_padding"], len(data), 0)
    if any(more >= max(stride, step) for more, stride, step in zip(extra, strides, dilation, strict=True)):
        raise TypeCheckError(f"{name}: output_padding {extra} must be smaller than the strides {strides}")
    spatial = tuple(
        (size - 1) * stride - sum(pad) + (taps - 1) * step + 1 + more
        for size, taps, stride, step, pad, more in zip(data, *window, extra, strict=True)
    )
    if any(bounds(extent)[1] < 1 for extent in spatial):
        raise TypeCheckError(f"{name}: the padding {pads} leaves an empty result")
    return spatial


Zeros: TypeAlias = "tuple[int, int | npt.NDArray[np.int32]]"
# (name, attributes, types of all arguments, output channels) -> dtype of the result
OperandRule = Callable[[str, Attrs, Sequence[TensorType], int], str]
ZerosRule = Callable[[str, Sequence[Tensor]], Zeros]

FLOAT_CONTRACT = "sum of products in a fixed order of its own; within K units of the last place of the absolute sum"


def like_operands(name: str, attrs: Attrs, types: Sequence[TensorType], _: int) -> str:
    """Return the result's dtype for data and weights, which must have the same dtype."""
    data, weight = types[:2]
    if data.dtype != weight.dtype:
        raise TypeCheckError(f"{name}: expected data and weights of one dtype, got {data.dtype} and {weight.dtype}")
    check_dtype(name, data.dtype, "number")
    return optional_dtype(attrs["out_dtype"], data.dtype)


def no_zeros(_name: str, _inputs: Sequence[Tensor]) -> Zeros:
    """Return the zero points of operands that are not quantized."""
    return (0, 0)


def declare_conv(
    name: str,
    rank: int,
    doc: str,
    *,
    transposed: bool = False,
    num_inputs: int = 2,
    check: OperandRule = like_operands,
    zeros: ZerosRule = no_zeros,
    before: Callable[..., None] = lambda *_: None,
    contract: str = FLOAT_CONTRACT,
    **rest: Any,
) -> None:
    """Register a convolution over `rank` dimensions, or the transpose of one.

    `before` checks ``(name, attributes, *types)`` before sizes are compared. `rest` are other fields of
    `mlfc.relay.op.Operator`, or replace them.
    """
    geometry = partial(conv_geometry, transposed=transposed)

    def infer(_: str, attrs: Attrs, *types: TensorType) -> TensorType:
        before(name, attrs, *types)
        if len(types[0].shape) != rank + 2:
            raise TypeCheckError(f"{name}: expected data of {rank + 2} dimensions, got {len(types[0].shape)}")
        conv = geometry(name, types[0], types[1], attrs)
        channels, spatial = (conv.channels, conv.spatial) if transposed else (conv.filters, conv.output)
        dtype, layout = check(name, attrs, types, channels), attrs["out_layout"] or attrs["data_layout"]
        letters = letters_of(rank)
        if sorted(layout) != sorted(f"NC{letters}"):
            raise TypeCheckError(f"out_layout '{layout}' is not a permutation of NC{letters}")
        sizes = {"N": conv.batch, "C": channels, **dict(zip(letters, spatial, strict=True))}
        return TensorType(tuple(sizes[letter] for letter in layout), dtype)

    def emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
        check_channels_last(name, attrs, rank)
        data, weight = inputs[:2]
        value = np.arange(prod(weight.shape)).reshape(weight.shape) if weight.value is None else weight.value
        conv = geometry(name, TensorType(data.shape, data.dtype), TensorType(weight.shape, weight.dtype), attrs)
        values = value.transpose(_order(attrs, "IO")) if transposed else ordered_weights(value, attrs, conv)
        data_zero, zero = zeros(name, inputs)
        if weight.value is None and not isinstance(zero, int):
            raise UnsupportedError(
                f"{name} with one zero point per filter requires weights that are known at compile time",
                next_step="Make the weights initializers of the model, or quantize them with one zero point",
            )
        weights = templates.Weights(values, data_zero, zero, weight if weight.value is None else None)
        write = templates.transposed if transposed else templates.convolution
        write(ctx, conv, data.in_memory(ctx), weights, out)

    def macs(types: Sequence[TensorType], attrs: Attrs, _: TensorType) -> Any:
        return geometry(name, types[0], types[1], attrs).macs

    def windows(types: Sequence[TensorType], attrs: Attrs) -> list[tuple[int, int, int, int]]:
        conv = geometry(name, types[0], types[1], attrs)
        sizes = zip(conv.extents, conv.strides, conv.padding, strict=True)
        return [(extent, stride, *pads) for extent, stride, pads in sizes]

    def filters(types: Sequence[TensorType], attrs: Attrs) -> tuple[int, tuple[int, ...]]:
        layout, channels = attrs["kernel_layout"], types[0].shape[attrs["data_layout"].index("C")]
        letters = "OI" if is_depthwise_hwoi(attrs, channels) else "O"
        axes = () if transposed and attrs["groups"] != 1 else tuple(map(layout.index, letters))
        return (attrs["out_layout"] or attrs["data_layout"]).index("C"), axes

    about: dict[str, Any] = {"traits": Trait.TRANSPOSED} if transposed else {"windows": windows}
    declare(name, num_inputs, infer, Kind.ANCHOR, _attrs(rank, transposed=transposed), takes_bias=True, macs=macs,
            slides=True, filters=filters, contract=contract, doc=doc, **{"emit": emit, **about, **rest})  # fmt: skip


def check_channels_last(name: str, attrs: Attrs, rank: int) -> None:
    """Refuse layouts other than channels last, which the loops require."""
    expected = f"N{letters_of(rank)}C"
    if attrs["data_layout"] != expected or attrs["out_layout"] not in ("", expected):
        raise UnsupportedError(
            f"{name}: expected the layout {expected}, got {attrs['data_layout']}",
            next_step="Run the pass ConvertLayout first",
        )


def ordered_weights(weight: Any, attrs: Attrs, conv: Conv) -> Any:
    """Return the weights as (kernel..., group channels, filters), filters of one group together."""
    if is_depthwise_hwoi(attrs, conv.channels):
        return weight.transpose(_order(attrs, "OI")).reshape(*conv.kernel, 1, conv.filters)
    return weight.transpose(_order(attrs, "IO"))


def _order(attrs: Attrs, last: str) -> list[int]:
    layout = attrs["kernel_layout"]
    return [layout.index(letter) for letter in f"{letters_of(len(layout) - 2)}{last}"]


for _rank in (1, 2, 3):
    _dimensions = f"{_rank} dimension{'s' * (_rank > 1)}"
    _doc = f"Convolution over {_dimensions}, with stride, dilation, padding and groups."
    declare_conv(f"nn.conv{_rank}d", _rank, _doc)
    declare_conv(f"nn.conv{_rank}d_transpose", _rank, f"Transposed convolution over {_dimensions}.", transposed=True)


_DENSE_ATTRS = (Attr("units", REQUIRED), Attr("out_dtype", None))
_TRANSPOSE = (Attr("transpose_a", False), Attr("transpose_b", False))


def _product_sizes(name: str, a: Sequence[int], b: Sequence[int], transpose_a: bool, transpose_b: bool) -> Product:
    """Return the sizes of the product over the last two axes; raise TypeCheckError where they do not fit."""
    if len(a) < 1 or len(b) < 2 or (transpose_a and len(a) < 2):
        raise TypeCheckError(f"{name}: {tuple(a)} and {tuple(b)} are not matrices")
    first = a[-2:] if len(a) > 1 else (1, *a)
    rows, inner = (first[1], first[0]) if transpose_a else (first[0], first[1])
    columns, reduction = (b[-2], b[-1]) if transpose_b else (b[-1], b[-2])
    if isinstance(inner, Dim) or isinstance(reduction, Dim):
        same_extent(name, inner, reduction, "columns of the data and rows of the weights")
    elif inner != reduction:
        raise TypeCheckError(f"{name}: the data has {inner} columns, the weights take {reduction}")
    return Product(rows, inner, columns, transpose_a, transpose_b)


def _infer_dense(name: str, attrs: Attrs, data: TensorType, weight: TensorType) -> tuple[int, ...]:
    """Return the shape of a dense layer or of a product with one matrix of weights."""
    if len(weight.shape) != 2:
        raise TypeCheckError(f"{name}: expected weights of 2 dimensions, got {len(weight.shape)}")
    transpose_a, transpose_b = attrs.get("transpose_a", False), attrs.get("transpose_b", True)
    sizes = _product_sizes(name, data.shape, weight.shape, transpose_a, transpose_b)
    if attrs["units"] not in (None, sizes.columns):
        raise TypeCheckError(f"{name}: units={attrs['units']}, but the weights make {sizes.columns}")
    leading = data.shape[:-1] if not transpose_a else (*data.shape[:-2], sizes.rows)
    return (*leading, sizes.columns)


def _infer_batch(name: str, attrs: Attrs, a: TensorType, b: TensorType) -> tuple[int, ...]:
    """Return the shape of a batch of matrix products; a batch of one is broadcast."""
    if len(a.shape) != 3 or len(b.shape) != 3:
        raise TypeCheckError(f"{name}: expected operands of 3 dimensions, got {len(a.shape)} and {len(b.shape)}")
    sizes = _product_sizes(name, a.shape, b.shape, attrs["transpose_a"], attrs["transpose_b"])
    (batch,) = broadcast_shape(name, a.shape[:1], b.shape[:1])
    return (batch, sizes.rows, sizes.columns)


def declare_product(
    name: str,
    doc: str,
    *,
    batched: bool = False,
    num_inputs: int = 2,
    attrs: tuple[Attr, ...] = _DENSE_ATTRS,
    check: OperandRule = like_operands,
    zeros: ZerosRule = no_zeros,
    before: Callable[..., None] = lambda *_: None,
    contract: str = FLOAT_CONTRACT,
    **rest: Any,
) -> None:
    """Register a dense layer or a batch of matrix products; `rest` are other fields of `Operator`, or replace them."""
    shape_of = _infer_batch if batched else _infer_dense

    def infer(_: str, given: Attrs, *types: TensorType) -> TensorType:
        before(name, given, *types)
        shape = shape_of(name, given, types[0], types[1])
        return TensorType(shape, check(name, given, types, shape[-1]))

    def emit(ctx: Context, inputs: Sequence[Tensor], given: Attrs, out: Output) -> None:
        """Write a product: packed if one constant matrix is used for all rows, else as a product of two tensors."""
        transpose, (a, b) = (given.get("transpose_a", False), given.get("transpose_b", True)), inputs[:2]
        data_zero, weight_zero = zeros(name, inputs)
        if b.value is not None and not transpose[0] and (not batched or b.shape[0] == 1):
            matrix = b.value[0] if batched else b.value
            weights = templates.Weights(matrix.T if transpose[1] else matrix, data_zero, weight_zero)
            templates.dense(ctx, a.in_memory(ctx), weights, out)
            return
        if not isinstance(weight_zero, int):
            raise UnsupportedError(
                f"{name}: a product of two computed tensors requires one zero point, got one per column"
            )
        sizes = _product_sizes(name, a.shape, b.shape, *transpose)
        templates.emit("product", ctx, replace(sizes, a_zero=data_zero, b_zero=weight_zero), a, b, out)

    def macs(types: Sequence[TensorType], given: Attrs, out: TensorType) -> Any:
        return out.size * types[0].shape[-2 if given.get("transpose_a", False) else -1]

    declare(name, num_inputs, infer, Kind.ANCHOR, attrs, takes_bias=True, macs=macs, contract=contract, doc=doc,
            **{"emit": emit, **rest})  # fmt: skip


def dense_filters(types: Sequence[TensorType], _: Attrs) -> tuple[int, tuple[int, ...]]:
    """Return the axes of the result and of the weights that count output channels, as `Operator.filters`."""
    return len(types[0].shape) - 1, (0,)


BATCH_ATTRS = (Attr("out_dtype", None), *_TRANSPOSE)
declare_product("nn.dense", "Rows of data times the transpose of weights (units, in).", filters=dense_filters)
declare_product("nn.matmul", "Matrix product, either operand transposed.", attrs=(*_DENSE_ATTRS, *_TRANSPOSE))
declare_product("nn.batch_matmul", "Matrix product of each pair of a batch.", batched=True, attrs=BATCH_ATTRS)


def _infer(name: str, _: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "float")
    if len(data.shape) < 2:
        raise TypeCheckError(f"{name}: expected square matrices, got the shape {data.shape}")
    same_extent(name, data.shape[-2], data.shape[-1], "rows and columns of square matrices")
    return TensorType(data.shape[:-2], data.dtype)


def _emit(ctx: Context, inputs: Sequence[Tensor], _: Attrs, out: Output) -> None:
    """Triangularize each matrix with partial pivoting, and multiply the diagonal."""
    (data,) = inputs
    stmts, size = ctx.stmts, data.shape[-1]
    dtype = "float64" if data.dtype == "float64" else "float32"
    matrix = ctx.scratch("matrix", (max(size, 1), max(size, 1)), dtype)
    product = stmts.local("product", (1,), dtype)
    with serial_loops(ctx, out.shape, "i") as at:
        stmts.store(product, [0], 1)
        with serial_loops(ctx, (size, size), "copy") as (row, column):
            stmts.store(matrix, [row, column], tb.cast(data.read([*at, row, column]), dtype))
        with stmts.loop(size, "step") as step:
            place = stmts.filled("place", 1, "int32", step)
            with stmts.loop(size, "row") as row, stmts.when(tb.binary("gt", row, step)):
                best = tb.clamp(tb.load(place, [0]), 0, size - 1)
                sizes = (tb.intrinsic("fabs", tb.load(matrix, [other, step])) for other in (row, best))
                with stmts.when(tb.binary("gt", *sizes)):
                    stmts.store(place, [0], row)
            pivot = stmts.let("pivot", tb.clamp(tb.load(place, [0]), 0, size - 1))
            with stmts.when(tb.binary("ne", pivot, step)):
                with stmts.loop(size, "column") as column:
                    held = stmts.let("held", tb.load(matrix, [step, column]))
                    stmts.store(matrix, [step, column], tb.load(matrix, [pivot, column]))
                    stmts.store(matrix, [pivot, column], held)
                stmts.store(product, [0], tb.const(0, dtype) - tb.load(product, [0]))
            largest = stmts.let("largest", tb.load(matrix, [step, step]))
            stmts.store(product, [0], tb.load(product, [0]) * largest)
            with stmts.when(tb.binary("ne", largest, tb.const(0, dtype))):
                with stmts.loop(size, "row") as row, stmts.when(tb.binary("gt", row, step)):
                    factor = stmts.let("factor", tb.load(matrix, [row, step]) / largest)
                    with stmts.loop(size, "column") as column:
                        rest = tb.load(matrix, [row, column]) - factor * tb.load(matrix, [step, column])
                        stmts.store(matrix, [row, column], rest)
        out.store(at, tb.cast(tb.load(product, [0]), out.dtype))


declare("linalg.det", 1, _infer, Kind.REDUCE, emit=_emit, contract="as LAPACK's order of elimination gives it",
        traits=Trait.NOT_IN_TVM, doc="Determinants of square matrices")  # fmt: skip
