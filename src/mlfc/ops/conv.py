"""Convolutions and transposed convolutions over one to three dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.geometry import Conv
from mlfc.ops import conv_types
from mlfc.ops.rules import check_dtype, declare, optional_dtype
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Kind
from mlfc.tir.context import Context, Output, Tensor

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
) -> None:
    """Register a convolution over `rank` dimensions, or the transpose of one."""
    geometry = conv_types.transpose_geometry if transposed else conv_types.conv_geometry

    def infer(_: str, attrs: Attrs, *types: TensorType) -> TensorType:
        if len(types[0].shape) != rank + 2:
            raise TypeCheckError(f"{name}: expected data of {rank + 2} dimensions, got {len(types[0].shape)}")
        conv = geometry(name, types[0], types[1], attrs)
        channels, spatial = (conv.channels, conv.spatial) if transposed else (conv.filters, conv.output)
        dtype = check(name, attrs, types, channels)
        return TensorType(conv_types.arranged(conv.batch, channels, spatial, attrs), dtype)

    def emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
        _check_channels_last(name, attrs, rank)
        data, weight = inputs[:2]
        value = _constant_weights(name, weight)
        conv = geometry(name, TensorType(data.shape, data.dtype), TensorType(weight.shape, weight.dtype), attrs)
        values = _transposed_weights(value, attrs) if transposed else _ordered_weights(value, attrs, conv)
        weights = templates.Weights(values, *zeros(name, inputs))
        write = templates.transposed if transposed else templates.convolution
        write(ctx, conv, data.in_memory(ctx), weights, out)

    def macs(types: Sequence[TensorType], attrs: Attrs, _: TensorType) -> int:
        return geometry(name, types[0], types[1], attrs).macs

    attrs = conv_types.transpose_attrs(rank) if transposed else conv_types.conv_attrs(rank)
    declare(name, num_inputs, infer, Kind.ANCHOR, attrs, emit=emit, takes_bias=True, macs=macs, contract=contract,
            doc=doc)  # fmt: skip


def _constant_weights(name: str, weight: Tensor) -> Any:
    """Return the weights' value; templates pack it at compile time."""
    if weight.value is None:
        raise UnsupportedError(
            f"{name} needs weights that are known at compile time",
            next_step="Make the weights initializers of the model",
        )
    return weight.value


def _check_channels_last(name: str, attrs: Attrs, rank: int) -> None:
    expected = f"N{conv_types.letters_of(rank)}C"
    if attrs["data_layout"] != expected or attrs["out_layout"] not in ("", expected):
        raise UnsupportedError(
            f"{name} is lowered from the layout {expected}, not {attrs['data_layout']}",
            next_step="Run the pass ConvertLayout first",
        )


def _ordered_weights(weight: Any, attrs: Attrs, conv: Conv) -> Any:
    """Return the weights as (kernel..., group channels, filters), filters of one group together."""
    letters = conv_types.letters_of(len(conv.kernel))
    layout = attrs["kernel_layout"]
    if conv_types.is_depthwise_hwoi(attrs, conv.channels):
        order = [layout.index(letter) for letter in f"{letters}OI"]
        return weight.transpose(order).reshape(*conv.kernel, 1, conv.filters)
    return weight.transpose([layout.index(letter) for letter in f"{letters}IO"])


def _transposed_weights(weight: Any, attrs: Attrs) -> Any:
    """Return the weights of a transposed convolution as (kernel..., input channels, group's output channels)."""
    layout = attrs["kernel_layout"]
    order = [layout.index(letter) for letter in f"{conv_types.letters_of(len(layout) - 2)}IO"]
    return weight.transpose(order)


for _rank in (1, 2, 3):
    _dimensions = f"{_rank} dimension{'s' * (_rank > 1)}"
    _doc = f"Convolution over {_dimensions}, with stride, dilation, padding and groups."
    declare_conv(f"nn.conv{_rank}d", _rank, _doc)
    if _rank < 3:
        declare_conv(
            f"nn.conv{_rank}d_transpose", _rank, f"Transposed convolution over {_dimensions}.", transposed=True
        )
