"""Convolutions and transposed convolutions over one to three dimensions: sizes, type rules, weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.templates import Conv
from mlfc.ops.rules import check_dtype, declare, optional_dtype, same_extent
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind, Trait
from mlfc.support.dims import Dim, bounds, is_static
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
