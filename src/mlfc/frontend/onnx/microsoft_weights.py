"""Operators of ONNX Runtime's own domain whose weights are of 2, 4 or 8 bits, with a scale a block."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.index import wrapped_indices
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.quantized import blocks_dequantized
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.kernels.codes import unpack_codes
from mlfc.relay.ir import Constant, Expr
from mlfc.support import dtypes

Array = npt.NDArray[Any]

_UNSIGNED = {2: "uint2", 4: "uint4", 8: "uint8"}
_FLOATS = ("float32", "float16", "bfloat16")


def _width(node: Node) -> str:
    """Return the dtype of the numbers that bytes hold."""
    bits = node.integer("bits", 4)
    if bits not in _UNSIGNED:
        node.unsupported(f"with bits={bits} is not supported", "Quantize the weights to 2, 4 or 8 bits")
    return _UNSIGNED[bits]


def _block(node: Node, default: int | None = None) -> int:
    block = node.integer("block_size", default)
    if block < 16 or block & (block - 1):
        node.wrong(f"expected a block_size that is a power of 2 and at least 16, got {block}")
    return block


def _numbers(packed: Array, dtype: str, extent: int) -> Array:
    """Return the first numbers of each row of bytes."""
    found = unpack_codes(packed, dtypes.bits(dtype), extent)
    return found if dtype == "uint8" else found.view(dtypes.to_numpy(dtype))


def _named(node: Node, index: int, values: Array) -> Constant:
    """Return a constant under the name of an input."""
    given = node.input(index)
    return Constant(values, given.name if isinstance(given, Constant) else None, given.span)


def _expect(node: Node, what: str, given: tuple[int, ...], *expected: tuple[int, ...]) -> None:
    if given not in expected:
        node.wrong(f"expected {what} of shape {' or '.join(map(str, expected))}, got {given}")


@importer("MatMulNBits", ignores=("accuracy_level",), domain=MICROSOFT)
def _matmul_of_bits(node: Node) -> Expr:
    dtype, block, inner, units = _width(node), _block(node), node.integer("K"), node.integer("N")
    if inner < 1 or units < 1 or not node.rank(0) or node.shape(0)[-1] != inner:
        node.wrong(f"data of shape {node.shape(0)} do not fit K={inner} and N={units}")
    if dtype_of(node.input(0)) not in _FLOATS:
        node.wrong(f"expected data of {', '.join(_FLOATS)}, got {dtype_of(node.input(0))}")
    packed, blocks = node.value(1, "B"), -(-inner // block)
    row_bytes = block * dtypes.bits(dtype) // 8
    _expect(node, "B", packed.shape, (units, blocks, row_bytes))
    if packed.dtype != np.uint8:
        node.wrong(f"expected B of uint8, got {dtype_of(node.input(1))}")
    _check_order(node, inner, block)
    codes = _named(node, 1, _numbers(packed.reshape(units, -1), dtype, inner))
    scales = node.value(2, "scales")
    _expect(node, "scales", scales.shape, (units * blocks,), (units, blocks))
    zero = _zero_points(node, dtype, (units, blocks))
    pair = _named(node, 2, scales.reshape(units, blocks)), zero
    weights = blocks_dequantized(node, codes, pair, 1, block)
    data = node.cast(node.input(0), "float32")
    result = node.call("nn.dense", data, weights, units=units)
    if node.has(5):
        _expect(node, "bias", node.shape(5), (units,))
        axis = len(shape_of(result)) - 1
        result = node.call("nn.bias_add", result, node.cast(node.input(5), "float32"), axis=axis)
    return node.cast(result, dtype_of(node.input(0)))


def _check_order(node: Node, inner: int, block: int) -> None:
    """Refuse columns whose blocks are not successive ones."""
    if node.has(4):
        order = node.value(4, "g_idx")
        if order.shape != (inner,) or np.any(order != np.arange(order.size) // block):
            node.unsupported("with a g_idx that is not in order is not supported", "Sort the columns by their group")
        if node.has(3):  # which ONNX Runtime then does not read
            node.unsupported("with both a g_idx and zero points is not supported", "Remove the g_idx: it is in order")


def _zero_points(node: Node, dtype: str, shape: tuple[int, int]) -> Array | np.int32:
    """Return the zero points of MatMulNBits: packed bytes, or numbers like the data."""
    bits = dtypes.bits(dtype)
    if not node.has(3):
        return np.int32(1 << (bits - 1))
    given, (units, blocks) = node.value(3, "zero_points"), shape
    if given.dtype != np.uint8:
        if node.dtype(3) not in _FLOATS:
            node.wrong(f"expected zero points of uint8 or like the data, got {node.dtype(3)}")
        _expect(node, "zero points", given.shape, (units * blocks,), shape)
        return given.reshape(shape).astype(np.float32)
    row_bytes = -(-blocks * bits // 8)
    _expect(node, "zero points", given.shape, (units * row_bytes,), (units, row_bytes))
    return unpack_codes(given.reshape(units, row_bytes), bits, blocks).astype(np.int32)


@importer("GatherBlockQuantized", domain=MICROSOFT)
def _gather_of_bits(node: Node) -> Expr:
    block, bits = _block(node, 128), node.integer("bits", 4)
    data, dtype = node.value(0, "data"), node.dtype(0)
    axis, along = (node.axis(node.integer(name, default), data.ndim) for name, default in _AXES)
    is_packed = dtype == "uint8" and bits < 8
    if is_packed:
        dtype = _width(node)
        if along != data.ndim - 1:
            node.wrong(f"quantize_axis of packed bytes must be the last one, {data.ndim - 1}, not {along}")
        data = _numbers(data, dtype, data.shape[-1] * 8 // bits)
    elif dtype not in ("int4", "uint4", "uint8"):
        node.unsupported(f"of {dtype} is not supported", "int4, uint4 and uint8 are supported")
    scales = node.value(2, "scales")
    expected = tuple(-(-extent // block) if at == along else extent for at, extent in enumerate(data.shape))
    _expect(node, "scales", scales.shape, expected)
    zero: Array | np.int32 = np.int32(1 << (bits - 1) if node.dtype(0) == "uint8" else 0)
    if node.has(3):
        given = node.value(3, "zero_points")
        if is_packed:
            _expect(node, "zero points", given.shape, (*expected[:-1], -(-expected[-1] * bits // 8)))
            given = unpack_codes(given, bits, expected[-1])
        _expect(node, "zero points", given.shape, expected)
        zero = given.astype(np.int32)
    table = blocks_dequantized(node, _named(node, 0, data), (_named(node, 2, scales), zero), along, block)
    indices = wrapped_indices(node, node.input(1), data.shape[axis])
    return node.cast(node.call("take", table, indices, axis=axis, mode="clip"), dtype_of(node.input(2)))


_AXES = (("gather_axis", 0), ("quantize_axis", 1))
