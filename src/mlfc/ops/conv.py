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
from mlfc.kernels.geometry import Conv
from mlfc.ops.rules import check_dtype, declare, optional_dtype, same_extent
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind, Trait
from mlfc.support import dims
from mlfc.support.dims import Dim, bounds
from mlfc.tir.context import Context, Output, Tensor


def conv_attrs(rank: int) -> tuple[Attr, ...]:
    """Return the attributes of a convolution over `rank` spatial dimensions."""
    letters = letters_of(rank)
    return (
        Attr("strides", (1,) * rank), Attr("padding", (0,) * max(rank, 2)), Attr("dilation", (1,) * rank),
        Attr("groups", 1), Attr("channels", None), Attr("kernel_size", None),
        Attr("data_layout", f"NC{letters}"), Attr("kernel_layout", f"OI{letters}"),
        Attr("out_layout", ""), Attr("out_dtype", None),
    )  # fmt: skip


def transpose_attrs(rank: int) -> tuple[Attr, ...]:
    """Return the attributes of a transposed convolution over `rank` spatial dimensions."""
    letters = letters_of(rank)
    return (
        Attr("channels", None), Attr("kernel_size", None), Attr("strides", (1,) * rank),
        Attr("output_padding", (0,) * rank), Attr("padding", (0,) * rank), Attr("dilation", (1,) * rank),
        Attr("groups", 1), Attr("data_layout", f"NC{letters}"), Attr("kernel_layout", f"IO{letters}"),
        Attr("out_layout", ""), Attr("out_dtype", None),
    )  # fmt: skip


def named_sizes(name: str, what: str, shape: Sequence[int], layout: str, letters: str) -> dict[str, int]:
    """Return the extent of each letter of `layout`, which must be a permutation of `letters`."""
    if sorted(layout) != sorted(letters):
        raise TypeCheckError(f"{name}: {what} layout '{layout}' is not a permutation of {letters}")
    if len(shape) != len(letters):
        raise TypeCheckError(f"{name}: the {what} must have {len(letters)} dimensions, not {len(shape)}")
    return dict(zip(layout, shape, strict=True))


def per_dimension(name: str, what: str, value: Any, rank: int, low: int = 1) -> tuple[Any, ...]:
    """Return one integer a spatial dimension from an integer or a sequence of 1 or `rank` integers."""
    given = (value,) if isinstance(value, (int, Dim)) else tuple(value)
    given = given * rank if len(given) == 1 else given
    if len(given) != rank or any(not isinstance(item, (int, Dim)) or bounds(item)[1] < low for item in given):
        raise TypeCheckError(f"{name}: {what} {value} must be {rank} integers of at least {low}")
    return given


def pad_pairs(name: str, value: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """Return (before, after) a dimension from 1, `rank` or 2 * `rank` values (all befores first)."""
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


def conv_geometry(name: str, data: TensorType, weight: TensorType, attrs: Attrs) -> Conv:
    """Return the sizes of a convolution; raise TypeCheckError where types and attributes do not fit."""
    letters, sizes, kernel = _sizes(name, data, weight, attrs)
    rank, groups, channels = len(letters), attrs["groups"], sizes["C"]
    if is_depthwise_hwoi(attrs, channels):
        filters = kernel["O"] * kernel["I"]
    else:
        filters = kernel["O"]
        if kernel["I"] != channels // groups:
            raise TypeCheckError(
                f"{name}: the kernel takes {kernel['I']} input channels a group, the data has {channels // groups}"
            )
    if filters % groups:
        raise TypeCheckError(f"{name}: {filters} output channels cannot be split into {groups} groups")
    taps = tuple(kernel[letter] for letter in letters)
    _check_declared(name, attrs, filters, taps)
    conv = Conv(
        sizes["N"], tuple(sizes[letter] for letter in letters), channels, filters, taps,
        per_dimension(name, "strides", attrs["strides"], rank),
        per_dimension(name, "dilation", attrs["dilation"], rank),
        pad_pairs(name, attrs["padding"], rank), groups,
    )  # fmt: skip
    if any(dims.bounds(extent)[1] < 1 for extent in conv.output):
        raise TypeCheckError(f"{name}: the kernel of extent {conv.extents} does not fit the data of {conv.spatial}")
    return conv


def _check_declared(name: str, attrs: Attrs, filters: int, taps: tuple[int, ...]) -> None:
    if attrs["channels"] not in (None, filters):
        raise TypeCheckError(f"{name}: channels={attrs['channels']}, but the kernel makes {filters}")
    declared = attrs["kernel_size"]
    if declared is not None and per_dimension(name, "kernel_size", declared, len(taps)) != taps:
        raise TypeCheckError(f"{name}: kernel_size={declared}, but the kernel has {taps}")


def transpose_geometry(name: str, data: TensorType, weight: TensorType, attrs: Attrs) -> Conv:
    """Return the sizes of the forward convolution whose transpose this is.

    Its `spatial` is this operator's result and its `output` this operator's data; `channels` and
    `filters` are this operator's output and input channels.
    """
    letters, sizes, kernel = _sizes(name, data, weight, attrs)
    rank, groups, channels = len(letters), attrs["groups"], sizes["C"]
    if kernel["I"] != channels:
        raise TypeCheckError(f"{name}: the kernel takes {kernel['I']} input channels, the data has {channels}")
    made = kernel["O"] * groups
    taps = tuple(kernel[letter] for letter in letters)
    _check_declared(name, attrs, made, taps)
    strides = per_dimension(name, "strides", attrs["strides"], rank)
    dilation = per_dimension(name, "dilation", attrs["dilation"], rank)
    pads = pad_pairs(name, attrs["padding"], rank)
    if any(not dims.is_static(pair) for pair in pads):
        raise UnsupportedError(f"{name}: expected static padding, got {pads}")
    extra = per_dimension(name, "output_padding", attrs["output_padding"], rank, 0)
    if any(more >= max(stride, step) for more, stride, step in zip(extra, strides, dilation, strict=True)):
        raise TypeCheckError(f"{name}: output_padding {extra} must be smaller than the strides {strides}")
    spatial = tuple(
        (sizes[letter] - 1) * strides[d] - sum(pads[d]) + (taps[d] - 1) * dilation[d] + 1 + extra[d]
        for d, letter in enumerate(letters)
    )
    if any(dims.bounds(extent)[1] < 1 for extent in spatial):
        raise TypeCheckError(f"{name}: the padding {pads} leaves nothing of the result")
    return Conv(sizes["N"], spatial, made, channels, taps, strides, dilation, pads, groups)


def arranged(batch: int, channels: int, spatial: tuple[int, ...], attrs: Attrs) -> tuple[int, ...]:
    """Return the result's shape in ``out_layout`` (``data_layout`` where that is empty)."""
    letters = letters_of(len(spatial))
    layout = attrs["out_layout"] or attrs["data_layout"]
    if sorted(layout) != sorted(f"NC{letters}"):
        raise TypeCheckError(f"out_layout '{layout}' is not a permutation of NC{letters}")
    sizes = {"N": batch, "C": channels, **dict(zip(letters, spatial, strict=True))}
    return tuple(sizes[letter] for letter in layout)


Zeros: TypeAlias = "tuple[int, int | npt.NDArray[np.int32]]"
# (name, attributes, types of all arguments, output channels) -> dtype of the result
OperandRule = Callable[[str, Attrs, Sequence[TensorType], int], str]
ZerosRule = Callable[[str, Sequence[Tensor]], Zeros]

FLOAT_CONTRACT = "sum of products in a fixed order of its own; within K units of the last place of the absolute sum"


def like_operands(name: str, attrs: Attrs, types: Sequence[TensorType], _: int) -> str:
    """Return the dtype of the result of data and weights, which must be of one dtype."""
    data, weight = types[:2]
    if data.dtype != weight.dtype:
        raise TypeCheckError(f"{name}: data of {data.dtype} and weights of {weight.dtype}")
    check_dtype(name, data.dtype, "number")
    return optional_dtype(attrs["out_dtype"], data.dtype)


def no_zeros(_: str, __: Sequence[Tensor]) -> Zeros:
    """Return the zero points of what is not quantized."""
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
    contract: str = FLOAT_CONTRACT,
    **rest: Any,
) -> None:
    """Register a convolution over `rank` dimensions, or the transpose of one.

    `rest` are other fields of `mlfc.relay.op.Operator`.
    """
    geometry = transpose_geometry if transposed else conv_geometry

    def infer(_: str, attrs: Attrs, *types: TensorType) -> TensorType:
        if len(types[0].shape) != rank + 2:
            raise TypeCheckError(f"{name}: expected data of {rank + 2} dimensions, got {len(types[0].shape)}")
        conv = geometry(name, types[0], types[1], attrs)
        channels, spatial = (conv.channels, conv.spatial) if transposed else (conv.filters, conv.output)
        dtype = check(name, attrs, types, channels)
        return TensorType(arranged(conv.batch, channels, spatial, attrs), dtype)

    def emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
        check_channels_last(name, attrs, rank)
        data, weight = inputs[:2]
        runtime_tensor = weight if weight.value is None else None
        value = np.arange(prod(weight.shape)).reshape(weight.shape) if weight.value is None else weight.value
        conv = geometry(name, TensorType(data.shape, data.dtype), TensorType(weight.shape, weight.dtype), attrs)
        values = _transposed_weights(value, attrs) if transposed else ordered_weights(value, attrs, conv)
        data_zero, zero = zeros(name, inputs)
        if runtime_tensor is not None and not isinstance(zero, int):
            raise UnsupportedError(
                f"{name} needs weights that are known at compile time where each filter has a zero point of its own",
                next_step="Make the weights initializers of the model, or quantize them with one zero point",
            )
        weights = templates.Weights(values, data_zero, zero, runtime_tensor)
        write = templates.transposed if transposed else templates.convolution
        write(ctx, conv, data.in_memory(ctx), weights, out)

    def macs(types: Sequence[TensorType], attrs: Attrs, _: TensorType) -> Any:
        return geometry(name, types[0], types[1], attrs).macs

    attrs = transpose_attrs(rank) if transposed else conv_attrs(rank)
    about = {"traits": Trait.TRANSPOSED} if transposed else {"windows": partial(conv_windows, name)}
    declare(name, num_inputs, infer, Kind.ANCHOR, attrs, emit=emit, takes_bias=True, macs=macs, slides=True,
            filters=_transposed_filters if transposed else conv_filters, contract=contract, doc=doc,
            **about, **rest)  # fmt: skip


def conv_windows(name: str, types: Sequence[TensorType], attrs: Attrs) -> list[tuple[int, int, int, int]]:
    """Return the window, step and padding of a convolution for each spatial dimension, as `Operator.windows`."""
    conv = conv_geometry(name, types[0], types[1], attrs)
    sizes = zip(conv.extents, conv.strides, conv.padding, strict=True)
    return [(extent, stride, *pads) for extent, stride, pads in sizes]


def conv_filters(types: Sequence[TensorType], attrs: Attrs) -> tuple[int, tuple[int, ...]]:
    """Return the axes of the result and of the weights that count output channels, as `Operator.filters`."""
    layout, channels = attrs["kernel_layout"], types[0].shape[attrs["data_layout"].index("C")]
    letters = "OI" if is_depthwise_hwoi(attrs, channels) else "O"
    return (attrs["out_layout"] or attrs["data_layout"]).index("C"), tuple(map(layout.index, letters))


def _transposed_filters(types: Sequence[TensorType], attrs: Attrs) -> tuple[int, tuple[int, ...]]:
    axis, axes = conv_filters(types, attrs)
    return axis, axes if attrs["groups"] == 1 else ()


def check_channels_last(name: str, attrs: Attrs, rank: int) -> None:
    """Refuse layouts that loops are not written for."""
    expected = f"N{letters_of(rank)}C"
    if attrs["data_layout"] != expected or attrs["out_layout"] not in ("", expected):
        raise UnsupportedError(
            f"{name} is lowered from the layout {expected}, not {attrs['data_layout']}",
            next_step="Run the pass ConvertLayout first",
        )


def ordered_weights(weight: Any, attrs: Attrs, conv: Conv) -> Any:
    """Return the weights as (kernel..., group channels, filters), filters of one group together."""
    letters = letters_of(len(conv.kernel))
    layout = attrs["kernel_layout"]
    if is_depthwise_hwoi(attrs, conv.channels):
        order = [layout.index(letter) for letter in f"{letters}OI"]
        return weight.transpose(order).reshape(*conv.kernel, 1, conv.filters)
    return weight.transpose([layout.index(letter) for letter in f"{letters}IO"])


def _transposed_weights(weight: Any, attrs: Attrs) -> Any:
    """Return the weights of a transposed convolution as (kernel..., input channels, group's output channels)."""
    layout = attrs["kernel_layout"]
    order = [layout.index(letter) for letter in f"{letters_of(len(layout) - 2)}IO"]
    return weight.transpose(order)


for _rank in (1, 2, 3):
    _dimensions = f"{_rank} dimension{'s' * (_rank > 1)}"
    _doc = f"Convolution over {_dimensions}, with stride, dilation, padding and groups."
    declare_conv(f"nn.conv{_rank}d", _rank, _doc)
    declare_conv(f"nn.conv{_rank}d_transpose", _rank, f"Transposed convolution over {_dimensions}.", transposed=True)
