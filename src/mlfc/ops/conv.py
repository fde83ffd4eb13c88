"""Convolutions and transposed convolutions over one to three dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.geometry import Conv
from mlfc.ops import conv_types
from mlfc.ops.elementwise import check_dtype
from mlfc.ops.rules import tensors
from mlfc.relay.ir import TensorType, Type
from mlfc.relay.op import OPERATORS, Kind, Operator
from mlfc.tir.context import Context, Output, Tensor

Attrs = Mapping[str, Any]


def operands(name: str, types: Sequence[Type]) -> tuple[TensorType, TensorType]:
    """Return data and weight types, which must be of one dtype."""
    data, weight = tensors(name, types)[:2]
    if data.dtype != weight.dtype:
        raise TypeCheckError(f"{name}: data of {data.dtype} and weights of {weight.dtype}")
    check_dtype(name, data.dtype, "number")
    return data, weight


def _infer_conv(name: str, rank: int) -> Any:
    def infer(types: list[Type], attrs: Attrs) -> TensorType:
        data, weight = operands(name, types)
        check_rank(name, data, rank)
        conv = conv_types.conv_geometry(name, data, weight, attrs)
        shape = conv_types.arranged(conv.batch, conv.filters, conv.output, attrs)
        return TensorType(shape, conv_types.result_dtype(attrs, data.dtype))

    return infer


def _infer_transpose(name: str, rank: int) -> Any:
    def infer(types: list[Type], attrs: Attrs) -> TensorType:
        data, weight = operands(name, types)
        check_rank(name, data, rank)
        conv = conv_types.transpose_geometry(name, data, weight, attrs)
        shape = conv_types.arranged(conv.batch, conv.channels, conv.spatial, attrs)
        return TensorType(shape, conv_types.result_dtype(attrs, data.dtype))

    return infer


def check_rank(name: str, data: TensorType, rank: int) -> None:
    """Raise TypeCheckError unless the data has `rank` spatial dimensions."""
    if len(data.shape) != rank + 2:
        raise TypeCheckError(f"{name}: the data must have {rank + 2} dimensions, not {len(data.shape)}")


def conv_macs(types: Sequence[Any], attrs: Attrs, _: Any) -> int:
    """Return the multiply-accumulates of a convolution."""
    return conv_types.conv_geometry("conv", types[0], types[1], attrs).macs


def transpose_macs(types: Sequence[Any], attrs: Attrs, _: Any) -> int:
    """Return the multiply-accumulates of a transposed convolution."""
    conv = conv_types.transpose_geometry("conv", types[0], types[1], attrs)
    data = types[0]
    return int(data.size * prod(conv.kernel) * conv.group_channels)


def constant_weights(name: str, weight: Tensor) -> Any:
    """Return the weights' value; templates pack it at compile time."""
    if weight.value is None:
        raise UnsupportedError(
            f"{name} needs weights that are known at compile time",
            next_step="Make the weights initializers of the model",
        )
    return weight.value


def channels_last(name: str, attrs: Attrs, rank: int) -> None:
    """Raise UnsupportedError unless data and result lie with channels last."""
    expected = f"N{conv_types.letters_of(rank)}C"
    if attrs["data_layout"] != expected or attrs["out_layout"] not in ("", expected):
        raise UnsupportedError(
            f"{name} is lowered from the layout {expected}, not {attrs['data_layout']}",
            next_step="Run the pass ConvertLayout first",
        )


def ordered_weights(weight: Any, attrs: Attrs, conv: Conv) -> Any:
    """Return the weights as (kernel..., group channels, filters), filters of one group together."""
    letters = conv_types.letters_of(len(conv.kernel))
    layout = attrs["kernel_layout"]
    if conv_types.is_depthwise_hwoi(attrs, conv.channels):
        order = [layout.index(letter) for letter in f"{letters}OI"]
        return weight.transpose(order).reshape(*conv.kernel, 1, conv.filters)
    return weight.transpose([layout.index(letter) for letter in f"{letters}IO"])


def transposed_weights(weight: Any, attrs: Attrs) -> Any:
    """Return the weights of a transposed convolution as (kernel..., input channels, group's output channels)."""
    layout = attrs["kernel_layout"]
    order = [layout.index(letter) for letter in f"{conv_types.letters_of(len(layout) - 2)}IO"]
    return weight.transpose(order)


def _emit_conv(name: str, rank: int) -> Any:
    def emit(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
        channels_last(name, attrs, rank)
        data, weight = inputs
        value = constant_weights(name, weight)
        conv = conv_types.conv_geometry(
            name, TensorType(data.shape, data.dtype), TensorType(value.shape, weight.dtype), attrs
        )
        packed = ordered_weights(value, attrs, conv)
        templates.convolution(ctx, conv, data.in_memory(ctx), templates.Weights(packed), out)

    return emit


def _emit_transpose(name: str, rank: int) -> Any:
    def emit(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: Output) -> None:
        channels_last(name, attrs, rank)
        data, weight = inputs
        value = constant_weights(name, weight)
        conv = conv_types.transpose_geometry(
            name, TensorType(data.shape, data.dtype), TensorType(value.shape, weight.dtype), attrs
        )
        packed = transposed_weights(value, attrs)
        templates.transposed(ctx, conv, data.in_memory(ctx), templates.Weights(packed), out)

    return emit


FLOAT_CONTRACT = "sum of products in a fixed order of its own; within K units of the last place of the absolute sum"

for _rank in (1, 2, 3):
    _name = f"nn.conv{_rank}d"
    OPERATORS.add(
        _name,
        Operator(
            _name, 2, _infer_conv(_name, _rank), Kind.ANCHOR, conv_types.conv_attrs(_rank),
            emit=_emit_conv(_name, _rank), takes_bias=True, macs=conv_macs, contract=FLOAT_CONTRACT,
            doc=f"Convolution over {_rank} dimension{'s' * (_rank > 1)}, with stride, dilation, padding and groups.",
        ),
    )  # fmt: skip

for _rank in (1, 2):
    _name = f"nn.conv{_rank}d_transpose"
    OPERATORS.add(
        _name,
        Operator(
            _name, 2, _infer_transpose(_name, _rank), Kind.ANCHOR, conv_types.transpose_attrs(_rank),
            emit=_emit_transpose(_name, _rank), takes_bias=True, macs=transpose_macs, contract=FLOAT_CONTRACT,
            doc=f"Transposed convolution over {_rank} dimension{'s' * (_rank > 1)}.",
        ),
    )  # fmt: skip
