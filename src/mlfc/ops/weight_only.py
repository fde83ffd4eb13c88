"""Quantized weights of 8 bits or less, with float data.

A weight is ``scale * (code - zero_point)``. Scales and zero points are per tensor, per output channel, or per block of
successive weights of an output channel. The codes stay packed in memory; kernels unpack them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.kernels import templates
from mlfc.kernels.codes import WeightCodes, code_at, pack_codes, unsigned_codes
from mlfc.ops.conv import (
    FLOAT_CONTRACT,
    check_channels_last,
    conv_geometry,
    declare_conv,
    declare_product,
    dense_filters,
    ordered_weights,
)
from mlfc.ops.indexing import check_indices, in_bounds
from mlfc.ops.rules import Element, check_choice, declare, normalized_axis, replaced, same_shape
from mlfc.relay import ir as relay
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Reader, Tensor
from mlfc.tir.intrinsics import conversions
from mlfc.tir.ir import Expr

STORED = ("int8", "uint8", *dtypes.NARROW_INTEGERS)
_BLOCK = Attr("block_size", 0)
_CONTRACT = f"weights as they are dequantized; {FLOAT_CONTRACT}"


def blocks_of(extent: int, block: int) -> int:
    """Return the number of blocks of `block` elements along an axis, or one if `block` is 0."""
    return -(-extent // block) if block else 1


def _check_codes(name: str, attrs: Attrs, codes: TensorType, scale: TensorType, zero_point: TensorType) -> None:
    check_choice(name, "weights of", codes.dtype, STORED)
    check_choice(name, "scale of", scale.dtype, ("float32",))
    check_choice(name, "zero point of", zero_point.dtype, ("int32", "float32"))
    block = attrs.get("block_size", 0)
    if not isinstance(block, int) or block < 0:
        raise TypeCheckError(f"{name}: expected a block_size of at least 0, got {block}")


def _infer_unpack(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_choice(name, "out_dtype", attrs["out_dtype"], dtypes.NARROW_INTEGERS)
    extent, per_byte = attrs["extent"], 8 // dtypes.bits(attrs["out_dtype"])
    if data.dtype != "uint8" or not data.shape or not isinstance(extent, int):
        raise TypeCheckError(f"{name}: expected bytes of at least one dimension, got {data}")
    if not 0 <= extent <= data.shape[-1] * per_byte:
        raise TypeCheckError(f"{name}: {data.shape[-1]} bytes hold {data.shape[-1] * per_byte} numbers, not {extent}")
    return TensorType((*data.shape[:-1], extent), attrs["out_dtype"])


def _unpack(of: Element, data: Tensor) -> Expr:
    bits = dtypes.bits(of.out.dtype)
    byte = data.read([*of.at[:-1], of.at[-1] // (8 // bits)])
    return tb.cast(code_at(byte, of.at[-1] % (8 // bits), bits) & ((1 << bits) - 1), "uint8")


def _infer_blocks(name: str, attrs: Attrs, data: TensorType, scale: TensorType, zero_point: TensorType) -> TensorType:
    _check_codes(name, attrs, data, scale, zero_point)
    axis = normalized_axis(name, attrs["axis"], len(data.shape))
    expected = replaced(data.shape, axis, blocks_of(data.shape[axis], attrs["block_size"]))
    for kind in (scale, zero_point):
        if kind.shape and not data.is_static and len(kind.shape) == len(expected):
            same_shape(name, kind.shape, expected)
        elif kind.shape not in (expected, ()):
            raise TypeCheckError(f"{name}: expected scales and zero points of {expected}, got {kind.shape}")
    return TensorType(data.shape, "float32")


def _of_block(of: Element, numbers: Tensor, axis: int) -> Expr:
    if not numbers.shape:
        return numbers.read([])
    block = of.attrs["block_size"]
    return numbers.read([*of.at[:axis], of.at[axis] // block if block else tb.const(0), *of.at[axis + 1 :]])


def _dequantize_blocks(of: Element, data: Tensor, scale: Tensor, zero_point: Tensor) -> Expr:
    axis = of.attrs["axis"] % len(data.shape)
    stored, zero = data.read(of.at), _of_block(of, zero_point, axis)
    whole = conversions.widened(stored, data.dtype) if dtypes.is_narrow(data.dtype) else tb.cast(stored, "int32")
    return _real(whole, zero) * _of_block(of, scale, axis)


def _real(code: Expr, zero: Expr) -> Expr:
    return tb.cast(code, "float32") - zero if zero.dtype == "float32" else tb.cast(code - zero, "float32")


def _unpack_in_tvm(args: Sequence[relay.Expr], _: Attrs, out: TensorType) -> relay.Expr | None:
    if not out.is_static:
        return None
    bits, is_signed = dtypes.bits(out.dtype), out.dtype.startswith("i")
    shifts = relay.const(np.arange(0, 8, bits, dtype=np.uint8))
    parts = relay.call("right_shift", [relay.call("expand_dims", [args[0]], axis=-1), shifts])
    codes = relay.call(
        "cast", [relay.call("bitwise_and", [parts, relay.const((1 << bits) - 1, "uint8")])], dtype="int8"
    )
    if is_signed:  # the highest bit is the sign
        high = relay.const(1 << (bits - 1), "int8")
        codes = relay.call("subtract", [relay.call("bitwise_xor", [codes, high]), high])
    codes = relay.call("reshape", [codes], newshape=(*out.shape[:-1], -1))
    codes = relay.call("strided_slice", [codes], begin=(0,), end=out.shape[-1:], strides=(1,), axes=(-1,))
    return relay.call("cast", [codes], dtype=out.dtype)


def _blocks_in_tvm(args: Sequence[relay.Expr], axis: int, block: int) -> relay.Expr | None:
    kinds = [relay.tensor_type(arg) for arg in args]
    if not kinds[0].is_static:
        return None
    numbers = [relay.call("cast", [arg], dtype="float32") for arg in args]
    if block:
        end = kinds[0].shape[axis]
        for index, kind in enumerate(kinds[1:], 1):
            if kind.shape:
                spread = relay.call("repeat", [numbers[index]], repeats=block, axis=axis)
                numbers[index] = relay.call(
                    "strided_slice", [spread], begin=(0,), end=(end,), strides=(1,), axes=(axis,)
                )
    data, scale, zero = numbers
    return relay.call("multiply", [relay.call("subtract", [data, zero]), scale])


def _known(name: str, inputs: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    if any(tensor.value is None for tensor in inputs):
        raise UnsupportedError(f"{name} requires weights, scales and zero points that are known at compile time")
    return [tensor.array() for tensor in inputs]


def _codes(
    codes: Tensor, scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], shape: Sequence[int], block: int
) -> WeightCodes:
    """Return the weights of codes, given scales and zero points that broadcast to `shape`, (filters, blocks)."""
    zero = zero_point - zero_point.dtype.type(dtypes.limits(codes.dtype)[0])
    spread = [np.ascontiguousarray(np.broadcast_to(part, shape).T) for part in (scale, zero)]
    return WeightCodes(dtypes.bits(codes.dtype), spread[0], spread[1], block)


def _fits(name: str, kind: TensorType, shape: Sequence[int]) -> None:
    """Refuse scales and zero points that do not broadcast to `shape`."""
    is_like = len(kind.shape) == len(shape)
    if not is_like or any(own not in (1, all_) for own, all_ in zip(kind.shape, shape, strict=True)):
        raise TypeCheckError(f"{name}: expected scales and zero points that fit {tuple(shape)}, got {kind.shape}")


def _check_operands(name: str, attrs: Attrs, data: TensorType, codes: TensorType, *pair: TensorType) -> None:
    _check_codes(name, attrs, codes, *pair)
    check_choice(name, "data of", data.dtype, ("float32",))
    for kind in (data, codes):
        if kind.size == 0:
            raise TypeCheckError(f"{name}: expected tensors with elements, got {kind}")


def _check_pair(name: str, attrs: Attrs, types: Sequence[TensorType], channels: int) -> str:
    """Check the shapes of scales and zero points of a product; return the dtype of the result."""
    blocks = (blocks_of(types[1].shape[1], attrs["block_size"]),) if "block_size" in attrs else ()
    for kind in types[2:]:
        _fits(name, kind, (channels, *blocks))
    return "float32"


def _emit_dense(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    values, scale, zero_point = _known("qnn.weight_only_dense", inputs[1:])
    units, inner = values.shape
    block = attrs["block_size"]
    codes = _codes(inputs[1], scale, zero_point, (units, blocks_of(inner, block)), block or inner)
    weights = templates.Weights(unsigned_codes(values, inputs[1].dtype).T, codes=codes)
    templates.emit("packed_dense", ctx, inputs[0].in_memory(ctx), weights, out)


def _emit_conv(name: str, rank: int, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    check_channels_last(name, attrs, rank)
    data, codes = inputs[:2]
    values, scale, zero_point = _known(name, inputs[1:])
    conv = conv_geometry(name, TensorType(data.shape, data.dtype), TensorType(codes.shape, codes.dtype), attrs)
    ordered = ordered_weights(unsigned_codes(values, codes.dtype), attrs, conv)
    stand_for = _codes(codes, scale[:, None], zero_point[:, None], (conv.filters, 1), conv.group_channels)
    templates.emit(
        "packed_convolution", ctx, conv, data.in_memory(ctx), templates.Weights(ordered, codes=stand_for), out
    )


def _infer_take(name: str, attrs: Attrs, codes: TensorType, indices: TensorType, *pair: TensorType) -> TensorType:
    _check_codes(name, attrs, codes, *pair)
    check_indices(name, indices)
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise TypeCheckError(f"{name}: expected a table of 2 dimensions, got {codes.shape}")
    for kind in pair:
        _fits(name, kind, (codes.shape[0], blocks_of(codes.shape[1], attrs["block_size"])))
    return TensorType((*indices.shape, codes.shape[1]), "float32")


def _take(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, _: TensorType) -> Reader:
    codes, indices = inputs[:2]
    values, scale, zero_point = _known("qnn.weight_only_take", (codes, *inputs[2:]))
    bits, low, (rows, width) = dtypes.bits(codes.dtype), dtypes.limits(codes.dtype)[0], values.shape
    packed = pack_codes(unsigned_codes(values, codes.dtype), bits)
    zero = np.asarray(zero_point - zero_point.dtype.type(low))
    block = attrs["block_size"] or width

    def of_row(label: str, numbers: npt.NDArray[Any], row: Expr, column: Expr) -> Expr:
        if np.all(numbers == numbers.flat[0]):
            return tb.const(numbers.flat[0].item(), dtypes.from_numpy(numbers.dtype))
        place = [row if numbers.shape[0] > 1 else tb.const(0), column // block if numbers.shape[1] > 1 else tb.const(0)]
        return tb.load(ctx.constant(label, numbers), place)

    def read(at: Indices) -> Expr:
        *leading, column = at
        row = in_bounds(indices.read(leading), rows, "clip")
        byte = tb.load(ctx.constant("weights", packed), [row, column // (8 // bits)])
        code, own_zero = code_at(byte, column % (8 // bits), bits), of_row("zero", zero, row, column)
        return _real(code, own_zero) * of_row("scale", scale, row, column)

    return read


declare("qnn.unpack", 1, _infer_unpack, Kind.INJECTIVE, (Attr("out_dtype"), Attr("extent")), _unpack, takes_narrow=True,
        in_tvm=_unpack_in_tvm, traits=Trait.NOT_IN_TVM,
        doc="Numbers of 4 or 2 bits unpacked from bytes, lowest bits first.")  # fmt: skip
declare("qnn.dequantize_blocks", 3, _infer_blocks, Kind.INJECTIVE, (Attr("axis", -1), _BLOCK), _dequantize_blocks,
        takes_narrow=True, contract="exact in float32 arithmetic", traits=Trait.PRODUCT | Trait.NOT_IN_TVM,
        in_tvm=lambda args, attrs, _: _blocks_in_tvm(args, attrs["axis"], attrs["block_size"]),
        doc="Integers to the real numbers that they represent, with a scale for each block along an axis.",
        )  # fmt: skip
declare_product("qnn.weight_only_dense", "nn.dense of float data with weights that stay packed in 8, 4 or 2 bits.",
                num_inputs=4, attrs=(Attr("units", REQUIRED), _BLOCK), before=_check_operands, check=_check_pair,
                emit=_emit_dense, takes_narrow=True, contract=_CONTRACT, packed_of="nn.dense",
                traits=Trait.NOT_IN_TVM, filters=dense_filters)  # fmt: skip
declare("qnn.weight_only_take", 4, _infer_take, Kind.INJECTIVE, (_BLOCK,), compute=_take, takes_narrow=True,
        contract="exact in float32 arithmetic", packed_of="take",
        traits=Trait.PRODUCT | Trait.PICK | Trait.NOT_IN_TVM,
        doc="Rows of a table that stays packed in 8, 4 or 2 bits, as real numbers.")  # fmt: skip
for _rank in (1, 2, 3):
    _name, _of = f"qnn.weight_only_conv{_rank}d", f"nn.conv{_rank}d"
    declare_conv(_name, _rank, f"{_of} of float data with weights that stay packed in 8, 4 or 2 bits.", num_inputs=4,
                 before=_check_operands, check=_check_pair, emit=partial(_emit_conv, _name, _rank), takes_narrow=True,
                 contract=_CONTRACT, packed_of=_of,
                 traits=Trait.NOT_IN_TVM)  # fmt: skip
